"""After any sequence of reconciles with errors and cancellations, nothing is held by a key that runs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.common.labels import SWEEP
from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.reconcile.admission.admission import Admission
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key
from multistep.reconcile.admission.model_slots import ModelSlots
from multistep.reconcile.admission.pod_starts import PodStarts
from multistep.reconcile.admission.quotas import Quotas
from multistep.reconcile.loading.background_jobs import BackgroundJobs
from multistep.reconcile.queue.work_queue import Requeue
from multistep.settings import ModelLimit
from tests.support.in_part import in_part_or_whole, tried
from tests.support.virtual_time import in_virtual_time
from tests.support.world import KEY, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, HOSTED_OPTIONS, SCENARIOS, WITH_GATEWAY

MODEL = "openai/m"
KEYS = [(namespace, name) for namespace in ("x", "y") for name in "abc"]
POD: dict[str, Any] = {"spec": {"containers": [{"resources": {}}]}}
STEPS = (
    "exec",
    "in exec",
    "transfer",
    "carry",
    "pod",
    "model",
    "active",
    "finished",
    "rejected",
    "created",
    "job",
    "loaded",
    "wait",
)
ENDS = ("return", "error", "cancel", "forget")
OUTSIDE = ("pod runs", "job ends", "job fails", "time passes")


class Trials:
    """Trials that share small limits. The requeued ones are reconciled by ``settle``."""

    def __init__(self) -> None:
        self.woken: list[Key] = []
        clock = asyncio.get_running_loop().time
        self.jobs: BackgroundJobs[str, str] = BackgroundJobs(2, self.woken.append)
        self.admission = Admission(
            starts=PodStarts(2, self.woken.append, clock),
            model_slots=ModelSlots([ModelLimit(model=MODEL, max_active=2)], self.woken.append),
            quotas=Quotas(self.woken.append, clock),
            execs=ConcurrencyLimit(2, self.woken.append),
            transfers=ConcurrencyLimit(2, self.woken.append, max_per_namespace=1),
            jobs=[self.jobs.limit],
        )
        self.gates: dict[Key, asyncio.Future[str]] = {}
        self.active: set[Key] = set()
        self.starting: set[Key] = set()

    async def reconcile(self, key: Key, steps: Sequence[str], end: str) -> None:
        """Reconcile a trial: take these steps, then end in this way."""
        running = asyncio.create_task(self._reconcile(key, steps, end))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    async def _reconcile(self, key: Key, steps: Sequence[str], end: str) -> None:
        async with self.admission.reconcile(key):
            for step in steps:
                await self._take(key, step)
            if end == "error":
                raise OSError("gone")
            if end == "cancel":
                await asyncio.sleep(3600)
            if end == "forget":
                self.active.discard(key)
                self.admission.forget(key)

    async def _take(self, key: Key, step: str) -> None:
        admission, active = self.admission, key in self.active
        match step:
            case "exec":
                admission.execs.acquire(key, 2)
            case "in exec" if admission.execs.acquire(key):
                with admission.execs.using(key):
                    await asyncio.sleep(0.01)
            case "transfer":
                admission.transfers.acquire(key)
            case "carry":
                admission.transfers.carry(key)
            case "pod" if admission.starts.acquire(key):
                self.starting.add(key)
                admission.starts.observe(key, pod("Pending"))
            case "model":
                admission.model_slots.acquire(trial(key, active=active), first=False)
            case "active" if admission.model_slots.acquire(trial(key), first=False):
                self.active.add(key)
                admission.model_slots.observe(trial(key, active=True))
            case "finished":
                self.active.discard(key)
                admission.model_slots.observe(trial(key, finished=True))
            case "rejected" | "created" if admission.quotas.may_try(key, POD, first=False):
                with admission.quotas.trying(key, POD, first=False) as attempt:
                    attempt.rejection = "exceeded quota: pods" if step == "rejected" else ""
            case "job":
                self._start_job(key)
            case "loaded":
                admission.loaded(key)
            case "wait":
                await asyncio.sleep(0.01)

    def _start_job(self, key: Key) -> None:
        gate = self.gates.get(key)
        if gate is None or gate.done():
            self.gates[key] = gate = asyncio.get_running_loop().create_future()
        job = self.jobs.start("/".join(key), key, "/".join(key), lambda: _until(gate))
        if job is not None:
            job.waiting["/".join(key)] = key

    async def outside(self, key: Key, event: str) -> None:
        """Let something happen outside of reconciles."""
        if event == "pod runs":
            self.starting.discard(key)
            self.admission.starts.observe(key, pod("Running"))
        elif event == "time passes":
            await asyncio.sleep(20)
        elif (gate := self.gates.get(key)) is not None and not gate.done():
            gate.set_result("read") if event == "job ends" else gate.set_exception(OSError("gone"))
            await asyncio.sleep(0.01)

    async def settle(self) -> None:
        """Reconcile each trial, and then the requeued ones, until none is left; none needs anything any more."""
        self.woken += KEYS
        while self.woken:
            await self._reconcile(self.woken.pop(), ["loaded"], "return")

    def held(self, key: Key) -> set[str]:
        """Return what the limits say that the key holds."""
        limits = {"exec": self.admission.execs, "transfer": self.admission.transfers, "pod": self.admission.starts}
        limits |= {"job": self.jobs.limit}
        model = self.admission.model_slots._limits[MODEL]
        return {name for name, each in limits.items() if each.has(key)} | (
            {"model"} if model.has((f"{key[0]}/", key[1])) else set()
        )

    def runs(self, key: Key) -> set[str]:
        """Return for which limits the key runs something."""
        found = {"pod"} if key in self.starting else set()
        found |= {"model"} if key in self.active else set()
        return found | ({"job"} if "/".join(key) in self.jobs else set())


async def _until(gate: asyncio.Future[str]) -> str:
    return await gate


def pod(phase: str) -> PodFacts:
    now = asyncio.get_running_loop().time()
    return PodFacts("p", "u", "o", phase, created_at=now, running=phase == "Running")


def trial(key: Key, *, active: bool = False, finished: bool = False) -> MultiStepTrial:
    found = manifest({"agent": {"name": "terminus-2", "model": MODEL, "access": "Direct"}})
    found["metadata"] |= {"namespace": key[0], "name": key[1], "labels": {SWEEP: ""}, "uid": "/".join(key)}
    ended = {"type": "Complete", "status": "True", "reason": "x", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return parse_trial({**found, "status": {"podUID": "u"} if active else {"conditions": [ended]} if finished else {}})


events = st.one_of(
    st.tuples(st.sampled_from(KEYS), st.lists(st.sampled_from(STEPS), max_size=5), st.sampled_from(ENDS)),
    st.tuples(st.sampled_from(KEYS), st.none(), st.sampled_from(OUTSIDE)),
)


@given(st.lists(events, max_size=30))
def test_nothing_is_held_by_a_key_that_runs_nothing(happens: list[tuple[Key, list[str] | None, str]]) -> None:
    @in_virtual_time
    async def check() -> None:
        trials = Trials()
        for key, steps, what in happens:
            if steps is None:
                await trials.outside(key, what)
            else:
                await trials.reconcile(key, steps, what)
        await trials.settle()
        for key in KEYS:
            assert trials.held(key) <= trials.runs(key), key
            assert key not in trials.admission.quotas
        for key in trials.active.copy():
            await trials.reconcile(key, ["finished"], "return")
        await trials.jobs.stop()
        await asyncio.sleep(60)  # no pod keeps its slot for longer
        await trials.settle()
        assert [trials.held(key) for key in KEYS] == [set()] * len(KEYS)

    check()


# -- whole trials, with the operator's own admission

LIMITED: dict[str, Mapping[str, Any]] = {
    "a checkpoint for each step": {"trial": manifest({"checkpoints": {"policy": "AfterStep"}}), "durations": {"a/agent": 100.0}},
    "a limited model": {
        "trial": manifest({**WITH_GATEWAY, "infrastructureRetries": 3}),
        **HOSTED_OPTIONS,
        "settings": GATEWAY_SETTINGS,
        "models": SCENARIOS["an agent of Harbor with the model gateway"].options["models"],
    },
    "separate verifiers": SCENARIOS["verified apart"].options,
}


class Watched:
    """Reconciles in a task of their own, which a fault can cancel, and checks after each what the trial holds."""

    def __init__(self, world: World) -> None:
        self._world, self._reconcile = world, world.reconciler.reconcile

    def cancel(self) -> None:
        self.task.cancel()

    async def __call__(self, key: Key) -> Requeue:
        self.task = asyncio.create_task(self._reconcile(key))
        try:
            return await self.task
        finally:
            world, admission = self._world, self._world.reconciler.admission
            assert not admission.execs.has(key) and not admission.transfers.has(key)
            assert not any(each.has(key) and not each.keeps(key) for each in admission.jobs)
            phases = [pod["status"].get("phase") for (kind, *_), pod in world.cluster.objects.items() if kind == "Pod"]
            assert not admission.starts.has(key) or "Pending" in phases
            if is_finished(world.status):
                assert (admission.starts.held, sum(each.held for each in admission.model_slots._limits.values())) == (0, 0)


@in_part_or_whole
@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("what", ["cancelled", "failed"])
async def test_wherever_a_reconcile_is_cancelled_or_fails_it_holds_nothing_afterwards(name: str, what: str, whole: bool) -> None:
    options = LIMITED[name]
    calm = World(**options)
    await calm.run()
    for at in tried(range(1, len(calm.faults.trace) + 1), whole, every=17):
        world = World(**options, plans=calm.plans, counters=calm.metrics)
        world.reconciler.reconcile = watched = Watched(world)  # type: ignore[method-assign]
        world.faults.fail(at, OSError("gone") if what == "failed" else watched.cancel)
        await world.run()
        assert is_finished(world.status), calm.faults.trace[at - 1]
        assert KEY not in world.reconciler.admission.quotas
