"""The output of a trial's phases for the dashboard, as `multistep logs -f --tail 500` prints it on a terminal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from multistep.api.trial.conditions import is_finished
from multistep.cli.cluster import Cluster
from multistep.cli.trial.logs.follow_output import following
from multistep.cli.trial.logs.log_pieces import Wanted
from multistep.cli.trial.logs.print_logs import Escaped, Readable
from multistep.cli.trial.logs.trial_output import Reader

TAIL_LINES: Final = 500  # number of lines of each phase that the dashboard shows at first


async def output(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[bytes]:
    """Yield the trial's output, with control characters escaped, until the trial finishes. Raises MultistepError if the output
    cannot be read."""
    printed = bytearray()
    form = Readable(Escaped(printed.extend, titles=True))
    reader = Reader(cluster, namespace, Wanted(follow=True), form, TAIL_LINES)
    async for status in following(cluster, namespace, name, reader, lambda why: printed.extend(f"{why}\n".encode())):
        if is_finished(status):
            form.close()
        if printed:
            yield bytes(printed)
            printed.clear()
