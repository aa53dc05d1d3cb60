"""task.toml: its fields, defaults and rules, as Harbor 0.25 reads them. Attributes are named as the keys.

What Harbor forgives is forgiven here too (unknown keys, numbers written as strings); `unknown_keys` tells what it was.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from ..errors import InvalidTask
from . import names
from .problems import problems

NetworkMode = Literal["no-network", "public", "allowlist"]
AllowedHosts = Annotated[list[Annotated[str, AfterValidator(names.allowed_host)]] | None, Field()]
Env = dict[str, str]
User = str | int

_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024}


class _Table(BaseModel):
    """A table of task.toml. docs/task-format.md is made of the fields' texts."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ArtifactConfig(_Table):
    """A path to collect after each step, or after one. In task.toml a string is the same as ``{source = "..."}``."""

    source: Annotated[str, AfterValidator(names.artifact_source)]
    """Path in the environment, without `..`; a relative one is below WORKDIR."""
    destination: Annotated[str | None, AfterValidator(names.artifact_destination)] = None
    """Relative path below the step's `artifacts/`. Unset: the base name of the source."""
    exclude: list[str] = []
    """Patterns of what to leave out of a directory, as tar's `--exclude`: `*.log` matches at any depth."""
    service: Annotated[str, AfterValidator(names.service_name)] | None = None
    """Service of a compose file. Only `main`, the trial's container, can be run here."""

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
    """A command that must exit 0 before the agent may begin. Times in seconds."""

    command: str
    """Run by bash in WORKDIR; exit status 0 is healthy."""
    interval_sec: float = 5.0
    """Pause after a failure that counts."""
    timeout_sec: float = 30.0
    """Limit of one attempt, cut to whole seconds; 0 is none. An attempt past it has failed."""
    start_period_sec: float = 0.0
    """Failures of attempts that began within this time do not count."""
    start_interval_sec: float = 5.0
    """Pause after a failure that does not count."""
    retries: int = 3
    """Failures that count until the healthcheck has failed; 1 or less is one attempt."""


class CollectConfig(_Table):
    """A command that runs after the agent, so that the verifier finds what it leaves. Failures are ignored."""

    command: str
    """Run by bash in WORKDIR."""
    service: Annotated[str, AfterValidator(names.service_name)] = "main"
    """Service of a compose file. Only `main`, the trial's container, can be run here."""
    timeout_sec: float = 60.0
    """Its limit."""
    user: User | None = None
    """Name or uid. Unset: the image's user."""


class _NetworkPhase(_Table):
    """What agent and verifier share: a network policy of their own, if any."""

    network_mode: NetworkMode | None = None
    """Unset: the environment's. One that differs from it is refused here."""
    allowed_hosts: AllowedHosts = None
    """Only with network_mode `allowlist`."""

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> _NetworkPhase:
        empty = self.allowed_hosts is None if self.network_mode is None else not self.allowed_hosts
        if self.network_mode != "allowlist" and not empty:
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class AgentConfig(_NetworkPhase):
    """[agent] and [steps.agent]."""

    timeout_sec: float | None = None
    """The agent's limit. Unset: in a step the task's, in the task none. 0: the agent is not started, as if timed out."""
    user: User | None = None
    """Name or uid of the agent, of setup.sh and of the step's healthcheck. Unset: in a step the task's, in the task the image's."""


class TpuConfig(_Table):
    """environment.tpu."""

    type: str = Field(min_length=1)
    """Kind of TPU."""
    topology: Annotated[str, AfterValidator(names.tpu_topology)]
    """Such as `2x2` or `2x2x4`."""


def _http_transport(value: object) -> object:
    return "streamable-http" if value == "http" else value


class McpServerConfig(_Table):
    """environment.mcp_servers."""

    name: str
    """What the agent calls it."""
    transport: Annotated[Literal["sse", "streamable-http", "stdio"], BeforeValidator(_http_transport)] = "sse"
    """How it is spoken to; `http` is the same as `streamable-http`."""
    url: str | None = None
    """Required for the transports over HTTP."""
    command: str | None = None
    """Required for `stdio`."""
    args: list[str] = []
    """Arguments of the command."""
    headers: Env = {}
    """HTTP headers."""

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
    return value if isinstance(value, str) else None  # Harbor 0.25 ignores memory = 2


OldSize = Annotated[str | None, BeforeValidator(_only_text)]


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


class EnvironmentConfig(_Table):
    """[environment] and [verifier.environment]."""

    build_timeout_sec: float = 600.0
    """Limit of the environment's start: from the pod's scheduling to its running."""
    docker_image: str | None = None
    """Image of the environment; wins over `environment/Dockerfile`, and the trial's image wins over both."""
    workdir: str | None = None
    """Working directory of everything that runs; replaces the image's WORKDIR."""
    env: Env = {}
    """Variables of every process: setup, healthchecks, agent, verifier. Values may be templates."""
    healthcheck: HealthcheckConfig | None = None
    """Once, before the first step, as the image's user."""
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    """Only linux can be run here."""
    cpus: Annotated[int | float | None, AfterValidator(_cpus)] = None
    """Request and limit of the container alike; a fraction is possible."""
    memory_mb: int | None = None
    """Mebibytes, request and limit alike."""
    storage_mb: int | None = None
    """Mebibytes of ephemeral storage, request and limit alike."""
    gpus: int | None = None
    """Number of `nvidia.com/gpu`."""
    gpu_types: list[str] | None = None
    """Ignored with a warning. Select nodes with the trial's pod template instead."""
    tpu: TpuConfig | None = None
    """Refused here."""
    mcp_servers: list[McpServerConfig] = []
    """Ignored with a warning: no agent of Multistep connects to MCP servers."""
    skills_dir: str | None = None
    """Ignored with a warning: no agent of Multistep loads skills."""
    network_mode: NetworkMode = "public"
    """Others than `public` need an operator that was told that its cluster enforces NetworkPolicies."""
    allowed_hosts: AllowedHosts = None
    """Addresses and CIDRs; only with network_mode `allowlist`. Host names are refused here."""
    memory: OldSize = Field(default=None, exclude=True)
    """Old form of memory_mb: a number with K, M or G."""
    storage: OldSize = Field(default=None, exclude=True)
    """Old form of storage_mb: a number with K, M or G."""
    allow_internet: bool | None = Field(default=None, exclude=True)
    """Old form of network_mode: false is `no-network`, true is `public`."""

    @model_validator(mode="after")
    def _old_keys(self) -> EnvironmentConfig:
        self.memory_mb = _old_size("memory", self.memory, self.memory_mb)
        self.storage_mb = _old_size("storage", self.storage, self.storage_mb)
        told = "network_mode" in self.model_fields_set or self.allowed_hosts is not None
        if self.allow_internet is not None and not told:
            self.network_mode = "public" if self.allow_internet else "no-network"
        return self

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> EnvironmentConfig:
        if self.allowed_hosts and self.network_mode != "allowlist":
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


def _old_size(key: str, text: str | None, megabytes: int | None) -> int | None:
    """The megabytes that an old key like memory = "2G" stands for; the new key's if there is no old one."""
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
    """[verifier] and [steps.verifier]. The task's timeout_sec does not apply to steps (Harbor 0.25)."""

    timeout_sec: float = 600.0
    """The verifier's limit. The task's own does **not** reach its steps (as in Harbor): each step has this default."""
    env: Env = {}
    """Variables of the verifier only; a step's are merged over the task's. Values may be templates."""
    user: User | None = None
    """Name or uid of the verifier. Unset: in a step the task's, in the task the image's; never the agent's."""
    environment_mode: Literal["shared", "separate"] | None = None
    """Unset: `separate` if there is an environment, else `shared`. A separate one is in a pod of its own."""
    environment: EnvironmentConfig | None = None
    """Environment of a separate verifier."""
    collect: list[CollectConfig] = []
    """Commands between agent and verifier; the task's come first, then the step's."""

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> VerifierConfig:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode 'shared' and an environment of its own contradict each other")
        return self


class SolutionConfig(_Table):
    """[solution], for the oracle agent."""

    env: Env = {}
    """Variables of solve.sh. Values may be templates."""


class StepConfig(_Table):
    """One of [[steps]]."""

    name: Annotated[str, AfterValidator(names.step_name)]
    """Its directory under `steps/`: one portable directory name; names differ by more than case."""
    agent: AgentConfig = AgentConfig()
    """The agent in this step."""
    verifier: VerifierConfig = VerifierConfig()
    """The verifier in this step."""
    min_reward: float | dict[str, float] | None = None
    """The gate: below it no further step runs. A number is for the key `reward`, a table has a threshold for each key."""
    healthcheck: HealthcheckConfig | None = None
    """After setup.sh, before the agent, as the step's agent user; beside the environment's own."""
    artifacts: list[ArtifactConfig] = []
    """Collected after this step, after the task's and the trial's."""


class AuthorConfig(_Table):
    """One of task.authors."""

    name: str
    """The author."""
    email: str | None = None
    """Where to write to."""


class PackageConfig(_Table):
    """[task]: what the task is called. It labels trials, nothing else."""

    name: Annotated[str, AfterValidator(names.package_name)]
    """`org/name`, of letters, digits, `.`, `_` and `-`."""
    version: Annotated[str, Field(min_length=1)] | None = None
    """The task's version."""
    description: str = ""
    """What it is about."""
    authors: list[AuthorConfig] = []
    """Who wrote it."""
    keywords: list[str] = []
    """For searching."""


def _unique_names(steps: list[StepConfig] | None) -> list[StepConfig] | None:
    seen: dict[str, str] = {}
    for step in steps or []:
        key = names.folded(step.name)
        if key in seen:
            raise ValueError(f"names must differ by more than case: {seen[key]!r} and {step.name!r}")
        seen[key] = step.name
    return steps


class TaskConfig(_Table):
    """A whole task.toml. No steps: a single-step task, whose files lie at the task's root."""

    schema_version: str = "1.4"
    """Any text; nothing depends on it. `version` is an old name of it."""
    task: PackageConfig | None = None
    """What the task is called. Without it the directory's name is used."""
    metadata: dict[str, Any] = {}
    """Free."""
    source: str | None = None
    """Free: where the task comes from."""
    multi_step_reward_strategy: Literal["mean", "final"] | None = None
    """How the trial's reward is made of the steps'. Unset: mean."""
    artifacts: list[ArtifactConfig] = []
    """Collected after each step."""
    steps: Annotated[list[StepConfig] | None, AfterValidator(_unique_names)] = None
    """The steps, in the order in which they run. None or empty: a single-step task."""
    agent: AgentConfig = AgentConfig()
    """The agent, for steps that do not say otherwise."""
    verifier: VerifierConfig = VerifierConfig()
    """The verifier, for steps that do not say otherwise."""
    environment: EnvironmentConfig = EnvironmentConfig()
    """The environment that all steps share."""
    solution: SolutionConfig = SolutionConfig()
    """For the oracle agent."""

    @model_validator(mode="before")
    @classmethod
    def _version_alias(cls, value: object) -> object:
        if isinstance(value, Mapping) and "version" in value and "schema_version" not in value:
            return {**value, "schema_version": value["version"]}
        return value


def parse_task(text: str) -> TaskConfig:
    """The config in the text of a task.toml. InvalidTask: one line for each problem."""
    return task_from_dict(toml_table(text))


def task_from_dict(table: Mapping[str, Any]) -> TaskConfig:
    """The config in a task.toml that was parsed already. InvalidTask: one line for each problem."""
    try:
        return TaskConfig.model_validate(table)
    except ValidationError as error:
        first, *others = problems(error, table)
        text = "\n".join([first.message, *map(str, others)])
        raise InvalidTask(text, kind="ValidationError", field=first.path) from None


def toml_table(text: str) -> dict[str, Any]:
    """The text of a task.toml as a table, or InvalidTask of kind TOMLDecodeError."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidTask(f"is not TOML: {error}", kind="TOMLDecodeError", field="task.toml") from None
