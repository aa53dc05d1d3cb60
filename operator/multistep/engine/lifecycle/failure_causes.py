"""Rules about failures that services, evictions or the model gateway cause. All functions are pure."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from multistep.api.common.base_model import quantity
from multistep.api.trial.failure_table import (
    MODEL_ACCESS_DENIED,
    MODEL_GATEWAY_DOWN,
    PROVIDER_FAILED,
    SERVICE_FAILED,
    SERVICE_KILLED,
)
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import AGENT, AGENT_SETUP, HEALTHCHECK, SETUP
from multistep.engine.lifecycle.decisions import Decision, Fail, FailAttempt, PhaseDied, Situation
from multistep.engine.lifecycle.stop_and_suspend import DEADLINE_EXCEEDED
from multistep.engine.plan.plan_services import CONTAINER_PREFIX
from multistep.engine.score.usage_totals import ModelReport

KILLED_FROM_OUTSIDE: Final = frozenset({137, 255})
"""Exit statuses of a container that its own processes cannot cause.

137 means SIGKILL, which no process in the container can send to process 1. 255 means that the node does not know the exit status.
"""


def ended_by_signal(exit_code: int | None) -> bool:
    """Return whether a signal ended a container (status 128 + signal), or the node does not know its exit status (255).

    In a container that has no process beside process 1, such as the egress sidecar's, every signal comes from outside the pod.
    """
    return exit_code is not None and exit_code > _FIRST_SIGNAL


_FIRST_SIGNAL: Final = 128


def service_ended(s: Situation) -> Decision | None:
    """End the attempt or the trial if a service of the pod terminated, or did not become healthy while the pod started."""
    if s.pod is None or s.pod.service is None or (s.pod.terminated and s.pod.container_id):
        return None  # the kubelet ends all services after the trial's container has ended
    ended = s.pod.service
    message = f"service {ended.name} {ended.how}"
    by_agent = agent_ran(s.trial.status) and s.pod is not s.verifier
    unhealthy = ended.unhealthy and not s.pod.running  # once the trial's container runs, all services have been healthy
    if ended.exit_code in KILLED_FROM_OUTSIDE and not (ended.out_of_memory or unhealthy or by_agent):
        return FailAttempt(SERVICE_KILLED, message)
    before = "" if s.trial.status.agent_acted else " (before the first step)"
    message += f"{before}{_output(s, ended.name)}"
    if before:
        return Fail(SERVICE_FAILED, message, "EnvironmentStartError")
    type_ = "OutOfMemoryError" if ended.out_of_memory else "ServiceEndedError"
    if not s.trial.status.has_own_step:
        return PhaseDied(type_, message, AGENT_SETUP)
    return PhaseDied(type_, message, AGENT if by_agent else None)


def _output(s: Situation, service: str) -> str:
    """Return the end of a message, which names the command that shows the service's output.

    Return "" for a service of a verifier, because its output is not kept.
    """
    where = s.trial.metadata
    return "" if s.pod is s.verifier else f"; its output: multistep logs {where.name} --service {service} -n {where.namespace}"


def volumes_unfilled(service: str, how: str) -> Fail:
    """Return the failure of a trial for which the files of a service's image could not be copied to a new volume.

    The trial is not retried, because the copy would fail in every pod.
    """
    return Fail(SERVICE_FAILED, f"the volumes of service {service}: the copy of its image's files {how}", "EnvironmentStartError")


def agent_ran(status: TrialStatus) -> bool:
    """Return whether an agent has run in the trial's pod, which means that some of its processes may still run."""
    if status.agent_setup_time is not None:
        return True
    if not status.steps:
        return False
    return len(status.steps) > 1 or (status.steps[-1].phase or "").lower() not in ("", SETUP, HEALTHCHECK)


OWN_EXCESS_BYTES = 2**30
"""A pod counts as the cause of the node's pressure if its usage exceeds its request by at least this amount.

A smaller excess is normal, because many pods request 0 bytes.
"""

_OF_LIMITS = (
    "usage exceeds the total limit of containers",
    "exceeded its local ephemeral storage limit",
    "exceeds the limit",
)
_LOW = re.compile(r"low on resource: (memory|ephemeral-storage)\b")
_USE = re.compile(rf"Container (?:main|{CONTAINER_PREFIX}\S+) was using ([0-9.]+\w*), request is ([0-9.]+\w*)")
_TYPES = {"memory": "OutOfMemoryError", "ephemeral-storage": "OutOfDiskError"}


def own_usage_exception(message: str, *, disrupted: bool) -> str | None:
    """Return the type of the exception to record if the pod's own usage caused its eviction, None if the node caused the eviction.

    ``message`` is the kubelet's eviction message. ``disrupted`` is whether the pod has the condition DisruptionTarget.
    """
    if not disrupted and any(text in message for text in _OF_LIMITS):
        return "OutOfDiskError"
    low = _LOW.search(message)
    excess = sum(max(0.0, (quantity(use) or 0.0) - (quantity(request) or 0.0)) for use, request in _USE.findall(message))
    return _TYPES[low[1]] if low is not None and excess >= OWN_EXCESS_BYTES else None


_REASONS: Final = {"Provider": PROVIDER_FAILED, "Configuration": MODEL_ACCESS_DENIED}
Interruption: TypeAlias = Fail | FailAttempt | PhaseDied


def unless_model_failed(decision: Interruption, trial: MultiStepTrial, models: ModelReport | None, now: float) -> Interruption:
    """Return the decision, changed if the model gateway or the model provider failed while the agent ran.

    If the gateway was down, the end of a container fails the attempt instead of counting against the agent, and a missed deadline
    counts as a failure of the gateway. A missed deadline counts as a failure of the provider if the provider failed, rejected the
    agent's last request, or kept the agent waiting for half of the deadline. ``models`` is the gateway's report on the current
    step.
    """
    steps = trial.status.steps
    if models is None or not steps or (steps[-1].phase or "").lower() != AGENT:
        return decision
    missed = isinstance(decision, Fail) and decision.reason == DEADLINE_EXCEEDED
    if (down := models.downtime(now)) is not None:
        message = f"the model gateway {down.why} while the agent ran; {decision.message}"
        if isinstance(decision, PhaseDied):
            return FailAttempt(MODEL_GATEWAY_DOWN, message)
        return Fail(MODEL_GATEWAY_DOWN, message) if missed else decision
    if missed and models.failure is not None and models.failure.kind in _REASONS:
        return Fail(_REASONS[models.failure.kind], f"{models.failure.message}; {decision.message}")
    if missed and (why := models.provider_fault(failed=True, timeout=trial.spec.active_deadline_seconds, ended=now)):
        return Fail(PROVIDER_FAILED, f"{why}; {decision.message}")
    return decision
