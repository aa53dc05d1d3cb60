"""The storm: blows of several kinds at random moments, each told as it falls."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from multistep.cluster.pods import LABEL_ATTEMPT, LABEL_TRIAL, trial_of
from multistep.errors import ClusterError
from tests.chaos.proxy import Proxy
from tests.chaos.victim import Victim, restarts
from tests.e2e.given import Given, Object

PAUSE_SECONDS = (1.0, 5.0)  # between two blows
COMPONENTS = ("apiserver", "containerd")  # each is restarted once
RESTARTS = range(2, 9)  # the blows that may be that
SHARES = {"operator": 5, "pod": 4, "connections": 1}  # of what is left to chance

# Of the kills that find the operator starting, or without the lease: more, and on a slow machine it would never get to work.
WHILE_STARTING = 0.2

Blow = Callable[[], Awaitable[str]]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Taken:
    """A pod that was deleted: whose, and of which attempt."""

    trial: str
    attempt: int


@dataclass
class Storm:
    """deletions: how many pods of trials may be deleted at most; unlucky: the trial whose pods are deleted before others.

    tell: called with each blow. over: set to end it. taken: whose pods were deleted.
    """

    given: Given
    victim: Victim
    proxy: Proxy
    chance: random.Random
    deletions: int
    unlucky: str
    tell: Tell
    over: asyncio.Event = field(default_factory=asyncio.Event)
    count: Counter[str] = field(default_factory=Counter)
    taken: list[Taken] = field(default_factory=list)

    async def rage(self) -> None:
        """Strike until it is over. The first blow leads the operator to the proxy: its open connections go past it."""
        numbers = self.chance.sample(RESTARTS, len(COMPONENTS))
        fixed: dict[int, Blow] = {number: self._restarting(name) for number, name in zip(numbers, COMPONENTS, strict=True)}
        fixed[0] = self._kill_operator
        number = 0
        while not self.over.is_set():
            number += await self._strike(fixed.get(number) or self._any())
            with suppress(TimeoutError):
                await asyncio.wait_for(self.over.wait(), self.chance.uniform(*PAUSE_SECONDS))

    async def _strike(self, blow: Blow) -> bool:
        """Whether the blow fell: what it was meant for may be away at the moment."""
        try:
            what = await blow()
        except ClusterError:  # the API server may be what was struck
            return False
        if what:
            self.count[what] += 1
            self.tell(what)
        return bool(what)

    def _any(self) -> Blow:
        blows = {"operator": self._kill_operator, "pod": self._delete_pod, "connections": self._cut_connections}
        (kind,) = self.chance.choices(list(SHARES), list(SHARES.values()))
        return blows[kind]

    async def _kill_operator(self) -> str:
        """SIGKILL. The kubelet starts it again at once the first time; it would wait ever longer, so a new pod comes next."""
        pod = await self.victim.running()
        if pod is None or (self.count and self.chance.random() > WHILE_STARTING and not await self.victim.works(pod)):
            return ""
        if restarts(pod) and self.chance.random() < 0.3:  # the old one may still be at work while the new one is
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
        pod = await self._prey() if self.deletions else None
        if pod is None:
            return ""
        owner = trial_of(pod)
        assert owner is not None
        metadata = pod["metadata"]
        grace = self.chance.choice([None, 0])
        self.taken.append(Taken(owner[1], int(metadata["labels"][LABEL_ATTEMPT])))  # also if the answer is lost
        name, uid = metadata["name"], metadata["uid"]
        if not await self.given.client.delete_pod(self.given.namespace, name, uid=uid, grace_period_seconds=grace):
            return ""
        self.deletions -= 1
        return "trial pod deleted" if grace is None else "trial pod deleted without grace"

    async def _prey(self) -> Object | None:
        listed = await self.given.client.list_pods(self.given.namespace, label_selector=LABEL_TRIAL)
        pods = [each for each in listed if not each["metadata"].get("deletionTimestamp")]
        first = [
            each for each in pods if trial_of(each) == (self.given.namespace, self.unlucky) and each["status"]["phase"] == "Running"
        ]
        return self.chance.choice(first or pods) if pods else None

    async def _cut_connections(self) -> str:
        return "all connections cut" if self.proxy.cut_all() else ""

    def _restarting(self, component: str) -> Blow:
        async def restart() -> str:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "localkube", "restart", component,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )  # fmt: skip
            said, _ = await process.communicate()
            if process.returncode:
                raise AssertionError(f"localkube restart {component}: {said.decode()}")
            return f"{component} restarted"

        return restart
