"""Any error of a reconcile ends in the status of its object, is retried, and ends a trial after a bounded time, without a score."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multistep.api.trial.failure_table import FAILED
from multistep.api.trial.waiting_reasons import WAITING
from multistep.engine.score.usage_totals import SETUP_ACCESS
from multistep.errors import (
    AlreadyExists,
    ClusterError,
    GatewayUnavailable,
    InvalidSpec,
    InvalidTask,
    NotFound,
    NotLeading,
    PodError,
    SourceError,
    StoreError,
    StreamLost,
    Unavailable,
    UncountedModel,
)
from multistep.kube.resources import SECRETS, TRIALS
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.error_outcome import END_SECONDS, Again, Ends, Waits, message, outcome
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue, WorkQueue
from multistep.sources.load.load_trial import TrialLoader
from tests.support.fake_models import FakeModels, counted
from tests.support.sweep_world import SweepWorld
from tests.support.sweep_world import sweep as a_sweep
from tests.support.virtual_time import in_virtual_time
from tests.support.world import START, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, HOSTED_OPTIONS, SCENARIOS, WITH_GATEWAY

NOT_UTF8 = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
UNEXPECTED: dict[str, BaseException] = {
    "a type": TypeError("no string"),
    "a text": NOT_UTF8,
    "a system call": OSError(-1, "Unknown error -1"),
    "a timeout": TimeoutError(),
    "a cancelled future": asyncio.CancelledError(),
    "a group": ExceptionGroup("several", [KeyError("x")]),
    "an assertion": AssertionError(),
    "recursion": RecursionError("too deep"),
    "memory": MemoryError(),
    "an iterator": StopAsyncIteration(),
    "an exception of the tests": type("Strange", (Exception,), {})("strange"),
    "a refused request": ClusterError("the request is not possible", status=422, reason="Invalid"),
}
FORBIDDEN = ClusterError('secrets "keys" is forbidden', status=403, reason="Forbidden")
OUTCOMES: list[tuple[BaseException, Any]] = [
    (InvalidSpec("x"), Ends("InvalidSpec", "ValidationError")),
    (UncountedModel("x"), Ends("ModelNotCounted", "ValidationError")),
    (InvalidTask("x", kind="ValueError"), Ends("InvalidSpec", "ValueError")),
    (SourceError("x", reason="TaskTooLarge"), Ends("TaskTooLarge")),
    (SourceError("x", transient=True, retry_seconds=3.0), Waits("TaskUnavailable")),
    (StoreError("x"), Waits("ResultsNotWritable", gated=True)),
    (GatewayUnavailable("x"), Waits("GatewayUnavailable")),
    (AlreadyExists("x"), Waits("ReconcileFailed", after=30.0, ends=True)),
    (NotFound("x", status=404, reason="NotFound"), Waits("ReconcileFailed", after=30.0, ends=True)),
    (NotFound("a kubelet's", status=404), Waits("ConnectionLost", after=30.0)),
    (NotLeading("x"), Again()),
    (Unavailable("x"), Waits("ConnectionLost", after=30.0)),
    (StreamLost("x"), Waits("ConnectionLost", after=30.0)),
    (PodError("x"), Waits("ConnectionLost", after=30.0)),
    (FORBIDDEN, Waits("AccessDenied", ends=True)),
    *((error, Waits("ReconcileFailed", ends=True)) for error in UNEXPECTED.values()),
]


@pytest.mark.parametrize(("error", "expected"), OUTCOMES, ids=[type(each).__name__ for each, _ in OUTCOMES])
def test_each_error_has_an_outcome(error: BaseException, expected: object) -> None:
    assert outcome(error) == expected


def test_every_reason_of_the_table_is_documented() -> None:
    documented = {each.reason for each in (*FAILED, *WAITING)}
    assert {found.reason for _, found in OUTCOMES if isinstance(found, Ends | Waits)} <= documented


def test_a_message_names_the_error_unless_its_text_is_for_users() -> None:
    assert message(Unavailable("no answer")) == "no answer"
    assert message(TypeError("no string")) == "TypeError: no string"
    assert message(TimeoutError()) == "TimeoutError"


class Raising:
    """A loader of tasks that raises an error at each call, while `on` is true."""

    def __init__(self, error: BaseException, loader: TrialLoader) -> None:
        self.error, self.on, self._loader = error, True, loader

    async def load(self, trial: Any) -> Any:
        if self.on:
            raise self.error
        return await self._loader.load(trial)

    def end(self) -> None:
        self.on = False

    def forget(self, uid: str) -> None: ...


def broken(error: BaseException, **options: Any) -> tuple[World, Raising]:
    world = World(**options)
    loader = raising_loader(world, error)
    return world, loader


def raising_loader(world: World, error: BaseException) -> Raising:
    """Make the loads of tasks in a world raise an error."""
    loader = Raising(error, world.reconciler.trials.loader)
    world.reconciler.trials.loader = cast(TrialLoader, loader)
    return loader


def events(world: World, reason: str) -> list[str]:
    return [each["note"] for each in world.cluster.events if each["reason"] == reason]


@pytest.mark.parametrize("error", [*UNEXPECTED.values(), FORBIDDEN], ids=[*UNEXPECTED, "forbidden"])
async def test_an_error_that_nobody_expects_is_shown_and_ends_the_trial_after_a_bounded_time(error: BaseException) -> None:
    world, _ = broken(error)
    reason, class_ = ("AccessDenied", "Configuration") if error is FORBIDDEN else ("ReconcileFailed", "Infrastructure")
    await world.reconcile()
    assert world.condition == ("Reconciling", reason, message(error))
    assert events(world, reason) == [message(error)]
    await world.run()
    assert world.condition[:2] == ("Failed", reason)
    assert END_SECONDS <= world.now - START <= 2 * END_SECONDS
    status = world.status
    assert status.failure is not None and status.failure.class_ == class_
    assert (status.score, status.rewards, status.tampering) == (None, None, [])
    assert len(events(world, reason)) == 2, "one when it began, one when the trial failed"


async def test_a_trial_goes_on_when_the_error_is_gone() -> None:
    loaders: list[Raising] = []
    world, loader = broken(NOT_UTF8, happens={100.0: lambda _: loaders[0].end()})
    loaders.append(loader)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")
    assert not world.reconciler.memory.errors._by_key


LONG_WAITS = [Unavailable("gone"), StoreError("full"), GatewayUnavailable("gone"), SourceError("missing", transient=True)]


@pytest.mark.parametrize("expected", LONG_WAITS, ids=[type(each).__name__ for each in LONG_WAITS])
async def test_the_time_of_errors_that_a_trial_outlasts_does_not_count_against_unexpected_ones(expected: Exception) -> None:
    loaders: list[Raising] = []
    happens: dict[float, Callable[[World], None]] = {
        20.0: lambda _: setattr(loaders[0], "error", expected),
        3600.0: lambda _: setattr(loaders[0], "error", NOT_UTF8),
        3700.0: lambda _: loaders[0].end(),
    }
    world, loader = broken(TypeError("first"), happens=happens)
    loaders.append(loader)
    await world.run()
    assert NOT_UTF8 in world.errors
    assert world.condition[:2] == ("Complete", "TrialComplete")


@pytest.mark.parametrize("error", [TypeError(), FORBIDDEN, Unavailable("gone"), SourceError("missing", transient=True)])
async def test_a_stop_acts_though_the_task_cannot_be_loaded(error: Exception) -> None:
    world, _ = broken(error, trial=manifest({"stop": True}))
    await world.reconcile()
    assert world.condition[:2] == ("Failed", "Stopped")


async def test_a_deadline_acts_though_the_task_cannot_be_loaded() -> None:
    world = World(trial=manifest({"activeDeadlineSeconds": 100}), pods_run=False)
    await world.run(until=lambda: world.status.pod_uid)
    raising_loader(world, TypeError())
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert world.now - START < 200


async def test_a_running_step_is_shown_and_not_that_its_task_is_read_again() -> None:
    world = World(durations={"a/agent": 1000.0})
    await world.run(until=lambda: world.status.has_own_step)
    loader = raising_loader(world, SourceError("it is being read", transient=True, reason="TaskFetching", retry_seconds=10.0))
    world.now += 100
    await world.reconcile(3)
    assert world.condition[:2] == ("Reconciling", "Running") and not events(world, "TaskFetching")
    loader.end()
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")


async def test_a_deadline_that_passes_in_a_step_blames_no_agent_while_the_task_cannot_be_loaded() -> None:
    world = World(trial=manifest({"activeDeadlineSeconds": 100}), durations={"a/agent": 1e6})
    await world.run(until=lambda: world.status.has_own_step)
    raising_loader(world, TypeError())
    await world.run()
    assert world.condition[:2] == ("Failed", "ReconcileFailed") and world.status.score is None
    assert world.now - START <= 2 * END_SECONDS


async def test_a_trial_whose_results_can_never_be_written_for_an_unexpected_reason_ends_without_them() -> None:
    world = World(trial=manifest({"stop": True}))
    finisher = world.reconciler.trials.finisher

    async def raising(*_: object, **__: object) -> Any:
        raise TypeError("no file")

    finisher.finish_failed = finisher.finish = raising  # type: ignore[method-assign]
    world.change_trial(stop=False)
    await world.run()
    assert world.condition[:2] == ("Failed", "ReconcileFailed") and world.status.results is None


async def test_what_prevents_the_end_of_a_trial_past_its_deadline_is_shown() -> None:
    """Its pods cannot be read, and its disruption budget cannot be deleted."""
    world = World(trial=manifest({"activeDeadlineSeconds": 100}), pods_run=False)
    await world.run(until=lambda: world.status.pod_uid)
    pods, refused = world.reconciler.trials.pods, [True]
    unguard = pods.unguard

    async def get(*_: object) -> Any:
        raise TypeError("no string")

    async def refusing(*names: Any) -> None:
        if refused[0]:
            raise FORBIDDEN
        await unguard(*names)

    pods.get, pods.unguard = get, refusing  # type: ignore[method-assign,assignment]
    world.now += 200
    await world.reconcile()
    assert world.condition == ("Reconciling", "AccessDenied", message(FORBIDDEN))
    refused[0] = False
    await world.reconcile()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and world.status.score is None


def refuse_to_clear(world: World, until: float) -> None:
    """Let the clean-up of the finished trial fail for this many seconds."""
    finisher, ends = world.reconciler.trials.finisher, world.now + until
    clear = finisher.clear

    async def clearing(trial: Any) -> None:
        if world.now < ends:
            raise TypeError("no file")
        await clear(trial)

    finisher.clear = clearing  # type: ignore[method-assign]


@pytest.mark.parametrize(("seconds", "told"), [(20.0, 0), (3600.0, 1)])
async def test_a_clean_up_that_fails_for_long_is_told_once(seconds: float, told: int) -> None:
    world = World()
    refuse_to_clear(world, seconds)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")
    text = "the clean-up of the finished trial fails and is retried: TypeError: no file"
    assert events(world, "ReconcileFailed") == [text] * told


async def test_a_clean_up_that_fails_after_a_wait_of_the_trial_is_not_told_before_its_own_time() -> None:
    loaders: list[Raising] = []
    world, loader = broken(Unavailable("gone"), happens={3600.0: lambda _: loaders[0].end()})
    loaders.append(loader)
    refuse_to_clear(world, 3605.0)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete") and not events(world, "ReconcileFailed")


@pytest.mark.parametrize("down", [0, 1])
async def test_a_trial_that_an_unexpected_error_ends_has_no_open_token(down: int) -> None:
    models = FakeModels({"1/a": counted((10, 0, 5))})
    trial, durations = manifest(WITH_GATEWAY), {**HOSTED_OPTIONS["durations"], "a/host/agent": 1e6}
    world = World(trial=trial, settings=GATEWAY_SETTINGS, models=models, durations=durations, results=HOSTED_OPTIONS["results"])
    await world.run(until=lambda: world.status.has_own_step)
    raising_loader(world, TypeError())
    models.down = down
    await world.run()
    assert world.condition[:2] == ("Failed", "ReconcileFailed") and world.status.score is None
    usage = world.status.steps[0].usage
    assert ("1/a" in models.closed, usage is not None and usage.output_tokens) == ((True, 5) if not down else (False, False))


@pytest.mark.parametrize("end", ["error", "stop", "lost pod"])
async def test_a_trial_that_ends_in_its_agents_setup_has_no_open_token(end: str) -> None:
    models = FakeModels()
    trial = manifest({**WITH_GATEWAY, "infrastructureRetries": 0})
    world = World(trial=trial, settings=GATEWAY_SETTINGS, models=models, durations={"/host/agent-setup": 1e6})
    await world.run(until=lambda: world.status.node_name is not None)
    assert not world.status.agent_acted and models.closed == []
    if end == "error":
        raising_loader(world, TypeError())
    elif end == "stop":
        world.change_trial(stop=True)
    else:
        world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    assert world.condition[0] == "Failed" and world.status.score is None
    assert models.closed == [f"1/{SETUP_ACCESS}"]


async def test_an_outage_is_told_once_however_often_the_trial_is_retried() -> None:
    world = World(durations={"a/agent": 100.0, "b/agent": 100.0})
    await world.run(until=lambda: world.status.has_own_step)
    outage = [0]

    def refuse() -> None:
        if world.faults.trace[-1].startswith("open_exec") and outage[0] < 30:
            outage[0] += 1
            raise Unavailable(f"no answer to request {outage[0]}")

    world.faults.at_point = refuse
    written = world.status_writes
    await world.run(until=lambda: outage[0] == 30)
    assert world.condition[:2] == ("Reconciling", "ConnectionLost")
    assert len(events(world, "ConnectionLost")) == 1 and world.status_writes <= written + 2
    await world.run(until=lambda: world.status.current_step == "b")
    assert world.condition[:2] == ("Reconciling", "Running")
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete")


# -- an error at any point at which the operator calls the cluster, a runner or the volume

EXPECTED = [Unavailable("gone", status=503), StoreError("the volume is full"), GatewayUnavailable("gone")]
LASTING = [*UNEXPECTED.values(), FORBIDDEN]
TRIALS_OF_ALL_KINDS = {name: each for name, each in SCENARIOS.items() if each.fail_calls}
SHORT = {name: each for name, each in TRIALS_OF_ALL_KINDS.items() if sum(each.options.get("durations", {}).values()) < 1000}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(point=st.integers(1, 400), error=st.sampled_from([*LASTING, *EXPECTED]), name=st.sampled_from([*TRIALS_OF_ALL_KINDS]))
async def test_one_error_at_any_point_changes_no_result(point: int, error: BaseException, name: str) -> None:
    scenario = TRIALS_OF_ALL_KINDS[name]
    world = World(**scenario.options)
    world.faults.fail(point, error)
    await world.run()
    assert world.condition[:2] == scenario.condition, (world.condition, world.faults.trace[point - 1 : point])
    assert (world.status.rewards or {}).get("reward") == scenario.reward
    assert tuple(each.reason for each in world.status.attempts) == scenario.attempts


OF_THE_TRIAL = "apply_status", "get MultiStepTrial"  # without the right to read and write the trial, nothing can be shown


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(point=st.integers(1, 400), error=st.sampled_from(LASTING), name=st.sampled_from([*SHORT]))
async def test_an_error_that_stays_at_any_point_is_shown_or_ends_the_trial(point: int, error: BaseException, name: str) -> None:
    options = SHORT[name].options
    trial = options.get("trial") or manifest()
    world = World(**{**options, "trial": {**trial, "spec": {**trial["spec"], "activeDeadlineSeconds": 3000}}})
    at: list[str] = []

    def check() -> None:
        if len(world.faults.trace) == point and not world.faults.trace[-1].startswith(OF_THE_TRIAL):
            at.append(world.faults.trace[-1])
        if at and world.faults.trace[-1] == at[0]:
            raise error

    world.faults.at_point = check
    await world.run(until=lambda: world.now - START > 4000)
    assert world.status.phase in ("Complete", "Failed"), (at, world.condition)
    assert world.status.phase == "Complete" or world.status.score is None


# -- values of Secrets

SECRET = {"agent": {"name": "oracle", "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "k"}}}]}}


def secret(value: bytes) -> dict[str, Any]:
    data = {"k": base64.b64encode(value).decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "default"}, "data": data}


@pytest.mark.parametrize("value", [b"\xff\xfe", b"a\0b"])
async def test_a_value_that_no_variable_can_have_is_named(value: bytes) -> None:
    world = World(trial=manifest(SECRET))
    world.cluster.put(secret(value))
    await world.run()
    kind, reason, text = world.condition
    assert (kind, reason) == ("Failed", "InvalidSpec")
    assert "spec.agent.env[KEY]: the value of key 'k' of Secret 'keys'" in text


class Forbidding:
    """A cluster in which the operator may not read Secrets (the chart's value rbac.secrets is false)."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def get(self, resource: Any, *place: Any) -> Any:
        if resource == SECRETS:
            raise FORBIDDEN
        return await self._cluster.get(resource, *place)


async def test_without_the_right_to_read_secrets_a_trial_that_names_one_fails_and_says_why() -> None:
    world = World(trial=manifest(SECRET), wrap=cast(Any, Forbidding))
    await world.run()
    assert world.condition[:2] == ("Failed", "AccessDenied") and 'secrets "keys" is forbidden' in world.condition[2]
    assert world.status.failure is not None and world.status.failure.class_ == "Configuration"


# -- other objects go on


@pytest.mark.parametrize("error", [*UNEXPECTED.values(), FORBIDDEN], ids=[*UNEXPECTED, "forbidden"])
@in_virtual_time
async def test_an_error_of_one_object_stops_no_other_and_is_retried(error: BaseException) -> None:
    done, retried, failed = asyncio.Event(), asyncio.Event(), list[BaseException]()

    async def work(key: Key) -> Requeue:
        if key[1] == "broken":
            if failed:
                retried.set()
            raise error
        done.set()
        return AT_NEXT_EVENT

    queue = WorkQueue(work, workers=1, failed=failed.append)
    queue.start()
    queue.add(("default", "broken"))
    queue.add(("default", "other"))
    await done.wait()
    await retried.wait()
    assert failed[0] is error
    await queue.stop()


# -- sweeps


@pytest.mark.parametrize("error", [*list(UNEXPECTED.values())[:4], FORBIDDEN])
async def test_an_error_of_a_sweep_is_a_condition_and_the_sweep_goes_on_afterwards(error: Exception) -> None:
    world = SweepWorld()
    create, broken = world.cluster.create, [True]

    async def refusing(made: Any) -> Any:
        if broken[0] and made["kind"] == TRIALS.kind and not isinstance(error, ClusterError):
            raise error
        return await create(made)

    async def listing(*_: object, **__: object) -> Any:
        raise error
        yield

    each = world.cluster.iterate
    if isinstance(error, ClusterError):
        world.cluster.iterate = listing  # type: ignore[method-assign]
    world.cluster.create = refusing  # type: ignore[method-assign,assignment]
    await world.reconcile()
    held = next(one for one in world.status.conditions if one.type == "Reconciling" and one.status == "True")
    reason = "AccessDenied" if error is FORBIDDEN else "ReconcileFailed"
    assert (held.reason, held.message) == (reason, message(error))
    assert [one["reason"] for one in world.cluster.events].count(reason) == 1
    broken[0], world.cluster.iterate = False, each  # type: ignore[method-assign]
    await world.run()
    assert world.status.phase == "Complete"


async def test_a_sweep_that_cannot_start_for_an_unexpected_reason_fails_after_a_bounded_time() -> None:
    world = SweepWorld(a_sweep())

    async def load(_: object) -> Any:
        raise TypeError("no task")

    world.sweeps.tasks = cast(Any, type("Tasks", (), {"load": staticmethod(load), "fetches": world.sweeps.tasks.fetches}))
    await world.run()
    failed = next(one for one in world.status.conditions if one.type == "Failed")
    assert (failed.status, failed.reason, failed.message) == ("True", "ReconcileFailed", "TypeError: no task")


async def test_a_sweep_outlasts_one_unexpected_error_after_a_long_outage() -> None:
    world = SweepWorld(a_sweep())
    tasks, errors = world.sweeps.tasks, [Unavailable("gone")]

    async def load(_: object) -> Any:
        raise errors[0]

    world.sweeps.tasks = cast(Any, type("Tasks", (), {"load": staticmethod(load), "fetches": world.sweeps.tasks.fetches}))
    for _ in range(60):
        world.now += 60
        await world.reconcile()
    errors[0] = cast(Any, TypeError("no task"))
    await world.reconcile()
    world.sweeps.tasks = tasks
    await world.run()
    assert world.status.phase == "Complete"
