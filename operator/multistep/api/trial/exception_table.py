"""Every type of exception that ends a step or a single-step trial; docs/reference/failures.md shows this table."""

from __future__ import annotations

from multistep.api.trial.failure_table import Failure

_LIMITS = "raise the timeout if it is too low for the task"

EXCEPTIONS = (
    Failure("RuntimeError", None, "setup.sh failed, or files could not be uploaded", "read the message, which has its output"),
    Failure("HealthcheckError", "Task", "a healthcheck failed", "read the message, which has its output"),
    Failure("FileNotFoundError", "Task", "the step has no instruction, or no solution for the oracle", "add it"),
    Failure("ValueError", "Task", "a variable of the verifier is not set", "set it in `spec.variables`"),
    Failure("AgentTimeoutError", None, "the agent reached its timeout", _LIMITS),
    Failure(
        "NonZeroAgentExitCodeError",
        None,
        "the agent's command failed; agents of Harbor also have its subclasses, such as `ApiRateLimitError`",
        "read its output in the results",
    ),
    Failure("AgentSetupTimeoutError", "Agent", "the setup of a custom agent class reached its timeout", _LIMITS),
    Failure("BudgetExceededError", "Agent", "the agent's model requests reached a limit of tokens or cost", "raise the limit"),
    Failure("AgentHostError", "Agent", "the agent's class ended the agent host, or returned no valid outcome", "read the message"),
    Failure(
        "EgressError",
        None,
        "the pod's [egress sidecar](../how-to/egress.md) ended by itself, not by a signal: processes of the phase can cause this",
        "read the message",
    ),
    Failure("VerifierTimeoutError", None, "test.sh reached its timeout", _LIMITS),
    Failure("RewardFileNotFoundError", None, "test.sh wrote no reward", "read its output in the message and in the results"),
    Failure("RewardFileEmptyError", None, "test.sh wrote an empty reward file", "the same"),
    Failure("VerifierOutputParseError", None, "the reward file cannot be parsed", "the same"),
    Failure("ValidationError", None, "reward.json is not an object of numbers", "the same"),
    Failure("AddTestsDirError", None, "tests/ could not be uploaded", "read the message"),
    Failure("OverflowError", "Verifier", "the mean of the rewards is not finite", "check the steps' rewards"),
    Failure(
        "OutOfMemoryError",
        None,
        "the container ran out of memory, or the node did while the container used at least 1 GiB more than it requested",
        "raise `environment.memory_mb` if it is too low for the task",
    ),
    Failure(
        "OutOfDiskError",
        None,
        "the container exceeded its disk limit, or filled the node's disk with at least 1 GiB more than it requested",
        "raise `environment.storage_mb` if it is too low for the task",
    ),
    Failure(
        "ServiceEndedError",
        None,
        "a service of the task's compose file ended; after an agent ran, its class is Agent, as agents can reach every service",
        "read its output: `multistep logs TRIAL --service NAME`",
    ),
    Failure("ContainerKilledError", None, "something in the container stopped its process 1", "read the phase's output"),
)  # fmt: skip
"""Types of exceptions that end a step or a single-step trial. The trial is Complete with the rewards of the steps that ran."""
