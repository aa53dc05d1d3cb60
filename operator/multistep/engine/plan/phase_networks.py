"""Resolves the networks of a trial's environments and phases, as Harbor 0.26 resolves its network policies.

It rejects networks that the operator cannot enforce with its setting ``egress``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from ipaddress import ip_network
from typing import Protocol

from multistep.api.task.layout import TaskLayout
from multistep.api.task.task_toml import NetworkMode, StepConfig, TaskConfig
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.hosted_agent import refuse_unreachable_model
from multistep.engine.plan.judge_plan import refuse_unreachable_judge
from multistep.engine.plan.network_types import PUBLIC, Egress, Network, Networks, StepNetworks
from multistep.engine.plan.task_steps import files_of
from multistep.engine.plan.verifier_environment import verifier_definition
from multistep.errors import InvalidSpec


class Policy(Protocol):
    """The network fields that environments and phases share in task.toml (api.task.task_toml)."""

    @property
    def network_mode(self) -> NetworkMode | None: ...
    @property
    def allowed_hosts(self) -> list[str] | None: ...


def plan_networks(config: TaskConfig, layout: TaskLayout, steps: Sequence[StepConfig], spec: TrialSpec, egress: Egress) -> Networks:
    """Return the networks of a trial.

    Raises InvalidSpec if the operator cannot enforce a network, or if the agent cannot reach its model in one.
    """
    environment = _environment("environment", config.environment, egress)
    step_networks = tuple(_of_step(config, layout, spec, index, step, egress) for index, step in enumerate(steps))
    agents = [environment, *(step.agent for step in step_networks)]
    for step in step_networks:
        refuse_unreachable_model(spec.agent, step.agent.mode, relayed=egress == "Sidecar")
    if spec.agent.uses_gateway:
        environment, *_ = agents = [_with_gateway(network) for network in agents]
        step_networks = tuple(replace(step, agent=agent) for step, agent in zip(step_networks, agents[1:], strict=True))
    elif egress == "Sidecar":
        step_networks = tuple(replace(step, agent=_with_hosts(step.agent, spec.agent.direct_hosts)) for step in step_networks)
    shared = [step.verifier for step in step_networks if step.shared]
    sidecar = egress == "Sidecar" and spec.regrade is None and any(network.limited for network in (*agents, *shared))
    return Networks(environment, step_networks, sidecar)


def _of_step(config: TaskConfig, layout: TaskLayout, spec: TrialSpec, index: int, step: StepConfig, egress: Egress) -> StepNetworks:
    where, environment = f"steps[{index}]." if config.steps else "", config.environment
    agent = _phase([("agent", config.agent), (f"{where}agent", step.agent)], environment, egress)
    if spec.verifier.disable:
        return StepNetworks(agent, PUBLIC, PUBLIC, shared=False)
    files = files_of(config, layout, step)
    defined = verifier_definition(config, layout, step, files)
    there = defined.config if defined else environment
    pods = _environment(defined.where if defined else "environment", there, egress)
    verifier = _phase([("verifier", config.verifier), (f"{where}verifier", step.verifier)], there, egress)
    if spec.models.judge is not None:
        refuse_unreachable_judge(verifier.mode, egress)
        verifier = _with_gateway(verifier)
    shared = defined is None and spec.verifier.isolation != "Separate"
    return StepNetworks(agent, verifier, pods, shared, sidecar=egress == "Sidecar" and (pods.limited or verifier.limited))


def _environment(where: str, policy: Policy, egress: Egress) -> Network:
    """Return the network of an environment. Raises InvalidSpec if the operator cannot enforce it."""
    mode = policy.network_mode or "public"
    if mode == "public":
        return PUBLIC
    if egress == "Disabled":
        raise InvalidSpec(
            f"{where}.network_mode: {mode} is not enforced by this operator; set the chart's trials.egress (MULTISTEP_EGRESS) "
            "to Sidecar, or to NetworkPolicy in a cluster that enforces NetworkPolicies"
        )
    hosts = policy.allowed_hosts or ()
    return Network(mode, tuple(hosts if egress == "Sidecar" else (_cidr(where, host) for host in hosts)))


def _phase(named: Sequence[tuple[str, Policy]], environment: Policy, egress: Egress) -> Network:
    """Return the network of a phase.

    ``named`` has the task's policy and then the step's, each with its path in task.toml. The last one with a network_mode applies.
    If there is none, the environment's policy applies. Raises InvalidSpec if the operator cannot enforce the network.
    """
    given = environment
    for where, policy in named:
        if policy.network_mode is None:
            continue
        if egress != "Sidecar" and _normalized(policy) != _normalized(environment):
            raise InvalidSpec(
                f"{where}.network_mode: {_shown(policy)} differs from the environment's {_shown(environment)}; "
                "a change between phases is not supported without the chart's trials.egress = Sidecar"
            )
        given = policy
    return _environment("environment", given, egress)


def _with_gateway(network: Network) -> Network:
    return replace(network, gateway=True) if network.limited else network


def _with_hosts(network: Network, hosts: Sequence[str]) -> Network:
    """Return the network with the hosts of the model's API added to an allowlist, as in Harbor 0.26."""
    more = tuple(host for host in hosts if host not in network.hosts)
    return replace(network, hosts=network.hosts + more) if network.mode == "allowlist" else network


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
            f"{where}.allowed_hosts: {host!r} is a host name, which a NetworkPolicy cannot allow; give IP addresses or CIDRs, "
            "or set the chart's trials.egress to Sidecar"
        ) from None


def limited_networks(config: TaskConfig) -> Iterator[tuple[str, NetworkMode]]:
    """Yield the path and the network_mode of each limited network in task.toml."""
    places: list[tuple[str, Policy | None]] = [("environment", config.environment), ("agent", config.agent)]
    places += [("verifier", config.verifier), ("verifier.environment", config.verifier.environment)]
    for index, step in enumerate(config.steps or []):
        places += [(f"steps[{index}].agent", step.agent), (f"steps[{index}].verifier", step.verifier)]
        places.append((f"steps[{index}].verifier.environment", step.verifier.environment))
    for where, policy in places:
        if policy is not None and policy.network_mode not in (None, "public"):
            yield where, policy.network_mode
