"""Counts the transitions of trials in the metrics, such as finished steps and trials, failed attempts, model usage and
durations."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from multistep.api.trial.failure_table import PROVIDER_FAILED
from multistep.api.trial.status import StepStatus, TrialStatus, Usage, is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.score import failure_class as failures
from multistep.engine.status.tampering_findings import KINDS
from multistep.telemetry.metric_types import Key
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

RECENT_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Mark:
    """The transitions of a trial that are already counted."""

    uid: str
    """UID of the trial."""
    failed_attempts: int
    """Number of failed attempts."""
    attempt: int
    """Number of the current attempt."""
    steps: int
    """Number of the current attempt's finished steps."""
    finished: bool
    """Whether the trial has finished."""

    @classmethod
    def of(cls, trial: MultiStepTrial) -> Self:
        """Return the mark of a trial for which all transitions in the status are counted."""
        status, attempt = trial.status, trial.status.attempt or 1
        steps = _ended_steps(status.steps_by_attempt().get(attempt, []))
        return cls(trial.metadata.uid, len(status.attempts), attempt, len(steps), is_finished(status))


class TrialMetrics:
    """Counts the transitions of trials in the metrics."""

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        *,
        ended: Callable[[MultiStepTrial], object] = lambda _: None,
    ) -> None:
        """Create the tally. ``clock`` returns seconds since the epoch. ``ended`` is called for each trial that finishes.

        It is also called for each trial that finished less than RECENT_SECONDS before this process first read it, because an
        earlier process may have stopped before it called ``ended``.
        """
        self._metrics = metrics
        self._clock = clock
        self._ended = ended
        self._marks: dict[Key, Mark] = {}

    def observe(self, trial: MultiStepTrial) -> None:
        """Count the transitions of a trial that are new since it was last observed."""
        key = trial.metadata.namespace, trial.metadata.name
        self._metrics.phases.observe(key, trial.status.phase)
        mark, now = self._marks.get(key), Mark.of(trial)
        self._marks[key] = now
        if mark is None or mark.uid != now.uid:
            if now.finished and self._is_recent(trial):
                self._ended(trial)
        elif not mark.finished:
            try:
                self._count(trial, mark)
            except Exception:  # another client may have written a status with, for example, a negative number
                logger.exception("counting the transitions of a trial")
            if now.finished:
                self._ended(trial)

    def forget(self, key: Key) -> None:
        """Drop what is kept in memory about a deleted trial."""
        self._metrics.phases.forget(key)
        self._marks.pop(key, None)

    def pod_ran(self, trial: MultiStepTrial, pod: PodFacts) -> None:
        """Count the queueing time and the startup time of a pod. The caller calls this once, when the status first shows the pod's
        run."""
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
        for attempt in status.attempts[mark.failed_attempts :]:
            self._metrics.attempts_failed.labels(failures.reason_label(attempt.reason)).inc()
            if attempt.reason == PROVIDER_FAILED:
                self._metrics.provider_failures.of(**names).inc()
        for step in _new_steps(status, mark):
            self._count_step(step, names)
        for step in _cut_off_steps(status, mark):
            self._count_usages(step, names)
        if is_finished(status):
            self._count_end(status, names)
            if trial.spec.agent.captures:
                self._metrics.rollouts.of("true" if status.score is None else "false", **names).inc()

    def _count_step(self, step: StepStatus, names: Mapping[str, str]) -> None:
        outcome = (
            failures.reason_label(step.exception.type) if step.exception else "GateNotMet" if step.gate is False else "Complete"
        )
        self._metrics.steps_finished.of(outcome, **names).inc()
        for phase, seconds in (step.phase_seconds.model_dump() if step.phase_seconds else {}).items():
            if seconds is not None:
                self._metrics.phase_seconds.of(phase, **names).observe(seconds)

        self._count_usages(step, names)

    def _count_usages(self, step: StepStatus, names: Mapping[str, str]) -> None:
        self._count_usage(step.usage, names)
        found = self._metrics
        of_judge = found.judge_tokens, found.judge_cost, found.judge_requests
        of_user = found.user_tokens, found.user_cost, found.user_requests
        for used, (by_kind, cost, requests) in ((step.judge_usage, of_judge), (step.user_usage, of_user)):
            if used is None:
                continue
            for kind, tokens in _tokens_by_kind(used):
                by_kind.of(kind, **names).inc(tokens)
            cost.of(**names).inc(used.cost_usd or 0.0)
            requests.of(**names).inc(used.requests or 0)

    def _count_usage(self, usage: Usage | None, names: Mapping[str, str]) -> None:
        if usage is None:
            return
        metrics, source = self._metrics, usage.source
        for kind, tokens in _tokens_by_kind(usage):
            metrics.model_tokens.of(kind, source, **names).inc(tokens)
        metrics.model_cost.of(source, **names).inc(usage.cost_usd or 0.0)
        metrics.model_requests.of(**names).inc(usage.requests or 0)
        metrics.model_held_seconds.of(**names).inc(usage.held_seconds or 0.0)

    def _count_end(self, status: TrialStatus, names: Mapping[str, str]) -> None:
        reason, class_ = (failures.reason_label(status.failure.reason), status.failure.class_) if status.failure else ("", "")
        for kind in {each.kind if each.kind in KINDS else failures.OTHER for each in status.tampering}:
            self._metrics.tampering.of(kind, **names).inc()
        self._metrics.trials_finished.of(str(status.outcome), reason, class_, **names).inc()
        if status.start_time and status.completion_time:
            self._metrics.trial_seconds.of(**names).observe((status.completion_time - status.start_time).total_seconds())
        if status.score is not None:  # an excluded trial has no score, and must not count as 0
            self._metrics.trial_score.of(**names).observe(status.score)


def _names(trial: MultiStepTrial) -> dict[str, str]:
    agent = trial.spec.agent
    return {"namespace": trial.metadata.namespace, "agent": agent.label, "model": agent.model or ""}


def _ended_steps(steps: list[StepStatus]) -> list[StepStatus]:
    return [each for each in steps if each.completion_time]


def _tokens_by_kind(usage: Usage) -> tuple[tuple[str, int], ...]:
    return ("input", usage.input_tokens or 0), ("cached", usage.cached_tokens or 0), ("output", usage.output_tokens or 0)


def _new_steps(status: TrialStatus, mark: Mark) -> list[StepStatus]:
    """Return the steps that finished since the mark, in the mark's attempt and in later ones."""
    attempts = sorted(status.steps_by_attempt().items())
    since = [(number, _ended_steps(steps)) for number, steps in attempts if number >= mark.attempt]
    return [step for number, steps in since for step in steps[mark.steps if number == mark.attempt else 0 :]]


def _cut_off_steps(status: TrialStatus, mark: Mark) -> list[StepStatus]:
    """Return the unfinished steps of the attempts that failed since the mark and, if the trial has finished, of the last
    attempt."""
    ended = [each.steps for each in status.attempts[mark.failed_attempts :]]
    if is_finished(status):
        ended.append(status.steps)
    return [step for steps in ended for step in steps if step.completion_time is None]
