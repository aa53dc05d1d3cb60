"""The operations of a trial: requests to the pod's runner (docs/internals/runner-protocol.md), each with an id.

An id has the form ``ATTEMPT/STEP/OPERATION``. It makes an operation idempotent: a restarted operator repeats a request with the
same id, and the runner performs it only once.
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

HOST_OUTPUT = "/run/multistep-host/output.txt"  # file in the agent host's container: the output of the agent host's commands
HOST_OUTCOME = "/run/multistep-host/outcome.json"  # file in the agent host's container: the outcome of the last setup or step

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
    """Return the id of an operation. ``step`` is the name of the step, or "" outside of steps."""
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
    """Owner of the directory."""
    keep: bool = False
    """Whether to keep the contents of an existing directory."""


@dataclass(frozen=True)
class Reset:
    """Create or empty directories. If the path is a link or a file, a directory replaces it."""

    id: str
    directories: tuple[ResetDirectory, ...]
    where: Place = "agent"


@dataclass(frozen=True)
class Upload:
    """Upload content of the task into a directory of the environment. Existing files with other names are kept."""

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
    """Timeout in seconds, None for no timeout. With 0 or less the command is not started, and the phase counts as timed out."""
    make_executable: str = ""
    """Path of a file that gets execute permission before the start."""
    remove: tuple[str, ...] = ()
    """Files deleted before the start."""
    output: str = ""
    """Path of the file to which the runner writes the command's output."""
    exit_code_file: str = ""
    """Path of the file to which the runner writes a non-zero exit code."""
    captures: tuple[str, ...] = ()
    """Files whose contents are in the record. The runner reads them after all processes of the phase have exited."""
    kill_at_end: bool = False
    """Whether to kill the processes that the command left running."""
    model_access: str = ""
    """Name under which the model gateway counts the requests of the phase to the trial's judge; "": the phase has no judge."""
    judge_variables: Mapping[str, str] = field(default_factory=dict)
    """The phase's variables that get the access, as in VerifierPlan."""
    where: Place = "agent"


@dataclass(frozen=True)
class Healthcheck:
    """Retry a command until it succeeds or its retries are used up, as in Harbor 0.26. All times are in seconds."""

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
    """Start a command that runs in the background until the pod is deleted. The record shows only whether it was started."""

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
    """Store ``data`` in a record. The record also has the current time of the pod's clock."""

    id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    not_before: float = 0.0
    """When the operator may do that, in seconds since the epoch by its own clock."""
    why: str = ""
    """Why it waits until then, for the status."""
    where: Place = "agent"


@dataclass(frozen=True)
class Source:
    """A path to collect."""

    path: str
    exclude: tuple[str, ...] = ()
    """Tar patterns. Files of the directory that match one of them are not collected."""
    sent: tuple[str, ...] = ()
    """Files below the path ("" for the path itself) that the operator does not download, because the pod has already sent them to
    the object store."""
    container: str = ""
    """Name of the service's container that contains the path, "" for the trial's own container."""


@dataclass(frozen=True)
class Collect:
    """Copy sources of one step to the results store. The record's result describes the found files (select_artifacts)."""

    id: str
    step: int
    """Index of the step."""
    sources: tuple[Source, ...]
    """First the log directories for ``part`` (LOGS[part]), then the artifacts."""
    part: Part = "all"
    """Which of the step's outputs to copy."""
    where: Place = "agent"


@dataclass(frozen=True)
class AwaitVerifierPod:
    """Wait until the pod of a step's separate verifier runs, and read the container's working directory."""

    id: str
    step: int
    """Index of the step."""
    where: Place = "verifier"


@dataclass(frozen=True)
class Transfer:
    """Upload the collected files of one artifact entry into a directory of the verifier's environment."""

    id: str
    target: str
    """A directory of the verifier's environment."""
    step: int
    """Index of the step."""
    entry: int
    """Index of the artifact entry in the step."""
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

    The record contains the token with which the agent host authenticates.
    """

    id: str
    user: str = ""
    root: bool = False
    """Whether to allow every user, including root."""
    where: Place = "agent"


@dataclass(frozen=True)
class Dismiss:
    """Revoke the permission of an Admit, and kill the commands that the agent host runs in the environment."""

    id: str
    admission: str
    """Id of the Admit operation."""
    kill: bool
    """Whether to also kill the processes that these commands left running."""
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
    """Timeout in seconds, None for no timeout."""
    max_stalled: float = 0.0
    """Maximum number of seconds by which the timeout is extended while the model provider refuses requests."""
    model_access: str = ""
    """Name of the step under which the model gateway counts usage, "" if the agent does not use the gateway."""
    user_access: str = ""
    """Name under which the model gateway counts the simulated user's usage, "" without one."""
    where: Place = "host"


@dataclass(frozen=True)
class CloseModelAccess:
    """Block a step's token at the model gateway, and record the usage that the gateway counted (engine.score.usage_totals)."""

    id: str
    step: str
    """Name of the access, as HostCall and Start have it."""
    role: Literal["agent", "judge", "user"] = "agent"
    lost: tuple[str, ...] = ()
    """Names of the accesses of earlier runs of the verification that a failure of the provider or of the gateway ended."""
    where: Place = "host"


@dataclass(frozen=True)
class SwitchNetwork:
    """Make the pod's egress sidecar apply another network.

    The record's result confirms the switch and lists the connections that the sidecar has refused since the previous switch
    (engine.script.network_switch).
    """

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
    """Whether the checkpoint also contains the step's records. It is False if the step's verifier needs the checkpoint before the
    step finishes; a later Checkpoint then adds the records."""
    alone: bool = False
    """Whether the checkpoint contains all changes since the image, so that it can be restored without an earlier checkpoint."""
    temporary: bool = False
    """Whether the checkpoint is only for comparing the step's verdicts. It is deleted after the comparison, no later checkpoint
    builds on it, and the trial does not wait for storage space."""
    final: bool = False
    """Whether the trial finishes with this step, so that no later attempt resumes from the checkpoint."""
    where: Place = "agent"


@dataclass(frozen=True)
class Restore:
    """Restore a checkpoint in an environment in which nothing has run."""

    id: str
    step: int | None = None
    """Index of the step whose checkpoint a verifier needs, or None for the checkpoint from which the attempt resumes."""
    paths: tuple[str, ...] = ()
    """The directories to restore; an empty tuple means everything."""
    where: Place = "agent"


@dataclass(frozen=True)
class Baseline:
    """Record the state of the environment before the first agent runs (engine.script.inspect_environment)."""

    id: str
    user: str
    """User of the verification."""
    env: Mapping[str, str]
    """Environment variables of the verification."""
    where: Place = "agent"


@dataclass(frozen=True)
class Inspect:
    """Find changes of the environment since the Baseline that could change a verdict."""

    id: str
    user: str
    """User of the verification."""
    env: Mapping[str, str]
    """Environment variables of the verification."""
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
PHASES = (Start, Healthcheck, HostCall)  # long operations; the operator starts one, and later reads that it has finished

T = TypeVar("T")
Script: TypeAlias = Generator[Operation, Record, T]
