"""The plan of a Harbor agent, which the agent host runs beside the environment. spec.agent has its name or import path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multistep.api.task.task_toml import NetworkMode, TaskConfig
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.harbor_agents import SETUP_SECONDS
from multistep.api.trial.spec import TrialSpec
from multistep.engine.plan.phase_timeouts import resolve_limit
from multistep.errors import InvalidSpec

_SETUP_SECONDS = 360.0  # timeout of an agent's setup, as in Harbor 0.26, unless SETUP_SECONDS has another one for the agent
_SETUPS_WITH_USER = 3  # of the agent, of the user and of the connection between them, for which Harbor has a timeout each


@dataclass(frozen=True)
class HostedAgent:
    """The plan of a Harbor agent."""

    spec: AgentSpec
    setup_timeout: float | None
    """Timeout of the agent's setup in seconds, None for no timeout."""
    resume: bool = False
    """Whether each step resumes the trajectory of the step before."""
    credentials: Mapping[str, str] = field(default_factory=dict)
    """Values of the agent's secret variables, such as API keys."""
    mcp_servers: Sequence[Mapping[str, Any]] = ()
    skills_dir: str | None = None

    def resumes(self, index: int) -> bool:
        """Return whether the step with this index resumes the trajectory of the step before."""
        return self.resume and index > 0

    @property
    def direct_variables(self) -> dict[str, str]:
        """Return the variables of an agent that calls the provider directly: its API keys, and spec.agent's base URL if set.

        A newline at the end of a key is removed. It often comes from the file from which the Secret was created.
        """
        keys = {name: key.rstrip("\r\n") for name, key in self.credentials.items()}
        names = self.spec.url_variables if self.spec.base_url else ()
        return {**keys, **dict.fromkeys(names, self.spec.base_url or "")}


def refuse_unreachable_model(agent: AgentSpec, mode: NetworkMode, *, relayed: bool) -> None:
    """Raise InvalidSpec if the agent cannot reach its model in a phase with this network_mode.

    ``relayed`` means that pods can reach the model gateway in every mode.
    """
    if mode == "public":
        return
    if agent.uses_gateway and not relayed:
        hint = "the chart's trials.egress = Sidecar keeps the model gateway reachable"
        raise InvalidSpec(f"spec.agent: its model cannot be reached, as the task's network_mode is {mode!r}; {hint}")
    elsewhere = agent.base_url is not None or any(
        variable.name in agent.url_variables for variable in agent.env
    )  # e.g. in the agent's pod
    calls = agent.credentials or (agent.access == "Direct" and agent.direct_hosts and not elsewhere)
    if calls and not agent.uses_gateway and mode == "no-network":
        hint = "use spec.agent.access Gateway" if relayed else "it needs another task"
        raise InvalidSpec(f"spec.agent: its model cannot be reached, as the task's network_mode is {mode!r}; {hint}")


def hosted_agent(config: TaskConfig, spec: TrialSpec, credentials: Mapping[str, str]) -> HostedAgent:
    """Return the plan of a trial's Harbor agent. ``credentials`` has the values of the agent's secret variables."""
    environment = config.environment
    return HostedAgent(
        spec=spec.agent,
        setup_timeout=resolve_limit(
            SETUP_SECONDS.get(spec.agent.name or "", _SETUP_SECONDS) * (1 if spec.models.user is None else _SETUPS_WITH_USER),
            override=None,
            maximum=None,
            multiplier=spec.agent_setup_timeout_multiplier,
            default_multiplier=spec.timeout_multiplier,
        ),
        resume=spec.resume_trajectory,
        credentials=credentials,
        mcp_servers=tuple(server.model_dump(mode="json", exclude_none=True) for server in environment.mcp_servers or []),
        skills_dir=environment.skills_dir,
    )
