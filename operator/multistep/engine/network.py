"""Whom an environment may talk to: network_mode as a policy for its pod. Only what a NetworkPolicy can say is taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Protocol

from ..api.task import NetworkMode
from ..errors import InvalidSpec


@dataclass(frozen=True)
class Network:
    """All that a pod may reach, as CIDRs; nobody reaches it. (An environment without limits has none of these.)"""

    allowed: tuple[str, ...] = ()


class Policy(Protocol):
    """What environments and phases have: see api.task."""

    @property
    def network_mode(self) -> NetworkMode | None: ...
    @property
    def allowed_hosts(self) -> list[str] | None: ...


def network(where: str, policy: Policy, *, enforced: bool) -> Network | None:
    """The limits of an environment; None for public. enforced: the cluster enforces NetworkPolicies. Raises InvalidSpec."""
    if policy.network_mode in (None, "public"):
        return None
    if not enforced:
        raise InvalidSpec(
            f"{where}.network_mode: {policy.network_mode} needs a cluster that enforces NetworkPolicies, and this operator was "
            "not told that it has one; if so, set the chart's trials.networkPolicyEnforced "
            "(MULTISTEP_NETWORK_POLICY_ENFORCED) to true"
        )
    return Network(tuple(_cidr(where, host) for host in policy.allowed_hosts or ()))


def refuse_other(where: str, phase: Policy, environment: Policy) -> None:
    """A phase has the network of its environment: a policy cannot be relied on to change while a pod runs."""
    if phase.network_mode is not None and _told(phase) != _told(environment):
        raise InvalidSpec(
            f"{where}.network_mode: {_shown(phase)} differs from the environment's {_shown(environment)}; "
            "one that changes between phases is not supported"
        )


def _told(policy: Policy) -> tuple[str, Sequence[str]]:
    return policy.network_mode or "public", sorted(set(policy.allowed_hosts or ()))


def _shown(policy: Policy) -> str:
    mode, hosts = _told(policy)
    return f"{mode} ({', '.join(hosts)})" if hosts else mode


def _cidr(where: str, host: str) -> str:
    try:
        return ip_network(host, strict=False).compressed
    except ValueError:
        raise InvalidSpec(
            f"{where}.allowed_hosts: {host!r} is a host name, which a NetworkPolicy cannot allow; give IP addresses or CIDRs"
        ) from None
