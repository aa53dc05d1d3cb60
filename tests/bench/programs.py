"""Measure how much longer a trial takes if the agent's program is mounted from the image that `multistep agent build` built.

The program is claude-code's own, and a scripted model answers it. All trials have one step and the same task image, which contains
the program, too. Trials without the mount run the program of the task image; nothing else differs.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from multistep.api.trial.agent_spec import PROGRAM_DIR
from multistep.client.reconnecting_watch import WatchingClient
from tests.bench.measure import remove_trials, time_trials
from tests.bench.trials import line, spread
from tests.e2e.given import Step, reward_for_text, trial
from tests.e2e.test_cli import multistep
from tests.support import servers

AGENT: Final = "claude-code"
ROUNDS: Final = 5
MAX_ADDED_SECONDS: Final = 2.0
_SECRET: Final = "program-keys"
_STEP: Final = Step(
    "one",
    instruction="FAKE-MODEL\nrun: printf ok > /tmp/one\nsay: done\nEND\n",
    test=reward_for_text("/tmp/one", "ok"),
    config={"min_reward": 1.0},
)
_DOCKERFILE: Final = f"FROM debian:bookworm-slim\nCOPY --from={{0}} {PROGRAM_DIR} {PROGRAM_DIR}\nENV PATH={PROGRAM_DIR}/bin:$PATH\n"

Object = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """Seconds from a trial's creation until its pod is gone, one value per round."""

    mounted: Sequence[float]
    preinstalled: Sequence[float]

    @property
    def added(self) -> float:
        """Return the seconds that the mount adds to the median trial."""
        return median(self.mounted) - median(self.preinstalled)


async def measure(client: WatchingClient, namespace: str) -> Found:
    """Build the images, then run one trial with and one without the mount in each round."""
    program = await _image("agent", "build", AGENT)
    with tempfile.TemporaryDirectory() as made:
        task = await _image("build", str(_task(Path(made) / "with-program", program)))
    await client.create(_secret(namespace))
    mounted, preinstalled = list[float](), list[float]()
    async with servers.model(servers.node()) as model:
        for _ in range(ROUNDS):
            for seconds, how in ((mounted, {"image": program}), (preinstalled, {"preinstalled": True})):
                seconds.append(await time_trials(client, namespace, _trial(model.url, task, how), 1))
                await remove_trials(client, namespace)
    return Found(mounted, preinstalled)


async def _image(*command: str) -> str:
    """Run a `multistep` command that builds an image, and return the image's name."""
    code, printed, err = await multistep(*command)
    if code:
        raise RuntimeError(f"multistep {' '.join(command)} failed: {err}")
    return printed.strip()


def _task(directory: Path, program: str) -> Path:
    """Write a task whose image contains the agent's program."""
    (directory / "environment").mkdir(parents=True)
    (directory / "environment" / "Dockerfile").write_text(_DOCKERFILE.format(program))
    (directory / "task.toml").write_text("[task]\nname = 'bench/with-program'\n")
    (directory / "instruction.md").write_text(_STEP.instruction)
    (directory / "tests").mkdir()
    (directory / "tests" / "test.sh").write_text("exit 0\n")
    return directory


def _trial(model_url: str, image: str, how: Mapping[str, Any]) -> Object:
    reference = {"secretKeyRef": {"name": _SECRET, "key": "key"}}
    key = {"name": "ANTHROPIC_API_KEY", "valueFrom": reference}
    agent = {"name": AGENT, "model": "anthropic/claude-sonnet-4-5", "baseURL": model_url, "credentials": [key], **how}
    return trial(_STEP, agent=agent, environment={"image": image})


def _secret(namespace: str) -> Object:
    key = {"key": base64.b64encode(b"key-of-the-bench").decode()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET, "namespace": namespace}, "data": key}


def table(found: Found) -> Table:
    """Return a table with one row."""
    made = Table("mounted s", "preinstalled s", title=f"trial of one step with {AGENT}, median (least to most)")
    made.add_row(spread(found.mounted, 2), spread(found.preinstalled, 2))
    return made


def judgement(found: Found) -> str:
    """Return the line of the limit. A slow run does not fail the bench, because times depend on the machine."""
    words = f"a mounted program adds {found.added:.2f} s to a trial of one step, at most {MAX_ADDED_SECONDS:g}"
    return line(found.added <= MAX_ADDED_SECONDS, words)
