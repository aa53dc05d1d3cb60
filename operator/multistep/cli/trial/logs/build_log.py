"""Shows the build logs of a trial's images, which the operator stores on its results volume."""

from __future__ import annotations

import asyncio

from multistep.api.trial.conditions import is_finished
from multistep.api.trial.image_status import ImageStatus
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_status
from multistep.cli.cluster import Cluster
from multistep.cli.trial.logs.follow_output import versions
from multistep.cli.trial.logs.log_pieces import BUILD, Piece
from multistep.cli.trial.logs.print_logs import Form
from multistep.cli.trial.outcome import outcome
from multistep.cli.trial.results.fetch import read_log
from multistep.errors import UsageError

_PART_BYTES = 256 * 1024
_PAUSE_SECONDS = 1.0


async def show_build_logs(cluster: Cluster, namespace: str, name: str, form: Form, *, follow: bool) -> None:
    """Show the build logs. follow: continue until all images exist or the trial finishes. Raises UsageError if no log exists."""
    offsets = dict[str, int]()
    async for found in versions(cluster, namespace, name):
        status = parse_status(found)
        for each in status.images:
            await _show_new(cluster, each, offsets, form)
        done = is_finished(status) or (status.images and all(each.image for each in status.images))
        if done or not follow:
            break
        await asyncio.sleep(_PAUSE_SECONDS)
    form.close()
    if not any(offsets.values()):
        raise UsageError(_nothing(name, status))


async def _show_new(cluster: Cluster, image: ImageStatus, offsets: dict[str, int], form: Form) -> None:
    if image.log is None:
        return
    offset = offsets.get(image.name, 0)
    while part := await read_log(cluster, image.log, offset, _PART_BYTES):
        form.start(Piece(1, 0, image.name, BUILD))
        form.show(part)
        offset += len(part)
    offsets[image.name] = offset


def _nothing(name: str, status: TrialStatus) -> str:
    if not status.images:
        found = outcome(status)
        return f"the cluster has built no image for trial {name}, which is {found.phase}: {found.why}"
    return f"no log is stored for the images of trial {name}: the registry had them already, or their logs have expired"
