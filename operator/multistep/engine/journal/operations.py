"""The operations of a trial: requests to the pod's runner (docs/internals/runner-protocol.md), each with an id.

Ids are ``ATTEMPT/STEP/OPERATION``. Operations are idempotent by their id: a restarted operator repeats a request under the same
id.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from multistep.api.trial.content_references import Content
from multistep.api.trial.runner_records import Record
from multistep.engine.plan.network_types import Network

LOGS_AGENT = "/logs/agent"
LOGS_VERIFIER = "/logs/verifier"
TESTS = "/tests"
SOLUTION = "/solution"

HOST_OUTPUT = "/run/multistep-host/output.txt"  # file in the agent host's container with the output of the agent host's commands
HOST_OUTCOME = "/run/multistep-host/outcome.json"  # file in the agent host's container, written at the end of each setup and step

OUTPUT_LIMIT_BYTES = 100 * 2**20
CAPTURE_LIMIT_BYTES = 64 * 2**10
TAIL_BYTES = 2048

Place: TypeAlias = Literal["agent", "verifier", "host"]
"""The runner that performs an operation: in the agent's environment, in a step's separate verifier, or in the agent host."""
Part: TypeAlias = Literal["all", "agent", "verifier"]  # which of a step's outputs a Collect copies to the results

LOGS: Mapping[Part, tuple[str, ...]] = {
    "all": (LOGS_AGENT, LOGS_VERIFIER),
    "agent": (LOGS_AGENT,),
    "verifier": (LOGS_VERIFIER,),
}
"""The log directories that a Collect copies before the artifacts, for each value of ``Collect.part``."""


_APART: Mapping[str, Place] = {"verifier": "verifier", "host": "host"}


def operation_id(attempt: int, step: str, place: Place, operation: str) -> str:
    """Return the id of an operation. step: name of the step, "" outside of steps."""
    return f"{attempt}/{step}/{'' if place == 'agent' else f'{place}/'}{operation}"


def place_of(id: str) -> Place:
    """Return where the operation with this id runs: in the agent's pod, the verifier's pod or the agent host."""
    parts = id.split("/")
    return _APART.get(parts[2], "agent") if len(parts) == 4 else "agent"


@dataclass(frozen=True)
class ResetDirectory:
    """A directory that a Reset creates or empties."""

    path: str
    mode: int = 0o777
    """Permission bits."""
    user: str = ""
    keep: bool = False
    """Whether to retain existing contents."""


@dataclass(frozen=True)
class Reset:
    """Create or empty directories. A link or a file at a directory's path is replaced by the directory."""

    id: str
    directories: tuple[ResetDirectory, ...]
    where: Place = "agent"


@dataclass(frozen=True)
class Upload:
    """Upload content of the task into a directory of the environment; existing files with other names are retained."""

    id: str
    target: str
    content: Content
    user: str = ""
    where: Place = "agent"


@dataclass(frozen=True)
class Start:
    """Run a command as a phase."""

    id: str
    argv: tuple[str, ...]
    user: str = ""
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """Seconds, None for no timeout; 0 or less: do not start it."""
    make_executable: str = ""
    remove: tuple[str, ...] = ()
    """Files deleted before the start."""
    output: str = ""
    exit_code_file: str = ""
    captures: tuple[str, ...] = ()
    """Files read at the end, after all processes of the phase have exited."""
    kill_at_end: bool = False
    where: Place = "agent"


@dataclass(frozen=True)
class Healthcheck:
    """Retry a command until it succeeds or its retries are used up, as in Harbor 0.25. Times in seconds."""

    id: str
    argv: tuple[str, ...]
    user: str
    env: Mapping[str, str]
    interval: float
    timeout: float
    start_period: float
    start_interval: float
    retries: int
    where: Place = "agent"


@dataclass(frozen=True)
class Launch:
    """Start a command that runs in the background until the pod is deleted. The record only shows whether it was started."""

    id: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    where: Place = "agent"


@dataclass(frozen=True)
class ServiceHook:
    """Run a command in a service's container, at most once. The record's result is like that of a phase."""

    id: str
    container: str
    argv: tuple[str, ...]
    user: str
    timeout: float
    """Timeout in seconds."""
    where: Place = "agent"


@dataclass(frozen=True)
class Note:
    """Store data in a record, which also gets the current time of the pod's clock."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    where: Place = "agent"


@dataclass(frozen=True)
class Source:
    """A path to collect."""

    path: str
    exclude: tuple[str, ...] = ()
    """Tar patterns; matching files of a directory are not collected."""
    sent: tuple[str, ...] = ()
    """Files below the path ("" for the path itself) whose contents the operator does not download, because the pod has sent them
    to the object store."""
    container: str = ""
    """Name of the service's container that has the path, "" for the trial's own container."""


@dataclass(frozen=True)
class Collect:
    """Copy sources of one step to the results store. The record's result describes the found files (select_artifacts)."""

    id: str
    step: int
    """Index of the step."""
    sources: tuple[Source, ...]
    """First the log directories that belong to ``part`` (LOGS[part]), then the artifacts."""
    part: Part = "all"
    """Which of the step's outputs to copy."""
    where: Place = "agent"


@dataclass(frozen=True)
class AwaitVerifierPod:
    """Wait for the pod of a step's separate verifier, and read its WORKDIR."""

    id: str
    step: int
    where: Place = "verifier"


@dataclass(frozen=True)
class Transfer:
    """Upload the collected files of one artifact entry into a directory of the verifier's environment."""

    id: str
    target: str
    """A directory of the verifier's environment."""
    step: int
    entry: int
    """step, entry: index of the step, and of the artifact entry in it."""
    where: Place = "verifier"


@dataclass(frozen=True)
class Release:
    """Copy the records of a step's separate verifier to the results store, which no agent can write. Delete its pod."""

    id: str
    step: int
    """Index of the step."""
    where: Place = "agent"


@dataclass(frozen=True)
class Admit:
    """Allow the agent host to run commands in the environment as ``user``, until a Dismiss.

    The record contains the token with which the agent host identifies itself.
    """

    id: str
    user: str = ""
    root: bool = False
    """Whether to allow any user, also root."""
    where: Place = "agent"


@dataclass(frozen=True)
class Dismiss:
    """Revoke the permission of an Admit, and kill the commands that the agent host runs in the environment."""

    id: str
    admission: str
    """Id of the Admit."""
    kill: bool
    """Whether to kill also the processes that these commands left running."""
    where: Place = "agent"


@dataclass(frozen=True)
class HostCall:
    """Run a command of the agent host as a phase. The record's result has the outcome that the command wrote (agents.harbor)."""

    id: str
    command: Literal["setup", "step"]
    admission: str
    """Id of the Admit whose token the command gets."""
    request: Mapping[str, Any]
    """The command's input."""
    timeout: float | None = None
    """Seconds, None for no timeout."""
    max_stalled: float = 0.0
    """Maximum extension of the timeout in seconds, while the provider refuses requests."""
    model_access: str = ""
    """Step name under which the model gateway counts usage; "": the agent does not use the gateway."""
    where: Place = "host"


@dataclass(frozen=True)
class CloseModelAccess:
    """Block a step's token at the model gateway, and record the usage that the gateway counted (engine.score.usage_totals)."""

    id: str
    step: str
    where: Place = "host"


@dataclass(frozen=True)
class SwitchNetwork:
    """Have the pod's egress sidecar put a network in force. The record's result confirms the switch, and lists the connections that
    the sidecar refused since the previous switch (engine.script.network_switch)."""

    id: str
    network: Network
    where: Place = "agent"


@dataclass(frozen=True)
class Checkpoint:
    """Store a step's changes to the environment's file system, so that a later attempt can continue after the step.

    engine.script.checkpoint_operations parses the record's result.
    """

    id: str
    step: int
    """Index of the step."""
    exclude: tuple[str, ...]
    """Paths that are not stored."""
    max_bytes: int
    """Maximum size of the changes."""
    complete: bool = True
    """False if the step's verifier needs the checkpoint before the step finishes; a later Checkpoint adds the step's records."""
    alone: bool = False
    """Whether the checkpoint contains all changes since the image and so needs no earlier checkpoint."""
    temporary: bool = False
    """Whether the checkpoint is only for comparing the step's verdicts: it is deleted after the comparison, no later checkpoint
    builds on it, and the trial does not wait for storage space."""
    final: bool = False
    """Whether the trial finishes with this step, so that no later attempt resumes from the checkpoint."""
    where: Place = "agent"


@dataclass(frozen=True)
class Restore:
    """Restore a checkpoint in a fresh environment."""

    id: str
    step: int | None = None
    """Index of the step to verify; None to restore the checkpoint from which the attempt resumes."""
    paths: tuple[str, ...] = ()
    """Restore only these directories; (): restore everything."""
    where: Place = "agent"


@dataclass(frozen=True)
class Baseline:
    """Record the state of the environment before the first agent runs."""

    id: str
    user: str
    env: Mapping[str, str]
    """user, env: user and environment variables of the verification (engine.script.inspect_environment)."""
    where: Place = "agent"


@dataclass(frozen=True)
class Inspect:
    """Find changes of the environment since the Baseline that could change a verdict."""

    id: str
    user: str
    env: Mapping[str, str]
    """user, env: user and environment variables of the verification."""
    where: Place = "agent"


Operation: TypeAlias = (
    Reset
    | Upload
    | Start
    | Healthcheck
    | Launch
    | ServiceHook
    | Note
    | Collect
    | AwaitVerifierPod
    | Transfer
    | Release
    | Admit
    | Dismiss
    | HostCall
    | CloseModelAccess
    | SwitchNetwork
    | Checkpoint
    | Restore
    | Baseline
    | Inspect
)
PHASES = (Start, Healthcheck, HostCall)  # long operations: the operator starts them, then waits until they are finished

T = TypeVar("T")
Script: TypeAlias = Generator[Operation, Record, T]
