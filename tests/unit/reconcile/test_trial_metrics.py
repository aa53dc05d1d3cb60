"""Metrics of trials: each result is counted once, even when writes fail."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.errors import Unavailable
from multistep.settings import Settings
from multistep.sources.load.load_trial import LoadedTrial
from multistep.telemetry.metrics import Metrics
from multistep.telemetry.trial_metrics import RECENT_SECONDS, TrialMetrics
from tests.support.fake_models import FakeModels, counted, failed
from tests.support.faults import Faults, Killed
from tests.support.played import FAULT, rewarded
from tests.support.world import KEY, REWARDS, START, World, manifest
from tests.unit.reconcile.scenarios import GATEWAY_SETTINGS, HOSTED_OPTIONS, WITH_GATEWAY

LABELED = {"metrics_labels": ["namespace", "agent"]}
LONG = {"b/agent": 100.0}


def value(world: World, name: str, **labels: str) -> float | None:
    return world.metrics.registry.get_sample_value(f"multistep_{name}", labels)


def given(**options: Any) -> World:
    """Return a world with a trial whose steps have rewards 1, 0.5 and 0; the trial's reward is their mean."""
    return World(**{"results": {f"{step}/verifier": result for step, result in REWARDS.items()}, **options})


async def test_a_trials_end_is_counted_with_its_score() -> None:
    world = given()
    await world.run()
    assert world.status.rewards is not None
    assert value(world, "trials_finished_total", agent="oracle", outcome="NotPassed", reason="", **{"class": ""}) == 1
    assert value(world, "trial_score_sum", agent="oracle") == world.status.rewards["reward"] == 0.5
    assert value(world, "step_phase_duration_seconds_count", agent="oracle", phase="agent") == 3
    assert value(world, "steps_finished_total", agent="oracle", outcome="Complete") == 3


async def test_a_gate_that_is_not_met_has_one_name_in_status_event_and_metrics() -> None:
    world = given(results={"a/verifier": rewarded(txt="0.25")})
    await world.run()
    assert world.status.outcome == "GateNotMet"
    assert [event["reason"] for event in world.cluster.events if event["type"] == "Warning"] == ["GateNotMet"]
    assert value(world, "steps_finished_total", agent="oracle", outcome="GateNotMet") == 1
    assert value(world, "trials_finished_total", agent="oracle", outcome="GateNotMet", reason="", **{"class": ""}) == 1


async def test_with_all_labels_no_series_reports_a_task_or_a_step() -> None:
    world = given(settings=LABELED)
    await world.run()
    assert value(world, "trial_score_sum", namespace=KEY[0], agent="oracle") == 0.5
    text = world.metrics.render().decode()
    assert "task=" not in text and "step=" not in text


async def test_an_excluded_trial_counts_as_none_and_not_as_zero() -> None:
    world = given(results={"a/begin": FAULT})
    await world.run()
    assert (world.status.phase, world.status.outcome) == ("Failed", "Excluded")
    assert value(world, "trial_score_count", agent="oracle") is None


@pytest.mark.parametrize("report", [counted((1, 0, 1)), failed("Configuration", "no token ids")])
async def test_a_rollout_without_a_score_counts_as_masked(report: Any) -> None:
    agent = {**WITH_GATEWAY["agent"], "capture": "Tokens", "baseURL": "https://policy.example/v1"}
    options = {**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS}
    world = given(trial=manifest({"agent": agent}), models=FakeModels(dict.fromkeys(("1/a", "1/b", "1/c"), report)), **options)
    await world.run()
    masked = "true" if world.status.score is None else "false"
    assert masked == ("true" if report.get("failure") else "false")
    assert value(world, "rollouts_finished_total", agent="terminus-2", model=agent["model"], masked=masked) == 1


async def test_a_verdict_that_the_agent_may_have_prevented_counts_as_zero() -> None:
    world = given(results={"a/verifier": {"captures": {}}})
    await world.run()
    assert (world.status.rewards, world.status.outcome) == (None, "VerifierError")
    assert (value(world, "trial_score_count", agent="oracle"), value(world, "trial_score_sum", agent="oracle")) == (1, 0)


async def test_steps_of_an_attempt_that_is_lost_count_as_work() -> None:
    world = given(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.pod_status(phase="Failed", reason="Evicted", message="the node was low on memory")
    await world.run()
    assert world.status.phase == "Complete" and len(world.status.attempts) == 1
    assert value(world, "attempts_failed_total", reason="Evicted") == 1
    assert value(world, "steps_finished_total", agent="oracle", outcome="Complete") == 4
    assert value(world, "trial_score_count", agent="oracle") == 1


async def test_the_wait_for_the_first_pod_and_the_start_of_each_are_measured() -> None:
    created = manifest()
    created["metadata"]["creationTimestamp"] = at(-10)
    world = given(trial=created, pods_run=False, durations=LONG)
    await world.reconcile()
    running = {"name": "main", "state": {"running": {"startedAt": at(30)}}}
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(25)}
    world.cluster.run_pod(KEY[0], *world.pods)
    world.pod_status(containerStatuses=[running], conditions=[scheduled])
    await world.run()
    assert value(world, "trial_queue_duration_seconds_sum", agent="oracle") == 40
    assert value(world, "pod_startup_duration_seconds_sum", agent="oracle") == 5
    assert value(world, "pod_startup_duration_seconds_count", agent="oracle") == 1


def at(seconds: float) -> str:
    """Return the timestamp this many seconds after the world's start."""
    return datetime.fromtimestamp(START + seconds, UTC).isoformat()


async def points() -> list[str]:
    faults = Faults()
    await given(faults=faults).run()
    return faults.trace


async def test_whatever_answer_is_lost_all_is_counted_once() -> None:
    """The write whose response is lost may have been stored or not; the next reconcile finds out."""
    plans: dict[str, LoadedTrial] = {}
    for number, point in enumerate(await points(), 1):
        if not point.startswith("apply_status"):
            continue
        world = given(faults=Faults().fail(number, Unavailable("no answer")), plans=plans)
        await world.run()
        assert world.status.phase == "Complete"
        counted = [value(world, name, agent="oracle") for name in ("trial_score_count", "trial_score_sum")]
        assert counted == [1, 0.5], point
        assert value(world, "steps_finished_total", agent="oracle", outcome="Complete") == 3


async def test_when_the_operator_dies_around_a_write_nothing_is_counted_twice() -> None:
    """Only one crash leaves a trial uncounted: a crash after the operator's last write of the status and before it counts."""
    missed, plans = [], dict[str, LoadedTrial]()
    for number, point in enumerate(await points(), 1):
        if not point.startswith(("apply_status", "create_event")):
            continue
        world = given(faults=Faults().fail(number, Killed()), plans=plans)
        await world.run()
        assert world.status.phase == "Complete"
        counted = value(world, "trial_score_count", agent="oracle")
        assert counted in (1, None), point
        if counted is None:
            missed.append(point)
    assert len(missed) == 1 and missed[0].startswith("apply_status"), missed


@pytest.mark.parametrize("labels", [["namespace"], []])
def test_the_setting_takes_what_there_is(labels: list[Any]) -> None:
    assert Settings(metrics_labels=labels).metrics_labels == labels


async def test_a_trial_that_ended_is_reported_once_and_again_after_a_restart_if_it_was_not_long_ago() -> None:
    world, reported = given(), list[str]()
    await world.run()
    trial = parse_trial(world.object)

    def fresh(later: float) -> TrialMetrics:
        return TrialMetrics(Metrics(), lambda: world.now + later, ended=lambda each: reported.append(each.metadata.uid))

    running = trial.model_copy(update={"status": trial.status.model_copy(update={"phase": "Running", "conditions": []})})
    transitions = fresh(RECENT_SECONDS)
    for each in (running, trial, trial):
        transitions.observe(each)
    assert reported == ["trial-uid"]
    restarted = fresh(RECENT_SECONDS / 2)
    for _ in range(2):
        restarted.observe(trial)
    assert reported == ["trial-uid"] * 2
    fresh(RECENT_SECONDS).observe(trial)
    assert reported == ["trial-uid"] * 2
    another = trial.model_copy(update={"metadata": trial.metadata.model_copy(update={"uid": "another"})})
    restarted.observe(another)  # a new trial with the name of the first one
    assert reported == ["trial-uid"] * 2 + ["another"]


def lost_at(attempt: int, *, lost: int) -> MultiStepTrial:
    """Return a trial in this attempt, whose first ``lost`` attempts failed. Every attempt has finished one step."""
    step = {"name": "a", "completionTime": at(1)}
    attempts = [{"number": number, "reason": "Evicted", "steps": [step]} for number in range(1, lost + 1)]
    status = {"phase": "Pending", "attempt": attempt, "attempts": attempts, "steps": [step] if attempt > lost else []}
    return parse_trial({**manifest(), "status": status})


def test_a_step_of_a_lost_attempt_is_counted_once_however_the_loss_and_the_next_beginning_are_seen() -> None:
    metrics = Metrics(Settings())
    transitions = TrialMetrics(metrics, lambda: START)
    for trial in (parse_trial(manifest()), lost_at(1, lost=0), lost_at(1, lost=1), lost_at(1, lost=1), lost_at(2, lost=1)):
        transitions.observe(trial)
    counted = metrics.registry.get_sample_value("multistep_steps_finished_total", {"agent": "oracle", "outcome": "Complete"})
    assert counted == 2


def test_a_step_that_was_first_seen_after_its_attempt_was_lost_is_counted() -> None:
    metrics = Metrics(Settings())
    transitions = TrialMetrics(metrics, lambda: START)
    for trial in (parse_trial(manifest()), lost_at(1, lost=1)):
        transitions.observe(trial)
    counted = metrics.registry.get_sample_value("multistep_steps_finished_total", {"agent": "oracle", "outcome": "Complete"})
    assert counted == 1


async def test_model_usage_of_each_step_is_counted_once_also_that_of_a_step_that_the_provider_failed() -> None:
    used = counted((100, 10, 5), heldSeconds=2.5)
    models = FakeModels({"1/a": used, "1/b": failed("Provider"), "2/a": used, "2/b": {}})
    world = World(
        trial=manifest({**WITH_GATEWAY, "infrastructureRetries": 1}),
        **{**HOSTED_OPTIONS, "settings": GATEWAY_SETTINGS},
        models=models,
    )
    await world.run()
    assert world.status.phase == "Complete" and len(world.status.attempts) == 1
    labels = {"agent": "terminus-2", "model": "openai/m"}
    by_gateway = {**labels, "source": "Gateway"}
    assert value(world, "model_tokens_total", kind="input", **by_gateway) == 100 + 1 + 100
    assert value(world, "model_tokens_total", kind="cached", **by_gateway) == 20
    assert value(world, "model_tokens_total", kind="output", **by_gateway) == 10
    assert value(world, "model_tokens_total", kind="input", source="Agent", **labels) == 200
    assert value(world, "model_cost_usd_total", **by_gateway) == 0.75
    assert value(world, "model_requests_total", **labels) == 3
    assert value(world, "model_held_seconds_total", **labels) == 5.0
    assert value(world, "provider_failures_total", **labels) == 1


def test_the_usage_of_a_step_that_the_trials_end_cut_off_is_counted() -> None:
    metrics = Metrics(Settings())
    transitions = TrialMetrics(metrics, lambda: START)
    condition = {"type": "Failed", "status": "True", "reason": "Stopped", "lastTransitionTime": at(1)}
    status = {"phase": "Running", "attempt": 1, "steps": [{"name": "a", "usage": {"inputTokens": 7, "source": "Gateway"}}]}
    stopped = {**status, "phase": "Failed", "conditions": [condition]}
    for each in (status, status, stopped, stopped):
        transitions.observe(parse_trial({**manifest(), "status": each}))
    labels = {"agent": "oracle", "model": "", "kind": "input", "source": "Gateway"}
    assert metrics.registry.get_sample_value("multistep_model_tokens_total", labels) == 7
