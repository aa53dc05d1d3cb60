"""Maps an environment's network_mode to a NetworkPolicy for its pod. Rejects policies that a NetworkPolicy cannot express."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Protocol

from multistep.api.task_toml import NetworkMode
from multistep.errors import InvalidSpec


@dataclass(frozen=True)
class Network:
    """The CIDRs to which a pod may connect. No ingress is allowed. A public environment has no Network."""

    allowed: tuple[str, ...] = ()


class Policy(Protocol):
    """The network fields that environments and phases share in task.toml (api.task_toml)."""

    @property
    def network_mode(self) -> NetworkMode | None: ...
    @property
    def allowed_hosts(self) -> list[str] | None: ...


def network(where: str, policy: Policy, *, enforced: bool) -> Network | None:
    """Return the allowed network of an environment; None if it is public. enforced: whether the cluster enforces NetworkPolicies.

    Raises InvalidSpec.
    """
    if policy.network_mode in (None, "public"):
        return None
    if not enforced:
        raise InvalidSpec(
            f"{where}.network_mode: {policy.network_mode} needs a cluster that enforces NetworkPolicies; "
            "if this one does, set the chart's trials.networkPolicyEnforced (MULTISTEP_NETWORK_POLICY_ENFORCED) to true"
        )
    return Network(tuple(_cidr(where, host) for host in policy.allowed_hosts or ()))


def refuse_other(where: str, phase: Policy, environment: Policy) -> None:
    """Raise InvalidSpec if a phase has another network policy than its environment. The phases of a pod cannot differ, because a
    NetworkPolicy cannot be changed reliably while the pod runs."""
    if phase.network_mode is not None and _normalized(phase) != _normalized(environment):
        raise InvalidSpec(
            f"{where}.network_mode: {_shown(phase)} differs from the environment's {_shown(environment)}; "
            "a change between phases is not supported"
        )


def _normalized(policy: Policy) -> tuple[str, Sequence[str]]:
    return policy.network_mode or "public", sorted(set(policy.allowed_hosts or ()))


def _shown(policy: Policy) -> str:
    mode, hosts = _normalized(policy)
    return f"{mode} ({', '.join(hosts)})" if hosts else mode


def _cidr(where: str, host: str) -> str:
    try:
        return ip_network(host, strict=False).compressed
    except ValueError:
        raise InvalidSpec(
            f"{where}.allowed_hosts: {host!r} is a host name, which a NetworkPolicy cannot allow; give IP addresses or CIDRs"
        ) from None
