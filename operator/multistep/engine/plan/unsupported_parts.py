"""Finds the parts of a task that Multistep does not support.

A part that would change the result makes the task invalid. All other parts are ignored with a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from multistep.api.task.layout import MAIN, TaskLayout
from multistep.api.task.task_toml import ArtifactConfig, CollectConfig, EnvironmentConfig, TaskConfig
from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.values import PLAIN
from multistep.engine.plan.task_steps import verifiers_of
from multistep.errors import InvalidTask

TRAJECTORY_FILE = "trajectory.json"


@dataclass(frozen=True)
class Unsupported:
    """An unsupported key or file of a task."""

    path: str
    message: str
    refused: bool = True
    """Whether the part makes the task invalid. If not, it is ignored."""
    by_agent: bool = False
    """Whether the part is unsupported only because of the trial's agent. Another agent may use it."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def unsupported_parts(config: TaskConfig, layout: TaskLayout, agent: AgentSpec | None = None) -> list[Unsupported]:
    """Return all unsupported parts of a task for an agent. ``None`` means that the agent is unknown, and counts as the oracle."""
    parts: list[Unsupported] = []
    for where, environment in _environments(config):
        parts += _environment(where, environment, agent if where == "environment" else None)
    for services in layout.compose_files:
        parts += (Unsupported(key.place, key.message, refused=False) for key in services.ignored)
    return parts + list(_trajectory(config, layout, agent))


def refuse_unsupported(config: TaskConfig, layout: TaskLayout, agent: AgentSpec) -> None:
    """Raise InvalidTask if the task has unsupported parts that would change the result. The message lists all of them."""
    if refused := [part for part in unsupported_parts(config, layout, agent) if part.refused]:
        raise InvalidTask.joined([InvalidTask(part.message, field=part.path) for part in refused])


def ignored_parts(config: TaskConfig, layout: TaskLayout, agent: AgentSpec) -> list[Unsupported]:
    """Return the unsupported parts of a task that are ignored."""
    return [part for part in unsupported_parts(config, layout, agent) if not part.refused]


def _environments(config: TaskConfig) -> Iterator[tuple[str, EnvironmentConfig]]:
    yield "environment", config.environment
    for where, verifier in verifiers_of(config):
        if verifier.environment is not None:
            yield f"{where}.environment", verifier.environment


def _environment(where: str, environment: EnvironmentConfig, agent: AgentSpec | None) -> Iterator[Unsupported]:
    if environment.os == "windows":
        yield Unsupported(f"{where}.os", "windows is not supported; only linux")
    if agent is not None and agent.hosted:
        yield from _beyond_agent(where, environment, agent)
        return
    if environment.mcp_servers:
        names = ", ".join(repr(server.name) for server in environment.mcp_servers)
        yield _ignored(where, "mcp_servers", f"no MCP servers, here {names}")
    if environment.skills_dir is not None:
        yield _ignored(where, "skills_dir", f"no skills, here of {environment.skills_dir!r}")


def _ignored(where: str, key: str, what: str) -> Unsupported:
    by_agent = where == "environment"
    who = "agents oracle, nop and command use" if by_agent else "an environment of a verifier has"
    return Unsupported(f"{where}.{key}", f"is ignored: {who} {what}", refused=False, by_agent=by_agent)


def _beyond_agent(where: str, environment: EnvironmentConfig, agent: AgentSpec) -> Iterator[Unsupported]:
    """Yield the MCP servers, headers of MCP servers, and skills that the agent cannot use. Harbor 0.26 rejects them too.

    An agent of a custom class is not checked, because the operator does not know what it uses.
    """
    headers = [server.name for server in environment.mcp_servers if server.headers]
    if environment.mcp_servers and agent.name in harbor_agents.WITHOUT_MCP:
        yield Unsupported(f"{where}.mcp_servers", f"is not supported: agent {agent.label!r} uses no MCP servers")
    elif headers and agent.name is not None and agent.name not in harbor_agents.MCP_HEADERS:
        message = f"headers of {headers[0]!r} are not supported: agent {agent.label!r} sends no headers to MCP servers"
        yield Unsupported(f"{where}.mcp_servers", message)
    if environment.skills_dir and agent.name in harbor_agents.WITHOUT_SKILLS:
        yield Unsupported(f"{where}.skills_dir", f"is not supported: agent {agent.label!r} loads no skills")


def _trajectory(config: TaskConfig, layout: TaskLayout, agent: AgentSpec | None) -> Iterator[Unsupported]:
    """Yield the trajectory file of the task's first step, if it has one.

    Harbor 0.26 reads only the first step's file. It ignores the file if the agent is oracle or nop, and fails if the agent cannot
    load trajectories.
    """
    first = config.steps[0].name if config.steps else None
    files = layout.root if first is None else layout.steps.get(first)
    if files is None or not files.trajectory:
        return
    path = TRAJECTORY_FILE if first is None else f"steps/{first}/{TRAJECTORY_FILE}"
    if agent is not None and agent.name not in PLAIN:
        yield Unsupported(path, f"is not supported: agent {agent.label!r} would start from an earlier trajectory")
    else:
        message = "is ignored by the oracle and nop agents; a trial with another agent fails, as none can load a trajectory"
        yield Unsupported(path, message, refused=False)


def check_services(config: TaskConfig, layout: TaskLayout) -> None:
    """Raise InvalidTask if an artifact or a collect hook names a service that the compose file lacks, or that ends before the first
    step. The message lists all such entries."""
    if faults := [*_faults(config, layout)]:
        raise InvalidTask.joined(faults)


def _faults(config: TaskConfig, layout: TaskLayout) -> Iterator[InvalidTask]:
    known = [MAIN, *(service.name for service in layout.compose.others)] if layout.compose else [MAIN]
    for field, entry in _entries(config):
        if entry.service not in (None, *known):
            where = (
                "is not a service of environment/docker-compose.yaml" if layout.compose else "needs environment/docker-compose.yaml"
            )
            text = f"{entry.service!r} {where}; must be one of {', '.join(map(repr, known))}"
            yield InvalidTask(text, kind="ValueError", field=f"{field}.service")
        elif layout.compose and entry.service in layout.compose.jobs:
            text = f"{entry.service!r} ends before the first step, as others await it with service_completed_successfully: "
            yield InvalidTask(f"{text}share its files with main in a volume", kind="ValueError", field=f"{field}.service")


def _entries(config: TaskConfig) -> Iterator[tuple[str, ArtifactConfig | CollectConfig]]:
    places: list[tuple[str, Sequence[ArtifactConfig | CollectConfig]]] = [
        ("artifacts", config.artifacts),
        ("verifier.collect", config.verifier.collect),
    ]
    for index, step in enumerate(config.steps or []):
        places += [(f"steps[{index}].artifacts", step.artifacts), (f"steps[{index}].verifier.collect", step.verifier.collect)]
    for field, entries in places:
        for number, entry in enumerate(entries):
            yield f"{field}[{number}]", entry
