"""Expected decisions after an init container failed, by situation. A row has the trial, its pod and the decision."""

from __future__ import annotations

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Decision, Fail, FailAttempt, PodFacts
from tests.unit.engine.lifecycle_cases import began, ended

INITS: dict[str, tuple[MultiStepTrial, PodFacts | None, Decision]] = {
    "the runner could not be brought": (
        began(),
        ended(137, "OOMKilled", init_failed=True),
        FailAttempt("RunnerInstallFailed", "the init container of pod t-1 ended with status 137 (OOMKilled)"),
    ),
    "the volumes of a service could not be filled": (
        began(),
        ended(1, "Error", exit_message="no space left", init_failed=True, unfilled="db"),
        Fail(
            "ServiceFailed",
            "the volumes of service db: the copy of its image's files ended with status 1 (Error): no space left",
            "EnvironmentStartError",
        ),
    ),
    "the container that fills volumes was killed from outside": (
        began(),
        ended(137, "Error", init_failed=True, unfilled="db"),
        FailAttempt("RunnerInstallFailed", "the init container of pod t-1 ended with status 137 (Error)"),
    ),
    "the container that fills volumes could not start": (
        began(),
        ended(128, "StartError", init_failed=True, unfilled="db"),
        FailAttempt("RunnerInstallFailed", "the init container of pod t-1 ended with status 128 (StartError)"),
    ),
}
