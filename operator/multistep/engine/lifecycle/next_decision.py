"""Rules that decide the next action for a trial and its pods. The first rule that matches decides.

Pure: the clock and the observed state are arguments. engine.script.trial_script decides what runs inside the pod.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from multistep.api.trial.failure_table import MADE_ROOM, RESTORE_FAILED
from multistep.api.trial.status import AttemptStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import AGENT, AGENT_SETUP, VERIFIER
from multistep.backoff import Backoff
from multistep.engine.lifecycle.clean_up import clean_up
from multistep.engine.lifecycle.decisions import (
    Adopt,
    AdoptVerifierPod,
    CreatePod,
    CreateVerifierPod,
    Decision,
    Drive,
    DriveWithoutVerifier,
    Fail,
    FailAttempt,
    PhaseDied,
    PodFacts,
    Resume,
    Rule,
    Situation,
    StartAttempt,
    Suspend,
    ViolationReason,
    Wait,
)
from multistep.engine.lifecycle.failure_causes import (
    KILLED_FROM_OUTSIDE,
    ended_by_signal,
    own_usage_exception,
    service_ended,
    volumes_unfilled,
)
from multistep.engine.lifecycle.pod_start import START_RULES
from multistep.engine.lifecycle.stop_and_suspend import (
    SUSPENDED,
    SWEEP_BUDGET_SPENT,
    is_suspended,
    must_have_no_pod,
    prestarts,
    stop_or_deadline,
)

_WHAT_FAILED: Mapping[ViolationReason, str] = {
    "RunnerBroken": "the runner violated its protocol",
    "Tampered": "the runner's records contradicted the status",
    "ExecSessionsKilled": "a process in the container killed the exec session",
    "EgressRefused": "the switch of the network failed",
    "InvalidSpec": "the egress sidecar rejected the task's allowed_hosts",
    "PodUnknown": "the node did not know the pod",
}
_OF_INFRASTRUCTURE = frozenset({"EgressRefused", "PodUnknown"})
_NEXT_ATTEMPT = Backoff(first=1.0, last=60.0)
# A trial fails only after this many violations of the runner's protocol in a row, over at least this time. A container that is
# being terminated may cause a few.
_VIOLATION_SECONDS = 60
_VIOLATION_TIMES = 5
# Replaces _VIOLATION_SECONDS for two reasons. The termination of a container also kills exec sessions, but takes less than 90 s. A
# node does not know its pods while its kubelet restarts, which takes less than 300 s.
_LONGER_SECONDS: Mapping[ViolationReason, int] = {"ExecSessionsKilled": 90, "PodUnknown": 300}
_NEVER_RAN = frozenset({"StartError", "ContainerCannotRun"})  # the container runtime could not start the container
_SWEEP_SECONDS = 30.0  # a sweep suspends its trials within this time after its budget refused a request
_NAME_TAKEN_SECONDS = 60  # Kubernetes deletes the pod of an earlier trial of the same name within this time
_FORBIDDEN_SECONDS = 60  # a new namespace gets its ServiceAccount within this time; a later rejection is due to a policy


def decide(situation: Situation) -> Decision:
    """Return the decision of the first rule that applies, else Drive."""
    for rule in RULES:
        if (decision := rule(situation)) is not None:
            return decision
    return Drive()


def _cut_short(s: Situation) -> Decision | None:
    return stop_or_deadline(s.trial, s.now)


def _suspended_without_pod(s: Situation) -> Decision | None:
    """Suspend the trial without creating a pod. If the operator created a pod before it crashed, later rules adopt this pod."""
    return Suspend() if must_have_no_pod(s.trial) and not s.owns(s.pod) else None


def _resumed_without_pod(s: Situation) -> Decision | None:
    if is_suspended(s.trial) and s.trial.status.attempt is not None and s.trial.status.pod_uid is None and not s.trial.spec.suspend:
        return Resume()
    return None


def _not_started(s: Situation) -> Decision | None:
    if s.trial.status.attempt is None:
        return StartAttempt(1, s.pod_name)
    return None


def _backing_off(s: Situation) -> Decision | None:
    """Delay the next attempt after an infrastructure failure by 1 s, 2 s, 4 s, ... at most 60 s.

    After the sweep's budget refused a request, wait at least until the sweep has suspended the trial. Otherwise the operator would
    create a pod that the suspension deletes at once.
    """
    former = s.trial.status.attempts
    ended = former[-1].completion_time if former else None
    if ended is None or s.pod is not None or s.trial.status.pod_uid is not None:
        return None
    waited, pause = s.now - ended.timestamp(), _NEXT_ATTEMPT.seconds(sum(attempt.reason != SUSPENDED for attempt in former))
    if former[-1].reason == SWEEP_BUDGET_SPENT:
        pause = max(pause, _SWEEP_SECONDS)
    if former[-1].reason == SUSPENDED or not 0 <= waited < pause:  # less than 0: the clock of an earlier leader was ahead
        return None
    return Wait("BackingOff", f"attempt {former[-1].number} failed: {former[-1].reason}", seconds=pause - waited)


def _pod_not_created(s: Situation) -> Decision | None:
    if s.pod is None and s.trial.status.pod_uid is None:
        return CreatePod()
    return None


def _pod_gone(s: Situation) -> Decision | None:
    name, uid = s.trial.status.pod_name, s.trial.status.pod_uid
    if s.pod is None:
        return FailAttempt("PodDeleted", f"pod {name} was deleted by another client")
    if uid is not None and s.pod.uid != uid:
        return FailAttempt(
            "PodReplaced", f"pod {name} with UID {uid} was deleted by another client, and another pod of that name was created"
        )
    return None


def _pod_foreign(s: Situation) -> Decision | None:
    if s.pod is None or s.pod.owner_uid == s.trial.metadata.uid:
        return None
    if s.pod.deleting or s.now < _attempt_start(s) + _NAME_TAKEN_SECONDS:
        return _name_taken(s.pod)
    return Fail("PodNameTaken", f"a pod named {s.pod.name} exists and belongs to another owner; delete or rename it")


def _name_taken(pod: PodFacts) -> Wait:
    return Wait("PodNameTaken", f"waiting for the deletion of another pod named {pod.name}", seconds=2)


def _pod_unknown(s: Situation) -> Decision | None:
    """Adopt a pod of the trial that the status does not name yet.

    If the pod is being deleted, wait until it is gone, because nothing ran in it. But adopt a pod whose node is lost or drained, or
    whose deletion does not finish in time: then the attempt fails instead of waiting forever.
    """
    if s.pod is None or s.trial.status.pod_uid is not None:
        return None
    goes_soon = s.pod.deleting and not s.pod.disruption and s.now < s.pod.created_at + _NAME_TAKEN_SECONDS
    return _name_taken(s.pod) if goes_soon else Adopt()


def _evicted_by_itself(s: Situation) -> Decision | None:
    """Blame the trial's container for an eviction that it caused by exceeding its limits or exhausting a resource of the node."""
    if s.pod is None or s.pod.reason != "Evicted":
        return None
    died = own_usage_exception(s.pod.message, disrupted=bool(s.pod.disruption))
    return _died(s, died, s.pod.message) if died else None


def _died(s: Situation, type_: str, message: str) -> Decision:
    """Return the decision for a container that its own processes ended.

    Return PhaseDied after the start of a step of the attempt, or of the setup of a custom agent class, and Fail before. Return
    FailAttempt between a restore and the attempt's first step, because the restored files may be the cause. Also return FailAttempt
    for a regrade's own pod, in which neither an agent nor a verifier runs.
    """
    if s.trial.spec.regrade is not None and s.pod is not s.verifier:
        return FailAttempt("ContainerEnded", message)
    if s.trial.status.has_own_step:
        return PhaseDied(type_, message, _charged_phase(s))
    resumed = s.trial.status.resumed
    if s.trial.status.agent_setup_time is not None and not (
        resumed and any(resumed.attempts)
    ):  # no restored file comes from this trial's agent
        return PhaseDied(type_, message, AGENT_SETUP)
    if resumed is not None:
        return FailAttempt(RESTORE_FAILED, f"after the restore: {message}")
    return Fail(type_.removesuffix("Error"), f"{message} (before the first step)", type_)


def _charged_phase(s: Situation) -> str | None:
    """Return the phase to blame for the end of a container, None for the running phase.

    While a step is verified in another pod, only processes of the agent run in the agent's container, so AGENT is to blame.
    """
    status, verifiers = s.trial.status, s.pod is s.verifier
    verifying = bool(status.steps) and status.steps[-1].phase == VERIFIER.capitalize()
    return AGENT if not verifiers and (status.verifier is not None or (s.verified_apart and verifying)) else None


def _pod_taken(s: Situation) -> Decision | None:
    """Fail the attempt if the pod was deleted, evicted or preempted. This is an infrastructure failure in every phase."""
    if s.pod is None:
        return None
    if s.pod.disruption:
        return FailAttempt(s.pod.disruption, s.pod.message or f"pod {s.pod.name} was disrupted: {s.pod.disruption}")
    if s.pod.reason:
        return FailAttempt(s.pod.reason, s.pod.message or f"pod {s.pod.name} failed: {s.pod.reason}")
    if s.pod.deleting:
        return FailAttempt("PodDeleted", f"pod {s.pod.name} was deleted by another client")
    return None


def _container_ended(s: Situation) -> Decision | None:
    if s.pod is None or not s.pod.terminated:
        return None
    details = f": {s.pod.exit_message}" if s.pod.exit_message else ""
    how = f"ended with status {s.pod.exit_code} ({s.pod.exit_reason or 'no reason given'}){details}"
    ran = s.pod.exit_reason not in _NEVER_RAN
    killed_inside = ran and s.pod.exit_code is not None and s.pod.exit_code not in KILLED_FROM_OUTSIDE
    if s.pod.unfilled and killed_inside:
        return volumes_unfilled(s.pod.unfilled, how)
    if s.pod.init_failed:
        return FailAttempt("RunnerInstallFailed", f"the init container of pod {s.pod.name} {how}")
    ended = f"the trial's container {how}"
    if s.pod.exit_reason == "OOMKilled":
        return _died(s, "OutOfMemoryError", f"{ended}: it used more than its memory limit{_limit_and_phase(s)}")
    if killed_inside and (s.trial.status.agent_acted or s.trial.status.resumed is not None):
        return _died(s, "ContainerKilledError", f"{ended}: a process in it stopped process 1")
    if not s.trial.status.has_own_step:
        return FailAttempt("ContainerEnded", f"{ended} before the first step")
    return FailAttempt("ContainerRestarted" if s.pod.restarted else "ContainerEnded", ended)


def _container_replaced(s: Situation) -> Decision | None:
    """Fail the attempt if the kubelet replaced the container in which earlier steps ran."""
    known = s.trial.status.container_id
    if s.pod is None or not known or not s.pod.container_id or s.pod.container_id == known:
        return None
    return FailAttempt("ContainerRestarted", f"pod {s.pod.name} runs container {s.pod.container_id}, not {known}")


def _host_ended(s: Situation) -> Decision | None:
    """Fail the attempt, or blame the agent, if the agent host's container ended.

    The attempt fails if neither a step nor the setup of a custom agent class had started, or if the host was killed from outside
    its container. In all other cases the agent is to blame, because it can make the host run out of memory or exit.
    """
    if s.pod is None or not s.pod.host_ended:
        return None
    ended = f"the agent host {s.pod.host_ended}"
    phase = AGENT if s.trial.status.has_own_step else AGENT_SETUP
    if not s.trial.status.agent_acted:
        return FailAttempt("AgentHostEnded", f"{ended} before the first step")
    if s.pod.host_out_of_memory:
        return PhaseDied("OutOfMemoryError", f"{ended}: it used more than its memory limit", phase)
    if s.pod.host_exit_code in KILLED_FROM_OUTSIDE:
        return FailAttempt("AgentHostEnded", ended)
    return PhaseDied("AgentHostError", ended, phase)


def _egress_ended(s: Situation) -> Decision | None:
    """Fail the attempt or the trial if the egress sidecar ended, because the pod has no network without it.

    The attempt fails if neither a step nor the setup of a custom agent class had started, or if the sidecar was killed from outside
    its container. In all other cases _died decides, because the pod's processes can make the sidecar exit or run out of memory.
    """
    if s.pod is None or not s.pod.egress_ended or not s.pod.running:
        return None
    ended = f"the egress sidecar {s.pod.egress_ended}"
    if not s.trial.status.agent_acted:
        return FailAttempt("EgressEnded", f"{ended} before the first step")
    if ended_by_signal(s.pod.egress_exit_code) and not s.pod.egress_out_of_memory:
        return FailAttempt("EgressEnded", ended)
    return _died(s, "EgressError", ended)


def _limit_and_phase(s: Situation) -> str:
    limit = f" of {s.pod.memory_limit}" if s.pod and s.pod.memory_limit else ""
    step = s.trial.status.steps[-1] if s.trial.status.steps and s.trial.status.has_own_step else None
    return limit + (f" (phase {step.phase.lower()} of step {step.name})" if step and step.phase else "")


def _suspended_with_pod(s: Situation) -> Decision | None:
    """End the attempt of a suspended trial if spec.suspendPolicy requires that its pod is deleted.

    A pod that does not run yet has no state to lose, so it is deleted under every policy.
    """
    if s.pod is None or not s.trial.spec.suspend:
        return None
    started = s.trial.status.has_own_step
    if prestarts(s.trial) and not started:
        return None
    policy, unused = s.trial.spec.suspend_policy, not s.pod.running and not started
    if unused or policy == "Release" or (policy == "ReleaseAfterStep" and is_suspended(s.trial)):
        return FailAttempt(SUSPENDED, "its pod was released, as spec.suspend is true")
    return None


def _verifier(s: Situation) -> Decision | None:
    """Apply the rules for the agent's pod to the pod of a separate verifier.

    If that pod fails and is only for comparing verdicts, the trial continues without it.
    """
    named = s.trial.status.verifier
    if named is None:
        return None
    status = s.trial.status.model_copy(
        update={"pod_name": named.pod_name, "pod_uid": named.pod_uid, "container_id": None, "verifier": None}
    )
    seen = replace(s, trial=s.trial.model_copy(update={"status": status}), pod=s.verifier)
    found = next((decision for rule in POD_RULES if (decision := rule(seen)) is not None), None)
    match found:
        case CreatePod():
            return CreateVerifierPod()
        case Adopt():
            return AdoptVerifierPod()
        case FailAttempt() | PhaseDied() | Fail():
            message = f"the verifier of step {s.trial.status.current_step}: {found.message}"
            if s.compares_verdicts:
                return DriveWithoutVerifier(message)
            if isinstance(found, PhaseDied):
                return replace(found, message=message, untouched=bool(named.untouched))
            return replace(found, message=message)
    return found


def _paused(s: Situation) -> Decision | None:
    """Keep a trial paused between steps, with its pod, until spec.suspend is false."""
    return Suspend() if s.trial.spec.suspend and is_suspended(s.trial) else None


def _runner_broken(s: Situation) -> Decision | None:
    """Fail a trial whose runner violates the protocol repeatedly. A retry would help an agent that replaced the runner.

    Only the attempt fails if the egress sidecar refuses a switch or the node does not know the pod, because no agent can cause
    that. If a pod that compares verdicts may be the cause, the trial first continues without that pod.
    """
    violation = s.violation
    if violation is None:
        return None
    seconds = _LONGER_SECONDS.get(violation.reason, _VIOLATION_SECONDS)
    periods = min(violation.times // _VIOLATION_TIMES, (s.now - violation.since) // seconds)
    if periods < 1:
        return None
    message = f"{_WHAT_FAILED[violation.reason]} {violation.times} times in a row; last: {violation.message}"
    if periods < 2 and s.compares_verdicts and s.trial.status.verifier is not None:
        return DriveWithoutVerifier(f"the verifier of step {s.trial.status.current_step}: {message}")
    return (FailAttempt if violation.reason in _OF_INFRASTRUCTURE else Fail)(violation.reason, message)


_LIFE_RULES: tuple[Rule, ...] = (
    _pod_not_created,
    _pod_gone,
    _pod_foreign,
    _pod_unknown,
    _evicted_by_itself,
    _pod_taken,
    service_ended,
    _container_ended,
    _container_replaced,
    _host_ended,
    _egress_ended,
)
POD_RULES = (*_LIFE_RULES, *START_RULES)
RULES: tuple[Rule, ...] = (
    clean_up,
    _cut_short,
    _suspended_without_pod,
    _resumed_without_pod,
    _not_started,
    _backing_off,
    *_LIFE_RULES,
    _suspended_with_pod,
    *START_RULES,
    _paused,
    _verifier,
    _runner_broken,
)


def count_failed_attempts(attempts: Sequence[AttemptStatus]) -> int:
    """Return the number of attempts that used up a retry, because an infrastructure failure ended them.

    Four other reasons use up no retry: a suspension, a spent budget of the sweep, a pod that was deleted to make room for verifiers
    of other trials, and a checkpoint that cannot be restored (at most two per trial, see engine.script.choose_checkpoint).
    """
    return sum(attempt.reason not in (SUSPENDED, SWEEP_BUDGET_SPENT, MADE_ROOM, RESTORE_FAILED) for attempt in attempts)


def after_rejection(trial: MultiStepTrial, rejection: Wait, since: datetime | None, now: float) -> Wait | Fail:
    """Return the decision after the API server rejected a pod: ``rejection``, which waits and retries, or Fail.

    Quota rejections are retried without limit. Policy rejections are retried at least once and for 60 s after ``since``, the time
    of the first try to create the pod. Then the trial fails.
    """
    before = any(condition.type == "Reconciling" and condition.reason == rejection.reason for condition in trial.status.conditions)
    if rejection.reason == "PodForbidden" and before and (since is None or now >= since.timestamp() + _FORBIDDEN_SECONDS):
        return Fail(rejection.reason, rejection.message)
    return rejection


def attempt_start(trial: MultiStepTrial) -> datetime | None:
    """Return the start time of the current attempt, which is the end of the previous attempt, or the start of the trial."""
    former = trial.status.attempts
    return former[-1].completion_time if former else trial.status.start_time


def _attempt_start(s: Situation) -> float:
    start = attempt_start(s.trial)
    return start.timestamp() if start else s.now
