"""The output of a trial's phases for the dashboard: what `multistep logs -f` shows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from multistep.api.conditions import is_finished
from multistep.api.trial import parse_status
from multistep.cli.cluster import Cluster, existing_trial
from multistep.cli.trial.logs import is_hosted
from multistep.cli.trial.pieces import Wanted
from multistep.cli.trial.printing import Escaped
from multistep.cli.trial.trial_output import LATER, Reader
from multistep.errors import UsageError

TAIL_LINES: Final = 500  # of each phase, at first
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 5.0


async def output(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[bytes]:
    """Yield the trial's output, with control characters escaped, until the trial finishes. Raises ClusterError, UsageError."""
    printed = bytearray()
    form = Escaped(printed.extend, titles=True)
    reader = Reader(cluster, namespace, Wanted(follow=True), form, TAIL_LINES)
    pause, refused = _PAUSE_SECONDS, False
    while True:
        trial = await existing_trial(cluster, namespace, name)
        status = parse_status(trial)
        finished = is_finished(status)
        try:
            if finished or not refused:
                await reader.show_new(status, hosted=is_hosted(trial))
        except LATER:  # the pod starts or ends
            if finished:
                raise
        except UsageError as error:
            if finished:
                raise
            printed += f"{error}\n".encode()
            refused = True
        if finished:
            form.close()
        pause = _PAUSE_SECONDS if printed else min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
        if printed:
            yield bytes(printed)
            printed.clear()
        if finished:
            return
        await asyncio.sleep(pause)
