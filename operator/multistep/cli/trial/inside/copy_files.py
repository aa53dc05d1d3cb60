"""Copies files out of a trial's container: tar in the container writes an archive, which this process unpacks."""

from __future__ import annotations

import posixpath
import tempfile
from pathlib import Path

from multistep.api.common.plural import plural
from multistep.cli.cluster import Cluster
from multistep.cli.terminal import bytes_text, print_err, working
from multistep.cli.trial.inside.container import CONTAINER, find_pod
from multistep.cli.trial.results.fetch import warn_left_out
from multistep.cli.trial.results.unpack import IN_MEMORY_BYTES, unpack
from multistep.errors import ClusterError, Unavailable, UsageError

_NOT_FOUND = (126, 127)  # exit codes that container runtimes and shells report for a program that does not exist


def parse_source(text: str) -> tuple[str, str]:
    """Parse ``TRIAL:PATH``; return the trial and the normalized path. Raises UsageError if the text has another form."""
    trial, colon, path = text.partition(":")
    if not trial or not colon or not path.startswith("/"):
        raise UsageError(f"{text} must be TRIAL:PATH with an absolute path, such as {trial or 'my-trial'}:/app")
    return trial, posixpath.normpath(path)


async def copy(cluster: Cluster, namespace: str, trial: str, path: str, directory: Path, max_mb: int) -> None:
    """Copy the file or directory ``path`` of a trial's container into ``directory``. max_mb: maximum size of the archive in
    megabytes; the container decides what it sends, and may never end. Raises UsageError if tar cannot read the path or sends more,
    StoreError if the files cannot be written, Unavailable if the connection breaks."""
    pod = await find_pod(cluster, namespace, trial)
    parent, name = posixpath.split(path)
    argv = ["tar", "-c", "-f", "-", "-C", parent, "--", name or "."]
    with working(f"copying {path} of trial {trial}"), tempfile.SpooledTemporaryFile(IN_MEMORY_BYTES) as file:
        stream = await cluster.open_exec(pod.namespace, pod.name, CONTAINER, argv)
        try:
            while data := await stream.receive():
                if file.tell() + len(data) > max_mb * 1_000_000:
                    text = f"{path} of trial {trial} has more than {max_mb} MB, or never ends; nothing was copied"
                    raise UsageError(f"{text}: name a part of it, or give --max-mb")
                file.write(data)
        except ClusterError as error:
            raise Unavailable(f"the connection to the container broke: {error}") from error
        finally:
            await stream.close()
        code = stream.status.code if stream.status else None
        if code in _NOT_FOUND or "executable file not found" in stream.exit_details:
            raise UsageError(f"the image of trial {trial} has no tar: fetch what is stored with `multistep results {trial} DIR`")
        if code != 0:
            raise UsageError(f"tar in trial {trial} cannot read {path}: {stream.exit_details or f'exit code {code}'}")
        file.seek(0)
        unpacked = unpack(file, directory, compressed=False)
    warn_left_out(unpacked)
    print_err(f"{plural(unpacked.files, 'file')} ({bytes_text(unpacked.bytes)}) in {directory}")
