"""Expected decisions after the egress sidecar's container ended, by situation. A row has the trial, its pod and the decision."""

from __future__ import annotations

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Decision, FailAttempt, PhaseDied, PodFacts
from tests.unit.engine.lifecycle_cases import IN_CLASS_SETUP, IN_STEP, began, pod

EGRESS: dict[str, tuple[MultiStepTrial, PodFacts | None, Decision]] = {
    "egress sidecar killed": (
        IN_STEP,
        pod(egress_ended="ended with status 137 (Error)", egress_exit_code=137),
        FailAttempt("EgressEnded", "the egress sidecar ended with status 137 (Error)"),
    ),
    "egress sidecar ended by a signal that no process of the pod can send": (
        IN_STEP,
        pod(egress_ended="ended with status 143 (Error)", egress_exit_code=143),
        FailAttempt("EgressEnded", "the egress sidecar ended with status 143 (Error)"),
    ),
    "egress sidecar whose status the node does not know": (
        IN_STEP,
        pod(egress_ended="ended with status 255 (Unknown)", egress_exit_code=255),
        FailAttempt("EgressEnded", "the egress sidecar ended with status 255 (Unknown)"),
    ),
    "egress sidecar ended before the first step": (
        began(),
        pod(egress_ended="ended with status 1 (Error)", egress_exit_code=1),
        FailAttempt("EgressEnded", "the egress sidecar ended with status 1 (Error) before the first step"),
    ),
    "egress sidecar ended by a custom class in its setup": (
        IN_CLASS_SETUP,
        pod(egress_ended="ended with status 1 (Error)", egress_exit_code=1),
        PhaseDied("EgressError", "the egress sidecar ended with status 1 (Error)", "agent setup"),
    ),
    "egress sidecar out of memory": (
        IN_STEP,
        pod(egress_ended="ended with status 137 (OOMKilled)", egress_exit_code=137, egress_out_of_memory=True),
        PhaseDied("EgressError", "the egress sidecar ended with status 137 (OOMKilled)"),
    ),
    "egress sidecar crashed": (
        IN_STEP,
        pod(egress_ended="ended with status 2 (Error)", egress_exit_code=2),
        PhaseDied("EgressError", "the egress sidecar ended with status 2 (Error)"),
    ),
}
