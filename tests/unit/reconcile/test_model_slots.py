"""Limits of active trials by model: enforced across sweeps, fair between sweeps, counted from statuses, adapted to the provider."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from multistep.api.common.labels import SWEEP
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.app.operator import App
from multistep.gateway.pace import ModelLoad
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.settings import ModelLimit, Settings
from tests.support.cluster_server import Load, client_of, serve_cluster
from tests.support.fake_cluster import FakeCluster
from tests.support.virtual_time import in_virtual_time
from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS

MODEL = "openai/gpt-5"
EVENTS = ("ask", "finish", "refuse", "answer")


class Woken(list[Key]):
    """A list of the requeued keys, in order."""

    def __call__(self, key: Key) -> None:
        self.append(key)


def trial(name: str, sweep: str = "s", *, model: str = MODEL, pod: bool = False, finished: bool = False) -> MultiStepTrial:
    found = manifest({"agent": {"name": "terminus-2", "model": model, "access": "Direct"}})
    found["metadata"] |= {"name": name, "labels": {SWEEP: sweep}, "uid": name}
    status: dict[str, Any] = {"podUID": "u"} if pod else {}
    if finished:
        ended = {"type": "Complete", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        status["conditions"] = [ended]
    return parse_trial({**found, "status": status})


def key(name: str) -> Key:
    return "default", name


def slots(most: int, woken: Woken | None = None) -> ModelSlots:
    return ModelSlots([ModelLimit(model=MODEL, max_active=most)], woken if woken is not None else Woken())


def start(bound: ModelSlots, name: str, sweep: str = "s") -> bool:
    """Reconcile a trial without a pod; return whether it got a slot. A trial with a slot gets a pod."""
    got = bound.acquire(trial(name, sweep), first=False)
    if got:
        bound.observe(trial(name, sweep, pod=True))
    bound.settle(key(name))
    return got


def finish(bound: ModelSlots, name: str, sweep: str = "s") -> None:
    bound.observe(trial(name, sweep, pod=True, finished=True))
    bound.settle(key(name))


async def test_a_trial_without_a_slot_is_requeued_when_another_finishes() -> None:
    woken = Woken()
    bound = slots(1, woken)
    assert start(bound, "a") and not start(bound, "b")
    assert (bound.active(MODEL), bound.waiting, woken) == (1, 1, [])
    finish(bound, "a")
    assert woken == [key("b")] and start(bound, "b")


async def test_a_model_without_a_limit_needs_no_slot() -> None:
    bound = slots(1)
    assert start(bound, "a")
    assert all(bound.acquire(trial(name, model="openai/other"), first=False) for name in "bcd")
    assert bound.active(MODEL) == 1


async def test_sweeps_share_a_model_equally_whatever_their_size() -> None:
    woken = Woken()
    bound = slots(4, woken)
    large, small = [f"l{number}" for number in range(20)], [f"s{number}" for number in range(3)]
    for name in large:
        start(bound, name, "large")
    for name in small:
        start(bound, name, "small")
    for name in large[:4]:
        finish(bound, name, "large")
    assert [name for _, name in woken] == ["s0", "s1", "l4", "l5"]


async def test_a_slot_is_kept_while_each_reconcile_asks_for_it_and_then_released() -> None:
    """A trial that has a slot but no pod yet may wait for another limit, such as the limit of starting pods."""
    woken = Woken()
    bound = slots(1, woken)
    for _ in range(3):
        assert bound.acquire(trial("a"), first=False)
        bound.settle(key("a"))
    assert not start(bound, "b")
    bound.settle(key("a"))  # a reconcile that did not ask for the slot, for example because the trial was suspended
    assert woken == [key("b")] and bound.active(MODEL) == 1


async def test_a_trial_whose_pod_a_quota_rejects_does_not_keep_its_slot() -> None:
    woken = Woken()
    bound = slots(1, woken)
    assert bound.acquire(trial("a"), first=False) and not start(bound, "b")
    bound.release(key("a"))
    assert woken == [key("b")]


async def test_a_trial_that_fails_in_the_reconcile_that_asked_for_its_slot_does_not_keep_it() -> None:
    """For example, an admission policy rejects its pod."""
    woken = Woken()
    bound = slots(1, woken)
    assert bound.acquire(trial("a"), first=False) and not start(bound, "b")
    bound.observe(trial("a", finished=True))
    bound.settle(key("a"))
    assert woken == [key("b")]


async def test_a_queued_trial_that_is_deleted_takes_no_slot_for_ever() -> None:
    woken = Woken()
    bound = slots(1, woken)
    assert start(bound, "a") and not start(bound, "b") and not start(bound, "c")
    bound.forget(key("b"))
    bound.settle(key("b"))
    finish(bound, "a")
    assert woken == [key("b")]
    bound.forget(key("b"))
    bound.settle(key("b"))
    assert woken == [key("b"), key("c")] and start(bound, "c")


async def test_changed_labels_of_an_active_trial_leave_no_slot_behind() -> None:
    bound = slots(1)
    assert start(bound, "a", "s")
    finish(bound, "a", "another")
    assert bound.active(MODEL) == 0


async def test_after_a_restart_the_active_trials_hold_their_slots_even_beyond_the_limit() -> None:
    bound = slots(2)
    for name in "abc":
        bound.observe(trial(name, pod=True))
        bound.settle(key(name))
    assert bound.active(MODEL) == 3 and not start(bound, "d")
    finish(bound, "a")
    assert not start(bound, "d") and bound.active(MODEL) == 2
    finish(bound, "b")
    assert start(bound, "d")


async def test_refusals_lower_the_limit_once_until_fewer_trials_are_active_and_answers_raise_it_again() -> None:
    woken = Woken()
    bound, names = slots(8, woken), [f"t{number}" for number in range(12)]
    for name in names:
        start(bound, name)
    for _ in range(5):
        bound.adapt({MODEL: ModelLoad(answered=10, refused=3)})
    assert bound.limit(MODEL) == 4 and bound.active(MODEL) == 8
    for name in names[:4]:
        finish(bound, name)
    assert woken == []
    bound.adapt({MODEL: ModelLoad(answered=10, refused=1)})
    assert bound.limit(MODEL) == 2
    bound.adapt({MODEL: ModelLoad(answered=100, refused=0)})
    assert bound.limit(MODEL) == 8 and woken == [key(name) for name in names[8:]]


@given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 9), st.sampled_from(EVENTS)), max_size=60))
async def test_no_more_trials_start_than_the_limit_allows_and_no_slot_is_lost(most: int, events: list[tuple[int, str]]) -> None:
    woken = Woken()
    bound, active = slots(most, woken), set[str]()
    for number, event in events:
        name, sweep = f"t{number}", f"s{number % 3}"
        if event == "ask" and name not in active and start(bound, name, sweep):
            active.add(name)
            assert len(active) <= most
        elif event == "finish" and name in active:
            finish(bound, name, sweep)
            active.discard(name)
        elif event in ("refuse", "answer"):
            bound.adapt({MODEL: ModelLoad(answered=1, refused=int(event == "refuse"))})
        while woken:
            name = woken.pop()[1]
            if name not in active and start(bound, name, f"s{int(name[1:]) % 3}"):
                active.add(name)
        assert bound.active(MODEL) == len(active) <= most
    for name in sorted(active):
        finish(bound, name, f"s{int(name[1:]) % 3}")
    while woken:
        bound.settle(woken.pop())
    assert (bound.active(MODEL), bound.waiting) == (0, 0)


# -- trials from start to end, with a limited model

LIMITED: dict[str, Any] = {
    **HOSTED_OPTIONS,
    "settings": {"agent_host_image": "agent-host", "models": [ModelLimit(model="openai/m", max_active=1)]},
}


@in_virtual_time
async def test_a_queued_trial_has_no_pod_reports_why_and_does_not_use_up_its_deadline() -> None:
    world = World(trial=manifest({**HOSTED, "activeDeadlineSeconds": 500}), **LIMITED)
    other, bound = trial("other", model="openai/m", pod=True), world.reconciler.admission.model_slots
    bound.observe(other)
    assert await world.reconcile() == 30.0
    assert (world.pods, bound.waiting) == ([], 1)
    await asyncio.sleep(30)
    assert await world.reconcile() is None
    waiting = "the limit of active trials with model openai/m is reached"
    assert (world.pods, world.status.phase, world.condition[1:]) == ([], "Pending", ("QueuedForModel", waiting))
    world.now += 1000
    finish(bound, "other")
    await world.run()
    assert world.status.phase == "Complete" and (world.status.suspended_seconds or 0) >= 1000
    assert (bound.active("openai/m"), bound.waiting) == (0, 0)


@in_virtual_time
async def test_a_restarted_operator_counts_a_running_trial_before_it_starts_another() -> None:
    world = World(trial=manifest(HOSTED), **LIMITED)
    await world.run(until=lambda: world.status.current_step == "a")
    world.reconciler = world.fresh()
    await world.reconcile()
    bound = world.reconciler.admission.model_slots
    assert bound.active("openai/m") == 1 and not bound.acquire(trial("other", model="openai/m"), first=False)
    await world.run()
    assert world.status.phase == "Complete" and bound.active("openai/m") == 1  # the slot went to the other trial


async def test_a_new_leader_counts_the_active_trials_before_it_starts_others(tmp_path: Path) -> None:
    app = App(Settings(results_dir=tmp_path, models=[ModelLimit(model="openai/m", max_active=3)]))
    cluster = FakeCluster(pods_run=False)
    for name, model, pod in (("a", "openai/m", True), ("b", "openai/m", False), ("c", "openai/m", True), ("d", "openai/x", True)):
        found = manifest({"agent": {"name": "terminus-2", "model": model, "access": "Direct"}})
        cluster.put({**found, "metadata": {**found["metadata"], "name": name}, "status": {"podUID": "u"} if pod else {}})
    cluster.put({**manifest({"agent": {"model": 1}}), "status": {"podUID": "u"}})  # cannot be parsed
    app.reconciler = Reconciler(cluster, app.volume, app.settings, app.metrics)
    async with serve_cluster(cluster, Load(capacity=64)) as url, client_of(url) as client:
        await app._count_active_trials(client)
    assert app.reconciler.admission.model_slots.active("openai/m") == 2
    app.volume.close()
