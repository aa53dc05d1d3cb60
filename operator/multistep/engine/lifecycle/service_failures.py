"""The rule for services that end or never become healthy. Pure.

If a service terminates, its state that the task needs is lost, so the attempt ends. Before an agent ran in the pod, this is an
infrastructure failure if the service was killed from outside its container, else a failure of the task or of the running phase.
After an agent ran, it is the agent's failure, because the agent can reach every service, and the exit status of a service does not
prove who ended it.
"""

from __future__ import annotations

from typing import Final

from multistep.api.trial.failure_table import SERVICE_FAILED, SERVICE_KILLED
from multistep.api.trial.phases import AGENT, AGENT_SETUP, HEALTHCHECK, SETUP
from multistep.api.trial.status import TrialStatus
from multistep.engine.lifecycle.decisions import Decision, Fail, FailAttempt, PhaseDied, Situation

KILLED_FROM_OUTSIDE: Final = frozenset({137, 255})
"""Statuses of a container that its own processes cannot cause. 137: SIGKILL, the only signal that no process in the container can
send to process 1; 255: the node does not know the exit status."""


def ended_by_signal(exit_code: int | None) -> bool:
    """Return whether a signal ended a container (128 + its number), or its status is unknown to the node (255). If no process but
    process 1 runs in the container, as in the egress sidecar's, every signal comes from outside the pod."""
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
    """Return which command shows the service's output; "" for a service of a verifier, whose output is not kept."""
    where = s.trial.metadata
    return "" if s.pod is s.verifier else f"; its output: multistep logs {where.name} --service {service} -n {where.namespace}"


def volumes_unfilled(service: str, how: str) -> Fail:
    """Return the failure of a trial if the files of a service's image cannot be copied to a new volume. A retry does not help,
    because the copy would fail in every pod."""
    return Fail(SERVICE_FAILED, f"the volumes of service {service}: the copy of its image's files {how}", "EnvironmentStartError")


def agent_ran(status: TrialStatus) -> bool:
    """Return whether an agent has run in the trial's pod, so that the agent's processes may still run."""
    if status.agent_setup_time is not None:
        return True
    if not status.steps:
        return False
    return len(status.steps) > 1 or (status.steps[-1].phase or "").lower() not in ("", SETUP, HEALTHCHECK)
