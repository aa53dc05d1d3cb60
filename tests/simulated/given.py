"""Helpers for the simulated tests: trials whose scripts are those of tests.support.simulation.scripts, and operators."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from multistep.api.sweep.sweep import SWEEP_KIND
from multistep.api.trial.trial import KIND
from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import NAMESPACES
from multistep.kube.shard import LABEL_SHARD
from tests.e2e import given as real
from tests.e2e.given import Object, made_namespace
from tests.support.simulation.kubelet import placement
from tests.support.simulation.node import SimulatedNode
from tests.support.simulation.operator import Operator, Shard

IMAGE = "simulated"
NO_IMAGE = "localhost/none:1"  # an image that cannot be pulled
HOLD = "hold"
HOLDS_IN_FIRST_POD = "if *-1 hold"


def reward(value: object) -> str:
    """Return a test.sh that writes the value as the reward."""
    return f"reward {value}"


@dataclass
class Step(real.Step):
    """A step of an inline task: its scripts, and its table in task.toml. By default nothing is done, and the reward is 1."""

    solve: str = "# nothing"
    test: str | None = reward(1)


def trial(*steps: Step, name: str = "", config: Mapping[str, Any] | None = None, **spec: Any) -> Object:
    """Return a trial of an inline task; see tests.e2e.given.trial."""
    return real.trial(*steps, name=name, config=config, **{"environment": {"image": IMAGE}, **spec})


class Given(real.Given):
    """A test's namespace in the cluster, and the test's actions on its trials, whose pods run on a simulated node.

    shard: the shard of the operator that runs the trials; "": the deployed operator.
    """

    def __init__(self, client: WatchingClient, node: SimulatedNode, shard: str) -> None:
        super().__init__(client, f"sim-{secrets.token_hex(4)}")
        self.node = node
        self.shard = shard

    @asynccontextmanager
    async def made(self) -> AsyncIterator[Given]:
        """Create the namespace, and delete it afterwards."""
        await made_namespace(self.client, self.namespace)
        try:
            async with self.recorder:
                yield self
        finally:
            await self.client.delete(NAMESPACES, None, self.namespace)

    @property
    def environment(self) -> Object:
        """Return the spec.environment of a trial whose pods run on the simulated node."""
        return self.placed({"image": IMAGE})

    def placed(self, environment: Object) -> Object:
        """Return the environment with pods that run on the simulated node."""
        template = environment.get("podTemplate") or {}
        return {**environment, "podTemplate": {**template, "spec": {**placement(self.node.name), **(template.get("spec") or {})}}}

    def ours(self, manifest: Object) -> Object:
        """Return the trial or sweep with the shard's label and with pods on the simulated node."""
        made = deepcopy(manifest)
        if made["kind"] not in (KIND, SWEEP_KIND):
            return made
        if self.shard:
            made["metadata"]["labels"] = {LABEL_SHARD: self.shard, **(made["metadata"].get("labels") or {})}
        if made["kind"] == KIND:
            made["spec"]["environment"] = self.placed(made["spec"].get("environment") or {})
            return made
        spec = made["spec"].setdefault("template", {}).setdefault("spec", {})
        spec["environment"] = self.placed(spec.get("environment") or {"image": IMAGE})
        return made

    async def applied(self, manifest: Object) -> Object:
        return await super().applied(self.ours(manifest))

    async def go(self, trial_name: str) -> None:
        """Let the phase go on that holds in the trial's pod."""
        await self.node.release((await self.get(trial_name))["status"]["podName"])


@dataclass
class OwnOperators:
    """Operators of one test: replicas of a shard of its own."""

    given: Given
    shard: Shard
    _made: list[Operator] = field(default_factory=list)

    async def started(self, name: str = "operator", **settings: str) -> Operator:
        """Start a replica. settings: MULTISTEP_ variables, without the prefix and in lower case."""
        made = Operator(self.shard, name, {key.upper(): value for key, value in settings.items()})
        self._made.append(made)
        await made.start()
        return made

    async def end(self) -> None:
        """End the replicas that still run."""
        for each in self._made:
            await each.end()
