"""Expected decisions after an attempt restored a checkpoint and before it starts a step, by situation. A row has the trial, its pod
and the decision."""

from __future__ import annotations

from multistep.api.trial.status import ResumeStatus, StepStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Decision, FailAttempt, PhaseDied, PodFacts
from tests.unit.engine.lifecycle_cases import IN_CLASS_SETUP, START, at, began, ended

AFTER_A = ResumeStatus(after="a", attempts=[1], digest="d")
OF_ANOTHER = ResumeStatus(after="a", attempts=[0], digest="d")
RESTORED = began(current_step="a", steps=[StepStatus(name="a", phase="Complete")], resumed=AFTER_A)

RESTORES: dict[str, tuple[MultiStepTrial, PodFacts | None, Decision]] = {
    "out of memory after a restore": (
        RESTORED,
        ended(137, "OOMKilled", memory_limit="64Mi"),
        FailAttempt(
            "RestoreFailed",
            "after the restore: the trial's container ended with status 137 (OOMKilled): "
            "it used more than its memory limit of 64Mi",
        ),
    ),
    "killed from inside after a restore": (
        RESTORED,
        ended(143, "Error"),
        FailAttempt(
            "RestoreFailed",
            "after the restore: the trial's container ended with status 143 (Error): a process in it stopped process 1",
        ),
    ),
    "killed in the setup of a custom class after a restore of its own files": (
        RESTORED.model_copy(update={"status": RESTORED.status.model_copy(update={"agent_setup_time": at(START)})}),
        ended(143, "Error"),
        FailAttempt(
            "RestoreFailed",
            "after the restore: the trial's container ended with status 143 (Error): a process in it stopped process 1",
        ),
    ),
    "killed in the setup of a custom class after a restore of another trial's files": (
        IN_CLASS_SETUP.model_copy(update={"status": IN_CLASS_SETUP.status.model_copy(update={"resumed": OF_ANOTHER})}),
        ended(143, "Error"),
        PhaseDied(
            "ContainerKilledError",
            "the trial's container ended with status 143 (Error): a process in it stopped process 1",
            "agent setup",
        ),
    ),
    "killed from outside after a restore": (
        RESTORED,
        ended(137, "Error"),
        FailAttempt("ContainerEnded", "the trial's container ended with status 137 (Error) before the first step"),
    ),
    "out of memory in a step after the kept ones": (
        began(current_step="b", steps=[StepStatus(name="a"), StepStatus(name="b", phase="Agent")], resumed=AFTER_A),
        ended(137, "OOMKilled"),
        PhaseDied(
            "OutOfMemoryError",
            "the trial's container ended with status 137 (OOMKilled): it used more than its memory limit (phase agent of step b)",
        ),
    ),
}
