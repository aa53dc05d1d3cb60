"""Show the wall time and CPU time of finished runs, and for how long their tests waited.

A test's CPU time is that of its own process and of the processes for which it waited. The time in which a cluster works for a test,
or in which no core is free, counts as waiting.
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hack import load
from hack.lanes import NAME_WIDTH, Ended

_SHOWN = 10
_STARTED, _BUSY = time.monotonic(), load.busy_seconds()


def table(ended: Iterable[Ended]) -> Iterator[str]:
    """Yield lines of a table with the seconds of each run.

    The column "tests" is the sum over all tests, of which several run at once. "waiting" is the part of this sum in which the tests
    used no CPU. "apart" is the run's CPU time outside of tests, such as that of imports.
    """
    yield f"    {'run':<{NAME_WIDTH}}  {'wall s':>7}  {'CPU s':>7}  {'tests s':>7}  {'waiting':>7}  {'apart':>7}"
    for each in ended:
        tests, cpu = sum(each.outcomes.seconds.values()), sum(each.outcomes.cpu.values())
        of_tests = f"  {tests:7.1f}  {max(0.0, tests - cpu):7.1f}  {max(0.0, each.cpu - cpu):7.1f}" if tests else ""
        yield f"    {each.run.name:<{NAME_WIDTH}}  {each.seconds:7.1f}  {each.cpu:7.1f}{of_tests}"


def machine() -> str:
    """Return a line of the table with the machine's CPU time since this program started, for the runs and for the cluster."""
    seconds, busy, cores = time.monotonic() - _STARTED, load.busy_seconds() - _BUSY, len(os.sched_getaffinity(0))
    share = f"{busy / (seconds * cores):.0%} of {cores} cores, with the cluster and all else"
    return f"    {'machine':<{NAME_WIDTH}}  {seconds:7.1f}  {busy:7.1f}  {share}"


def most_costly(ended: Sequence[Ended]) -> Iterator[str]:
    """Yield lines with the tests that used the most CPU, and with those that waited longest."""
    seconds, cpu = _merged(each.outcomes.seconds for each in ended), _merged(each.outcomes.cpu for each in ended)
    yield from _first("seconds of CPU", cpu)
    yield from _first("seconds of waiting", {test: seconds[test] - cpu[test] for test in seconds})


def _merged(found: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return {test: number for each in found for test, number in each.items()}


def _first(title: str, numbers: Mapping[str, float]) -> Iterator[str]:
    yield f"    the tests with the most {title}"
    for test in sorted(numbers, key=lambda each: -numbers[each])[:_SHOWN]:
        yield f"    {numbers[test]:6.1f}  {test}"
