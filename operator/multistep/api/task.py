"""task.toml: its fields, defaults and rules, as Harbor 0.25 reads them. Attributes are named as the keys.

What Harbor forgives is forgiven here too (unknown keys, numbers written as strings); `unknown_keys` tells what it was.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from ..errors import InvalidTask
from . import names
from .problems import problems

NetworkMode = Literal["no-network", "public", "allowlist"]
AllowedHosts = Annotated[list[Annotated[str, AfterValidator(names.allowed_host)]] | None, Field()]
Env = dict[str, str]
User = str | int

_MEGABYTES = {"K": 1 / 1024, "M": 1, "G": 1024}


class ArtifactConfig(BaseModel):
    """A path to collect after each step, or after one. In task.toml a string is the same as ``{source = "..."}``."""

    source: Annotated[str, AfterValidator(names.artifact_source)]
    destination: Annotated[str | None, AfterValidator(names.artifact_destination)] = None  # below artifacts/
    exclude: list[str] = []  # tar patterns, for directories only
    service: Annotated[str, AfterValidator(names.service_name)] | None = None  # None or "main": the trial's container

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: object) -> object:
        return {"source": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _service_source(self) -> ArtifactConfig:
        if self.service not in (None, "main") and not re.match(r"/|[A-Za-z]:[/\\]", self.source):
            raise ValueError(f"source must be an absolute path when service is {self.service!r}")
        return self


class HealthcheckConfig(BaseModel):
    """A command that must exit 0 before the agent may begin. Times in seconds."""

    command: str
    interval_sec: float = 5.0  # pause after a counted failure
    timeout_sec: float = 30.0  # of one attempt; cut to whole seconds, 0 = none
    start_period_sec: float = 0.0  # failures of attempts begun in it do not count
    start_interval_sec: float = 5.0  # pause after a failure which does not count
    retries: int = 3  # counted failures until it has failed


class CollectConfig(BaseModel):
    """A command that runs after the agent, so that the verifier finds what it leaves. Failures are ignored."""

    command: str
    service: Annotated[str, AfterValidator(names.service_name)] = "main"
    timeout_sec: float = 60.0
    user: User | None = None


class _NetworkPhase(BaseModel):
    """What agent and verifier share: a network policy of their own, if any."""

    network_mode: NetworkMode | None = None
    allowed_hosts: AllowedHosts = None

    @model_validator(mode="after")
    def _hosts_need_allowlist(self) -> _NetworkPhase:
        empty = self.allowed_hosts is None if self.network_mode is None else not self.allowed_hosts
        if self.network_mode != "allowlist" and not empty:
            raise ValueError("allowed_hosts needs network_mode = 'allowlist'")
        return self


class AgentConfig(_NetworkPhase):
    """[agent] and [steps.agent]."""

    timeout_sec: float | None = None  # None: no limit; a step's None: the task's
    user: User | None = None  # None: the image's; a step's None: the task's


class TpuConfig(BaseModel):
    """environment.tpu."""

    type: str = Field(min_length=1)
    topology: Annotated[str, AfterValidator(names.tpu_topology)]


def _http_transport(value: object) -> object:
    return "streamable-http" if value == "http" else value


class McpServerConfig(BaseModel):
    """environment.mcp_servers."""

    name: str
    transport: Annotated[Literal["sse", "streamable-http", "stdio"], BeforeValidator(_http_transport)] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    headers: Env = {}

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


class EnvironmentConfig(BaseModel):
    """[environment] and [verifier.environment]."""

    build_timeout_sec: float = 600.0  # limit of the environment's start
    docker_image: str | None = None  # wins over environment/Dockerfile
    workdir: str | None = None  # replaces the image's WORKDIR
    env: Env = {}  # given to every process; a value that is exactly ${NAME} or ${NAME:-default} is a template
    healthcheck: HealthcheckConfig | None = None  # once, before the first step
    os: Annotated[Literal["linux", "windows"], BeforeValidator(_lower)] = "linux"
    cpus: Annotated[int | float | None, AfterValidator(_cpus)] = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    gpus: int | None = None
    gpu_types: list[str] | None = None
    tpu: TpuConfig | None = None
    mcp_servers: list[McpServerConfig] = []
    skills_dir: str | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: AllowedHosts = None
    memory: OldSize = Field(default=None, exclude=True)  # old form of memory_mb
    storage: OldSize = Field(default=None, exclude=True)  # old form of storage_mb
    allow_internet: bool | None = Field(default=None, exclude=True)  # old form of network_mode: false = no-network

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
    env: Env = {}  # templates as in environment.env
    user: User | None = None  # None: the image's; a step's None: the task's
    environment_mode: Literal["shared", "separate"] | None = None  # None: separate if there is an environment
    environment: EnvironmentConfig | None = None
    collect: list[CollectConfig] = []

    @model_validator(mode="after")
    def _shared_has_no_environment(self) -> VerifierConfig:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError("environment_mode 'shared' and an environment of its own contradict each other")
        return self


class SolutionConfig(BaseModel):
    """[solution], for the oracle agent."""

    env: Env = {}


class StepConfig(BaseModel):
    """One of [[steps]]."""

    name: Annotated[str, AfterValidator(names.step_name)]  # its directory under steps/
    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()
    min_reward: float | dict[str, float] | None = None  # the gate; a number stands for the key "reward"
    healthcheck: HealthcheckConfig | None = None  # after setup.sh, before the agent
    artifacts: list[ArtifactConfig] = []


class AuthorConfig(BaseModel):
    """One of task.authors."""

    name: str
    email: str | None = None


class PackageConfig(BaseModel):
    """[task]: what the task is called. It labels trials, nothing else."""

    name: Annotated[str, AfterValidator(names.package_name)]
    version: Annotated[str, Field(min_length=1)] | None = None
    description: str = ""
    authors: list[AuthorConfig] = []
    keywords: list[str] = []


def _unique_names(steps: list[StepConfig] | None) -> list[StepConfig] | None:
    seen: dict[str, str] = {}
    for step in steps or []:
        key = names.folded(step.name)
        if key in seen:
            raise ValueError(f"names must differ by more than case: {seen[key]!r} and {step.name!r}")
        seen[key] = step.name
    return steps


class TaskConfig(BaseModel):
    """A whole task.toml. No steps: a single-step task, whose files lie at the task's root."""

    schema_version: str = "1.4"
    task: PackageConfig | None = None
    metadata: dict[str, Any] = {}
    source: str | None = None
    multi_step_reward_strategy: Literal["mean", "final"] | None = None  # None: mean
    artifacts: list[ArtifactConfig] = []  # collected after each step
    steps: Annotated[list[StepConfig] | None, AfterValidator(_unique_names)] = None
    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    solution: SolutionConfig = SolutionConfig()

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
