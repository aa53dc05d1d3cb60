"""Compare trials with idle pods. Both are measured in turn, so that other load of the machine affects both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rich.table import Table

from multistep.client.reconnecting_watch import WatchingClient
from tests.bench.measure import Counters, counters, remove_trials, time_pods, time_trials

ROUNDS = 3
MAX_SHAPE_RATIO = 1.15  # maximum wall time of trials, relative to idle pods of the same shape
MAX_EXECS_PER_STEP = 1.0
MAX_REQUESTS = 20.0  # maximum number of API requests per trial of the example, without those for Leases
MAX_STATUS_WRITES = 5.0
MAX_CPU_SECONDS = 0.08

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

    trials: mean of the round's runs; shape: mean of the runs before and after each of them; cost: the operator's counters for N
    trials, mean of the round's runs.
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
        return self.per_trial("execs") / self.steps

    def per_trial(self, counter: str) -> float:
        """Return a counter's increase per trial, averaged over all trials and rounds."""
        return fmean(getattr(each.cost, counter) for each in self.rounds) / self.count


async def compare(
    client: WatchingClient,
    namespace: str,
    manifests: Manifests,
    count: int,
    rounds: int = ROUNDS,
    done: Callable[[Object], bool] | None = None,
    *,
    turns: int = 1,
) -> Comparison:
    """Measure trials and bare pods in each round, and pods with the trial's shape before and after each run of trials.

    done: returns whether a pod has finished its work and can be deleted; None for idle pods. turns: runs of trials in each round.
    """
    print(f"bench: {count} pods and {count} trials by turns, {rounds} rounds of {turns} ...", file=sys.stderr, flush=True)
    shapes = [await time_pods(client, namespace, manifests.shape, count, done)]
    measured = []
    for _ in range(rounds):
        runs, costs = list[float](), list[Counters]()
        for _ in range(turns):
            start = await counters(client)
            runs.append(await time_trials(client, namespace, manifests.trial, count))
            costs.append((await counters(client)).since(start))
            await remove_trials(client, namespace)
            shapes.append(await time_pods(client, namespace, manifests.shape, count, done))
        bare = await time_pods(client, namespace, manifests.bare, count, done)
        measured.append(Round(fmean(runs), fmean(map(fmean, pairwise(shapes))), bare, Counters.mean(costs)))
        shapes = shapes[-1:]
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
        means = [each.per_trial(name) for name in counted]
        cells = [f"{mean:.3f}" if name == "cpu_seconds" else f"{mean:.1f}" for name, mean in zip(counted, means, strict=True)]
        peak = max(one.cost.peak_bytes for one in each.rounds) / 2**20
        table.add_row(str(each.count), *cells, f"{each.execs_per_step:.2f}", f"{peak:.0f}")
    return table


def judgement(found: Comparison) -> tuple[bool, Sequence[str]]:
    """Return whether the limits on execs, requests and writes hold, and one line per limit. A slow run does not fail the bench,
    because times depend on the machine."""
    ratio, cpu = median(found.of_shape), found.per_trial("cpu_seconds")
    counts = [
        (found.execs_per_step, "execs per step", MAX_EXECS_PER_STEP),
        (found.per_trial("requests"), "API requests per trial", MAX_REQUESTS),
        (found.per_trial("status_writes"), "status writes per trial", MAX_STATUS_WRITES),
    ]
    words = f"{found.count} trials take {ratio:.2f} times as long as idle pods of their shape, at most {MAX_SHAPE_RATIO:g}"
    lines = [line(ratio <= MAX_SHAPE_RATIO, words)]
    lines += [line(value <= most, f"{value:.2f} {what}, at most {most:g}") for value, what, most in counts]
    lines += [line(cpu <= MAX_CPU_SECONDS, f"{cpu:.3f} CPU seconds of the operator per trial, at most {MAX_CPU_SECONDS:g}")]
    return all(value <= most for value, _, most in counts), lines


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Return median, minimum and maximum as text."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def line(holds: bool, promise: str) -> str:
    """Return the line that reports whether a limit holds."""
    return f"{'holds' if holds else 'DOES NOT HOLD'}: {promise}"
