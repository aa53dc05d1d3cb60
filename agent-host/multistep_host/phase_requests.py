"""The operator's requests to the agent host. A request is one JSON object on the stdin of a setup or step phase."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from multistep_host.guest import Admission


class _Request(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", hide_input_in_errors=True)


class AdmissionRequest(_Request):
    """The result of the operator's `admit` request to the runner."""

    id: str
    token: str = Field(pattern="^[0-9a-f]{64}$", repr=False)
    socket: str
    """Name of the runner's abstract socket, without `@`."""

    def admission(self) -> Admission:
        """Return the Admission that guest sessions use."""
        return Admission(self.id, bytes.fromhex(self.token), self.socket)


class EnvironmentRequest(_Request):
    """Defaults for the agent's commands."""

    workdir: str = ""
    path: str = ""
    """Directory to put before PATH, or empty for none."""
    user: str = ""
    """The user's name or ID, or "" for the container's user."""
    env: dict[str, str] = Field(default_factory=dict)


class AgentRequest(_Request):  # type: ignore[no-redef]  # pydantic's mypy plugin adds **kwargs beside the alias kwargs
    """The agent, by its registered name or an import path."""

    name: str | None = None
    import_path: str | None = None
    model: str | None = None
    version: str | None = None
    options: dict[str, Any] = Field(default_factory=dict, alias="kwargs")
    preinstalled: bool = False
    """Whether the environment already has the agent's program."""


class StallsRequest(_Request):
    """The URL and token to ask the model gateway how long the provider stalled the step."""

    url: str
    token: str = Field(repr=False)
    max_seconds: float
    """Maximum extension of the timeout."""


class PhaseRequest(_Request):
    """The fields that setup and step requests share."""

    outcome: str
    """Path of the outcome file."""
    admission: AdmissionRequest
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """The agent's variables."""
    environment: EnvironmentRequest = Field(default_factory=EnvironmentRequest)
    timeout_seconds: float | None = None
    """Timeout of the agent's own work, or None for no timeout."""


class UserSetup(_Request):
    """The simulated user, an agent that talks to the trial's agent."""

    agent: AgentRequest
    persona: str | None = None
    """Who the user is, or None for Harbor's text."""
    prompt_template: str | None = None
    """Template of the user's prompt, or None for Harbor's."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """The user's variables."""


class UserStep(_Request):
    """What the simulated user needs in a step."""

    env: dict[str, str] = Field(default_factory=dict, repr=False)
    stalls: StallsRequest | None = None


class SetupRequest(PhaseRequest):
    """A request to create and set up the agent, once per attempt."""

    agent: AgentRequest
    trial: str
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    """MCP servers as in task.toml."""
    skills_dir: str | None = None
    user: UserSetup | None = None


class StepInstruction(_Request):
    """A step of the task."""

    name: str
    instruction: str
    resume: bool = False
    """Whether the agent continues its session of the previous step."""


class StepRequest(PhaseRequest):
    """A request to run the agent on a step."""

    step: StepInstruction
    stalls: StallsRequest | None = None
    """None if the timeout cannot be extended."""
    user: UserStep | None = None
