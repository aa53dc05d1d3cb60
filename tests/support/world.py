"""A simulated world for the reconciler: cluster, runners and volume in memory, with a virtual clock that jumps between events."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, cast

from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.api.trial.trial import KIND, MultiStepTrial, parse_status
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.reconcile.queue.work_queue import BACKOFF
from multistep.reconcile.trial.reconciler import Reconciler
from multistep.settings import Settings
from multistep.sources.load.load_trial import LoadedTrial, TrialLoader
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from multistep.telemetry.metrics import Metrics
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_models import FakeModels
from tests.support.fake_runner import FakeRunner, Json, Tree
from tests.support.fake_volume import FakeShipping, FakeVolume, Results
from tests.support.faults import Faults, Killed
from tests.support.played import rewarded
from tests.support.reading import reads_here

KEY = ("default", "t")
START = 1_700_000_000.0
READING = Path(tempfile.gettempdir(), f"multistep-tests-{os.getuid()}")
SETTINGS = Settings(poll_seconds=60.0, linger_seconds=0.0, task_cache_dir=READING)
Events = Literal["prompt", "dropped", "duplicated", "delayed"]

FILES = {
    f"steps/{step}/{path}": text
    for step in "abc"
    for path, text in {"instruction.md": f"do {step}\n", "tests/test.sh": "true\n", "solution/solve.sh": "true\n"}.items()
} | {"steps/a/workdir/setup.sh": "true\n", "tests/helper.sh": "true\n"}

CONFIG: Json = {
    "artifacts": ["/app/out"],
    "environment": {"docker_image": "img", "healthcheck": {"command": "true"}},
    "verifier": {"collect": [{"command": "true"}]},
    "steps": [{"name": "a", "min_reward": 0.5}, {"name": "b", "healthcheck": {"command": "true"}}, {"name": "c"}],
}

SEPARATE: Json = {**CONFIG, "verifier": {**CONFIG["verifier"], "environment_mode": "separate"}}
MIXED: Json = {
    **CONFIG,
    "steps": [CONFIG["steps"][0] | {"verifier": {"environment": {"docker_image": "judge"}}}, *CONFIG["steps"][1:]],
}

# Attributes of a fake runner that survive a crash of the operator.
_RUNNERS_STATE = (
    "user", "records", "starts", "uploads", "instance", "changes", "restored", "base", "committed", "packed", "host",
    "sidecar",
)  # fmt: skip

REWARDS = {"a": rewarded(txt="1"), "b": rewarded(json='{"reward": 0.5, "style": 1}'), "c": rewarded(txt="0")}


def manifest(spec: Mapping[str, Any] | None = None, config: Json | None = None, files: Mapping[str, str] | None = None) -> Object:
    task = {"inline": {"config": CONFIG if config is None else config, "files": dict(FILES if files is None else files)}}
    metadata = {"name": KEY[1], "namespace": KEY[0], "uid": "trial-uid", "generation": 1}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": {"task": task, **(spec or {})}}


class Observed:
    """The externally visible state of a trial: its object, its pods, its results."""

    cluster: FakeCluster
    volume: FakeVolume | ResultsVolume | None

    @property
    def object(self) -> Object:
        return copy.deepcopy(self.cluster.objects[KIND, *KEY])

    @property
    def status(self) -> TrialStatus:
        return parse_status(self.object)

    @property
    def kept(self) -> Results:
        assert isinstance(self.volume, FakeVolume)
        shipped = self.volume.results.get("shipped trial-uid")
        return shipped or self.volume.results["trial-uid"]

    @property
    def pods(self) -> list[str]:
        return [name for kind, _, name in self.cluster.objects if kind == "Pod"]

    @property
    def condition(self) -> tuple[str, str, str]:
        """Return type, reason and message of the first True condition that is not Ready."""
        held = next(each for each in self.status.conditions if each.status == "True" and each.type != "Ready")
        return held.type, held.reason, held.message

    @property
    def runner(self) -> FakeRunner:
        """Return the runner of the newest pod."""
        return list(self.cluster.runners.values())[-1]

    @property
    def execs(self) -> int:
        return sum(len(each.streams) for each in self.cluster.runners.values())

    @property
    def status_writes(self) -> int:
        return sum(each.startswith("apply_status") for each in self.cluster.writes)


@dataclass(frozen=True)
class Source:
    """A trial of another world, for trials that start from it or verify it again. results: its pickled results on the volume;
    shipped: its pickled results in the object store; b"" if there are none."""

    trial: Object
    results: bytes
    shipped: bytes = b""

    @classmethod
    async def ran(cls, name: str = "source", *, until: Callable[[World], bool] | None = None, **options: Any) -> Self:
        """Run a trial in a world of its own; return the trial and its results, renamed to ``name``, to put into another world."""
        world = World(**options)
        await world.run(until=until and (lambda: until(world)))
        assert isinstance(world.volume, FakeVolume)
        found, key = world.object, TrialKey(KEY[0], name, f"{name}-uid")
        results, shipped = (
            pickle.dumps(replace(each, key=key)) if (each := world.volume.results.get(uid)) else b""
            for uid in ("trial-uid", "shipped trial-uid")
        )
        found["metadata"] |= {"name": name, "uid": key.uid}
        return cls(found, results, shipped)

    def put_into(self, world: World) -> None:
        """Put the trial and its results into another world."""
        world.cluster.put(self.trial)
        assert isinstance(world.volume, FakeVolume)
        uid = self.trial["metadata"]["uid"]
        for name, found in ((uid, self.results), (f"shipped {uid}", self.shipped)):
            if found:
                world.volume.results[name] = pickle.loads(found)


@dataclass
class World(Observed):
    """One trial with its cluster, runners, results volume and operator.

    durations: seconds each phase takes, by "STEP/OPERATION" (default: it finishes when a client waits for it).
    results: phases' results, by "STEP/OPERATION". events: how the pod's watch events are delivered. wrap: function that wraps the
    cluster. happens: actions of others, such as users, by seconds since the start. plans: plans by trial uid, copied from another
    world because loading a task is slow. source: a trial that ran before. stored: whether results go to an object store. files:
    contents of pods' files by path. counters: metrics of another world, because creating all of them takes as long as a reconcile.
    """

    trial: Object = field(default_factory=manifest)
    durations: Mapping[str, float] = field(default_factory=dict)
    results: Mapping[str, Json] = field(default_factory=dict)
    user: int = 0
    pods_run: bool = True
    events: Events = "prompt"
    faults: Faults = field(default_factory=Faults)
    settings: Mapping[str, Any] = field(default_factory=dict)
    volume: FakeVolume | ResultsVolume | None = None
    wrap: Callable[[FakeCluster], Cluster] | None = None
    happens: Mapping[float, Callable[[World], None]] = field(default_factory=dict)
    plans: dict[str, LoadedTrial] = field(default_factory=dict)
    stored: bool = False
    files: Mapping[str, Tree] = field(default_factory=dict)
    models: FakeModels | None = None
    source: Source | None = None
    counters: Metrics | None = None

    def __post_init__(self) -> None:
        self.now = START
        self.happened = 0
        self.reconciles = 0
        self.errors: list[Exception] = []
        self.waits: list[float | None] = []
        self.metrics = self.counters or Metrics(SETTINGS.model_copy(update=dict(self.settings)))
        self.cluster = FakeCluster(make_runner=self._make_runner, pods_run=self.pods_run, faults=self.faults)
        self.cluster.deleted_by_uid = ("Pod", KIND)
        spec = self.trial["spec"]  # any JSON
        self.cluster.one_image = (isinstance(spec, dict) and "regrade" in spec) or "'isolation'" in str(spec)
        self.volume = self.volume or FakeVolume(self.faults)
        if self.models is not None:
            self.models.faults = self.faults
        self.cluster.put(self.trial)
        if self.source is not None:
            self.source.put_into(self)
        self.reconciler = self.fresh()
        self.at_reconcile: Callable[[], None] = lambda: None
        self._failures = 0

    def fresh(self) -> Reconciler:
        """Return a new reconciler with an empty memory, as after a start of the operator."""
        cluster: Cluster = self.wrap(self.cluster) if self.wrap else self.cluster
        settings = SETTINGS.model_copy(update=dict(self.settings))
        store: Any = FakeShipping(self.volume) if isinstance(self.volume, FakeVolume) and self.stored else None
        reconciler = Reconciler(
            cluster,
            self.volume,  # type: ignore[arg-type]
            settings,
            self.metrics,
            clock=lambda: self.now,
            shipping=store,
            history=self.volume.history if isinstance(self.volume, FakeVolume) else None,  # type: ignore[arg-type]
            models=self.models,
        )
        reads_here(reconciler)
        reconciler.trials.loader = cast(TrialLoader, Loader(reconciler.trials.loader, self.plans))
        return reconciler

    # -- time and reconciles

    async def reconcile(self, times: int = 1) -> float | None:
        """Reconcile the trial as the operator's work queue does: back off after an error. Replace an operator that died."""
        wait: float | None = None
        for _ in range(times):
            self.reconciles += 1
            self.at_reconcile()
            try:
                wait = (await self.reconciler.reconcile(KEY)).after
                self._failures = 0
            except (Killed, Exception, asyncio.CancelledError) as error:
                self.errors += [error] if isinstance(error, Exception) else []
                self._failures += 1
                wait = replace(BACKOFF, jitter=0.0).seconds(self._failures)
            if self.faults.dead:
                self.faults.dead, self.reconciler, wait = False, self.fresh(), 1.0
        self.waits.append(wait)
        return wait

    async def run(self, until: Callable[[], object] | None = None, most: int = 400, *, first: float | None = None) -> None:
        """Advance the clock from event to event until no event is left or `until` returns true.

        first: seconds until the first reconcile; default: at once.
        """
        wait = await self.reconcile(2 if self.events == "duplicated" else 1) if first is None else first
        while not (until and until()):
            assert self.reconciles < most, f"no end in sight after {most} reconciles: {self.status.phase}, {self.errors[-1:]}"
            ends = self._next_end()
            if wait is None and ends is None:
                return
            wait = await self._pass(wait, ends)

    async def _pass(self, wait: float | None, ends: float | None) -> float | None:
        """Advance the clock to the next end of a phase or to the next reconcile, whichever is earlier."""
        if ends is None or (wait is not None and self.now + wait < ends):
            assert wait is not None
            self.now += wait
            return await self.reconcile()
        left = None if wait is None else self.now + wait - ends
        self.now = max(self.now, ends)
        self.end_phases()
        self._let_happen()
        if self.events == "dropped" and left is not None:
            return left
        if self.events == "delayed":
            self.now += 7.0
        return await self.reconcile(2 if self.events == "duplicated" else 1)

    def end_phases(self) -> None:
        """Finish the running phases whose duration has passed."""
        for runner in self.cluster.runners.values():
            for record in list(runner.records.values()):
                if record["state"] == "running" and record["startedAt"] + self._duration(record["id"]) <= self.now:
                    runner.end(record["id"])

    def _let_happen(self) -> None:
        for at in sorted(self.happens)[self.happened :]:
            if START + at <= self.now:
                self.happened += 1
                self.happens[at](self)

    def _next_end(self) -> float | None:
        ends = [START + at for at in sorted(self.happens)[self.happened :]] + [
            record["startedAt"] + self._duration(record["id"])
            for key, pod in self.cluster.objects.items()
            if key[0] == "Pod" and pod["status"].get("phase") == "Running" and pod["metadata"]["uid"] in self.cluster.runners
            for record in self.cluster.runners[pod["metadata"]["uid"]].records.values()
            if record["state"] == "running"
        ]
        return min(ends, default=None)

    def _duration(self, id: str) -> float:
        return self.durations.get(id.split("/", 1)[1], 0.0)

    def _make_runner(self, pod: Object) -> FakeRunner:
        results = {f"{step}/{place}verifier": result for step, result in REWARDS.items() for place in ("", "verifier/")}
        results |= dict(self.results)
        runner = TimedRunner(
            pod["metadata"]["uid"],
            results={f"{attempt}/{id}": result for attempt in range(1, 6) for id, result in results.items()},
            files={"/logs/agent": {"log.txt": b"agent"}, "/app/out": b"out", **self.files},
            clock=lambda: self.now,
        )
        runner.is_finished = lambda id: runner.records[id]["startedAt"] + self._duration(id) <= self.now
        as_root = any((each.get("securityContext") or {}).get("runAsUser") == 0 for each in pod["spec"]["containers"])
        if self.user and not as_root:
            runner.user = {"uid": self.user, "gid": self.user, "name": "agent", "home": "/home/agent"}
        return runner

    # -- save and restore

    def save(self) -> bytes:
        """Return the pickled state of the world, without the operator's memory."""
        assert isinstance(self.volume, FakeVolume)
        runners = [(uid, {name: getattr(each, name) for name in _RUNNERS_STATE}) for uid, each in self.cluster.runners.items()]
        stored = self.volume.results, self.volume.history.lines
        return pickle.dumps((self.now, self.happened, self.cluster.save(), runners, stored), pickle.HIGHEST_PROTOCOL)

    def restore(self, saved: bytes) -> Self:
        """Restore into this new world the state that a world with the same options saved."""
        assert isinstance(self.volume, FakeVolume)
        self.now, self.happened, cluster, runners, stored = pickle.loads(saved)
        self.volume.results, self.volume.history.lines = stored
        self.cluster.restore(cluster)
        for uid, state in runners:
            self.cluster.runners[uid] = self._make_runner({"metadata": {"uid": uid.partition("/")[0]}, "spec": {"containers": []}})
            vars(self.cluster.runners[uid]).update(state)
        return self

    # -- changes by others

    def pod_status(self, **status: Any) -> None:
        """Change the status of the only pod."""
        (name,) = self.pods
        self.cluster.set_pod_status(KEY[0], name, **status)

    def change_trial(self, **spec: Any) -> None:
        """Change the trial's spec, as a user does."""
        trial = self.object
        self.cluster.put({**trial, "spec": {**trial["spec"], **spec}})


class Loader:
    """Loads the plan of each trial once, and returns a cached plan from then on."""

    def __init__(self, loader: TrialLoader, plans: dict[str, LoadedTrial]) -> None:
        self._loader, self._plans = loader, plans

    async def load(self, trial: MultiStepTrial) -> LoadedTrial:
        if (known := self._plans.get(trial.metadata.uid)) is None:
            known = self._plans[trial.metadata.uid] = await self._loader.load(trial)
        return known

    def forget(self, uid: str) -> None:
        self._loader.forget(uid)


class TimedRunner(FakeRunner):
    """A runner whose phases finish once their duration has passed and a client waits for them."""

    is_finished: Callable[[str], bool]

    def _known(self, op: str, id: str) -> Json:
        self.finish = "on_wait" if id in self.records and self.is_finished(id) else "manual"
        return super()._known(op, id)


def timeless(value: Any) -> Any:
    """Return a status, with all of its fields, or a result without the values that differ between runs: times, durations and pod
    uids."""
    if isinstance(value, Mapping):
        return {
            key: bool(each) if key == "podUID" else timeless(each)
            for key, each in joined(TrialStatus, value).items()
            if not _is_time(key)
        }
    return [timeless(each) for each in value] if isinstance(value, list) else value


def _is_time(key: str) -> bool:
    # A checkpoint's digest covers its records, which contain times.
    return key in ("seconds", "suspendedSeconds", "digest") or key.endswith(("Time", "_at"))
