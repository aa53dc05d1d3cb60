"""Emits the Events of a trial: for each transition between two statuses, and for settings without effect."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from multistep.api.common.base_model import GROUP
from multistep.api.task.suspicious_values import not_finite
from multistep.api.trial.spec import TrialSpec
from multistep.api.trial.status import AttemptStatus, StepStatus, Tampering, TrialStatus, is_finished
from multistep.engine.lifecycle.stop_and_suspend import SUSPENDED
from multistep.engine.plan.resolve_templates import unused_variables
from multistep.engine.plan.unsupported_parts import ignored_parts
from multistep.engine.status.status_size import bounded, reward_text
from multistep.errors import ClusterError, NotLeading, Unavailable
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import EVENTS
from multistep.sources.reader.read_task import ReadTask
from multistep.timestamps import rfc3339
from multistep.token_records.record import PATH as TOKEN_RECORDS

logger = logging.getLogger(__name__)

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
    finished = ended_steps(old, new)
    found += [incomplete for step in finished for incomplete in _tokens_incomplete(step)]
    found += (ended := [_step_ended(step) for step in finished])
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


def _tokens_incomplete(step: StepStatus) -> list[Transition]:
    lines = (step.artifacts.incomplete if step.artifacts else None) or []
    found = [line for line in lines if line.startswith(TOKEN_RECORDS)]
    return [Transition("TokensIncomplete", f"step {step.name}: {line}", "Warning") for line in found]


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
