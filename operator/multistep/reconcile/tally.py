"""Counts what becomes of trials: each thing once as long as this process lives, whatever its writes and answers come to.

What is counted is the difference between two statuses that were seen, not a write: of a write whose answer was lost the
next look tells. At its first look at a trial a process takes what it finds for counted, by itself or by another; so what
a process wrote right before it died may be missing, and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from ..api.conditions import is_finished
from ..api.trial import MultiStepTrial
from ..api.trial_status import StepStatus, TrialStatus
from ..engine import failures
from ..engine.decisions import PodFacts
from ..metrics import Metrics
from .turns import Key

RECENT_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Mark:
    """How much of a trial is counted. uid: the trial's; lost: attempts; attempt: the current one; steps: that ended in it; over:
    it has ended."""

    uid: str
    lost: int
    attempt: int
    steps: int
    over: bool

    @classmethod
    def of(cls, trial: MultiStepTrial) -> Self:
        """All that its status tells."""
        status, attempt = trial.status, trial.status.attempt or 1
        steps = _ended_steps(status.steps_by_attempt().get(attempt, []))
        return cls(trial.metadata.uid, len(status.attempts), attempt, len(steps), is_finished(status))


class Tally:
    """What was counted of each trial. ended: told of each trial that has ended, and of those that had, less than RECENT_SECONDS
    before they were first seen: nobody may have been told. clock: seconds since the epoch."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        ended: Callable[[MultiStepTrial], object] = lambda _: None,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._ended = ended
        self._marks: dict[Key, Mark] = {}

    def saw(self, trial: MultiStepTrial) -> None:
        """A trial was read or written: count what is new."""
        key = trial.metadata.namespace, trial.metadata.name
        self._metrics.phases.saw(key, trial.status.phase)
        mark, now = self._marks.get(key), Mark.of(trial)
        self._marks[key] = now
        if mark is None or mark.uid != now.uid:
            if now.over and self._is_recent(trial):
                self._ended(trial)
        elif not mark.over:
            self._count(trial, mark)
            if now.over:
                self._ended(trial)

    def gone(self, key: Key) -> None:
        """A trial is there no more."""
        self._metrics.phases.gone(key)
        self._marks.pop(key, None)

    def pod_ran(self, trial: MultiStepTrial, pod: PodFacts) -> None:
        """It was written down for the first time that the attempt's pod runs."""
        names, created = _names(trial), trial.metadata.creation_timestamp
        if pod.started_at is None:
            return
        if created is not None and not trial.status.attempts:
            self._metrics.queue_seconds.of(**names).observe(max(0.0, pod.started_at - created.timestamp()))
        if pod.scheduled_at is not None:
            self._metrics.startup_seconds.of(**names).observe(max(0.0, pod.started_at - pod.scheduled_at))

    def _is_recent(self, trial: MultiStepTrial) -> bool:
        end = trial.status.completion_time
        return end is not None and self._clock() - end.timestamp() < RECENT_SECONDS

    def _count(self, trial: MultiStepTrial, mark: Mark) -> None:
        status, names = trial.status, _names(trial)
        for lost in status.attempts[mark.lost :]:
            self._metrics.attempts_lost.labels(failures.label(lost.reason)).inc()
        for step in _new_steps(status, mark):
            self._count_step(step, names)
        if is_finished(status):
            self._count_end(status, names)

    def _count_step(self, step: StepStatus, names: Mapping[str, str]) -> None:
        outcome = failures.label(step.exception.type) if step.exception else "GateFailed" if step.gate is False else "Complete"
        self._metrics.steps_finished.of(outcome, **names).inc()
        for phase, seconds in (step.durations.model_dump() if step.durations else {}).items():
            if seconds is not None:
                self._metrics.phase_seconds.of(phase, **names).observe(seconds)

    def _count_end(self, status: TrialStatus, names: Mapping[str, str]) -> None:
        reason, class_ = (failures.label(status.failure.reason), status.failure.class_) if status.failure else ("", "")
        self._metrics.trials_finished.of(str(status.phase), reason, class_, **names).inc()
        if status.start_time and status.completion_time:
            self._metrics.trial_seconds.of(**names).observe((status.completion_time - status.start_time).total_seconds())
        if (
            status.phase == "Complete" and (reward := (status.rewards or {}).get("reward")) is not None
        ):  # a missing reward is no zero
            self._metrics.trial_reward.of(**names).observe(reward)


def _names(trial: MultiStepTrial) -> dict[str, str]:
    return {"namespace": trial.metadata.namespace, "agent": trial.spec.agent.name}


def _ended_steps(steps: list[StepStatus]) -> list[StepStatus]:
    return [each for each in steps if each.completion_time]


def _new_steps(status: TrialStatus, mark: Mark) -> list[StepStatus]:
    """Steps that ended since, of the attempt that was current then, of those between, and of the one that is now."""
    attempts = sorted(status.steps_by_attempt().items())
    since = [(number, _ended_steps(steps)) for number, steps in attempts if number >= mark.attempt]
    return [step for number, steps in since for step in steps[mark.steps if number == mark.attempt else 0 :]]
