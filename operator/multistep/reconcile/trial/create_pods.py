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
from multistep.pods import pod_identity
from multistep.pods import pod_manifest as pods
from multistep.reconcile.queue.work_queue import CONTINUE, Requeue, Result
from multistep.reconcile.trial.owned_pods import QUOTA_EXCEEDED, former
from multistep.reconcile.trial.session_state import VerifierRequired
from multistep.reconcile.trial.trial_run import TrialContext
from multistep.runner_client import exchange as sealed_messages
from multistep.store.results_volume import TrialKey

_ROOM_SECONDS = 600.0  # longest wait of a trial that made room for others' verifiers
_ROOM_RETRY_SECONDS = 10.0
REPORT_WAIT_SECONDS = 30.0  # shorter waits are not reported in the status


class TrialCreation(TrialContext):
    """The part of a trial's reconcile that creates and adopts pods."""

    async def _may_create_pod(self, manifest: Object, *, first: bool) -> bool:
        """Return whether the trial may create a pod now; if not, it is queued. first: queue it before trials that had no pod
        yet."""
        starts, quotas = self._t.starts, self._t.quotas
        if not quotas.may_try(self._key, manifest, first=first):
            if not any(each.reason == QUOTA_EXCEEDED for each in self._trial.status.conditions):  # reported once, not at each retry
                message = f"{manifest['metadata']['name']} is queued behind an equal pod; {quotas.rejection(self._key)}"
                await self._wait(QUOTA_EXCEEDED, message, seconds=None)
            return False
        if not await self._has_model_slot(first=first):
            return False
        if not starts.acquire(self._key, first=first) and starts.waited(self._key) >= REPORT_WAIT_SECONDS:
            await self._wait("Queued", f"the limit of starting pods is reached ({starts.limit})", seconds=None)
        return starts.acquire(self._key, first=first)

    async def _has_model_slot(self, *, first: bool) -> bool:
        """Return whether the trial may be active under its model's limit; if not, it is queued."""
        slots, trial = self._t.model_slots, self._trial
        if slots.acquire(trial, first=first):
            return True
        self._t.quotas.withdraw(self._key)
        if (slots.waited(self._key) or 0.0) < REPORT_WAIT_SECONDS:
            return False
        message = f"the limit of active trials with model {trial.spec.agent.model} is reached"
        await self._wait(QUEUED_FOR_MODEL, message, seconds=None, gated=True)
        return slots.acquire(trial, first=first)

    def _requeue_queued(self) -> Requeue:
        """Return the requeue of a queued trial: at its next retry, or when the status must report the wait. A free slot requeues it
        earlier."""
        if self._key in self._t.quotas:
            return self._until_deadline(self._t.quotas.pause(self._key))
        waited = self._t.model_slots.waited(self._key)
        left = REPORT_WAIT_SECONDS - (self._t.starts.waited(self._key) if waited is None else waited)
        return self._until_deadline(left if left > 0 else None)

    async def _create(self, request: pods.PodRequest, manifest: Object, *, first: bool) -> PodFacts | decisions.Wait | None:
        """Create a pod as TrialPods.create does, and report the result to the namespace's quota queue."""
        rejection, quotas = "", self._t.quotas
        try:
            result = await self._t.pods.create(request, manifest)
            if isinstance(result, decisions.Wait) and result.reason == QUOTA_EXCEEDED:
                rejection = result.message
        finally:
            quotas.tried(self._key, manifest, rejection, first=first)
        if rejection:
            self._t.model_slots.release(self._key)
        if isinstance(result, PodFacts):
            self._t.starts.observe(self._key, result)
        return replace(result, seconds=quotas.pause(self._key)) if rejection and isinstance(result, decisions.Wait) else result

    async def _create_pod(self) -> Result:
        earlier = former(self._trial)
        await self._t.pods.remove(self._trial, earlier)
        if self._leaves_room():
            message = "verifiers' pods of other trials fit no node yet"
            return await self._wait(WAITS_FOR_VERIFIERS, message, seconds=_ROOM_RETRY_SECONDS, gated=True)
        loaded, trial, first = self._loaded_now, self._trial, bool(earlier)
        plan, environment = loaded.plan, loaded.task.config.environment
        request = pods.PodRequest(
            trial, environment, plan.image, plan.task_name, self._t.settings,
            network=plan.network, sidecar=plan.sidecar, checkpoints=plan.uses_checkpoints, services=plan.services,
            host_key=sealed_messages.new_key(),
        )  # fmt: skip
        manifest = pods.manifest(request)
        if not await self._may_create_pod(manifest, first=first):
            await self._write(self._trial.status)
            return self._requeue_queued()
        kept = [step.directory or "" for step in plan.steps[: trial.status.kept_steps]]
        await self._t.volume.start_attempt(TrialKey.of(trial), trial.status.attempt or 1, kept)
        try:
            created = await self._create(request, manifest, first=first)
        except ClusterError:
            await self._write(self._trial.status)  # the trial's deadline counts from the start in the status
            raise
        match created:
            case None:
                return CONTINUE  # the pod exists: the next decision checks its owner
            case decisions.Wait() as rejection:
                return await self._wait_after_rejection(rejection, next_decision.attempt_start(trial))
            case result:
                self._pod = result
                return await self._adopt()

    def _leaves_room(self) -> bool:
        """Return whether the trial, which made room for the verifiers of other trials, still leaves it to them."""
        now, attempts = self._t.clock(), self._trial.status.attempts
        last = attempts[-1] if attempts else None
        if last is None or last.reason != MADE_ROOM or last.end_time is None or now - last.end_time.timestamp() >= _ROOM_SECONDS:
            return False
        return self._t.room.others_wait(self._trial.metadata.uid, self._trial.metadata.namespace, now)

    async def _adopt(self) -> Result:
        """Write the pod's UID to the status before the first exec session.

        Also clear ``verifier`` in the status: the pod of an earlier attempt's verifier is already deleted.
        """
        assert self._pod is not None
        if (rejection := await self._check_verifiers_pods()) is not None:
            return await self._wait_after_rejection(rejection, next_decision.attempt_start(self._trial))
        message = pod_start.starting_message(self._trial.status.attempt, self._pod.name)
        waiting = trial_status.waiting(self._trial, "Pending", pod_start.POD_STARTING, message, self._t.clock())
        await self._write(waiting.model_copy(update={"pod_uid": self._pod.uid, "verifier": None}))
        self._verifier, self._pods_known = None, True
        return CONTINUE

    async def _check_verifiers_pods(self) -> decisions.Wait | None:
        """Let the API server check the pods of separate verifiers while the agent's pod starts: without them, the agent's work has
        no verdict. Return Wait if it rejects one for now. Raises InvalidSpec if one is invalid."""
        if self._trial.spec.regrade is not None or self._loaded is None:
            return None  # no agent runs, or the trial was suspended or stopped: its task is not loaded
        checked: list[VerifierEnvironment] = []
        for step in self._plan.steps:
            if not step.verified_apart or step.verifiers_environment is None:
                continue
            environment = replace(step.verifiers_environment, env={}, healthcheck=None)  # not part of the pod
            if environment not in checked:
                checked.append(environment)
                named = VerifierStatus(pod_name=pod_identity.verifier_pod_names(self._trial, step.index)[0])
                if (found := await self._t.pods.check(pods.manifest(self._verifier_request(named, environment)))) is not None:
                    return replace(found, message=f"the verifier of step {step.name}: {found.message}")
        return None

    def _verifier_request(self, named: VerifierStatus, environment: VerifierEnvironment) -> pods.PodRequest:
        return pods.PodRequest(
            self._trial, environment.config, environment.image, self._plan.task_name, self._t.settings,
            verifier=named, own_image=environment.own_image, network=environment.network,
            sidecar=environment.sidecar, services=environment.services,
        )  # fmt: skip

    async def _request_verifier(self, required: VerifierRequired) -> Result:
        """Write the verifier pod's name and the progress to the status, before the pod is created. The exec sessions are
        already closed."""
        step = required.step
        environment = step.verifiers_environment
        same_image = environment is not None and not environment.own_image
        user = required.image_user or (self._trial.status.image_user if same_image else None)
        name = pod_identity.verifier_pod_names(self._trial, step.index)[user is not None]
        wanted = trial_status.verifier_wanted(self._trial, name, user, self._t.clock(), compares=step.compares_verdicts)
        await self._write_running(required.journal, verifier=wanted)
        return CONTINUE

    async def _create_verifier_pod(self) -> Result:
        named = self._trial.status.verifier
        assert named is not None
        environment = _verifier_environment(self._plan, self._trial.status.current_step)
        if named.image_user is not None:  # delete the pod that was created before the image's user was known
            await self._t.pods.remove(self._trial, [named.pod_name.removesuffix("-root")])
        request = self._verifier_request(named, environment)
        manifest = pods.manifest(request)
        if not await self._may_create_pod(manifest, first=True):
            return self._requeue_queued()
        await self._writer.require_current()  # a stale status could create a pod for a finished trial, which nothing would delete
        match await self._create(request, manifest, first=True):
            case None:
                return CONTINUE
            case decisions.Wait() as rejection:
                return await self._wait_after_rejection(rejection, named.start_time, compares_verdicts=self._compares_verdicts)
            case result:
                self._verifier = result
                return await self._adopt_verifier()

    async def _adopt_verifier(self) -> Result:
        named = self._trial.status.verifier
        assert self._verifier is not None and named is not None
        adopted = named.model_copy(update={"pod_uid": self._verifier.uid})
        await self._write(self._trial.status.model_copy(update={"verifier": adopted}))
        self._pods_known = True
        return CONTINUE

    async def _release_verifier(self, step: StepPlan) -> None:
        """Remove the verifier's pod from the status, then delete it. Idempotent: a retry finds the pod by its name."""
        if self._trial.status.verifier is not None:
            await self._write(self._trial.status.model_copy(update={"verifier": None}))
        else:  # raise Conflict if the status is stale: the current one may name a verifier. The Conflict causes a retry
            await self._writer.require_current()
        await self._t.pods.remove(self._trial, pod_identity.verifier_pod_names(self._trial, step.index))

    async def _wait_after_rejection(
        self, rejection: decisions.Wait, since: datetime | None, *, compares_verdicts: bool = False
    ) -> Result:
        decision = next_decision.after_rejection(self._trial, rejection, since, self._t.clock())
        if compares_verdicts and isinstance(decision, decisions.Fail):
            return await self._act(decisions.DriveWithoutVerifier(decision.message))
        return await self._act(decision)


def _verifier_environment(plan: TrialPlan, step: str | None) -> VerifierEnvironment:
    """Return the environment of a step's separate verifier. Raises InvalidSpec if it has none: a client edited the status."""
    found = next((each.verifiers_environment for each in plan.steps if each.name == step), None)
    if found is None:
        raise InvalidSpec(f"status.verifier names a pod, but the step status.currentStep = {step!r} has no separate verifier")
    return found
