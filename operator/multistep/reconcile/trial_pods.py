"""The pods of one trial: made, looked at, removed, each only if it is the trial's own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from ..api.trial import MultiStepTrial
from ..cluster import pods
from ..cluster.edge import Cluster, Object
from ..engine.decisions import PodFacts, Wait
from ..errors import ClusterError, Conflict, InvalidSpec, NotFound
from .quotas import EXCEEDED

QUOTA_EXCEEDED = "QuotaExceeded"
REFUSED_SECONDS = 10.0
NAME_TAKEN_SECONDS = 2.0


class TrialPods:
    """What the reconciler asks of the cluster about pods. guarded: each has a PodDisruptionBudget, so that drains wait."""

    def __init__(self, cluster: Cluster, *, guarded: bool = False) -> None:
        self._cluster = cluster
        self._guarded = guarded

    async def get(self, trial: MultiStepTrial, name: str | None) -> PodFacts | None:
        """The pod of that name, if there is one."""
        if name is None:
            return None
        try:
            return pods.facts(await self._cluster.get_pod(trial.metadata.namespace, name))
        except NotFound:
            return None

    async def create(self, request: pods.PodRequest, manifest: Object) -> PodFacts | Wait | None:
        """Make a pod (its manifest), after the NetworkPolicy that limits it. None: one of that name is there, and somebody has to
        look whose. Wait: it may not be made now, but later perhaps.

        Raises InvalidSpec if it can never be a pod, ClusterError.
        """
        try:
            if not await self._limit_network(request):
                # A former trial's of the same name goes by itself.
                message = f"a NetworkPolicy named {request.name} belongs to somebody else"
                return Wait("NetworkPolicyTaken", message, NAME_TAKEN_SECONDS)
            await self._guard(request)
            return pods.facts(await self._cluster.create_pod(manifest))
        except Conflict:
            return None
        except ClusterError as error:
            return _refused(error)

    async def remove(self, trial: MultiStepTrial, names: Sequence[str]) -> None:
        """Ask for the end of those of these pods that are the trial's."""
        for name in names:
            await self.unguard(trial, [name])
            if (pod := await self.get(trial, name)) is not None:
                await self._delete(trial, pod)

    async def remove_all(self, trial: MultiStepTrial) -> None:
        """The same for all of its pods, also for one made by an operator that did not know yet how far the trial was."""
        selector = f"{pods.LABEL_TRIAL}={pods.label_value(trial.metadata.name)}"
        for found in await self._cluster.list_pods(trial.metadata.namespace, label_selector=selector):
            pod = pods.facts(found)
            await self.unguard(trial, [pod.name])
            await self._delete(trial, pod)

    async def _delete(self, trial: MultiStepTrial, pod: PodFacts) -> None:
        if pod.owner_uid == trial.metadata.uid and not pod.deleting:
            with suppress(NotFound, Conflict):
                await self._cluster.delete_pod(trial.metadata.namespace, pod.name, uid=pod.uid)

    async def unguard(self, trial: MultiStepTrial, names: Sequence[str]) -> None:
        """Drains need not wait for these pods any more."""
        if self._guarded:
            for name in names:
                await self._cluster.delete_disruption_budget(trial.metadata.namespace, pods.disruption_budget_name(trial, name))

    async def _guard(self, request: pods.PodRequest) -> None:
        if (budget := pods.disruption_budget(request)) is not None:
            with suppress(Conflict):  # made before a crash
                await self._cluster.create(budget)

    async def _limit_network(self, request: pods.PodRequest) -> bool:
        """See that the pod's NetworkPolicy is there before the pod is; False if somebody else has its name."""
        policy = pods.network_policy(request)
        if policy is None:
            return True
        try:
            await self._cluster.create(policy)
        except Conflict:
            there = await self._cluster.get_network_policy(request.trial.metadata.namespace, request.name)
            return pods.owned_by(request.trial, there)
        return True


def _refused(error: ClusterError) -> Wait:
    """What can be no pod ends the trial; what is not allowed now (quota, admission) may be later."""
    denied = "is forbidden" in str(error) or "denied the request" in str(error)  # policies and webhooks choose their status
    if error.status in (400, 422) and not denied:
        raise InvalidSpec(f"the API server refuses a pod of the trial: {error}") from error
    if error.status != 403 and not denied:
        raise error
    reason = QUOTA_EXCEEDED if EXCEEDED in str(error) else "PodForbidden"
    return Wait(reason, str(error), REFUSED_SECONDS)


def former(trial: MultiStepTrial) -> list[str]:
    """Names of pods that an earlier attempt, or a first look at the image's user, may have left."""
    attempt, as_root = trial.status.attempt or 1, trial.status.image_user is not None
    found = [(attempt, False)] if as_root else []
    found += [(attempt - 1, False), (attempt - 1, True)] if attempt > 1 else []
    return [pods.pod_name(trial.metadata.name, number, as_root=root) for number, root in found] + named_verifiers(trial)


def named_verifiers(trial: MultiStepTrial) -> list[str]:
    """Names of the verifier's pod that the status names, and of the one made before its image's user was known."""
    named = trial.status.verifier
    return sorted({named.pod_name, named.pod_name.removesuffix("-root")}) if named else []
