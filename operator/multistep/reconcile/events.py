"""Events and metrics of what happened to a trial: told once per transition, after the status was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..api.trial import AttemptStatus, MultiStepTrial, StepStatus, TrialStatus
from ..api.unknown import UnknownKey
from ..engine import failures
from ..engine.lifecycle import SUSPENDED
from ..engine.status import bounded, reward_text
from ..metrics import Metrics


@dataclass(frozen=True)
class Transition:
    """One thing that happened, as an Event says it."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


def transitions(old: TrialStatus, new: TrialStatus) -> list[Transition]:
    """What happened between two statuses of a trial, in order."""
    found = []
    if len(new.attempts) > len(old.attempts):
        found += _attempt_ended(new.attempts[-1])
    if new.pod_uid and new.pod_uid != old.pod_uid:
        found.append(Transition("PodCreated", f"attempt {new.attempt}: created pod {new.pod_name}"))
    if new.verifier and new.verifier.pod_uid and new.verifier != old.verifier:
        found.append(Transition("VerifierPodCreated", f"step {new.current_step}: created pod {new.verifier.pod_name}"))
    found += [_step_ended(step) for step in ended_steps(old, new)]
    if new.current_step and new.current_step != old.current_step:
        found.append(Transition("StepStarted", f"step {new.current_step} started"))
    if new.phase != old.phase and new.phase in ("Complete", "Failed"):
        found.append(_phase_changed(new))
    return found + _suspension(old, new)


def _attempt_ended(lost: AttemptStatus) -> list[Transition]:
    """One that was released is told as a suspension."""
    if lost.reason == SUSPENDED:
        return []
    return [Transition(lost.reason or "AttemptLost", f"attempt {lost.number} was lost: {lost.message}", "Warning")]


def _suspension(old: TrialStatus, new: TrialStatus) -> list[Transition]:
    """Suspended and Resumed, as a Job tells it; a paused trial whose pod is released is told of, too."""
    if new.phase == "Suspended" and (old.phase != "Suspended" or len(new.attempts) > len(old.attempts)):
        return [Transition("Suspended", _phase_changed(new).message)]
    if old.phase == "Suspended" and new.phase in ("Pending", "Running"):
        return [Transition("Resumed", f"attempt {new.attempt} goes on" if new.pod_uid else f"attempt {new.attempt} begins")]
    return []


def ignored_keys(unknown: Sequence[UnknownKey]) -> list[Transition]:
    """A warning about keys of task.toml that have no effect, which is most often a typo; nothing if there are none."""
    if not unknown:
        return []
    return [Transition("UnknownKeys", bounded(f"ignored in task.toml: {'; '.join(map(str, unknown))}"), "Warning")]


def ended_steps(old: TrialStatus, new: TrialStatus) -> list[StepStatus]:
    """The steps that ended between two statuses."""
    ended = len([step for step in old.steps if step.completion_time]) if old.attempt == new.attempt else 0
    return [step for step in new.steps[ended:] if step.completion_time]


def measure(metrics: Metrics, trial: MultiStepTrial, old: TrialStatus, new: TrialStatus) -> None:
    """Count what happened between two statuses."""
    agent = trial.spec.agent.name
    for lost in new.attempts[len(old.attempts) :]:
        metrics.attempts_lost.labels(failures.label(lost.reason)).inc()
    for step in ended_steps(old, new):
        _measure_step(metrics, agent, step)
    if new.phase != old.phase and new.phase in ("Complete", "Failed"):
        _measure_trial(metrics, agent, new)


def _measure_step(metrics: Metrics, agent: str, step: StepStatus) -> None:
    outcome = step.exception.type if step.exception else "GateFailed" if step.gate is False else "Complete"
    metrics.steps_finished.labels(agent, outcome).inc()
    if step.rewards and "reward" in step.rewards:
        metrics.step_reward.labels(agent).observe(step.rewards["reward"])
    for phase, seconds in (step.durations.model_dump() if step.durations else {}).items():
        if seconds is not None:
            metrics.phase_seconds.labels(agent, phase).observe(seconds)


def _measure_trial(metrics: Metrics, agent: str, status: TrialStatus) -> None:
    failure = status.failure
    metrics.trials_finished.labels(
        agent, status.phase, failures.label(failure.reason) if failure else "", failure.class_ if failure else ""
    ).inc()
    if status.start_time and status.completion_time:
        metrics.trial_seconds.labels(agent).observe((status.completion_time - status.start_time).total_seconds())
    if status.rewards and "reward" in status.rewards:
        metrics.trial_reward.labels(agent).observe(status.rewards["reward"])


def _step_ended(step: StepStatus) -> Transition:
    rewards = f"rewards {reward_text(step.rewards) or 'none'}"
    if step.exception:
        return Transition("StepFailed", f"step {step.name}: {step.exception.type}: {step.exception.message}", "Warning")
    if step.gate is False:
        return Transition("GateFailed", f"step {step.name}: below min_reward with {rewards}", "Warning")
    return Transition("StepCompleted", f"step {step.name}: {rewards}")


def _phase_changed(status: TrialStatus) -> Transition:
    condition = next((each for each in status.conditions if each.status == "True"), None)
    kind: Literal["Normal", "Warning"] = "Warning" if status.phase == "Failed" else "Normal"
    reason = condition.reason if condition else str(status.phase)
    return Transition(reason, condition.message if condition else "", kind)
