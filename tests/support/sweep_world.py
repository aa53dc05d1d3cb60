"""A sweep and its trials in a cluster in memory, with a virtual clock that jumps from one event to the next."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from multistep.api.sweep.sweep import SweepStatus, parse_sweep_status
from multistep.api.trial.status import is_finished
from multistep.api.trial.values import FINISHED_PHASES
from multistep.errors import SourceError
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SECRETS
from multistep.reconcile.loading.load_tasks import Fetches, Run
from multistep.reconcile.sweep.decide_at_start import SweepTasks
from multistep.reconcile.sweep.reconcile_sweep import SweepModels, Sweeps
from multistep.settings import Settings
from multistep.sources.fetch.fetch_messages import FetchRequest, FetchResult, FetchRules
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.telemetry.metrics import Metrics
from tests.support.fake_cluster import FakeCluster
from tests.support.faults import Faults, Killed

KEY = ("default", "s")
START = 1_700_000_000.0
WORK_SECONDS = 10.0
RESYNC_SECONDS = 300.0
STEPS = ["a", "b", "c"]
Events = Literal["prompt", "dropped", "duplicated", "delayed"]


def sweep(**spec: Any) -> Object:
    tasks: list[Any] = [{"name": name, "inline": {"config": {}}} for name in ("t", "u")]
    agents = [{"name": name, "agent": {"name": "nop"}} for name in ("a", "b")]
    return {
        "apiVersion": "multistep.dev/v1alpha1",
        "kind": "TrialSweep",
        "metadata": {"name": KEY[1], "namespace": KEY[0], "uid": "sweep-uid", "generation": 1},
        "spec": {"tasks": tasks, "agents": agents, "attempts": 2, "parallelism": 3, **spec},
    }


def ended(number: int) -> Mapping[str, Any]:
    """Return the status of finished trial `number`. Each fifth trial is an infrastructure failure that started one step. Of the
    others, even numbers started all steps and odd numbers two, and their rewards differ. Each started step has a checkpoint."""
    failed = number % 5 == 4
    how = {
        "type": "Failed" if failed else "Complete",
        "status": "True",
        "reason": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    started = [
        {"name": name, "startTime": "2026-01-01T00:00:00Z", "checkpoint": {"digest": "d"}}
        for name in (STEPS[:1] if failed else STEPS[:2] if number % 2 else STEPS)
    ]
    steps = {"taskSteps": STEPS, "steps": started, "completionTime": "2026-01-01T00:06:00Z"}
    if failed:
        return {"phase": "Failed", "conditions": [how], "failure": {"class": "Infrastructure", "reason": "PodDeleted"}, **steps}
    return {"phase": "Complete", "conditions": [how], "rewards": {"reward": number / 10}, "score": number / 10, **steps}


async def _nothing_outside(request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
    raise SourceError("there is nothing outside of this world")


@dataclass
class SweepWorld:
    """A sweep with its trials, cluster and operator.

    events: how watch events of trials are delivered. wrap: function that wraps the cluster. happens: actions to take, by
    the number of finished trials. fetch: function that fetches remote tasks. models: the model gateway.
    made: number of creations by trial name.
    most: peak of active trials; most_at_work: peak of active trials that are not suspended.
    """

    manifest: Object = field(default_factory=sweep)
    events: Events = "prompt"
    faults: Faults = field(default_factory=Faults)
    wrap: Callable[[FakeCluster], Cluster] | None = None
    happens: Mapping[int, Callable[[SweepWorld], None]] = field(default_factory=dict)
    fetch: Run = field(default=_nothing_outside)
    settings: Settings = field(default_factory=Settings)
    models: SweepModels | None = None

    def __post_init__(self) -> None:
        self.now = START
        self.made: Counter[str] = Counter()
        self.most = self.most_at_work = self.ended = self.deaths = 0
        self.errors: list[BaseException] = []
        self._late: list[tuple[str, Object]] = []
        self._woken = True
        self._happened: set[int] = set()
        self.each_round: Callable[[], None] = lambda: None
        self.cluster = FakeCluster(faults=self.faults, on_change=self._changed)
        self.cluster.put(self.manifest)
        self.sweeps = self.fresh()

    def fresh(self) -> Sweeps:
        """Return a newly started operator with an empty memory."""
        wrapped = self.wrap(self.cluster) if self.wrap else cast(Cluster, self.cluster)
        fetches = Fetches(self.settings, lambda _: None, self.fetch).of_sweeps(lambda _: self._wake())
        tasks = SweepTasks(wrapped, RemoteTasks(fetches, partial(wrapped.get, SECRETS), self.settings.task_sources), fetches)
        return Sweeps(wrapped, Metrics(), tasks, models=self.models, clock=lambda: self.now)

    def _wake(self) -> None:
        self._woken = True

    # -- state

    @property
    def status(self) -> SweepStatus:
        return parse_sweep_status(self.cluster.objects["TrialSweep", *KEY])

    @property
    def trials(self) -> list[Object]:
        """Return the sweep's trials."""
        uid = self.manifest["metadata"]["uid"]
        return [each for (kind, _, _), each in self.cluster.objects.items() if kind == "MultiStepTrial" and is_owned(each, uid)]

    @property
    def active(self) -> list[Object]:
        """Return the active trials in number order."""
        there = [each for each in self.trials if each.get("status", {}).get("phase") not in FINISHED_PHASES]
        return sorted(there, key=lambda each: int(each["metadata"]["labels"]["multistep.dev/number"]))

    @property
    def why(self) -> tuple[str | None, str]:
        return self.status.phase, self.status.conditions[0].reason

    # -- events

    def change(self, **spec: Any) -> None:
        """Change the sweep's spec, as a user does."""
        found = self.cluster.objects["TrialSweep", *KEY]
        metadata = {**found["metadata"], "generation": found["metadata"]["generation"] + 1}
        self.cluster.put({**found, "metadata": metadata, "spec": {**found["spec"], **spec}})
        self._woken = True

    def end(self, trial: Object) -> None:
        """Finish a trial, without a reward if the user has stopped it."""
        number = int(trial["metadata"]["labels"]["multistep.dev/number"])
        stopped = {**ended(4), "failure": {"class": "User", "reason": "Stopped"}}
        self.cluster.put({**trial, "status": stopped if trial["spec"].get("stop") else ended(number)})
        self.ended += 1

    async def reconcile(self) -> float | None:
        """Reconcile the sweep once; replace the operator if a fault kills it."""
        try:
            return (await self.sweeps.reconcile(KEY)).after
        except (Exception, asyncio.CancelledError) as error:
            self.errors.append(error)
            return 1.0
        except Killed:
            self.faults.dead, self.deaths = False, self.deaths + 1
            self.sweeps = self.fresh()
            return 0.0

    async def run(self) -> None:
        """Reconcile, and finish trials one by one, until the sweep is finished."""
        resynced = START
        for _ in range(1000):
            self._woken = False
            seconds = await self.reconcile()
            self._happen()
            if is_finished(self.status) and seconds is None and not self._woken:
                return
            if seconds != 0.0 and not self._woken:
                self._time_passes(seconds)
            if self.events in ("dropped", "delayed") and self.now - resynced >= RESYNC_SECONDS:
                resynced = self.now
                self.sweeps.cache.invalidate(KEY[0])
                self._deliver_late()
        raise AssertionError(f"never over: {self.why}, {self.status.trials}, {self.errors[-3:]}")

    def _time_passes(self, seconds: float | None) -> None:
        """Advance the clock to the operator's next reconcile or to the end of the next trial."""
        able = [each for each in self.active if not each["spec"].get("suspend") or each["spec"].get("stop")]
        if able and (seconds is None or seconds >= WORK_SECONDS):
            self.now += WORK_SECONDS
            self.end(able[0])
            self._deliver_late(but=2)
        else:
            self.now += min(seconds or RESYNC_SECONDS, RESYNC_SECONDS)

    def _happen(self) -> None:
        for at in [at for at in self.happens if at <= self.ended and at not in self._happened]:
            self._happened.add(at)
            self.happens[at](self)
        self.each_round()

    def _changed(self, type: str, changed: Object) -> None:
        if changed["kind"] != "MultiStepTrial":
            return
        if type == "ADDED":
            self.made[changed["metadata"]["name"]] += 1
        self.most = max(self.most, len(self.active))
        self.most_at_work = max(self.most_at_work, sum(not each["spec"].get("suspend") for each in self.active))
        match self.events:
            case "prompt":
                self._report(type, changed)
            case "duplicated":
                self._report(type, changed)
                self._report(type, changed)
            case "delayed":
                self._late.append((type, changed))

    def _deliver_late(self, but: int = 0) -> None:
        while len(self._late) > but:
            self._report(*self._late.pop(0))

    def _report(self, type: str, changed: Object) -> None:
        if hasattr(self, "sweeps") and self.sweeps.cache.observe(changed, deleted=type == "DELETED"):
            self._woken = True


def _unsuspended(spec: Object) -> Object:
    """Return the spec without suspend and prestart, which depend on timing: a trial can finish just before it is suspended."""
    return {name: value for name, value in spec.items() if name not in ("suspend", "prestart")}


def is_owned(trial: Object, uid: str) -> bool:
    return any(each["uid"] == uid for each in trial["metadata"].get("ownerReferences", []))


def end_of(world: SweepWorld) -> dict[str, Any]:
    """Return the part of the final state that must be the same whatever happens during the sweep."""
    status = world.status.model_dump(exclude={"start_time", "completion_time", "suspended_seconds", "conditions"})
    return {
        "status": status,
        "conditions": [(each.type, each.status, each.reason, each.message) for each in world.status.conditions],
        "trials": {each["metadata"]["name"]: (each["metadata"]["labels"], _unsuspended(each["spec"])) for each in world.trials},
    }


def assert_each_once(world: SweepWorld, parallelism: int = 3) -> None:
    assert set(world.made.values()) <= {1}, world.made
    assert world.most <= parallelism + world.manifest["spec"].get("prestart", 0)
    assert world.most_at_work <= parallelism


async def reconciles(world: SweepWorld, until: Callable[[SweepWorld], object]) -> None:
    """Reconcile the sweep, without the passing of time, until the condition is met."""
    for _ in range(50):
        await world.reconcile()
        for _ in range(20):
            await asyncio.sleep(0)
        if until(world):
            return
    raise AssertionError(world.cluster.objects)


def started(world: SweepWorld) -> bool:
    """Return whether the sweep has as many active trials as its parallelism allows."""
    return len(world.active) == 3
