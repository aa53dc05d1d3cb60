"""Creates the pods of a trial and of its verifiers, within limits and quotas."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from multistep.api.trial.failure_table import MADE_ROOM
from multistep.api.trial.status import VerifierStatus
from multistep.engine.lifecycle import decisions, next_decision, pod_start
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.lifecycle.stop_and_suspend import QUEUED_FOR_MODEL, WAITS_FOR_VERIFIERS
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.engine.plan.verifier_environment import VerifierEnvironment
from multistep.engine.status import trial_status
from multistep.errors import ClusterError, InvalidSpec
from multistep.kube.cluster_protocols import Object
from multistep.pods import pod_identity, pod_manifest
from multistep.pods.pod_manifest import PodRequest
from multistep.reconcile.admission.admission import Admission
from multistep.reconcile.admission.pod_rejections import QUOTA_EXCEEDED
from multistep.reconcile.queue.work_queue import Requeue
from multistep.reconcile.trial.owned_pods import TrialPods, earlier_pods
from multistep.reconcile.trial.session_state import VerifierRequired
from multistep.reconcile.trial.trial_run import Continue, Observed, ObservedPods, Result, TrialRun
from multistep.runner_client import exchange as sealed_messages
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume

_ROOM_SECONDS = 600.0  # longest wait of a trial that released its pod to make room for verifiers of other trials
_ROOM_RETRY_SECONDS = 10.0
REPORT_WAIT_SECONDS = 30.0  # shorter waits are not reported in the status


async def create_pod(run: TrialRun, observed: Observed, pods: TrialPods, admission: Admission, volume: ResultsVolume) -> Result:
    """Delete the pods of the previous attempt, then create the current attempt's pod. Queue the trial if a limit is reached."""
    earlier = earlier_pods(run.trial)
    await pods.remove(run.trial, earlier)
    if _leaves_room(run, admission):
        message = "verifiers' pods of other trials fit no node yet"
        return decisions.Wait(WAITS_FOR_VERIFIERS, message, seconds=_ROOM_RETRY_SECONDS, gated=True)
    trial, first, plan = run.trial, bool(earlier), observed.plan
    request = PodRequest(
        trial, observed.task.task.config.environment, plan.image, plan.task_name, run.settings,
        network=plan.network, sidecar=plan.sidecar, checkpoints=plan.uses_checkpoints, services=plan.services,
        host_key=sealed_messages.new_key(),
    )  # fmt: skip
    manifest = pod_manifest.pod_manifest(request)
    if not await _may_create(run, admission, manifest, first=first):
        await run.write(run.trial.status)
        return _requeue_queued(run, admission)
    kept = [step.directory or "" for step in plan.steps[: trial.status.kept_steps]]
    await volume.start_attempt(TrialKey.of(trial), trial.status.attempt or 1, kept)
    try:
        created = await _create(run, pods, admission, request, manifest, first=first)
    except ClusterError:
        await run.write(run.trial.status)  # the trial's deadline counts from the start in the status
        raise
    match created:
        case None:
            return Continue()  # a pod of this name exists; the next decision checks its owner
        case decisions.Wait():
            return _after_rejection(run, created, next_decision.attempt_start(trial))
    return await adopt(run, replace(observed, pods=ObservedPods(created, observed.pods.verifier)), pods)


async def _may_create(run: TrialRun, admission: Admission, manifest: Object, *, first: bool) -> bool:
    """Return whether the trial may create a pod now. If not, it is queued, with ``first`` before trials that had no pod yet."""
    starts, quotas = admission.starts, admission.quotas
    if not quotas.may_try(run.key, manifest, first=first):
        if not any(each.reason == QUOTA_EXCEEDED for each in run.trial.status.conditions):  # reported once, not at each retry
            message = f"{manifest['metadata']['name']} is queued behind an equal pod; {quotas.rejection(run.key)}"
            await run.wait(QUOTA_EXCEEDED, message, seconds=None)
        return False
    if not await _has_model_slot(run, admission, first=first):
        return False
    if not starts.acquire(run.key, first=first) and starts.waited(run.key) >= REPORT_WAIT_SECONDS:
        await run.wait("Queued", f"the limit of starting pods is reached ({starts.limit})", seconds=None)
    return starts.acquire(run.key, first=first)


async def _has_model_slot(run: TrialRun, admission: Admission, *, first: bool) -> bool:
    """Return whether the trial may be active under its model's limit. If not, it is queued."""
    slots = admission.model_slots
    if slots.acquire(run.trial, first=first):
        return True
    admission.quotas.withdraw(run.key)
    if (slots.waited(run.key) or 0.0) < REPORT_WAIT_SECONDS:
        return False
    message = f"the limit of active trials with model {run.trial.spec.agent.model} is reached"
    await run.wait(QUEUED_FOR_MODEL, message, seconds=None, gated=True)
    return slots.acquire(run.trial, first=first)


def _requeue_queued(run: TrialRun, admission: Admission) -> Requeue:
    """Return the requeue of a queued trial, which is at its next retry or when the status must report the wait.

    A free slot requeues it earlier.
    """
    if run.key in admission.quotas:
        return run.until_deadline(admission.quotas.pause(run.key))
    waited = admission.model_slots.waited(run.key)
    left = REPORT_WAIT_SECONDS - (admission.starts.waited(run.key) if waited is None else waited)
    return run.until_deadline(left if left > 0 else None)


async def _create(
    run: TrialRun, pods: TrialPods, admission: Admission, request: PodRequest, manifest: Object, *, first: bool
) -> PodFacts | decisions.Wait | None:
    """Create a pod as TrialPods.create does, and report the result to the namespace's quota queue."""
    with admission.quotas.trying(run.key, manifest, first=first) as attempt:
        result = await pods.create(request, manifest)
        if isinstance(result, decisions.Wait) and result.reason == QUOTA_EXCEEDED:
            attempt.rejection = result.message
    match result:
        case decisions.Wait() if attempt.rejection:
            admission.model_slots.release(run.key)
            return replace(result, seconds=admission.quotas.pause(run.key))
        case PodFacts():
            admission.starts.observe(run.key, result)
    return result


def _leaves_room(run: TrialRun, admission: Admission) -> bool:
    """Return whether the trial waits with its new pod, because it released its former pod to make room for other trials'
    verifiers."""
    now, attempts = run.clock(), run.trial.status.attempts
    last = attempts[-1] if attempts else None
    ended = last.completion_time if last is not None and last.reason == MADE_ROOM else None
    if ended is None or now - ended.timestamp() >= _ROOM_SECONDS:
        return False
    return admission.verifiers.others_wait(run.trial.metadata.uid, run.trial.metadata.namespace, now)


async def adopt(run: TrialRun, observed: Observed, pods: TrialPods) -> Result:
    """Write the pod's UID to the status before the first exec session.

    Also clear ``verifier`` in the status, because the pod of an earlier attempt's verifier is already deleted.
    """
    pod = observed.pods.agent
    assert pod is not None
    if (rejection := await _check_verifiers_pods(run, observed, pods)) is not None:
        return _after_rejection(run, rejection, next_decision.attempt_start(run.trial))
    message = pod_start.starting_message(run.trial.status.attempt, pod.name)
    waiting = trial_status.waiting(run.trial, "Pending", pod_start.POD_STARTING, message, run.clock())
    await run.write(waiting.model_copy(update={"pod_uid": pod.uid, "verifier": None}))
    return Continue(ObservedPods(pod))


async def _check_verifiers_pods(run: TrialRun, observed: Observed, pods: TrialPods) -> decisions.Wait | None:
    """Let the API server check the pods of separate verifiers before the agent starts, because its work gets no verdict without
    them.

    Return Wait if the API server rejects a pod for now. Raises InvalidSpec if a pod is invalid.
    """
    if run.trial.spec.regrade is not None or observed.loaded is None:
        return None  # no agent runs, or the task is not loaded because the trial was suspended or stopped
    checked: list[VerifierEnvironment] = []
    for step in observed.plan.steps:
        if not step.verified_apart or step.verifiers_environment is None:
            continue
        environment = replace(step.verifiers_environment, env={}, healthcheck=None)  # the removed fields do not affect the pod
        if environment not in checked:
            checked.append(environment)
            named = VerifierStatus(pod_name=pod_identity.verifier_pod_names(run.trial, step.index)[0])
            manifest = pod_manifest.pod_manifest(_verifier_request(run, observed.plan, named, environment))
            if (found := await pods.check(manifest)) is not None:
                return replace(found, message=f"the verifier of step {step.name}: {found.message}")
    return None


def _verifier_request(run: TrialRun, plan: TrialPlan, named: VerifierStatus, environment: VerifierEnvironment) -> PodRequest:
    return PodRequest(
        run.trial, environment.config, environment.image, plan.task_name, run.settings,
        verifier=named, own_image=environment.own_image, network=environment.network,
        sidecar=environment.sidecar, services=environment.services,
    )  # fmt: skip


async def request_verifier(run: TrialRun, pod: PodFacts | None, required: VerifierRequired) -> Continue:
    """Write the name of the verifier's pod and the progress to the status, before the pod is created.

    The exec sessions are already closed. ``pod`` is the pod of the attempt.
    """
    step = required.step
    environment = step.verifiers_environment
    same_image = environment is not None and not environment.own_image
    user = required.image_user or (run.trial.status.image_user if same_image else None)
    name = pod_identity.verifier_pod_names(run.trial, step.index)[user is not None]
    wanted = trial_status.verifier_wanted(run.trial, name, user, run.clock(), compares=step.compares_verdicts)
    await run.write_progress(required.journal, pod, verifier=wanted)
    return Continue()


async def create_verifier_pod(run: TrialRun, observed: Observed, pods: TrialPods, admission: Admission) -> Result:
    """Create the pod that status.verifier names. Queue the trial if a limit is reached."""
    named = run.trial.status.verifier
    assert named is not None
    environment = _verifier_environment(observed.plan, run.trial.status.current_step)
    if named.image_user is not None:  # delete the pod that was created before the image's user was known
        await pods.remove(run.trial, [named.pod_name.removesuffix("-root")])
    request = _verifier_request(run, observed.plan, named, environment)
    manifest = pod_manifest.pod_manifest(request)
    if not await _may_create(run, admission, manifest, first=True):
        return _requeue_queued(run, admission)
    await run.writer.require_current()  # an outdated status could lead to a pod for a finished trial, which nothing would delete
    match await _create(run, pods, admission, request, manifest, first=True):
        case None:
            return Continue()
        case decisions.Wait() as rejection:
            decision = _after_rejection(run, rejection, named.start_time)
            step = observed.step(run.trial)
            if isinstance(decision, decisions.Fail) and step is not None and step.compares_verdicts:
                return decisions.DriveWithoutVerifier(decision.message)
            return decision
        case pod:
            return await adopt_verifier(run, ObservedPods(observed.pods.agent, pod))


async def adopt_verifier(run: TrialRun, pods: ObservedPods) -> Continue:
    """Write the UID of the verifier's pod to the status before its first exec session."""
    named = run.trial.status.verifier
    assert pods.verifier is not None and named is not None
    adopted = named.model_copy(update={"pod_uid": pods.verifier.uid})
    await run.write(run.trial.status.model_copy(update={"verifier": adopted}))
    return Continue(pods)


async def release_verifier(run: TrialRun, pods: TrialPods, step: StepPlan) -> None:
    """Remove the verifier's pod from the status, then delete the pod. Idempotent, because a retry finds the pod by its name."""
    if run.trial.status.verifier is not None:
        await run.write(run.trial.status.model_copy(update={"verifier": None}))
    else:  # raise Conflict, which leads to a retry, if the status is outdated; the current one may name a verifier
        await run.writer.require_current()
    await pods.remove(run.trial, pod_identity.verifier_pod_names(run.trial, step.index))


def _after_rejection(run: TrialRun, rejection: decisions.Wait, since: datetime | None) -> decisions.Wait | decisions.Fail:
    return next_decision.after_rejection(run.trial, rejection, since, run.clock())


def _verifier_environment(plan: TrialPlan, step: str | None) -> VerifierEnvironment:
    """Return the environment of a step's separate verifier. Raises InvalidSpec if it has none, because a client edited the
    status."""
    found = next((each.verifiers_environment for each in plan.steps if each.name == step), None)
    if found is None:
        raise InvalidSpec(f"status.verifier names a pod, but the step status.currentStep = {step!r} has no separate verifier")
    return found
