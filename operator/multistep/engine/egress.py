"""Switches of a pod's network in a trial's script, and what was refused between them.

The egress sidecar starts without a network, so a network is in force from the first switch on. A switch is confirmed before the
script goes on. At the end of each step the environment's network is in force again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multistep.api.egress import EgressStatus, RefusedTarget, total
from multistep.api.records import Fields
from multistep.engine.journal import StepRun
from multistep.engine.network import Network
from multistep.engine.operations import Script, SwitchNetwork
from multistep.engine.plan import VerifierPlan
from multistep.engine.scope import Scope
from multistep.engine.verifier_environment import VerifierEnvironment

MOST_TARGETS: Final = 200  # in result.json; the status has fewer
_MOST_REPORTED: Final = 1_000  # limit of the sidecar's answer


def enter_environment(scope: Scope) -> Script[None]:
    """Put the environment's network in force in the agent's pod."""
    if scope.plan.sidecar:
        yield SwitchNetwork(scope.id("network"), scope.plan.network)


def enter_phase(scope: Scope, run: StepRun, phase: str, network: Network) -> Script[None]:
    """Put a phase's network in force in the agent's pod, unless it is."""
    if scope.plan.sidecar and network != (run.network or scope.plan.network):
        yield from _switch(SwitchNetwork(scope.id(f"network-{phase}"), network), run)
        run.network = network


def leave_step(scope: Scope, run: StepRun) -> Script[None]:
    """Put the environment's network in force in the agent's pod again, and count what was refused since."""
    if scope.plan.sidecar:
        yield from _switch(SwitchNetwork(scope.id("network-end"), scope.plan.network), run)
        run.network = None


def enter_verifiers_pod(there: Scope, environment: VerifierEnvironment, run: StepRun) -> Script[None]:
    """Put the network of a separate verifier's environment in force in its pod."""
    if environment.sidecar:
        yield from _switch(SwitchNetwork(there.id("network"), environment.network, "verifier"), run)


def enter_verification(there: Scope, verifier: VerifierPlan, environment: VerifierEnvironment, run: StepRun) -> Script[None]:
    """Put the network of the verifier's phase in force in the verifier's pod, unless it is."""
    if environment.sidecar and verifier.network != environment.network:
        yield from _switch(SwitchNetwork(there.id("network-verifier"), verifier.network, "verifier"), run)


def leave_verifiers_pod(there: Scope, environment: VerifierEnvironment, run: StepRun) -> Script[None]:
    """Count what was refused in the verifier's pod."""
    if environment.sidecar:
        yield from _switch(SwitchNetwork(there.id("network-end"), environment.network, "verifier"), run)


def _switch(operation: SwitchNetwork, run: StepRun) -> Script[None]:
    record = yield operation
    run.egress = total([run.egress or EgressStatus(), refused(record.result)], MOST_TARGETS)


def boot(result: Mapping[str, Any] | None) -> str:
    """Return which process of the sidecar confirmed a switch. Raises RunnerError (code Protocol)."""
    return Fields(result, "switch").text("boot", 64)


def refused(result: Mapping[str, Any] | None) -> EgressStatus:
    """Return what was refused before a switch, from its record or the sidecar's answer. Raises RunnerError (code Protocol)."""
    fields = Fields(result, "switch")
    targets = [_target(Fields(each, "refused")) for each in fields.sequence("refused", _MOST_REPORTED)]
    return EgressStatus(refused=targets, others=fields.optional_integer("others") or 0)


def _target(fields: Fields) -> RefusedTarget:
    return RefusedTarget(
        protocol=_plain(fields.text("protocol", 16)),
        host=_plain(fields.text("host", 253)),
        port=fields.optional_integer("port"),
        count=fields.integer("count"),
    )


def _plain(text: str) -> str:
    return "".join(each if each.isascii() and (each.isalnum() or each in ".-_:?") else "?" for each in text)
