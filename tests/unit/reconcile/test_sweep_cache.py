"""The cache of a sweep's trials: filled by watch events and lists, never overwritten with an older version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from multistep.api.sweep.sweep import Scoring
from multistep.engine.sweep.own_trials import SweepMembers
from multistep.reconcile.sweep.trial_cache import SweepCache

KEY = ("default", "s")


def trial(number: int, uid: str = "u", **status: Any) -> dict[str, Any]:
    owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": uid, "controller": True}
    metadata = {"name": f"t{number}", "namespace": "default", "ownerReferences": [owner]}
    return {"metadata": {**metadata, "labels": {"multistep.dev/number": str(number)}}, "spec": {}, "status": status}


async def listing(*listed: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    for each in listed:
        yield each


async def test_event_of_a_trial_is_an_event_of_its_sweep_when_it_changes_what_a_sweep_counts() -> None:
    cache = SweepCache()
    assert cache.observe(trial(0)) == KEY
    assert cache.observe(trial(0)) is None
    assert cache.observe(trial(0, currentStep="b")) is None
    assert cache.observe(trial(0, phase="Running")) == KEY
    assert cache.observe(trial(0), deleted=True) == KEY
    assert cache.observe(trial(0), deleted=True) is None
    assert cache.observe({"metadata": {"name": "alone", "namespace": "default"}}) is None


async def test_a_trial_that_was_deleted_during_its_creation_is_not_believed_to_exist() -> None:
    cache = SweepCache()
    entry = cache.entry(KEY, "u", "", finished=False)
    entry.start_reconcile(Scoring())
    cache.observe(trial(0))
    cache.observe(trial(0), deleted=True)
    entry.read(trial(0))
    assert entry.trials == {}
    entry.start_reconcile(Scoring())
    entry.read(trial(1))
    assert set(entry.trials) == {"t1"}


async def test_a_list_reports_all_objects_except_those_with_newer_events() -> None:
    cache = SweepCache()
    for number in range(3):
        cache.observe(trial(number))
    entry = cache.entry(KEY, "u", "", finished=False)
    entry.start_reconcile(Scoring())
    cache.observe(trial(1, phase="Running"))
    cache.observe(trial(9))
    await entry.fill(listing(trial(1), trial(2, phase="Running"), trial(3), trial(4, uid="another")), SweepMembers("u"))
    assert {name: each.phase for name, each in entry.trials.items()} == {
        "t1": "Running", "t2": "Running", "t3": "Pending", "t9": "Pending",
    }  # fmt: skip
    assert entry.listed
    assert cache.invalidate("elsewhere") == [] and cache.invalidate("default") == [KEY] and not entry.listed
    assert cache.invalidate("default") == []


async def test_trials_read_before_the_sweeps_scoring_was_known_are_read_again() -> None:
    cache = SweepCache()
    styled = trial(
        0, score=0.5, scoreRule={"steps": 1, "strategy": "Mean"}, steps=[{"name": "a", "rewards": {"reward": 0.5, "style": 1}}]
    )
    cache.observe(styled)
    entry = cache.entry(KEY, "u", "", finished=False)
    entry.start_reconcile(Scoring(key="style"))
    assert not entry.trials and not entry.listed
    await entry.fill(listing(styled), SweepMembers("u"))
    assert entry.trials["t0"].score == 1
    entry.start_reconcile(Scoring(key="style"))
    cache.observe(styled)
    assert entry.listed and entry.trials["t0"].score == 1


async def test_of_a_sweep_that_has_ended_nothing_is_noted() -> None:
    cache = SweepCache()
    cache.observe(trial(0))
    entry = cache.entry(KEY, "u", "", finished=False)
    entry.close()
    assert cache.observe(trial(1)) is None and entry.trials == {} and cache.invalidate("default") == []


async def test_a_namesake_starts_with_an_empty_entry() -> None:
    cache = SweepCache()
    cache.observe(trial(0))
    assert cache.entry(KEY, "another", "", finished=False).trials == {}
    assert cache.entry(KEY, "another", "", finished=False) is cache.entry(KEY, "another", "", finished=False)
    cache.drop(KEY)
    assert cache.observe(trial(0), deleted=True) is None
