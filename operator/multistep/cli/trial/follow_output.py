"""Follows the output of a trial by polling, for `multistep logs -f` and the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from multistep.api.trial.status import ImageStatus, TrialStatus, is_finished
from multistep.api.trial.trial import parse_status
from multistep.api.trial.values import BUILT_IN
from multistep.cli.trial.output_formats import BUILD, Form, Piece
from multistep.cli.trial.read_output import RETRYABLE, Reader
from multistep.client.connection import Cluster
from multistep.client.objects import existing_trial, find_trial
from multistep.client.outcome import outcome
from multistep.client.results.fetch import read_log
from multistep.client.watch import Gone
from multistep.errors import Unavailable, UsageError

_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 5.0
_PATIENCE_SECONDS: Final = 120.0  # timeout for an API server that does not answer


async def following(
    cluster: Cluster, namespace: str, name: str, reader: Reader, refused: Callable[[str], object]
) -> AsyncIterator[TrialStatus]:
    """Show new output at each poll, then yield the trial's status; the last status is that of the finished trial.

    Retry after errors while the pod starts or terminates; never show output twice.

    refused: called with the reason if the output can be read only after the trial finishes. Raises Gone if the trial is deleted
    before it finishes, UsageError if the output cannot be read, ClusterError if the API server rejects a request.
    """
    allowed, pause = True, _PAUSE_SECONDS
    async for found in polled(cluster, namespace, name):
        status = parse_status(found)
        before, finished = reader.shown, is_finished(status)
        try:
            if finished or allowed:
                await reader.show_new(status, hosted=is_hosted(found))
        except RETRYABLE:
            if finished:
                raise
        except UsageError as error:
            if finished:
                raise
            refused(str(error))
            allowed = False
        yield status
        if finished:
            return
        pause = _PAUSE_SECONDS if reader.shown > before else min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
        await asyncio.sleep(pause)


def is_hosted(trial: Mapping[str, Any]) -> bool:
    """Report whether the agent host runs the trial's agent."""
    return trial["spec"]["agent"].get("name") not in BUILT_IN


async def polled(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any]]:
    """Yield the trial at each poll; while the API server is unavailable for a short time, yield the last known version.

    Raises UsageError if the trial does not exist, Gone if it is deleted, Unavailable if the API server is unavailable for more
    than _PATIENCE_SECONDS.
    """
    found = await existing_trial(cluster, namespace, name)
    uid, clock = found["metadata"]["uid"], asyncio.get_running_loop().time
    answered = clock()
    while True:
        yield found
        try:
            newer = await find_trial(cluster, namespace, name)
            answered = clock()
        except Unavailable:
            if clock() - answered > _PATIENCE_SECONDS:
                raise
            continue
        if newer is None or newer["metadata"]["uid"] != uid:
            raise Gone(f"trial {name} in namespace {namespace} was deleted before it finished")
        found = newer


_PART_BYTES = 256 * 1024
_BUILD_PAUSE_SECONDS = 1.0


async def show_build_logs(cluster: Cluster, namespace: str, name: str, form: Form, *, follow: bool) -> None:
    """Show the build logs. follow: continue until all images exist or the trial finishes. Raises UsageError if no log exists."""
    offsets = dict[str, int]()
    async for found in polled(cluster, namespace, name):
        status = parse_status(found)
        for each in status.images:
            await _show_new(cluster, each, offsets, form)
        done = is_finished(status) or (status.images and all(each.image for each in status.images))
        if done or not follow:
            break
        await asyncio.sleep(_BUILD_PAUSE_SECONDS)
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
