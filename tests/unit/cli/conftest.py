"""Fixtures for tests of the CLI: a task on disk, an in-memory cluster, and a function that invokes the command line."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from multistep.cli import cluster as cluster_module
from multistep.cli.main import cli

from .fakes import GOOD, CliCluster

Invoke = Callable[..., Result]

TASK_TOML = """
[task]
name = "org/My_Task"
[environment]
docker_image = "registry.example/image:1"
[[steps]]
name = "a"
min_reward = 1.0
"""


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the tests on asyncio's default event loop, as the command line does: uvloop handles Ctrl-C differently."""
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Make SIGINT raise KeyboardInterrupt. A process that a shell started in the background would ignore SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """Return the directory of a task with one step and a prebuilt image."""
    directory = tmp_path / "my-task"
    for path, text in {
        "task.toml": TASK_TOML,
        "steps/a/instruction.md": "do it",
        "steps/a/tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
        "steps/a/solution/solve.sh": "#!/bin/sh\n",
    }.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return directory


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CliCluster:
    """Return an in-memory cluster whose watch reports a trial as passed; the commands connect to it."""
    fake = CliCluster(story=[GOOD])
    monkeypatch.setattr(cluster_module, "connect", fake.connect)
    return fake


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Return a function that runs a `multistep` command, which finds no kubeconfig, runner binary or container engine."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("multistep.cli.image.images.find_runner", lambda: None)
    monkeypatch.setattr("multistep.cli.image.images.source_checkout", lambda: None)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(cli, [str(each) for each in arguments])

    return run
