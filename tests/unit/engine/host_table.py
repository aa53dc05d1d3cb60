"""Expected decisions after the agent host ended, or after any container ended during the setup of a custom agent class. A row has
the trial, its pod and the decision."""

from __future__ import annotations

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Decision, FailAttempt, PhaseDied, PodFacts
from tests.unit.engine.lifecycle_cases import IN_CLASS_SETUP, IN_STEP, began, ended, pod

HOSTS: dict[str, tuple[MultiStepTrial, PodFacts | None, Decision]] = {
    "agent host killed": (
        IN_STEP,
        pod(host_ended="ended with status 137 (Error)", host_exit_code=137),
        FailAttempt("AgentHostEnded", "the agent host ended with status 137 (Error)"),
    ),
    "agent host ended before the first step": (
        began(),
        pod(host_ended="ended with status 1 (Error)", host_exit_code=1),
        FailAttempt("AgentHostEnded", "the agent host ended with status 1 (Error) before the first step"),
    ),
    "agent host of a custom class ended before the class ran": (
        began({"agent": {"importPath": "my.agents:Mine"}}),
        pod(host_ended="ended with status 1 (Error)", host_exit_code=1),
        FailAttempt("AgentHostEnded", "the agent host ended with status 1 (Error) before the first step"),
    ),
    "agent host stopped by a custom class in its setup": (
        IN_CLASS_SETUP,
        pod(host_ended="ended with status 2 (Error)", host_exit_code=2),
        PhaseDied("AgentHostError", "the agent host ended with status 2 (Error)", "agent setup"),
    ),
    "agent host killed during the setup of a custom class": (
        IN_CLASS_SETUP,
        pod(host_ended="ended with status 137 (Error)", host_exit_code=137),
        FailAttempt("AgentHostEnded", "the agent host ended with status 137 (Error)"),
    ),
    "agent host of a custom class out of memory in its setup": (
        IN_CLASS_SETUP,
        pod(host_ended="ended with status 137 (OOMKilled)", host_exit_code=137, host_out_of_memory=True),
        PhaseDied(
            "OutOfMemoryError",
            "the agent host ended with status 137 (OOMKilled): it used more than its memory limit",
            "agent setup",
        ),
    ),
    "agent host of Harbor's agent out of memory before the first step": (
        began({"agent": {"name": "claude-code"}}),
        pod(host_ended="ended with status 137 (OOMKilled)", host_exit_code=137, host_out_of_memory=True),
        FailAttempt("AgentHostEnded", "the agent host ended with status 137 (OOMKilled) before the first step"),
    ),
    "agent host out of memory": (
        IN_STEP,
        pod(host_ended="ended with status 137 (OOMKilled)", host_exit_code=137, host_out_of_memory=True),
        PhaseDied(
            "OutOfMemoryError", "the agent host ended with status 137 (OOMKilled): it used more than its memory limit", "agent"
        ),
    ),
    "agent host stopped by its agent": (
        IN_STEP,
        pod(host_ended="ended with status 0 (Completed)", host_exit_code=0),
        PhaseDied("AgentHostError", "the agent host ended with status 0 (Completed)", "agent"),
    ),
    "killed from inside in the setup of a custom class": (
        IN_CLASS_SETUP,
        ended(2, "Error"),
        PhaseDied(
            "ContainerKilledError",
            "the trial's container ended with status 2 (Error): a process in it stopped process 1",
            "agent setup",
        ),
    ),
    "out of memory in the setup of a custom class": (
        IN_CLASS_SETUP,
        ended(137, "OOMKilled"),
        PhaseDied(
            "OutOfMemoryError",
            "the trial's container ended with status 137 (OOMKilled): it used more than its memory limit",
            "agent setup",
        ),
    ),
    "killed from outside in the setup of a custom class": (
        IN_CLASS_SETUP,
        ended(137, "Error"),
        FailAttempt("ContainerEnded", "the trial's container ended with status 137 (Error) before the first step"),
    ),
}
