"""Fixtures of the tests that fetch tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from multistep.sources.load.task_cache import TaskCache
from tests.support import servers


@pytest.fixture
def cache(tmp_path: Path) -> TaskCache:
    made = TaskCache(tmp_path / "cache", 1 << 30)
    made.open()
    return made


@pytest.fixture
def task(tmp_path: Path) -> Path:
    directory = tmp_path / "task"
    (directory / "tests").mkdir(parents=True)
    (directory / "task.toml").write_text('version = "1.0"\n')
    (directory / "tests/test.sh").write_text("#!/bin/sh\n")
    (directory / "tests/test.sh").chmod(0o755)
    (directory / "tests/link").symlink_to("test.sh")
    return directory


@pytest.fixture
async def git() -> AsyncIterator[servers.Server]:
    async with servers.git() as server:
        yield server
