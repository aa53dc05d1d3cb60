"""The operator's requests to the agent host: one JSON object on the stdin of a setup or step phase."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from multistep_host.guest import Admission


class _Request(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", hide_input_in_errors=True)


class AdmissionRequest(_Request):
    """The result of the operator's `admit` request to the runner. socket: name of the runner's abstract socket, without `@`."""

    id: str
    token: str = Field(pattern="^[0-9a-f]{64}$", repr=False)
    socket: str

    def admission(self) -> Admission:
        """Return the Admission that guest sessions use."""
        return Admission(self.id, bytes.fromhex(self.token), self.socket)


class EnvironmentRequest(_Request):
    """Defaults for the agent's commands. user: "" for the container's user; path: directory to put before PATH, "" for none."""

    workdir: str = ""
    path: str = ""
    user: str = ""
    env: dict[str, str] = Field(default_factory=dict)


class AgentRequest(_Request):  # type: ignore[no-redef]  # pydantic's mypy plugin adds **kwargs beside the alias kwargs
    """The agent: a registered name or an import path. preinstalled: whether the environment already has the agent's program."""

    name: str | None = None
    import_path: str | None = None
    model: str | None = None
    version: str | None = None
    options: dict[str, Any] = Field(default_factory=dict, alias="kwargs")
    preinstalled: bool = False


class StallsRequest(_Request):
    """URL and token to ask the model gateway how long the provider stalled the step. max_seconds: maximum timeout extension."""

    url: str
    token: str = Field(repr=False)
    max_seconds: float


class PhaseRequest(_Request):
    """The fields that setup and step requests share. outcome: path of the outcome file; env: the agent's variables.

    timeout_seconds: timeout of the agent's own work; None for no timeout.
    """

    outcome: str
    admission: AdmissionRequest
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    environment: EnvironmentRequest = Field(default_factory=EnvironmentRequest)
    timeout_seconds: float | None = None


class SetupRequest(PhaseRequest):
    """A request to create and set up the agent, once per attempt. mcp_servers: MCP servers as in task.toml."""

    agent: AgentRequest
    trial: str
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    skills_dir: str | None = None


class StepInstruction(_Request):
    """A step of the task. resume: whether the agent continues its session of the previous step."""

    name: str
    instruction: str
    resume: bool = False


class StepRequest(PhaseRequest):
    """A request to run the agent on a step. stalls: None if the timeout cannot be extended."""

    step: StepInstruction
    stalls: StallsRequest | None = None
