"""The benchmark of trials: the order of its runs, its ratio to idle pods, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pytest

from multistep.client.reconnecting_watch import WatchingClient
from tests.bench import trials
from tests.bench.measure import Counters
from tests.bench.trials import Comparison, Manifests, Round

COST = Counters(execs=40, requests=40 * 19.5, status_writes=40 * 5, cpu_seconds=40 * 0.07, peak_bytes=1e8)
MANIFESTS = Manifests({"kind": "trial"}, {"kind": "shape"}, {"kind": "bare"}, 3)


async def test_trials_and_idle_pods_run_by_turns_and_each_run_is_compared_with_the_pods_before_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    seconds = {"shape": iter([10.0, 20.0, 30.0, 40.0, 50.0]), "trial": iter([15.0, 25.0, 35.0, 45.0]), "bare": iter([1.0, 2.0])}
    spent = iter(range(0, 800, 100))

    async def take(_client: WatchingClient, _namespace: str, manifest: Mapping[str, Any], *_: Any) -> float:
        order.append(manifest["kind"])
        return next(seconds[manifest["kind"]])

    async def read(_client: WatchingClient) -> Counters:
        return Counters(0, next(spent), 0, 0, 7)

    async def nothing(*_: Any) -> None: ...

    for name, fake in (("time_pods", take), ("time_trials", take), ("counters", read), ("remove_trials", nothing)):
        monkeypatch.setattr(trials, name, fake)
    found = await trials.compare(cast(WatchingClient, None), "n", MANIFESTS, 40, 2, turns=2)
    assert order == ["shape", *["trial", "shape"] * 2, "bare", *["trial", "shape"] * 2, "bare"]
    assert [(each.trials, each.shape, each.bare) for each in found.rounds] == [(20.0, 20.0, 1.0), (40.0, 40.0, 2.0)]
    assert (found.of_shape, found.per_trial("requests"), found.rounds[0].cost.peak_bytes) == ([1.0, 1.0], 2.5, 7)


@pytest.mark.parametrize(
    ("took", "cost", "holds", "broken"),
    [
        (11.0, {}, True, []),
        (12.0, {}, True, ["1.20 times"]),
        (11.0, {"cpu_seconds": 40 * 0.09}, True, ["0.090 CPU seconds"]),
        (11.0, {"requests": 40 * 20.5}, False, ["20.50 API requests"]),
        (11.0, {"status_writes": 40 * 6}, False, ["6.00 status writes"]),
        (11.0, {"execs": 40 * 4}, False, ["1.33 execs"]),
    ],
)
def test_counts_can_fail_the_bench_and_times_are_only_reported(
    took: float, cost: Mapping[str, float], holds: bool, broken: list[str]
) -> None:
    found = Comparison(40, 3, [Round(took, 10.0, 4.0, Counters(**{**vars(COST), **cost}))])
    held, lines = trials.judgement(found)
    assert held is holds
    failed = [each for each in lines if each.startswith("DOES NOT HOLD")]
    assert len(failed) == len(broken) and all(words in each for words, each in zip(broken, failed, strict=True))
