"""Expected decisions about a separate verifier's pod, by situation. A row has the trial, the verifier's pod and the decision."""

from __future__ import annotations

from multistep.api.trial.status import (
    VerifierStatus,
)
from multistep.engine.lifecycle.decisions import (
    AdoptVerifierPod,
    CleanUp,
    CreateVerifierPod,
    Decision,
    Drive,
    DriveWithoutVerifier,
    Fail,
    FailAttempt,
    PhaseDied,
    PodFacts,
    ServiceEnd,
    Wait,
)
from tests.unit.engine.lifecycle_cases import (
    FULL_DISK,
    LOW_NODE,
    NOW,
    TOO_SLOW,
    finished,
    judge,
    judging,
)
from tests.unit.engine.lifecycle_table import Row

OF_A = "the verifier of step a: "
NO_POD: PodFacts | None = None
VERIFIERS: dict[str, Row] = {
    "named": (judging(None), NO_POD, CreateVerifierPod()),
    "made": (judging(None), judge(), AdoptVerifierPod()),
    "made, and its deletion does not end": (judging(None), judge(deleting=True, created_at=NOW - 60), AdoptVerifierPod()),
    "running": (judging(), judge(), Drive()),
    "starting": (
        judging(),
        judge(running=False, scheduled_at=NOW - 10),
        Wait("PodStarting", "attempt 1: waiting for pod t-1-v0", 30),
    ),
    "too slow": (
        judging(),
        judge(running=False, scheduled_at=NOW - 60),
        Fail("EnvironmentStartTimeout", OF_A + TOO_SLOW.replace("t-1", "t-1-v0"), "EnvironmentStartTimeoutError"),
    ),
    "gone": (judging(), NO_POD, FailAttempt("PodDeleted", f"{OF_A}pod t-1-v0 was deleted by another client")),
    "another's": (
        judging(),
        judge(owner_uid="x"),
        Fail("PodNameTaken", f"{OF_A}a pod named t-1-v0 exists and belongs to another owner; delete or rename it"),
    ),
    "evicted": (judging(), judge(reason="Evicted", message=LOW_NODE), FailAttempt("Evicted", OF_A + LOW_NODE)),
    "disk filled": (judging(), judge(reason="Evicted", message=FULL_DISK), PhaseDied("OutOfDiskError", OF_A + FULL_DISK)),
    "a service of it ends": (
        judging(),
        judge(service=ServiceEnd("db", "ended with status 1 (Error)", 1)),
        PhaseDied("ServiceEndedError", f"{OF_A}service db ended with status 1 (Error)"),
    ),
    "a service of it ends before it has the agent's files": (
        judging(untouched=True),
        judge(service=ServiceEnd("db", "ended with status 128 (StartError)", 128)),
        PhaseDied("ServiceEndedError", f"{OF_A}service db ended with status 128 (StartError)", untouched=True),
    ),
    "a service of it is killed": (
        judging(),
        judge(service=ServiceEnd("db", "ended with status 137 (Error)", 137)),
        FailAttempt("ServiceKilled", f"{OF_A}service db ended with status 137 (Error)"),
    ),
    "never started by the node": (
        judging(),
        judge(running=False, terminated=True, exit_code=128, exit_reason="StartError", exit_message="cgroup"),
        FailAttempt("ContainerEnded", f"{OF_A}the trial's container ended with status 128 (StartError): cgroup"),
    ),
    "the runner could not be brought": (
        judging(),
        judge(running=False, terminated=True, exit_code=1, exit_reason="Error", init_failed=True),
        FailAttempt("RunnerInstallFailed", f"{OF_A}the init container of pod t-1-v0 ended with status 1 (Error)"),
    ),
    "complete": (finished(verifier=VerifierStatus(pod_name="t-1-v0")), judge(), CleanUp(0.0, None)),
}


def _compared(decision: Decision) -> Decision:
    return DriveWithoutVerifier(decision.message) if isinstance(decision, FailAttempt | PhaseDied | Fail) else decision


COMPARED: dict[str, Row] = {name: (trial, facts, _compared(wanted)) for name, (trial, facts, wanted) in VERIFIERS.items()}
"""VERIFIERS for isolation Both: the separate verdict is only compared, so failures of the verifier's pod do not end the attempt."""
