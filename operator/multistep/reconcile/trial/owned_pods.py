"""Creates, reads and deletes the pods of a trial. A pod is deleted only if the trial owns it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import PodFacts, Wait
from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import DISRUPTION_BUDGETS, NETWORK_POLICIES, PODS
from multistep.pods import pod_identity
from multistep.pods import pod_manifest as pod_policies
from multistep.pods import pod_manifest as pods
from multistep.pods.pod_facts import pod_facts
from multistep.reconcile.admission.pod_rejections import QUOTA_EXCEEDED, rejection_wait

NAME_TAKEN_RETRY_SECONDS = 2.0


class TrialPods:
    """The pods of trials."""

    def __init__(self, cluster: Cluster, *, guarded: bool = False) -> None:
        """Create the access to pods. ``guarded`` gives each pod a PodDisruptionBudget, for which node drains wait."""
        self._cluster = cluster
        self._guarded = guarded

    async def get(self, trial: MultiStepTrial, name: str | None) -> PodFacts | None:
        """Return the pod of that name, or None if it does not exist."""
        if name is None:
            return None
        try:
            return pod_facts(await self._cluster.get(PODS, trial.metadata.namespace, name))
        except NotFound as error:
            if error.reason != "NotFound":  # a proxy answered, so the pod may exist
                raise
            return None

    async def create(self, request: pods.PodRequest, manifest: Object) -> PodFacts | Wait | None:
        """Create the pod's NetworkPolicy, then the pod, and return its state.

        Return None if a pod of that name exists, whose owner the caller must check. Return Wait if the API server rejects the pod
        for now. Raises InvalidSpec if the pod is invalid, Conflict to try again soon, and ClusterError for other errors.
        """
        try:
            if not await self._limit_network(request):
                # Wait, because Kubernetes soon deletes the policy of an earlier trial of the same name.
                message = f"NetworkPolicy {request.name} belongs to another object"
                return Wait("NetworkPolicyTaken", message, NAME_TAKEN_RETRY_SECONDS)
            await self._guard(request)
            return pod_facts(await self._cluster.create(manifest))
        except AlreadyExists:
            return None
        except Conflict:  # the creation of other pods changed a ResourceQuota meanwhile; the caller tries again soon
            raise
        except ClusterError as error:
            return rejection_wait(error)

    async def check(self, manifest: Object) -> Wait | None:
        """Let the API server check a pod without creating it. Return Wait if it rejects the pod for now.

        A rejection by a quota is ignored, because the quota may have room when the pod is created. Raises the same errors as
        ``create``.
        """
        try:
            await self._cluster.create(manifest, dry_run=True)
        except AlreadyExists:
            return None
        except ClusterError as error:
            rejection = rejection_wait(error)
            return None if rejection.reason == QUOTA_EXCEEDED else rejection
        return None

    async def remove(self, trial: MultiStepTrial, names: Sequence[str]) -> None:
        """Delete the pods with these names, except pods that the trial does not own."""
        for name in names:
            await self.unguard(trial, [name])
            if (pod := await self.get(trial, name)) is not None:
                await self._delete(trial, pod)

    async def remove_all(self, trial: MultiStepTrial) -> None:
        """Delete all pods of the trial, including pods that an earlier leader created with an outdated status."""
        selector = f"{pod_identity.LABEL_TRIAL}={pod_identity.label_value(trial.metadata.name)}"
        for found in await self._cluster.list_all(PODS, trial.metadata.namespace, label_selector=selector):
            if not pod_identity.owned_by(trial, found):
                continue  # anyone may have given their pod this label
            pod = pod_facts(found)
            await self.unguard(trial, [pod.name])
            await self._delete(trial, pod)

    async def _delete(self, trial: MultiStepTrial, pod: PodFacts) -> None:
        if pod.owner_uid == trial.metadata.uid and not pod.deleting:
            with suppress(NotFound, Conflict):
                await self._cluster.delete(PODS, trial.metadata.namespace, pod.name, uid=pod.uid)

    async def unguard(self, trial: MultiStepTrial, names: Sequence[str]) -> None:
        """Delete the pods' disruption budgets, so that node drains no longer wait."""
        if self._guarded:
            for name in names:
                await self._cluster.delete(
                    DISRUPTION_BUDGETS, trial.metadata.namespace, pod_policies.disruption_budget_name(trial, name)
                )

    async def _guard(self, request: pods.PodRequest) -> None:
        if (budget := pod_policies.disruption_budget(request)) is not None:
            with suppress(AlreadyExists):  # the operator may have created it before a crash
                await self._cluster.create(budget)

    async def _limit_network(self, request: pods.PodRequest) -> bool:
        """Create the pod's NetworkPolicy. Return False if a NetworkPolicy of that name exists and the trial does not own it."""
        policy = pod_policies.network_policy(request)
        if policy is None:
            return True
        try:
            await self._cluster.create(policy)
        except AlreadyExists:
            there = await self._cluster.get(NETWORK_POLICIES, request.trial.metadata.namespace, request.name)
            return pod_identity.owned_by(request.trial, there)
        return True


def earlier_pods(trial: MultiStepTrial) -> list[str]:
    """Return the names of pods that must be deleted before the attempt's pod is created.

    These are the pods of the previous attempt, this attempt's pod from before the image's user was known, and the verifier's pod in
    the status. If the status has no attempt, it is the first pod, because a reconcile creates this pod before it writes the
    attempt.
    """
    if trial.status.attempt is None:
        return [pod_identity.pod_name(trial.metadata.name, 1, as_root=False)]
    attempt, as_root = trial.status.attempt, trial.status.image_user is not None
    found = [(attempt, False)] if as_root else []
    found += [(attempt - 1, False), (attempt - 1, True)] if attempt > 1 else []
    return [pod_identity.pod_name(trial.metadata.name, number, as_root=root) for number, root in found] + named_verifiers(trial)


def named_verifiers(trial: MultiStepTrial) -> list[str]:
    """Return the name of the verifier's pod in the status, and the name that this pod had before it was recreated as root."""
    named = trial.status.verifier
    return sorted({named.pod_name, named.pod_name.removesuffix("-root")}) if named else []
