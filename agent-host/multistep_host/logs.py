"""Synchronizes the agent's logs in the environment (/logs/agent) with the agent's logs on the agent host (Harbor's `logs_dir`)."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

from harbor.agents.base import BaseAgent
from harbor.models.agent.context import AgentContext

from multistep_host.environment import GuestEnvironment
from multistep_host.transcript import FILE

ROLLOUT_DETAILS = "rollout-details.json"  # token IDs and log probabilities of an agent that collects them
_log = logging.getLogger(__name__)
_Seen = dict[Path, tuple[int, int]]


class AgentLogs:
    """Copies the agent's logs between the environment and the agent host after each step."""

    def __init__(self, environment: GuestEnvironment, directory: Path) -> None:
        self._environment = environment
        self._directory = directory
        self._in_environment: _Seen = {}  # size and mtime of each file that is the same in the environment

    def clear(self) -> None:
        """Delete the agent host's logs before a step that starts a new session. The operator deletes the environment's logs."""
        self._in_environment = {}
        self._directory.mkdir(parents=True, exist_ok=True)
        for path in self._directory.iterdir():
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    async def share(self, agent: BaseAgent, command: str) -> None:
        """Upload the logs that only the agent host has, if the command names them: some agents, such as openclaw, write a file for
        a command there, because Harbor's Docker environment mounts this directory."""
        target = str(agent.environment_logs_dir)
        own = self._only_here() - {self._directory / FILE}
        named = [path for path in own if f"{target}/{path.relative_to(self._directory)}" in command]
        if named:
            await self._environment.upload_files(self._directory, sorted(named), target)
            self._in_environment |= {path: seen for path, seen in self._files().items() if path in named}

    async def exchange(self, agent: BaseAgent, context: AgentContext) -> None:
        """Fill in Harbor's AgentContext from the environment's logs, and upload the logs that only the agent host has.

        As in Harbor 0.26, a failure is logged and does not fail the step.
        """
        try:
            if context.is_empty():
                await self._complete(agent, context)
            if context.rollout_details:
                details = context.model_dump(mode="json", include={"rollout_details"})
                (self._directory / ROLLOUT_DETAILS).write_text(json.dumps(details["rollout_details"]))
        except Exception:
            _log.exception("the agent's usage is unknown")
        try:
            await self._upload(str(agent.environment_logs_dir))
        except Exception:
            _log.exception("logs of the agent host are not in the environment")

    async def _complete(self, agent: BaseAgent, context: AgentContext) -> None:
        source = str(agent.environment_logs_dir)
        written = await self._environment.download_tree(source, self._directory, keep=self._only_here())
        self._in_environment |= {path: seen for path, seen in self._files().items() if path in written}
        agent.populate_context_post_run(context)

    async def _upload(self, target: str) -> None:
        if changed := self._only_here():
            await self._environment.upload_files(self._directory, sorted(changed), target)
        self._in_environment = self._files()

    def _only_here(self) -> set[Path]:
        """Return the files on the agent host that the environment lacks or has in another version."""
        return {path for path, seen in self._files().items() if self._in_environment.get(path) != seen}

    def _files(self) -> _Seen:
        found = (path for path in self._directory.rglob("*") if path.is_file() and not path.is_symlink())
        return {path: (stat.st_size, stat.st_mtime_ns) for path in found for stat in [path.stat()]}
