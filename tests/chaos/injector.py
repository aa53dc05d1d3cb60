"""Inject faults of several kinds at random moments, and report each."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from multistep.errors import ClusterError
from multistep.kube.resources import PODS, TRIALS
from multistep.pods.pod_identity import LABEL_ATTEMPT, LABEL_TRIAL, trial_of
from tests.chaos.proxy import Proxy
from tests.chaos.victim import Victim, restarts
from tests.e2e.given import Given, Object, finished

PAUSE_SECONDS = (1.0, 5.0)  # range of the pauses between faults
COMPONENTS = ("apiserver", "containerd")  # each is restarted once
RESTARTS = range(2, 9)  # positions in the sequence of faults at which a component may be restarted
SHARES = {"operator": 5, "pod": 4, "connections": 1}  # relative frequencies of the random faults

# Probability of killing an operator that is starting or not the leader. If it were higher, slow machines would make no progress.
WHILE_STARTING = 0.2

Fault = Callable[[], Awaitable[str]]
Report = Callable[[str], None]


@dataclass(frozen=True)
class DeletedPod:
    """The trial and attempt of a pod that the injector deleted."""

    trial: str
    attempt: int


@dataclass
class FaultInjector:
    """Injects faults: kills the operator, deletes trial pods, cuts connections and restarts cluster components.

    Args:
        deletions: Maximum number of trial pods to delete. Half of them are pods of trials that have a checkpoint.
        first_target: The trial whose pods are deleted first.
        report: Called with a description of each fault.
        stopped: The injection ends when this event is set.
        deleted: The attempts whose pods were deleted.
    """

    given: Given
    victim: Victim
    proxy: Proxy
    chance: random.Random
    deletions: int
    first_target: str
    report: Report
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    count: Counter[str] = field(default_factory=Counter)
    deleted: list[DeletedPod] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._after_checkpoint = self.deletions // 2

    async def run(self) -> None:
        """Inject faults until `stopped` is set.

        The first fault kills the operator, because the open connections of the old process bypass the proxy. The new process
        connects through the proxy.
        """
        numbers = self.chance.sample(RESTARTS, len(COMPONENTS))
        fixed: dict[int, Fault] = {number: self._restarting(name) for number, name in zip(numbers, COMPONENTS, strict=True)}
        fixed[0] = self._kill_operator
        number = 0
        while not self.stopped.is_set():
            number += await self._inject(fixed.get(number) or self._any())
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), self.chance.uniform(*PAUSE_SECONDS))

    async def _inject(self, fault: Fault) -> bool:
        """Inject one fault. Return False if its target does not exist at the moment."""
        try:
            what = await fault()
        except ClusterError:  # an earlier fault may have made the API server unavailable
            return False
        if what:
            self.count[what] += 1
            self.report(what)
        return bool(what)

    def _any(self) -> Fault:
        faults = {"operator": self._kill_operator, "pod": self._delete_pod, "connections": self._cut_connections}
        (kind,) = self.chance.choices(list(SHARES), list(SHARES.values()))
        return faults[kind]

    async def _kill_operator(self) -> str:
        """Kill the operator with SIGKILL, or delete its pod.

        If the kubelet has already restarted the operator in this pod, always delete the pod, because the kubelet delays each
        further restart longer. In some of these cases, chosen at random, delete the pod without a SIGKILL before.
        """
        pod = await self.victim.running()
        if pod is None or (self.count and self.chance.random() > WHILE_STARTING and not await self.victim.works(pod)):
            return ""
        if restarts(pod) and self.chance.random() < 0.3:  # no SIGKILL: the old operator may run on when the new one starts
            await self.victim.keep_log(pod)
            await self.victim.remove(pod)
            return "operator's pod replaced"
        if not await self.victim.kill(pod):
            return ""
        if not restarts(pod):
            return "operator killed"
        await self.victim.remove(pod)
        return "operator killed, its pod removed"

    async def _delete_pod(self) -> str:
        pods = await self._pods() if self.deletions else []
        later = await self._of_checkpointed(pods) if self._after_checkpoint else []
        if later and self.chance.random() < 0.5:
            return await self._delete(self.chance.choice(later), " after a checkpoint")
        if pods and self.deletions > self._after_checkpoint:
            first = [each for each in pods if _trial(each) == self.first_target and each["status"]["phase"] == "Running"]
            return await self._delete(self.chance.choice(first or pods), "")
        return ""

    async def _delete(self, pod: Object, when: str) -> str:
        metadata, grace = pod["metadata"], self.chance.choice([None, 0])
        # recorded before the deletion, because its response may get lost
        self.deleted.append(DeletedPod(_trial(pod), int(metadata["labels"][LABEL_ATTEMPT])))
        name, uid = metadata["name"], metadata["uid"]
        if not await self.given.client.delete(PODS, self.given.namespace, name, uid=uid, grace_period_seconds=grace):
            return ""
        self.deletions -= 1
        self._after_checkpoint -= bool(when)
        return f"trial pod deleted{when}" if grace is None else f"trial pod deleted{when} without grace"

    async def _pods(self) -> list[Object]:
        listed = await self.given.client.list_all(PODS, self.given.namespace, label_selector=LABEL_TRIAL)
        return [each for each in listed if not each["metadata"].get("deletionTimestamp")]

    async def _of_checkpointed(self, pods: list[Object]) -> list[Object]:
        """Return the pods of unfinished trials whose current attempt has a checkpoint."""
        trials = await self.given.client.list_all(TRIALS, self.given.namespace)
        names = {each["metadata"]["name"] for each in trials if not finished(each) and _has_checkpoint(each)}
        return [each for each in pods if _trial(each) in names]

    async def _cut_connections(self) -> str:
        return "all connections cut" if self.proxy.cut_all() else ""

    def _restarting(self, component: str) -> Fault:
        async def restart() -> str:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "localkube", "restart", component,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            output, _ = await process.communicate()
            if process.returncode:
                raise AssertionError(f"localkube restart {component}: {output.decode()}")
            return f"{component} restarted"

        return restart


def _trial(pod: Object) -> str:
    """Return the name of a pod's trial."""
    owner = trial_of(pod)
    assert owner is not None
    return owner[1]


def _has_checkpoint(trial: Object) -> bool:
    steps = (trial.get("status") or {}).get("steps") or []
    return any((each.get("checkpoint") or {}).get("digest") for each in steps)
