"""Follows the output of a trial by polling, for `multistep logs -f` and the dashboard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from multistep.api.trial.agent_names import BUILT_IN
from multistep.api.trial.conditions import is_finished
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import parse_status
from multistep.cli.cluster import Cluster, existing_trial, find_trial
from multistep.cli.exits import Gone
from multistep.cli.trial.logs.trial_output import RETRYABLE, Reader
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
    async for found in versions(cluster, namespace, name):
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


async def versions(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[Mapping[str, Any]]:
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
