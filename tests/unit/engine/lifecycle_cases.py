"""Trials, pods and decisions for tests of the lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from multistep.api.trial.status import (
    AttemptStatus,
    Condition,
    StepStatus,
    TrialStatus,
    VerifierStatus,
)
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.lifecycle.decisions import (
    Decision,
    Fail,
    FailAttempt,
    PodFacts,
    Situation,
    Wait,
)
from multistep.engine.lifecycle.next_decision import decide

START = 1_000_000.0
NOW = START + 100


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def trial(spec: Mapping[str, Any] | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial with uid "t"."""
    made = {"metadata": {"name": "t", "namespace": "ns", "uid": "t"}, "spec": {"task": {"inline": {"config": {}}}, **(spec or {})}}
    return parse_trial(made).model_copy(update={"status": TrialStatus(**status)})


def began(spec: Mapping[str, Any] | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial that started at START; its status names pod t-1 with uid "p"."""
    return trial(spec, **{"attempt": 1, "pod_name": "t-1", "pod_uid": "p", "start_time": at(START), **status})


def finished(spec: Mapping[str, Any] | None = None, kind: str = "Complete", reason: str = "x", **status: Any) -> MultiStepTrial:
    conditions = [Condition(type=kind, status="True", last_transition_time=at(NOW), reason=reason)]
    return began(spec, **{"conditions": conditions, "completion_time": at(NOW - 10), **status})


def pod(**changes: Any) -> PodFacts:
    """Return a running pod of the trial."""
    facts = {"name": "t-1", "uid": "p", "owner_uid": "t", "phase": "Running", "created_at": START}
    return PodFacts(**{**facts, "running": True, "scheduled_at": START, **changes})


def starting(**changes: Any) -> PodFacts:
    """Return a scheduled pod whose containers do not run yet."""
    return pod(**{"running": False, "phase": "Pending", "scheduled_at": NOW - 10, **changes})


def gated(**changes: Any) -> PodFacts:
    """Return a pod that has Kueue's scheduling gate."""
    return starting(**{"scheduled_at": None, "gates": ("kueue.x-k8s.io/admission",), "unschedulable": "gated", **changes})


def ended(exit_code: int | None, exit_reason: str, **changes: Any) -> PodFacts:
    return pod(running=False, terminated=True, exit_code=exit_code, exit_reason=exit_reason, phase="Failed", **changes)


def judging(uid: str | None = "v", *, untouched: bool | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial whose step a is being verified in a separate pod."""
    verifier = VerifierStatus(pod_name="t-1-v0", pod_uid=uid, untouched=untouched)
    return began(**{"current_step": "a", "steps": [StepStatus(name="a")], "verifier": verifier, **status})


def judge(**changes: Any) -> PodFacts:
    """Return the running pod of the separate verifier of ``judging``."""
    return pod(**{"name": "t-1-v0", "uid": "v", **changes})


def after(
    trial: MultiStepTrial,
    facts: PodFacts | None,
    now: float = NOW,
    start_timeout: float = 60.0,
    verifier: PodFacts | None = None,
    *,
    compares_verdicts: bool = False,
) -> Decision:
    return decide(Situation(trial, facts, "t-1", now, start_timeout, verifier, compares_verdicts=compares_verdicts))


ON_ITS_WAY = "attempt 1: waiting for pod t-1"


def in_step(spec: Mapping[str, Any] | None = None, **status: Any) -> MultiStepTrial:
    """Return a trial whose step a has started."""
    return began(spec, **{"current_step": "a", "steps": [StepStatus(name="a")], **status})


IN_STEP = in_step()
IN_CLASS_SETUP = began({"agent": {"importPath": "my.agents:Mine"}}, agent_setup_time=at(START))
"""A trial in which the setup of a custom agent class has started, and no step."""
SUSPEND = {"suspend": True}
RELEASE = {"suspend": True, "suspendPolicy": "Release"}
PRESTART = {"suspend": True, "prestart": True, "suspendPolicy": "Release"}
RELEASE_AFTER_STEP = {"suspend": True, "suspendPolicy": "ReleaseAfterStep"}
QUEUED = [Condition(type="Suspended", status="True", last_transition_time=at(NOW - 10), reason="QueuedByKueue")]
PAUSED = [Condition(type="Suspended", status="True", last_transition_time=at(NOW - 10), reason="Paused")]
RELEASED = FailAttempt("Suspended", "its pod was released, as spec.suspend is true")
STOPPED = Fail("Stopped", "the trial was stopped: spec.stop is true")
AGAIN: dict[str, Any] = {"attempt": 2, "pod_name": "t-2", "pod_uid": None}
LOST = [AttemptStatus(number=1, reason="Evicted", completion_time=at(NOW - 0.4))]
WITH_DEADLINE = {"activeDeadlineSeconds": 100}
DEADLINE = Fail("DeadlineExceeded", "the trial was active for longer than spec.activeDeadlineSeconds = 100")
GONE = FailAttempt("PodDeleted", "pod t-1 was deleted by another client")
FULL_DISK = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
LOW_NODE = "The node was low on resource: memory. "
FILLED_NODE = (
    "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 9Gi. "
    "Container main was using 20Gi, request is 0, has larger consumption of ephemeral-storage. "
)
HUB_DENIES = "pull access denied, repository does not exist or may require authorization: insufficient_scope"
TOO_SLOW = "pod t-1 did not start within environment.build_timeout_sec = 60"


def near(decision: Decision, wanted: Decision) -> Decision:
    """Return ``wanted``, to compare it with the actual ``decision``.

    If both decisions wait for a number of seconds, assert that the numbers are nearly equal, and return ``wanted`` with the actual
    number.
    """
    if isinstance(decision, Wait) and isinstance(wanted, Wait) and decision.seconds is not None and wanted.seconds is not None:
        assert decision.seconds == pytest.approx(wanted.seconds, abs=1e-3)
        return replace(wanted, seconds=decision.seconds)
    return wanted
