"""The rule for services that end or never become healthy. Pure.

A service that dies has lost what the task needs of it, so the trial ends. Who is to blame depends on when: before an agent ran, the
task is; afterwards the agent is, because it can reach every service. A service is not the runner: its exit status proves nothing
about who ended it.
"""

from __future__ import annotations

from typing import Final

from multistep.api.failures import SERVICE_FAILED, SERVICE_KILLED
from multistep.api.trial_status import TrialStatus
from multistep.engine.decisions import Decision, Fail, FailAttempt, PhaseDied, Situation
from multistep.engine.journal import AGENT, HEALTHCHECK, SETUP

# 137: SIGKILL; 255: the node does not know the exit status. Before an agent runs, only the kubelet and the node's owner send it.
_KILLED_FROM_OUTSIDE: Final = frozenset({137, 255})


def service_ended(s: Situation) -> Decision | None:
    """End the trial if a service of the pod ended; while the pod starts, also if one does not become healthy."""
    if s.pod is None or s.pod.service is None or (s.pod.terminated and s.pod.container_id):
        return None  # all services end after the trial's container
    ended = s.pod.service
    message = f"service {ended.name} {ended.how}"
    by_agent = agent_ran(s.trial.status) and s.pod is not s.verifier
    unhealthy = ended.unhealthy and not s.pod.running  # once the trial's container runs, all services have been healthy
    if ended.exit_code in _KILLED_FROM_OUTSIDE and not (ended.out_of_memory or unhealthy or by_agent):
        return FailAttempt(SERVICE_KILLED, message)
    if not s.trial.status.has_own_step:
        return Fail(SERVICE_FAILED, f"{message} (before the first step)", "EnvironmentStartError")
    type_ = "OutOfMemoryError" if ended.out_of_memory else "ServiceEndedError"
    return PhaseDied(type_, message, AGENT if by_agent else None)


def agent_ran(status: TrialStatus) -> bool:
    """Return whether an agent has run in the trial's pod, whose processes may run on."""
    if not status.steps:
        return False
    return len(status.steps) > 1 or (status.steps[-1].phase or "").lower() not in ("", SETUP, HEALTHCHECK)
