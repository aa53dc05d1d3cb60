"""Compare trials with idle pods. Both are measured in turn, so that other load of the machine affects both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from rich.table import Table

from multistep.kube.client import Client
from tests.bench.measure import Counters, counters, remove_trials, time_pods, time_trials

ROUNDS = 3
MAX_SHAPE_RATIO = 1.3  # maximum wall time of trials, relative to idle pods of the same shape
MAX_EXECS_PER_STEP = 1.0

Object = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """The trial and pods to measure. shape: a pod like a trial's pod; bare: a minimal pod; steps: the trial's step count."""

    trial: Object
    shape: Object
    bare: Object
    steps: int


@dataclass(frozen=True)
class Round:
    """One repetition of the measurement: the wall time in seconds of N trials, N bare pods and N pods with the trial's shape.

    shape: mean of a measurement before the trials and one after them; cost: the operator's counters for the trials.
    """

    trials: float
    shape: float
    bare: float
    cost: Counters


@dataclass(frozen=True)
class Comparison:
    """All repetitions (rounds) of the measurement with `count` concurrent trials."""

    count: int
    steps: int
    rounds: Sequence[Round]

    @property
    def seconds(self) -> list[float]:
        return [each.trials for each in self.rounds]

    @property
    def of_shape(self) -> list[float]:
        return [each.trials / each.shape for each in self.rounds]

    @property
    def of_bare(self) -> list[float]:
        return [each.trials / each.bare for each in self.rounds]

    @property
    def execs_per_step(self) -> float:
        """Return the number of exec sessions per step, averaged over all trials and rounds."""
        return sum(each.cost.execs for each in self.rounds) / (len(self.rounds) * self.count * self.steps)


async def compare(
    client: Client,
    namespace: str,
    manifests: Manifests,
    count: int,
    rounds: int = ROUNDS,
    done: Callable[[Object], bool] | None = None,
) -> Comparison:
    """Measure trials and bare pods in each round, and pods with the trial's shape before and after each round.

    done: returns whether a pod has finished its work and can be deleted; None for idle pods.
    """
    print(f"bench: {count} pods and {count} trials by turns, {rounds} rounds ...", file=sys.stderr, flush=True)
    before = await time_pods(client, namespace, manifests.shape, count, done)
    measured = []
    for _ in range(rounds):
        start = await counters(client)
        trials = await time_trials(client, namespace, manifests.trial, count)
        cost = (await counters(client)).since(start)
        await remove_trials(client, namespace)
        bare = await time_pods(client, namespace, manifests.bare, count, done)
        after = await time_pods(client, namespace, manifests.shape, count, done)
        measured.append(Round(trials, fmean([before, after]), bare, cost))
        before = after
    return Comparison(count, manifests.steps, measured)


def times(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of wall times."""
    table = Table("trials", "s", "same shape s", "bare s", "ratio to shape", "ratio to bare", title="median (least to most)")
    for each in comparisons:
        shape, bare = [[getattr(one, name) for one in each.rounds] for name in ("shape", "bare")]
        ratios = [spread(ratio, 2) for ratio in (each.of_shape, each.of_bare)]
        table.add_row(str(each.count), *(spread(seconds) for seconds in (each.seconds, shape, bare)), *ratios)
    return table


def costs(comparisons: Sequence[Comparison]) -> Table:
    """Return a table of the requests to the cluster and the operator's cost."""
    counted = ("execs", "requests", "status_writes", "cpu_seconds")
    titles = ("execs", "API requests", "status writes", "operator CPU s")
    table = Table("trials", *titles, "execs / step", "operator's peak MiB", title="per trial, mean of all rounds")
    for each in comparisons:
        means = [fmean(getattr(one.cost, name) / each.count for one in each.rounds) for name in counted]
        cells = [f"{mean:.3f}" if name == "cpu_seconds" else f"{mean:.1f}" for name, mean in zip(counted, means, strict=True)]
        peak = max(one.cost.peak_bytes for one in each.rounds) / 2**20
        table.add_row(str(each.count), *cells, f"{each.execs_per_step:.2f}", f"{peak:.0f}")
    return table


def judgement(found: Comparison) -> tuple[bool, Sequence[str]]:
    """Return whether the limit on execs holds, and one line per limit. A slow run does not fail the bench, because times depend
    on the machine."""
    ratio = median(found.of_shape)
    passed = found.execs_per_step <= MAX_EXECS_PER_STEP
    time = f"{found.count} trials take {ratio:.2f} times as long as idle pods of their shape, at most {MAX_SHAPE_RATIO:g}"
    execs = f"{found.execs_per_step:.2f} execs per step, at most {MAX_EXECS_PER_STEP:g}"
    return passed, [line(ratio <= MAX_SHAPE_RATIO, time), line(passed, execs)]


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return median, minimum and maximum as text."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def line(holds: bool, promise: str) -> str:
    """Return the line that reports whether a limit holds."""
    return f"{'holds' if holds else 'DOES NOT HOLD'}: {promise}"
