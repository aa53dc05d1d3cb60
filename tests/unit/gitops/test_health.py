"""Test the health that GitOps tools compute for trials and sweeps, in each state that the operator writes and before its first
write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from hack.generate import crds as crd
from hack.generate.crds import openapi_schema
from multistep.api.sweep.sweep import parse_sweep
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import TrialStatus
from multistep.engine.journal.journal import Journal, StepRun
from multistep.engine.status import trial_status
from multistep.engine.status.status_size import to_json
from multistep.engine.sweep import sweep_status
from multistep.engine.sweep.next_sweep_action import next_sweep_action
from multistep.engine.sweep.next_trials import TrialFacts
from multistep.engine.sweep.sweep_status import CreationError
from multistep.engine.sweep.trial_manifests import plan_sweep
from tests.support.gitops import Object, argo_health, kstatus
from tests.support.status_cases import trial

NOW = 1_700_000_000.0


def resource(content: Object, **metadata: Any) -> Object:
    return {"metadata": {"name": "t", "generation": 3, **metadata}, "status": content}


RUN = StepRun("a", started_at=10.0, completed_at=20.0, phase="artifacts", rewards={"reward": 0.5})
JOURNAL = Journal([RUN], rewards={"reward": 0.5}, score_rule=ScoreRule(steps=1, strategy="Mean"), finished=True)
RUNNING = trial_status.running(trial(), Journal([RUN]), NOW)
COMPLETE = trial_status.complete(trial(RUNNING), JOURNAL, "uri", NOW)
FAILED = trial_status.failed(trial(RUNNING), "DeadlineExceeded", 'it took\n"too" long \\', NOW)
STATES = {
    "not seen yet": (openapi_schema()["properties"]["status"]["default"], "InProgress", "Progressing"),
    "waiting": (trial_status.waiting(trial(), "Pending", "Unschedulable", "no node", NOW), "InProgress", "Progressing"),
    "started": (trial_status.attempt_started(trial(), 1, "t-1", "task", None, NOW), "InProgress", "Progressing"),
    "running": (RUNNING, "InProgress", "Progressing"),
    "suspending": (trial_status.running(trial(suspend=True), Journal([RUN]), NOW), "InProgress", "Progressing"),
    "suspended": (trial_status.suspended(trial(suspend=True), NOW), "InProgress", "Suspended"),
    "paused": (trial_status.paused(trial(RUNNING, suspend=True), Journal([RUN]), NOW), "InProgress", "Suspended"),
    "another attempt": (trial_status.attempt_failed(trial(RUNNING), "PodDeleted", "gone", NOW), "InProgress", "Progressing"),
    "complete": (COMPLETE, "Current", "Healthy"),
    "complete without a reward": (
        trial_status.complete(trial(RUNNING), Journal([], finished=True), None, NOW),
        "Current",
        "Healthy",
    ),
    "failed": (FAILED, "Failed", "Degraded"),
}


def content_of(made: TrialStatus | Object) -> Object:
    return to_json(made) if isinstance(made, TrialStatus) else made


@pytest.mark.parametrize("name", STATES)
def test_a_trial_is_done_when_it_is_complete_and_not_before(name: str) -> None:
    made, seen, health = STATES[name]
    found = resource(content_of(made))
    assert (kstatus(found), argo_health(found)[0]) == (seen, health)


@pytest.mark.parametrize("name", STATES)
def test_a_status_about_an_earlier_spec_is_never_the_last_word(name: str) -> None:
    changed = resource(content_of(STATES[name][0]), generation=4)
    assert (kstatus(changed), argo_health(changed)[0]) == ("InProgress", "Progressing")
    assert kstatus(resource(content_of(STATES[name][0]), deletionTimestamp="2026-01-01T00:00:00Z")) == "Terminating"


def test_a_change_that_a_finished_trial_noted_does_not_reopen_it() -> None:
    noted = trial_status.observed(
        trial(COMPLETE).model_copy(update={"metadata": trial().metadata.model_copy(update={"generation": 4})})
    )
    found = resource(to_json(noted), generation=4)
    assert (kstatus(found), argo_health(found)[0]) == ("Current", "Healthy")


def test_messages_report_scores_and_reasons_whatever_is_in_them() -> None:
    assert argo_health(resource(content_of(COMPLETE)))[1] == "score 0.5, ran 1 step"
    assert argo_health(resource(content_of(FAILED)))[1] == 'DeadlineExceeded: it took\n"too" long \\'
    assert argo_health(resource(content_of(STATES["complete without a reward"][0])))[1].startswith("no score, ran 0 steps")


def test_without_conditions_kstatus_would_take_a_trial_for_done() -> None:
    """kstatus reports a trial without conditions as current, as if it had finished. The CRD's default conditions prevent this."""
    assert kstatus({"metadata": {"generation": 1}}) == "Current"
    assert kstatus({"metadata": {"generation": 1}, "status": STATES["not seen yet"][0]}) == "InProgress"


SWEEP = parse_sweep(
    {
        "metadata": {"name": "s", "uid": "u", "generation": 3},
        "spec": {"tasks": [{"name": "t", "inline": {"config": {}}}], "agents": [{"name": "a", "agent": {"name": "nop"}}]},
    }
)


def reached(trials: Sequence[TrialFacts] = (), fault: CreationError | None = None, **spec: Any) -> Object:
    sweep = SWEEP.model_copy(update={"spec": SWEEP.spec.model_copy(update=spec)})
    found = plan_sweep(sweep, sweep.spec.tasks)
    return sweep_status.to_json(next_sweep_action(sweep, found, 0, trials, NOW, fault).status)


DONE = TrialFacts(0, "Complete", 0.5)
SWEEPS = {
    "not seen yet": (openapi_schema(crd.SWEEP)["properties"]["status"]["default"], "InProgress", "Progressing"),
    "started": (
        sweep_status.to_json(sweep_status.started_status(SWEEP, plan_sweep(SWEEP, SWEEP.spec.tasks), NOW)),
        "InProgress",
        "Progressing",
    ),
    "running": (reached(), "InProgress", "Progressing"),
    "held back": (reached(fault=CreationError("NameTaken", "x")), "InProgress", "Progressing"),
    "suspended": (reached(suspend=True), "InProgress", "Suspended"),
    "complete": (reached([DONE]), "Current", "Healthy"),
    "failed": (sweep_status.to_json(sweep_status.failed_status(SWEEP, "InvalidSpec", "x", NOW)), "Failed", "Degraded"),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_is_done_when_it_is_complete_and_not_before(name: str) -> None:
    content, seen, health = SWEEPS[name]
    assert (kstatus(resource(content)), argo_health(resource(content), "TrialSweep")[0]) == (seen, health)
    assert argo_health(resource(content, generation=4), "TrialSweep")[0] == "Progressing"


def test_of_a_sweep_argo_cd_shows_what_its_agents_came_to() -> None:
    assert argo_health(resource(reached([DONE])), "TrialSweep")[1] == "score 0.5, 1 of 1 trials count"
