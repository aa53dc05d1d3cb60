"""A trial that passes its deadline while the operator is down is judged by what its pod had finished."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from multistep.api.trial.trial import MultiStepTrial
from multistep.errors import ClusterError, Conflict, SourceError, Unavailable
from multistep.kube.shard import LABEL_SHARD
from multistep.reconcile.queue.error_outcome import END_SECONDS
from multistep.sources.load.load_trial import LoadedTrial, TrialLoader
from tests.support.fake_models import FakeModels, counted
from tests.support.fake_runner import FakeStream
from tests.support.played import outcome
from tests.support.world import CONFIG, START, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, WITH_GATEWAY


async def away_at_the_deadline(agent: float, verifier: float = 0.0, *, phase: str = "Agent", **spec: Any) -> World:
    """Return a world whose operator was down from this phase of step a until after the deadline, and has just started again. agent,
    verifier: seconds that these phases take."""
    durations = {"a/agent": agent, "a/verifier": verifier}
    world = World(trial=manifest({"activeDeadlineSeconds": 1000, **spec}), durations=durations)
    await world.run(until=lambda: world.status.steps and world.status.steps[-1].phase == phase)
    for _ in range(20):
        world.now += 100
        world.end_phases()
    world.reconciler = world.fresh()
    return world


async def down_at_the_deadline(agent: float, verifier: float = 0.0, **options: Any) -> World:
    world = await away_at_the_deadline(agent, verifier, **options)
    await world.run()
    return world


async def test_an_agent_that_finished_while_the_operator_was_down_is_not_blamed_for_the_missed_deadline() -> None:
    world = await down_at_the_deadline(100.0)
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert (world.status.score, world.status.outcome) == (None, "Excluded")
    assert [(step.name, step.rewards) for step in world.status.steps] == [("a", {"reward": 1})], "no further step starts"
    assert world.status.failure is not None and world.status.failure.step == "a"


async def test_an_agent_that_still_runs_at_the_deadline_is_blamed_though_the_operator_was_down() -> None:
    world = await down_at_the_deadline(10_000.0)
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert (world.status.score, world.status.outcome) == (0, "AgentError")


async def test_a_trial_whose_last_agent_finished_while_the_operator_was_down_is_verified_after_its_deadline() -> None:
    world = await down_at_the_deadline(100.0, toStep="a")
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


async def test_a_verdict_that_came_while_the_operator_was_down_counts_after_the_deadline() -> None:
    world = await down_at_the_deadline(600.0, 100.0, phase="Verifier", toStep="a")
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


async def test_a_verifier_that_still_runs_at_the_deadline_is_not_waited_for() -> None:
    world = await down_at_the_deadline(600.0, 10_000.0, phase="Verifier", toStep="a")
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and world.status.rewards is None


@dataclass
class Reading:
    """A loader of tasks whose first call raises SourceError, as if the task were still being read."""

    loader: TrialLoader
    read: bool = False

    async def load(self, trial: MultiStepTrial) -> LoadedTrial:
        if self.read:
            return await self.loader.load(trial)
        self.read = True
        raise SourceError("the task is being read", transient=True, reason="TaskFetching", retry_seconds=None)

    def forget(self, uid: str) -> None:
        self.loader.forget(uid)


@pytest.mark.parametrize(("phase", "verifier"), [("Agent", 0.0), ("Verifier", 100.0)])
async def test_a_restarted_operator_reads_the_task_before_a_trial_misses_its_deadline(phase: str, verifier: float) -> None:
    world = await away_at_the_deadline(600.0, verifier, phase=phase, toStep="a")
    trials = world.reconciler.trials
    trials.loader = cast(TrialLoader, Reading(trials.loader))
    assert await world.reconcile() is None, "the end of the read requeues the trial"
    assert world.condition[:2] == ("Reconciling", "Running"), "the step runs on"
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


async def test_a_trial_that_is_queued_for_an_exec_session_does_not_miss_its_deadline_before_its_pod_is_read() -> None:
    world = await away_at_the_deadline(600.0, toStep="a")
    other, execs = ("default", "other"), world.reconciler.admission.execs
    assert execs.acquire(other, execs.limit)
    for _ in range(3):
        assert await world.reconcile() is not None
        assert world.condition[0] == "Reconciling"
    execs.release(other)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("apply_status", Unavailable("no answer")),
        ("apply_status", Conflict("modified", status=409, reason="Conflict")),
        ("open_exec", Unavailable("too many requests", status=429)),
        ("open_exec", Unavailable("no answer")),
        ("open_exec", ClusterError("pods/exec is forbidden", status=403, reason="Forbidden")),
        ("open_exec", TypeError("no string")),
        ("get Pod", ClusterError("pods is forbidden", status=403, reason="Forbidden")),
        ("get Pod", TypeError("no string")),
    ],
)
async def test_a_call_that_is_refused_at_first_does_not_hide_at_the_deadline_that_the_agent_has_finished(
    call: str, error: Exception
) -> None:
    """After an outage, an API server often rejects some requests at first."""
    world = await away_at_the_deadline(600.0, toStep="a")
    refused = 0

    def refuse() -> None:
        nonlocal refused
        if world.faults.trace[-1].startswith(call) and refused < 3:
            refused += 1
            raise error

    world.faults.at_point = refuse
    await world.run()
    assert refused == 3
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


@pytest.mark.parametrize("call", ["open_exec", "get Pod"])
async def test_a_trial_whose_pod_can_never_be_read_after_its_deadline_ends_without_a_score(call: str) -> None:
    world = await away_at_the_deadline(600.0, toStep="a")

    def refuse() -> None:
        if world.faults.trace[-1].startswith(call):
            raise ClusterError("it is forbidden", status=403, reason="Forbidden")

    world.faults.at_point = refuse
    await world.run(until=lambda: world.status.phase == "Failed")
    assert world.condition[:2] == ("Failed", "AccessDenied") and world.status.score is None


async def test_a_gateway_that_is_down_at_first_does_not_hide_at_the_deadline_that_the_agent_has_finished() -> None:
    models = FakeModels({"1/a": counted((1, 0, 1))})
    durations, results = {"a/host/agent": 600.0}, {"/host/agent-setup": outcome(), "a/host/agent": outcome(tokens=(1, 0, 1))}
    trial = manifest({**WITH_GATEWAY, "activeDeadlineSeconds": 1000, "toStep": "a"})
    world = World(trial=trial, settings=GATEWAY_SETTINGS, models=models, durations=durations, results=results)
    await world.run(until=lambda: world.status.steps and world.status.steps[-1].phase == "Agent")
    for _ in range(20):
        world.now += 100
        world.end_phases()
    world.reconciler, models.down = world.fresh(), 3
    await world.run()
    assert models.down == 0
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


# -- a pod that cannot be read after the deadline: what its agent finished is unknown


def without_score(world: World) -> None:
    assert world.condition[:2] == ("Failed", "ResultUnknown")
    assert world.status.failure is not None and world.status.failure.class_ == "Infrastructure"
    assert (world.status.score, world.status.outcome, world.pods) == (None, "Excluded", [])


class Missing:
    """A loader of tasks whose ConfigMap does not exist until ``found_at``."""

    def __init__(self, world: World, found_at: float) -> None:
        self._world, self._found_at = world, found_at
        self._loader = world.reconciler.trials.loader
        world.reconciler.trials.loader = cast(TrialLoader, self)

    async def load(self, trial: MultiStepTrial) -> LoadedTrial:
        if self._world.now < self._found_at:
            raise SourceError("ConfigMap task does not exist", transient=True)
        return await self._loader.load(trial)

    def forget(self, uid: str) -> None:
        self._loader.forget(uid)


async def test_a_trial_whose_task_was_deleted_before_its_pod_was_read_ends_without_a_score() -> None:
    world = await away_at_the_deadline(600.0, toStep="a", podCleanup="Never")
    started = world.now
    Missing(world, float("inf"))
    await world.run()
    without_score(world)
    assert "ConfigMap task does not exist" in world.condition[2]
    assert world.now - started <= 2 * END_SECONDS


async def test_a_task_that_is_there_again_soon_lets_the_pod_be_read_after_the_deadline() -> None:
    world = await away_at_the_deadline(600.0, toStep="a")
    Missing(world, world.now + END_SECONDS / 2)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


async def test_a_task_that_is_deleted_after_the_pod_was_read_does_not_save_an_agent_that_still_runs() -> None:
    def delete_task(world: World) -> None:
        Missing(world, START + 1050)

    trial, durations = manifest({"activeDeadlineSeconds": 1000}), {"a/agent": 10_000.0}
    world = World(trial=trial, durations=durations, happens={900.0: delete_task})
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and world.status.score == 0


async def test_a_trial_whose_pod_does_not_answer_after_its_deadline_ends_without_a_score() -> None:
    world = await away_at_the_deadline(600.0, toStep="a", podCleanup="Never")

    def refuse() -> None:
        if world.faults.trace[-1].startswith("open_exec"):
            raise Unavailable("no answer")

    world.faults.at_point = refuse
    await world.run()
    without_score(world)


async def test_a_trial_whose_pod_was_lost_before_it_was_read_after_its_deadline_ends_without_a_score() -> None:
    world = await away_at_the_deadline(600.0, toStep="a")
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    without_score(world)
    assert "pod t-1 was deleted by another client" in world.condition[2]


async def test_a_trial_that_another_shard_ran_until_its_deadline_ends_without_a_score() -> None:
    world = await away_at_the_deadline(600.0, toStep="a")
    pod = world.cluster.objects["Pod", "default", "t-1"]
    pod["metadata"].setdefault("labels", {})[LABEL_SHARD] = "other"
    await world.run()
    without_score(world)


# -- a running pod that breaks all exec sessions


def break_sessions(world: World, answers: int = 0) -> None:
    """Let each exec session break after so many answers; before the first one as when a process of the container ends it while it
    starts."""
    runner = world.runner
    runner.stream = lambda **_: FakeStream(runner, break_after_received=answers)  # type: ignore[method-assign]


def others_work(world: World, now: float, node: str = "") -> None:
    """Let exec sessions work with a pod of another trial."""
    hints = world.reconciler.memory.hints
    hint = hints.of(("default", "working"), "uid")
    hint.node = node
    hints.worked(hint, now)


async def test_an_agent_that_breaks_all_exec_sessions_until_the_deadline_scores_0_however_short_it_ran() -> None:
    world = await away_at_the_deadline(10.0, toStep="a", podCleanup="Never")
    break_sessions(world)
    others_work(world, world.now + 10_000)
    await world.run()
    assert world.condition[:2] == ("Failed", "PodUnresponsive")
    assert world.status.failure is not None and world.status.failure.class_ == "Agent"
    assert (world.status.score, world.status.outcome, world.pods) == (0, "AgentError", [])


async def test_if_nothing_shows_why_sessions_break_the_missed_deadline_decides() -> None:
    world = await away_at_the_deadline(2000.0, toStep="a")
    break_sessions(world)
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and "all exec sessions with its pod broke" in world.condition[2]
    assert world.status.score == 0


async def test_sessions_that_break_with_the_nodes_other_pods_too_are_not_the_agents_doing() -> None:
    world = await away_at_the_deadline(2000.0, toStep="a")
    break_sessions(world)
    hints = world.reconciler.memory.hints
    hints.session_lost(hints.of(("default", "other"), "uid"), "broken", world.now)
    await world.run()
    without_score(world)


async def test_two_agents_of_a_node_that_break_their_sessions_do_not_excuse_each_other() -> None:
    """What breaks the sessions with all pods of a node begins after the last session that worked. Here the other agent broke its
    sessions before: the node served this pod meanwhile."""
    world = await away_at_the_deadline(2000.0, toStep="a")
    hints = world.reconciler.memory.hints
    hints.session_lost(hints.of(("default", "other"), "uid"), "broken", world.now - 500)
    hints.worked(hints.of(("default", "t"), world.status.pod_uid), world.now - 400)
    break_sessions(world)
    await world.run()
    assert world.condition[:2] == ("Failed", "DeadlineExceeded") and world.status.score == 0


async def test_a_trial_to_be_suspended_that_missed_its_deadline_is_read_first() -> None:
    world = await away_at_the_deadline(600.0, toStep="a", suspendPolicy="Release")
    world.change_trial(suspend=True)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


async def test_sessions_that_break_at_first_after_the_deadline_hide_no_result() -> None:
    world = await away_at_the_deadline(600.0, toStep="a")
    runner, broken = world.runner, list(range(4))

    def stream(**_: Any) -> FakeStream:
        return FakeStream(runner, break_after_received=0 if broken and broken.pop() >= 0 else None)

    runner.stream = stream  # type: ignore[method-assign]
    await world.run()
    assert not broken and world.condition[:2] == ("Complete", "TrialComplete") and world.status.score == 1


async def test_sessions_that_break_with_a_verifiers_pod_without_the_agents_files_are_not_the_agents_doing() -> None:
    config = {**CONFIG, "verifier": {"environment": {"docker_image": "judge", "healthcheck": {"command": "true"}}}}
    world = World(trial=manifest({"activeDeadlineSeconds": 1000}, config=config), durations={"a/verifier/healthcheck": 10_000.0})
    await world.run(until=lambda: any("1/a/verifier/healthcheck" in each.starts for each in world.cluster.runners.values()))
    break_sessions(world)
    await world.run()
    without_score(world)


# -- the same without a deadline


LATER = START + 100_000


def breaking(nodes: Sequence[str] = ("one", "two"), answers: int = 0) -> World:
    """Return a world without a deadline, in which all exec sessions break after so many answers as soon as the agent runs, in each
    attempt. nodes: those of the attempts' pods."""
    world = World(trial=manifest({"toStep": "a", "infrastructureRetries": 1}), durations={"a/agent": 10.0})

    def break_if_it_runs() -> None:
        if any(id.endswith("/a/agent") for runner in list(world.cluster.runners.values())[-1:] for id in runner.starts):
            break_sessions(world, answers)

    def run_on_node(namespace: str, name: str) -> None:
        world.cluster.objects["Pod", namespace, name]["spec"]["nodeName"] = nodes[int(name[-1]) - 1]
        run_pod(namespace, name)

    run_pod, world.cluster.run_pod = world.cluster.run_pod, run_on_node  # type: ignore[method-assign,assignment]
    world.at_reconcile = break_if_it_runs
    return world


async def test_an_agent_that_breaks_all_sessions_for_an_hour_scores_0_if_the_node_works() -> None:
    world = breaking()
    others_work(world, LATER, "one")
    await world.run()
    assert world.condition[:2] == ("Failed", "PodUnresponsive") and 3600 <= world.now - START < 4000
    assert (world.status.score, world.status.attempts) == (0, [])


async def test_an_agent_that_breaks_all_sessions_on_a_node_of_its_own_is_believed_once() -> None:
    world = breaking()
    others_work(world, LATER, "other")
    await world.run()
    assert [(each.reason, each.node_name) for each in world.status.attempts] == [("SessionsBroken", "one")]
    assert world.condition[:2] == ("Failed", "PodUnresponsive") and world.status.score == 0


async def test_one_node_that_breaks_the_sessions_of_two_attempts_is_not_the_agents_doing() -> None:
    world = breaking(("one", "one"))
    others_work(world, LATER, "other")
    await world.run()
    assert world.condition[:2] == ("Failed", "SessionsBroken") and world.status.score is None


async def test_sessions_that_break_with_all_pods_of_a_node_lose_the_attempt_and_are_never_the_agents_doing() -> None:
    world = breaking()
    others_work(world, LATER, "other")
    hints = world.reconciler.memory.hints
    for node in ("one", "two"):
        hint = hints.of(("default", node), "uid")
        hint.node = node
        hints.session_lost(hint, "broken", LATER)
    await world.run()
    assert world.condition[:2] == ("Failed", "SessionsBroken")
    assert world.status.failure is not None and (world.status.failure.class_, world.status.score) == ("Infrastructure", None)


async def test_a_session_that_opens_after_an_outage_of_hours_continues_the_trial_though_others_reconnected_first() -> None:
    world = breaking()
    await world.run(until=lambda: world.now > START + 10_000)
    others_work(world, world.now, "one")
    world.at_reconcile = lambda: world.runner.__dict__.pop("stream", None)
    await world.run()
    assert world.condition[:2] == ("Complete", "TrialComplete") and (world.status.score, world.status.attempts) == (1, [])


async def test_while_no_session_works_with_any_pod_the_trial_waits_but_not_for_ever() -> None:
    """The API server cannot open exec sessions. The agent's work is not lost for that, unless it takes four hours."""
    world = breaking()
    await world.run(until=lambda: world.now > START + 14_000)
    assert (world.condition[:2], world.status.attempts) == (("Reconciling", "ConnectionLost"), [])
    await world.run(most=2000)
    assert [each.reason for each in world.status.attempts] == ["SessionsBroken", "SessionsBroken"]
    assert (world.condition[1], world.status.score) == ("SessionsBroken", None)


async def test_sessions_that_break_after_the_runner_answered_are_not_the_agents_doing_but_not_waited_for_without_end() -> None:
    """For example, a proxy cuts long downloads."""
    world = breaking(answers=1)
    others_work(world, LATER, "one")
    others_work(world, LATER, "two")
    await world.run(most=2000)
    assert world.condition[:2] == ("Failed", "SessionsBroken") and world.status.score is None
    assert world.now - START >= 2 * 4 * 3600
