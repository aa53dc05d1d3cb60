"""A task on disk, a cluster in memory, and the command line on both."""

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
    """The command line runs on asyncio's own loop, which Ctrl-C interrupts in another way than uvloop."""
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Handle SIGINT as in a terminal. Whoever starts the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task of one step, in an image that exists."""
    directory = tmp_path / "my-task"
    for path, text in {
        "task.toml": TASK_TOML,
        "steps/a/instruction.md": "do it",
        "steps/a/tests/test.sh": "#!/bin/sh\n",
        "steps/a/solution/solve.sh": "#!/bin/sh\n",
    }.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    return directory


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> CliCluster:
    """Tells of a trial that goes well."""
    fake = CliCluster(story=[GOOD])
    monkeypatch.setattr(cluster_module, "connect", fake.connect)
    return fake


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Invoke:
    """Runs a command line, in an environment without kubeconfig, runner and engines."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no-kubeconfig"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("multistep.cli.images.find_runner", lambda: None)
    monkeypatch.setattr("multistep.cli.images.source_checkout", lambda: None)

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(cli, [str(each) for each in arguments])

    return run
