"""Switches a pod's network in a trial's script, and counts the connections that the egress sidecar refused between the switches.

The egress sidecar starts without network access, and the first switch applies a network. The script continues once the sidecar has
confirmed a switch. At the end of each step the script switches back to the environment's network.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multistep.api.trial.runner_records import Fields
from multistep.api.trial.status import EgressStatus, RefusedTarget, total
from multistep.engine.journal.journal import StepRun
from multistep.engine.journal.operations import Script, SwitchNetwork
from multistep.engine.plan.network_types import Network
from multistep.engine.plan.plan import VerifierPlan
from multistep.engine.plan.verifier_environment import VerifierEnvironment
from multistep.engine.script.operation_scope import Scope

MAX_TARGETS: Final = 200  # maximum number of refused targets in result.json; the status lists fewer
_MAX_REPORTED: Final = 1_000  # maximum number of refused targets in the sidecar's answer


def enter_environment(scope: Scope) -> Script[None]:
    """Switch the agent's pod to the environment's network."""
    if scope.plan.sidecar:
        yield SwitchNetwork(scope.id("network"), scope.plan.network)


def enter_phase(scope: Scope, run: StepRun, phase: str, network: Network) -> Script[None]:
    """Switch the agent's pod to a phase's network, unless this network already applies."""
    if scope.plan.sidecar and network != (run.network or scope.plan.network):
        yield from _switch(SwitchNetwork(scope.id(f"network-{phase}"), network), run)
        run.network = network


def leave_step(scope: Scope, run: StepRun) -> Script[None]:
    """Switch the agent's pod back to the environment's network.

    Add the connections that the sidecar refused since the last switch to ``run.egress``.
    """
    if scope.plan.sidecar:
        yield from _switch(SwitchNetwork(scope.id("network-end"), scope.plan.network), run)
        run.network = None


def enter_verifiers_pod(there: Scope, environment: VerifierEnvironment, run: StepRun) -> Script[None]:
    """Switch a separate verifier's pod to the network of its environment."""
    if environment.sidecar:
        yield from _switch(SwitchNetwork(there.id("network"), environment.network, "verifier"), run)


def enter_verification(there: Scope, verifier: VerifierPlan, environment: VerifierEnvironment, run: StepRun) -> Script[None]:
    """Switch a separate verifier's pod to the network of the verifier's phase, unless this network already applies."""
    if environment.sidecar and verifier.network != environment.network:
        yield from _switch(SwitchNetwork(there.id("network-verifier"), verifier.network, "verifier"), run)


def leave_verifiers_pod(there: Scope, environment: VerifierEnvironment, run: StepRun) -> Script[None]:
    """Switch a separate verifier's pod back to its environment's network.

    Add the connections that the pod's sidecar refused since the last switch to ``run.egress``.
    """
    if environment.sidecar:
        yield from _switch(SwitchNetwork(there.id("network-end"), environment.network, "verifier"), run)


def _switch(operation: SwitchNetwork, run: StepRun) -> Script[None]:
    record = yield operation
    run.egress = total([run.egress or EgressStatus(), refused_connections(record.result)], MAX_TARGETS)


def boot_id(result: Mapping[str, Any] | None) -> str:
    """Return the boot id of the sidecar process that confirmed a switch. Raises RunnerError (code Protocol)."""
    return Fields(result, "switch").text("boot", 64)


def refused_connections(result: Mapping[str, Any] | None) -> EgressStatus:
    """Return the connections that the sidecar refused before it switched the network. Raises RunnerError (code Protocol).

    ``result`` is from the record of the switch, or the sidecar's answer.
    """
    fields = Fields(result, "switch")
    targets = [_target(Fields(target, "refused")) for target in fields.sequence("refused", _MAX_REPORTED)]
    return EgressStatus(refused=targets, others=fields.optional_integer("others") or 0)


def _target(fields: Fields) -> RefusedTarget:
    return RefusedTarget(
        protocol=_plain(fields.text("protocol", 16)),
        host=_plain(fields.text("host", 253)),
        port=fields.optional_integer("port"),
        count=fields.integer("count"),
    )


def _plain(text: str) -> str:
    return "".join(
        character if character.isascii() and (character.isalnum() or character in ".-_:?") else "?" for character in text
    )
