"""The keys that trial.json may contain, named as in Harbor's TrialConfig. An unknown key is an error."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

SHELL_AGENT = "oracle_agents:ShellAgent"
ECHO_AGENT = "oracle_agents:EchoAgent"


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class AgentOptions(_Table):
    """The key ``agent``. import_path: one of two test agents."""

    name: Literal["oracle", "nop"] | None = None
    import_path: Literal["oracle_agents:ShellAgent", "oracle_agents:EchoAgent"] | None = None
    override_timeout_sec: float | None = None
    max_timeout_sec: float | None = None
    env: dict[str, str] = {}
    user: str | int | None = None
    resume_trajectory: bool = False

    @model_validator(mode="after")
    def _only_one(self) -> AgentOptions:
        if self.name and self.import_path:
            raise ValueError("must have only one of name and import_path")
        return self


class VerifierOptions(_Table):
    """The key ``verifier``."""

    override_timeout_sec: float | None = None
    max_timeout_sec: float | None = None
    env: dict[str, str] = {}
    disable: bool = False


class EnvironmentOptions(_Table):
    """The key ``environment``. env: variables that take precedence over the task's."""

    env: dict[str, str] = {}


class ArtifactOptions(_Table):
    """An entry of ``artifacts``; a plain string sets only `source`. service: must be ``main``, the trial's only container."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: Literal["main"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_string(cls, value: Any) -> Any:
        return {"source": value} if isinstance(value, str) else value


class Options(_Table):
    """The content of trial.json. note: a remark for readers; host_env: environment variables of the process that runs the trial."""

    note: str = ""
    host_env: dict[str, str] = {}
    agent: AgentOptions = AgentOptions()
    verifier: VerifierOptions = VerifierOptions()
    environment: EnvironmentOptions = EnvironmentOptions()
    timeout_multiplier: float | None = None
    agent_timeout_multiplier: float | None = None
    verifier_timeout_multiplier: float | None = None
    agent_setup_timeout_multiplier: float | None = None
    environment_build_timeout_multiplier: float | None = None
    artifacts: list[ArtifactOptions] = []
    extra_instruction_paths: list[str] = []
    extra_instructions: list[str] = []
