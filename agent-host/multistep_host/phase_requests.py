"""The requests of the operator: one JSON object on a phase's stdin."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from multistep_host.guest import Admission


class _Request(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", hide_input_in_errors=True)


class AdmissionRequest(_Request):
    """The operator's `admit`. token: 64 hex digits. socket: the abstract socket's name without `@`."""

    id: str
    token: str = Field(pattern="^[0-9a-f]{64}$", repr=False)
    socket: str

    def admission(self) -> Admission:
        """Return the admission for guest sessions."""
        return Admission(self.id, bytes.fromhex(self.token), self.socket)


class EnvironmentRequest(_Request):
    """How the agent's commands run. user: empty for the container's."""

    workdir: str = ""
    user: str = ""
    env: dict[str, str] = Field(default_factory=dict)


class AgentRequest(_Request):  # type: ignore[no-redef]  # mypy's plugin adds **kwargs beside the alias
    """Which agent it is: a registered name or an import path. preinstalled: the environment has its program."""

    name: str | None = None
    import_path: str | None = None
    model: str | None = None
    version: str | None = None
    options: dict[str, Any] = Field(default_factory=dict, alias="kwargs")
    preinstalled: bool = False


class PhaseRequest(_Request):
    """What both requests have. env: the agent's variables. timeout_seconds: of the agent's own work; None: no limit."""

    outcome: str
    admission: AdmissionRequest
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    environment: EnvironmentRequest = Field(default_factory=EnvironmentRequest)
    timeout_seconds: float | None = None


class SetupRequest(PhaseRequest):
    """Create the agent and set it up, once for a trial's attempt. mcp_servers: as in task.toml."""

    agent: AgentRequest
    trial: str
    mcp_servers: list[dict[str, Any]] = Field(default_factory=list)
    skills_dir: str | None = None


class StepInstruction(_Request):
    """A step of the task. resume: continue the session of the step before."""

    name: str
    instruction: str
    resume: bool = False


class StepRequest(PhaseRequest):
    """Have the agent work on a step."""

    step: StepInstruction
