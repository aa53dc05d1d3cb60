"""The types of the networks of a trial's environments and phases, which engine.plan.phase_networks resolves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from multistep.api.task.task_toml import NetworkMode

Egress: TypeAlias = Literal["Disabled", "NetworkPolicy", "Sidecar"]
"""What limits the networks of trial pods: nothing, a NetworkPolicy of each pod, or a sidecar in each pod that needs one."""


@dataclass(frozen=True)
class Network:
    """The destinations that a pod may reach."""

    mode: NetworkMode = "public"
    hosts: tuple[str, ...] = ()
    """Allowed host names, patterns such as ``*.example.com``, IP addresses and CIDRs. Empty unless the mode is ``allowlist``."""
    gateway: bool = False
    """Whether the pod may also reach the model gateway, although the mode limits its network."""

    @property
    def limited(self) -> bool:
        return self.mode != "public"


PUBLIC = Network()


@dataclass(frozen=True)
class StepNetworks:
    """The networks of one step."""

    agent: Network
    """Network of the agent's phase."""
    verifier: Network
    """Network of the verifier's phase."""
    verifiers_pod: Network
    """Network of the verifier's own pod outside of the verifier's phase."""
    shared: bool
    """Whether the step is verified in the agent's pod."""
    sidecar: bool = False
    """Whether the verifier's own pod has an egress sidecar."""


@dataclass(frozen=True)
class Networks:
    """The networks of a trial."""

    environment: Network
    """Network of the agent's pod outside of the phases of agent and verifier."""
    steps: tuple[StepNetworks, ...]
    """The networks of each step."""
    sidecar: bool
    """Whether the agent's pod has an egress sidecar."""
