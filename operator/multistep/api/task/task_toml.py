"""Models of task.toml, with the fields, defaults and rules of Harbor 0.26. Attributes have the names of the keys.

They tolerate what Harbor tolerates: unknown keys, and numbers that are written as strings. suspicious_values lists unknown keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import tomli
from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from multistep.api.common.problems import problems
from multistep.api.task import allowed_names
from multistep.errors import InvalidTask

NetworkMode = Literal["no-network", "public", "allowlist"]
AllowedHosts = Annotated[list[Annotated[str, AfterValidator(allowed_names.allowed_host)]] | None, Field(max_length=10_000)]
Env = dict[str, str]
User = str | int

_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024}


class _Table(BaseModel):
    """A table of task.toml. The tables of docs/reference/task-format.md are generated from the docstrings of the fields."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ArtifactConfig(_Table):
    """A path to collect after every step (`artifacts`) or after one step (`steps.artifacts`). In task.toml a string is short for
    ``{source = "..."}``."""

    source: Annotated[str, AfterValidator(allowed_names.artifact_source)]
    """Path in the environment, without `..`. A relative path starts at WORKDIR."""
    destination: Annotated[str | None, AfterValidator(allowed_names.artifact_destination)] = None
    """Relative path below the step's `artifacts/`. If unset, it is the base name of the source."""
    exclude: list[str] = []
    """Patterns of paths to exclude from a directory, as for tar's `--exclude`. For example, `*.log` matches at any depth."""
    service: Annotated[str, AfterValidator(allowed_names.service_name)] | None = None
    """Compose service that has the source. `main` is the trial's container."""

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _service_source(self) -> ArtifactConfig:
        if self.service not in (None, "main") and not re.match(r"/|[A-Za-z]:[/\\]", self.source):
            raise ValueError(f"source must be an absolute path when service is {self.service!r}")
        return self


class HealthcheckConfig(_Table):
    """A command that must exit 0 before the agent starts. Times are in seconds."""

    command: str
    """Command for bash, run in WORKDIR. Exit status 0 means healthy."""
    interval_sec: float = 5.0
    """Seconds to wait after a failed attempt outside of the start period."""
    timeout_sec: float = 30.0
    """Timeout of one attempt in seconds, truncated to whole seconds. 0 means no timeout. An attempt that times out has failed."""
    start_period_sec: float = 0.0
    """Failures of attempts that start within these seconds do not count."""
    start_interval_sec: float = 5.0
    """Seconds to wait after a failed attempt within the start period."""
    retries: int = 3
    """Number of failed attempts, without those in the start period, after which the healthcheck fails. With 1 or less there is one
    attempt."""


class CollectConfig(_Table):
    """A command that runs after the agent and prepares files for the verifier. Failures are ignored."""

    command: str
    """Command for bash, run in WORKDIR. In another service than main the command is for `sh`."""
    service: Annotated[str, AfterValidator(allowed_names.service_name)] = "main"
    """Compose service in whose container the command runs. `main` is the trial's container."""
    timeout_sec: float = 60.0
    """Timeout of the command in seconds."""
    user: User | None = None
    """User name or uid. If unset, it is the image's user."""


class _NetworkPhase(_Table):
    """The network policy of a phase, for both agent and verifier."""

    network_mode: NetworkMode | None = None
    """Network mode of the phase. If unset, it is the environment's mode. Any other mode needs the operator's egress sidecar."""
    allowed_hosts: AllowedHosts = None
    """Allowed host names, which may start with `*.`, IP addresses and CIDRs. Only with network_mode `allowlist`."""

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> _NetworkPhase:
        empty = self.allowed_hosts is None if self.network_mode is None else not self.allowed_hosts
        if self.network_mode != "allowlist" and not empty:
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class AgentConfig(_NetworkPhase):
    """The tables [agent] and [steps.agent]."""

    timeout_sec: float | None = None
    """Agent timeout in seconds. A step without one inherits the task's, which defaults to none. With 0 the agent is not started,
    and fails with AgentTimeoutError."""
    user: User | None = None
    """User (name or uid) of the agent, setup.sh and the step's healthcheck. A step without one inherits the task's, which defaults
    to the image's user."""


class TpuConfig(_Table):
    """The table [environment.tpu], which requests a TPU for the environment."""

    type: str = Field(min_length=1)
    """Type of TPU, which is an alias (`v6e`, `trillium`) or GKE's name (`tpu-v6e-slice`)."""
    topology: Annotated[str, AfterValidator(allowed_names.tpu_topology)]
    """Topology, such as `2x2` or `2x2x4`."""


def _http_transport(value: object) -> object:
    return "streamable-http" if value == "http" else value


class McpServerConfig(_Table):
    """An entry of environment.mcp_servers."""

    name: str
    """Name of the server."""
    transport: Annotated[Literal["sse", "streamable-http", "stdio"], BeforeValidator(_http_transport)] = "sse"
    """Transport protocol. `http` is an alias of `streamable-http`."""
    url: str | None = None
    """URL of the server, required for the HTTP transports."""
    command: str | None = None
    """Program to run, required for `stdio`."""
    args: list[str] = []
    """Arguments of the command."""
    headers: Env = {}
    """HTTP headers, only for the HTTP transports. `${NAME}` is a variable of `spec.agent.env`."""

    @model_validator(mode="after")
    def _transport_fields(self) -> McpServerConfig:
        needed = "command" if self.transport == "stdio" else "url"
        if not getattr(self, needed):
            raise ValueError(f"{needed} is required for transport {self.transport!r}")
        if self.transport == "stdio" and self.headers:
            raise ValueError("headers are for the transports over HTTP")
        return self


def _cpus(value: int | float | None) -> int | float | None:
    if value is None or isinstance(value, int):
        return value
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return int(value) if value.is_integer() else value


def _only_text(value: object) -> object:
    return value if isinstance(value, str) else None  # a number such as memory = 2 is ignored, as in Harbor 0.26


OldSize = Annotated[str | None, BeforeValidator(_only_text)]


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class EnvironmentConfig(_Table):
    """The tables [environment] and [verifier.environment]."""

    build_timeout_sec: float = 600.0
    """Timeout in seconds from pod scheduled to pod running (not for the image build, despite the name)."""
    docker_image: str | None = None
    """Image of the environment, which overrides `environment/Dockerfile`. `spec.environment.image` of the trial overrides both."""
    workdir: str | None = None
    """Working directory of all processes, which overrides the image's WORKDIR."""
    env: Env = {}
    """Variables of every process, which are setup, healthchecks, agent and verifier. Values may be templates."""
    healthcheck: HealthcheckConfig | None = None
    """Healthcheck that runs once, before the first step, as the image's user."""
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    """Operating system. Multistep supports only `linux`."""
    cpus: Annotated[int | float | None, AfterValidator(_cpus)] = None
    """Number of CPU cores, as request and limit of the container. It may be a fraction."""
    memory_mb: int | None = None
    """Memory in mebibytes, as request and limit."""
    storage_mb: int | None = None
    """Ephemeral storage in mebibytes, as request and limit."""
    gpus: int | None = None
    """Number of GPUs (`nvidia.com/gpu`)."""
    gpu_types: list[str] | None = None
    """Types of GPU, such as `H100`. The pod is scheduled to a node that has one of them ([types](#devices))."""
    tpu: TpuConfig | None = None
    """TPU slice on GKE (`google.com/tpu`). The number of chips follows from its topology."""
    mcp_servers: list[McpServerConfig] = []
    """MCP servers for agents of Harbor. The agents oracle, nop and command ignore them, with a warning."""
    skills_dir: str | None = None
    """Directory of skills for agents of Harbor. The agents oracle, nop and command ignore it, with a warning."""
    network_mode: NetworkMode = "public"
    """Network access. Other modes than `public` need an operator that enforces them. See docs/how-to/egress.md."""
    allowed_hosts: AllowedHosts = None
    """Allowed host names, which may start with `*.`, IP addresses and CIDRs. Only with mode `allowlist`. Host names need the
    egress sidecar."""
    memory: OldSize = Field(default=None, exclude=True)
    """Deprecated form of memory_mb, as a number with K, M or G."""
    storage: OldSize = Field(default=None, exclude=True)
    """Deprecated form of storage_mb, as a number with K, M or G."""
    allow_internet: bool | None = Field(default=None, exclude=True)
    """Deprecated form of network_mode. False means `no-network`, true means `public`."""

    @model_validator(mode="after")
    def _old_keys(self) -> EnvironmentConfig:
        self.memory_mb = _old_size("memory", self.memory, self.memory_mb)
        self.storage_mb = _old_size("storage", self.storage, self.storage_mb)
        uses_new_keys = "network_mode" in self.model_fields_set or self.allowed_hosts is not None
        if self.allow_internet is not None and not uses_new_keys:
            self.network_mode = "public" if self.allow_internet else "no-network"
        return self

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> EnvironmentConfig:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


def _old_size(key: str, text: str | None, megabytes: int | None) -> int | None:
    """Return the size in MiB that a deprecated key such as memory = "2G" sets.

    If the key is unset, return ``megabytes``, the value of the key that replaced it, such as memory_mb.
    """
    if text is None:
        return megabytes
    size = text.strip()
    try:
        value = int(float(size[:-1]) * _MEGABYTES[size[-1:].upper()])
    except (KeyError, ValueError, OverflowError):
        hint = f"must be a number with K, M or G, such as '2G'; better: {key}_mb = 2048"
        raise ValueError(f"{key} = {text!r} {hint}") from None
    if megabytes is not None and megabytes != value:
        raise ValueError(f"{key} = {text!r} contradicts {key}_mb = {megabytes}: keep only {key}_mb")
    return value


class VerifierConfig(_NetworkPhase):
    """The tables [verifier] and [steps.verifier]. The task's timeout_sec does not apply to steps, as in Harbor 0.26."""

    timeout_sec: float = 600.0
    """Verifier timeout in seconds. Steps do **not** inherit the task's timeout, as in Harbor. Each step has this default."""
    env: Env = {}
    """Variables of the verifier only. A step's variables override the task's. Values may be templates."""
    user: User | None = None
    """User name or uid of the verifier. A step without one inherits the task's, which defaults to the image's user, not the
    agent's."""
    environment_mode: Literal["shared", "separate"] | None = None
    """`shared` verifies in the agent's pod, `separate` in a pod of its own. If unset, it is `separate` if `environment` is set,
    else `shared`."""
    environment: EnvironmentConfig | None = None
    """Environment of a separate verifier."""
    collect: list[CollectConfig] = []
    """Commands to run between agent and verifier. The task's run first, then the step's."""

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> VerifierConfig:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode 'shared' and an environment of its own contradict each other")
        return self


class SolutionConfig(_Table):
    """The table [solution], for the oracle agent."""

    env: Env = {}
    """Variables of solve.sh. Values may be templates."""


class StepConfig(_Table):
    """An entry of [[steps]]."""

    name: Annotated[str, AfterValidator(allowed_names.step_name)]
    """Name of the step and of its directory under `steps/`. It must be a portable directory name, and names must differ by more
    than case."""
    agent: AgentConfig = AgentConfig()
    """Agent settings of this step."""
    verifier: VerifierConfig = VerifierConfig()
    """Verifier settings of this step."""
    min_reward: float | dict[str, float] | None = None
    """Gate of the step. If the reward is lower, no further step runs. A number applies to the key `reward`. A table has a minimum
    per key."""
    healthcheck: HealthcheckConfig | None = None
    """Healthcheck that runs after setup.sh and before the agent, as the step's agent user, in addition to the environment's."""
    artifacts: list[ArtifactConfig] = []
    """Artifacts to collect after this step, after the task's and the trial's."""


class AuthorConfig(_Table):
    """An entry of task.authors."""

    name: str
    """Name of the author."""
    email: str | None = None
    """Email address of the author."""


class PackageConfig(_Table):
    """The table [task], with name and description. They label trials and have no other effect."""

    name: Annotated[str, AfterValidator(allowed_names.package_name)]
    """Name in the form `org/name`, of letters, digits, `.`, `_` and `-`."""
    version: Annotated[str, Field(min_length=1)] | None = None
    """The task's version."""
    description: str = ""
    """Description of the task."""
    authors: list[AuthorConfig] = []
    """Authors of the task."""
    keywords: list[str] = []
    """Keywords for search."""


def _unique_names(steps: list[StepConfig] | None) -> list[StepConfig] | None:
    seen: dict[str, str] = {}
    for index, step in enumerate(steps or []):
        key = allowed_names.folded(step.name)
        if key in seen:
            text = "names must differ by more than case, and an earlier step is {former}"
            problem = PydanticCustomError("step_name", text, {"former": repr(seen[key])})
            raise ValidationError.from_exception_data("steps", [{"type": problem, "loc": (index, "name"), "input": step.name}])
        seen[key] = step.name
    return steps


class TaskConfig(_Table):
    """A whole task.toml. A task without steps is a single-step task with its files at the task's root."""

    schema_version: Annotated[str, Field(validation_alias=AliasChoices("schema_version", "version"))] = "1.4"
    """Any text, which has no effect. `version` is a deprecated alias."""
    task: PackageConfig | None = None
    """Name and description of the task. If unset, the directory's name is used."""
    metadata: dict[str, Any] = {}
    """Any data, which has no effect."""
    source: str | None = None
    """Origin of the task, which is any text and has no effect."""
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    """How to compute the trial's reward from the steps' rewards. If unset, it is mean."""
    artifacts: list[ArtifactConfig] = []
    """Artifacts to collect after each step."""
    steps: Annotated[list[StepConfig] | None, AfterValidator(_unique_names)] = None
    """Steps, in the order in which they run. If unset or empty, the task is a single-step task."""
    agent: AgentConfig = AgentConfig()
    """Defaults of the agent for all steps."""
    verifier: VerifierConfig = VerifierConfig()
    """Defaults of the verifier for all steps."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The environment that all steps share."""
    solution: SolutionConfig = SolutionConfig()
    """Settings of the oracle agent's solution."""


def parse_task(text: str) -> TaskConfig:
    """Parse the text of a task.toml. Raises InvalidTask with one line per problem."""
    return task_from_dict(toml_table(text))


def task_from_dict(table: Mapping[str, Any]) -> TaskConfig:
    """Validate the parsed table of a task.toml. Raises InvalidTask with one line per problem."""
    try:
        return TaskConfig.model_validate(table)
    except ValidationError as error:
        first, *others = problems(error, table)
        text = "\n".join([first.message, *map(str, others)])
        raise InvalidTask(text, kind="ValidationError", field=first.path) from None


def toml_table(text: str) -> dict[str, Any]:
    """Return the text of a task.toml as a table. Raises InvalidTask of kind TOMLDecodeError if it is not TOML."""
    try:
        return tomli.loads(text)
    except (tomli.TOMLDecodeError, RecursionError) as error:
        mark = "it begins with a byte order mark, save it as UTF-8 without one: " if text.startswith("\ufeff") else ""
        raise InvalidTask(f"is not TOML: {mark}{error}", kind="TOMLDecodeError", field="task.toml") from None


GPU_RESOURCE: Final = "nvidia.com/gpu"
TPU_RESOURCE: Final = "google.com/tpu"
TPU_TYPE_LABEL: Final = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY_LABEL: Final = "cloud.google.com/gke-tpu-topology"

# Node labels of NVIDIA's GPU feature discovery, of GKE and of Karpenter on AWS.
_PRODUCT, _GKE, _KARPENTER = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name"

GpuLabels = Mapping[str, Mapping[str, tuple[str, ...]]]

GPU_TYPES: Final[GpuLabels] = {
    "t4": {_PRODUCT: ("Tesla-T4",), _GKE: ("nvidia-tesla-t4",), _KARPENTER: ("t4",)},
    "v100": {
        _PRODUCT: ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-16GB", "Tesla-V100-PCIE-32GB"),
        _GKE: ("nvidia-tesla-v100",),
        _KARPENTER: ("v100",),
    },
    "l4": {_PRODUCT: ("NVIDIA-L4",), _GKE: ("nvidia-l4",), _KARPENTER: ("l4",)},
    "l40s": {_PRODUCT: ("NVIDIA-L40S",), _KARPENTER: ("l40s",)},
    "a10g": {_PRODUCT: ("NVIDIA-A10G",), _KARPENTER: ("a10g",)},
    "a100": {
        _PRODUCT: (
            "NVIDIA-A100-SXM4-40GB",
            "NVIDIA-A100-PCIE-40GB",
            "NVIDIA-A100-SXM4-80GB",
            "NVIDIA-A100-80GB-PCIe",
        ),
        _GKE: ("nvidia-tesla-a100", "nvidia-a100-80gb"),
        _KARPENTER: ("a100",),
    },
    "a100-40gb": {_PRODUCT: ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"), _GKE: ("nvidia-tesla-a100",)},
    "a100-80gb": {_PRODUCT: ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"), _GKE: ("nvidia-a100-80gb",)},
    "h100": {
        _PRODUCT: ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
        _GKE: ("nvidia-h100-80gb", "nvidia-h100-mega-80gb"),
        _KARPENTER: ("h100",),
    },
    "h200": {_PRODUCT: ("NVIDIA-H200",), _GKE: ("nvidia-h200-141gb",), _KARPENTER: ("h200",)},
    "b200": {_PRODUCT: ("NVIDIA-B200",), _GKE: ("nvidia-b200",), _KARPENTER: ("b200",)},
}
"""Node labels and their values, by GPU type in lower case. A node has the type if one of the labels has one of its values."""

TPU_TYPES: Final[Mapping[str, str]] = {
    "v3": "tpu-v3-slice",
    "v3-device": "tpu-v3-device",
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "trillium": "tpu-v6e-slice",
    "v7": "tpu7x",
    "ironwood": "tpu7x",
}
"""GKE's names of TPU types, by their aliases (Harbor 0.26, GKE environment)."""
