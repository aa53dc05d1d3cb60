"""Writes a trial's status, then counts its transitions in the metrics and emits Events."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from multistep.api.common.base_model import GROUP
from multistep.api.task.suspicious_values import not_finite
from multistep.api.trial.failure_table import PROVIDER_FAILED
from multistep.api.trial.spec import TrialSpec
from multistep.api.trial.status import AttemptStatus, StepStatus, Tampering, TrialStatus, Usage, is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.lifecycle.stop_and_suspend import SUSPENDED
from multistep.engine.plan.resolve_templates import unused_variables
from multistep.engine.plan.unsupported_parts import ignored_parts
from multistep.engine.score import failure_class as failures
from multistep.engine.status.status_size import bounded, redacted, reward_text, to_json
from multistep.engine.status.tampering_findings import KINDS
from multistep.errors import ClusterError, Conflict, NotLeading, Unavailable
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import EVENTS, TRIALS
from multistep.logs import also_about
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.sources.reader.read_task import ReadTask
from multistep.telemetry.metrics import Metrics
from multistep.timestamps import rfc3339

_AGENT_ENV_HINT = "an agent receives the variables of spec.agent.env only"


@dataclass(frozen=True)
class Transition:
    """A transition of a trial or sweep, with the reason, message and type of the Event that reports it."""

    reason: str
    message: str
    type: Literal["Normal", "Warning"] = "Normal"


def transitions(old: TrialStatus, new: TrialStatus) -> list[Transition]:
    """Return the transitions between two statuses of a trial, in order."""
    found = []
    if len(new.attempts) > len(old.attempts):
        found += _attempt_ended(new.attempts[-1])
    if new.pod_uid and new.pod_uid != old.pod_uid:
        found.append(Transition("PodCreated", f"attempt {new.attempt}: created pod {new.pod_name}"))
    if new.verifier and new.verifier.pod_uid and new.verifier != old.verifier:
        found.append(Transition("VerifierPodCreated", f"step {new.current_step}: created pod {new.verifier.pod_name}"))
    found += [_tampering(each) for each in new.tampering if each not in old.tampering]
    found += (ended := [_step_ended(step) for step in ended_steps(old, new)])
    if new.has_own_step and new.current_step != old.current_step:
        started = f"step {new.current_step} started"
        if ended:  # one Event reports both, because each Event needs a request
            found[-1] = replace(found[-1], message=f"{found[-1].message}; {started}")
        else:
            found.append(Transition("StepStarted", started))
    if new.phase != old.phase and is_finished(new):
        found.append(_phase_changed(new))
    return found + _suspension(old, new)


def _attempt_ended(failed: AttemptStatus) -> list[Transition]:
    """Return the transition of a failed attempt, none if a suspension ended the attempt, because ``_suspension`` reports that."""
    if failed.reason == SUSPENDED:
        return []
    return [Transition(failed.reason or "AttemptFailed", f"attempt {failed.number} failed: {failed.message}", "Warning")]


def _suspension(old: TrialStatus, new: TrialStatus) -> list[Transition]:
    """Return the transition Suspended or Resumed, if any. A paused trial that releases its pod is reported as Suspended again."""
    if new.phase == "Suspended" and (old.phase != "Suspended" or len(new.attempts) > len(old.attempts)):
        return [Transition("Suspended", _phase_changed(new).message)]
    if old.phase == "Suspended" and new.phase in ("Pending", "Running"):
        return [Transition("Resumed", f"attempt {new.attempt} continues" if new.pod_uid else f"attempt {new.attempt} starts")]
    return []


def task_warnings(task: ReadTask, spec: TrialSpec) -> list[Transition]:
    """Return warnings about settings without effect.

    They are unknown keys of task.toml, numbers that limit nothing, unsupported features, and unused fields of the spec.
    """
    found = []
    if task.unknown:
        found.append(_warning("UnknownKeys", f"ignored in task.toml: {'; '.join(map(str, task.unknown))}"))
    if numbers := not_finite(task.config):
        found.append(_warning("NotFinite", f"in task.toml: {'; '.join(map(str, numbers))}"))
    if parts := ignored_parts(task.config, task.layout, spec.agent):
        found.append(_warning("UnsupportedFeatures", "; ".join(map(str, parts))))
    if unused := unused_variables(task.config, task.layout, spec):
        names = ", ".join(unused)
        found.append(_warning("UnusedVariables", f"spec.variables: no template of the task uses {names}; {_AGENT_ENV_HINT}"))
    return found + [_warning("UnusedFields", each) for each in _unused_fields(spec)]


def _unused_fields(spec: TrialSpec) -> Iterator[str]:
    """Yield a message for each field of the spec that has no effect because of the value of another field."""
    if spec.checkpoints.keep == "WithResults" and spec.checkpoints.policy == "Never" and spec.regrade is None:
        yield "spec.checkpoints.keep is WithResults without checkpoints: set spec.checkpoints.policy to AfterStep, not Never"
    if spec.verifier.paths and spec.verifier.isolation == "Declared" and spec.regrade is None:
        yield "spec.verifier.paths has no effect: set spec.verifier.isolation to Separate or Both, not Declared"


def _warning(reason: str, message: str) -> Transition:
    return Transition(reason, bounded(message), "Warning")


def ended_steps(old: TrialStatus, new: TrialStatus) -> list[StepStatus]:
    """Return the steps that finished between two statuses, without steps that an earlier attempt or another trial ran."""
    ended = len([step for step in old.steps if step.completion_time]) if old.attempt == new.attempt else 0
    return [step for step in new.steps[max(ended, new.kept_steps) :] if step.completion_time]


def _tampering(found: Tampering) -> Transition:
    return Transition("Tampering", f"step {found.step}: {found.kind}: {found.detail}", "Warning")


def _step_ended(step: StepStatus) -> Transition:
    rewards = f"rewards {reward_text(step.rewards) or 'none'}"
    if step.exception:
        return Transition("StepFailed", f"step {step.name}: {step.exception.type}: {step.exception.message}", "Warning")
    if step.gate is False:
        return Transition("GateNotMet", f"step {step.name}: gate not met: {rewards}, below min_reward", "Warning")
    return Transition("StepCompleted", f"step {step.name}: {rewards}")


def _phase_changed(status: TrialStatus) -> Transition:
    condition = next((each for each in status.conditions if each.status == "True"), None)
    kind: Literal["Normal", "Warning"] = "Warning" if status.phase == "Failed" else "Normal"
    reason = condition.reason if condition else str(status.phase)
    return Transition(reason, condition.message if condition else "", kind)


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


class Tally:
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
            self._count_usage(step.usage, names)
        if is_finished(status):
            self._count_end(status, names)

    def _count_step(self, step: StepStatus, names: Mapping[str, str]) -> None:
        outcome = (
            failures.reason_label(step.exception.type) if step.exception else "GateNotMet" if step.gate is False else "Complete"
        )
        self._metrics.steps_finished.of(outcome, **names).inc()
        for phase, seconds in (step.phase_seconds.model_dump() if step.phase_seconds else {}).items():
            if seconds is not None:
                self._metrics.phase_seconds.of(phase, **names).observe(seconds)

        self._count_usage(step.usage, names)

    def _count_usage(self, usage: Usage | None, names: Mapping[str, str]) -> None:
        if usage is None:
            return
        metrics, source = self._metrics, usage.source
        for kind, tokens in (("input", usage.input_tokens), ("cached", usage.cached_tokens), ("output", usage.output_tokens)):
            metrics.model_tokens.of(kind, source, **names).inc(tokens or 0)
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


MAX_NOTE_BYTES: Final = 1024  # the API server rejects longer notes
REPORTER: Final = "multistep"


def event_manifest(
    regarding: Mapping[str, Any],
    *,
    reason: str,
    message: str,
    type: Literal["Normal", "Warning"] = "Normal",
) -> Object:
    """Return the manifest of an Event about an object, which ``regarding`` contains or refers to. Long messages are cut."""
    reference = _reference(regarding)
    name = f"{reference['name'][:200].rstrip('.-')}.{secrets.token_hex(8)}"
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": reference.get("namespace") or "default"},
        "eventTime": rfc3339(time.time(), "microseconds"),
        "reportingController": f"{GROUP}/{REPORTER}",
        "reportingInstance": REPORTER,
        "type": type,
        "reason": reason[:128],
        "action": "Reconcile",
        "note": cut_bytes(message, MAX_NOTE_BYTES),
        "regarding": reference,
    }


def cut_bytes(text: str, limit: int) -> str:
    """Return the text, cut to at most ``limit`` bytes of UTF-8. A cut text ends with an ellipsis."""
    data = text.encode()
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


def _reference(regarding: Mapping[str, Any]) -> dict[str, str]:
    """Return an ObjectReference. It has no resourceVersion, because otherwise equal Events would not be merged."""
    names = regarding.get("metadata") or regarding
    kind = {key: regarding.get(key) for key in ("apiVersion", "kind")}
    reference = {**kind, **{key: names.get(key) for key in ("name", "namespace", "uid")}}
    return {key: str(value) for key, value in reference.items() if value}


logger = logging.getLogger(__name__)


class TrialWriter:
    """Writes the status of one trial."""

    def __init__(
        self,
        cluster: Cluster,
        metrics: Metrics,
        observe: Callable[[MultiStepTrial], object],
        found: Object,
        trial: MultiStepTrial,
    ) -> None:
        """Create the writer. ``observe`` is called with the trial after each write."""
        self._cluster = cluster
        self._metrics = metrics
        self._observe = observe
        self._object = found
        self.trial = trial  # the parsed trial, as last read or written
        self.refused = False  # whether the last read or write failed
        self.secrets: Collection[str] = ()  # values that no message may contain

    async def write(self, new: TrialStatus, *, before: TrialStatus | None = None) -> None:
        """Write the status if it changed, and then emit Events. Raises Conflict if the object was changed since it was read.

        The Events report the transitions from ``before``, or from the status last read or written if ``before`` is None.
        """
        old, new = before or self.trial.status, redacted(new, self.secrets)
        content = to_json(new)
        if content != (self._object.get("status") or {}):
            await self._apply(content)
            self.trial = self.trial.model_copy(update={"status": new})
            self._observe(self.trial)
            also_about(attempt=new.attempt, step=new.current_step)
            await self.emit(transitions(old, new))

    async def require_current(self) -> None:
        """Raise Conflict if the trial has changed since it was read or written.

        Results have no version, so without this check a reconcile with an outdated trial could replace the results of a trial that
        another operator has finished.
        """
        metadata, self.refused = self.trial.metadata, True
        found = await self._cluster.get(TRIALS, metadata.namespace, metadata.name)
        if (now := found["metadata"])["resourceVersion"] != metadata.resource_version or now["uid"] != metadata.uid:
            raise Conflict(f"{metadata.namespace}/{metadata.name} was changed", status=409, reason="Conflict")
        self.refused = False

    async def _apply(self, content: Object) -> None:
        metadata, self.refused = self.trial.metadata, True
        self._object = await self._cluster.apply_status(
            TRIALS, metadata.namespace, metadata.name, uid=metadata.uid, resource_version=metadata.resource_version, status=content
        )
        self.refused = False
        self._metrics.status_writes.inc()
        fresh = metadata.model_copy(update={"resource_version": self._object["metadata"]["resourceVersion"]})
        self.trial = self.trial.model_copy(update={"metadata": fresh})

    async def emit(self, found: Sequence[Transition]) -> None:
        """Emit Events of the trial."""
        await emit_events(self._cluster, self._object, found)


async def emit_events(cluster: Cluster, about: Object, found: Sequence[Transition]) -> None:
    """Log transitions, and emit them as Events in their order. Best effort, because nothing depends on Events."""
    for each in found:
        logger.log(logging.WARNING if each.type == "Warning" else logging.INFO, "%s: %s", each.reason, each.message)
    for each in found:
        try:
            await cluster.create(event_manifest(about, reason=each.reason, message=each.message, type=each.type))
        except (ClusterError, NotLeading) as error:
            logger.info("could not emit an Event: %s", error)
            if isinstance(error, Unavailable) and not error.status:  # without an answer, each further Event could take as long
                return
