"""Expected decisions after a service of the pod ended, by situation. A row has the trial, its pod and the decision."""

from __future__ import annotations

from multistep.api.trial.status import StepStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Decision, Fail, FailAttempt, PhaseDied, PodFacts, ServiceEnd
from tests.unit.engine.lifecycle_cases import IN_CLASS_SETUP, began, pod, starting


def in_phase(phase: str | None, *earlier: str) -> MultiStepTrial:
    steps = [*(StepStatus(name=name, phase="Completed") for name in earlier), StepStatus(name="s", phase=phase)]
    return began(current_step="s", steps=steps)


EXITED = ServiceEnd("db", "ended with status 1 (Error)", 1)
KILLED = ServiceEnd("db", "ended with status 137 (Error)", 137)
OUT_OF_MEMORY = ServiceEnd("db", "ended with status 137 (OOMKilled)", 137, out_of_memory=True)
UNHEALTHY = ServiceEnd("db", "did not become healthy in time; it ended with status 137", 137, unhealthy=True)
_OUTPUT = "; its output: multistep logs t --service db -n ns"
_BEFORE = f"(before the first step){_OUTPUT}"

SERVICES: dict[str, tuple[MultiStepTrial, PodFacts | None, Decision]] = {
    "a service ends at its start": (
        began(),
        starting(service=EXITED),
        Fail("ServiceFailed", f"service db ended with status 1 (Error) {_BEFORE}", "EnvironmentStartError"),
    ),
    "a job fails, and so does the pod": (
        began(),
        starting(service=EXITED, phase="Failed", terminated=True),
        Fail("ServiceFailed", f"service db ended with status 1 (Error) {_BEFORE}", "EnvironmentStartError"),
    ),
    "a service is never healthy": (
        began(),
        starting(service=UNHEALTHY),
        Fail(
            "ServiceFailed",
            f"service db did not become healthy in time; it ended with status 137 {_BEFORE}",
            "EnvironmentStartError",
        ),
    ),
    "a service needs more memory at its start": (
        began(),
        starting(service=OUT_OF_MEMORY),
        Fail("ServiceFailed", f"service db ended with status 137 (OOMKilled) {_BEFORE}", "EnvironmentStartError"),
    ),
    "a service is killed at its start": (
        began(),
        starting(service=KILLED),
        FailAttempt("ServiceKilled", "service db ended with status 137 (Error)"),
    ),
    "a service is killed before an agent ran": (
        in_phase("Setup"),
        pod(service=KILLED),
        FailAttempt("ServiceKilled", "service db ended with status 137 (Error)"),
    ),
    "a service ends in the first setup": (
        in_phase("Setup"),
        pod(service=EXITED),
        PhaseDied("ServiceEndedError", f"service db ended with status 1 (Error){_OUTPUT}"),
    ),
    "a service ends in the setup of a custom class": (
        IN_CLASS_SETUP,
        pod(service=EXITED),
        PhaseDied("ServiceEndedError", f"service db ended with status 1 (Error){_OUTPUT}", "agent setup"),
    ),
    "a service is killed in the setup of a custom class, which may have done it itself": (
        IN_CLASS_SETUP,
        pod(service=KILLED),
        PhaseDied("ServiceEndedError", f"service db ended with status 137 (Error){_OUTPUT}", "agent setup"),
    ),
    "a service ends while an agent works": (
        in_phase("Agent"),
        pod(service=EXITED),
        PhaseDied("ServiceEndedError", f"service db ended with status 1 (Error){_OUTPUT}", "agent"),
    ),
    "a service is killed while an agent works, which it may have done itself": (
        in_phase("Agent"),
        pod(service=KILLED),
        PhaseDied("ServiceEndedError", f"service db ended with status 137 (Error){_OUTPUT}", "agent"),
    ),
    "a service runs out of memory in a later setup": (
        in_phase("Setup", "earlier"),
        pod(service=OUT_OF_MEMORY),
        PhaseDied("OutOfMemoryError", f"service db ended with status 137 (OOMKilled){_OUTPUT}", "agent"),
    ),
    "a service ends with the trial's container": (
        in_phase("Agent"),
        pod(service=EXITED, running=False, terminated=True, container_id="c", exit_code=137),
        FailAttempt("ContainerEnded", "the trial's container ended with status 137 (no reason given)"),
    ),
    "a service ends although the steps are unknown": (
        began(current_step="s", steps=[]),
        pod(service=EXITED),
        PhaseDied("ServiceEndedError", f"service db ended with status 1 (Error){_OUTPUT}"),
    ),
}
