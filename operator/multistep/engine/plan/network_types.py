"""The networks of a trial's environments and phases: what each may reach. engine.plan.phase_networks resolves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from multistep.api.task.task_toml import NetworkMode

Egress: TypeAlias = Literal["Disabled", "NetworkPolicy", "Sidecar"]
"""What limits the networks of trial pods: nothing, a NetworkPolicy of each pod, or a sidecar in each pod that needs one."""


@dataclass(frozen=True)
class Network:
    """The destinations that a pod may reach. hosts: host names, ``*.`` followed by a name, IP addresses and CIDRs, only for mode
    ``allowlist``; gateway: whether the pod may also reach the model gateway, although the mode limits its network."""

    mode: NetworkMode = "public"
    hosts: tuple[str, ...] = ()
    gateway: bool = False

    @property
    def limited(self) -> bool:
        return self.mode != "public"


PUBLIC = Network()


@dataclass(frozen=True)
class StepNetworks:
    """The networks of one step. agent, verifier: networks of these phases; verifiers_pod: network of the verifier's own pod outside
    of the verifier's phase; shared: whether the step is verified in the agent's pod; sidecar: whether the verifier's own pod has an
    egress sidecar."""

    agent: Network
    verifier: Network
    verifiers_pod: Network
    shared: bool
    sidecar: bool = False


@dataclass(frozen=True)
class Networks:
    """The networks of a trial. environment: network of the agent's pod outside of the phases of agent and verifier; steps: networks
    of each step; sidecar: whether the agent's pod has an egress sidecar."""

    environment: Network
    steps: tuple[StepNetworks, ...]
    sidecar: bool
