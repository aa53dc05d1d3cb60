"""Fixtures: a fake runner of an environment in this process, and Harbor's environment object that uses it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm reads this variable at import

from multistep_host.environment import GuestEnvironment
from runner import Runner

settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=30)
settings.load_profile("fixed")


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    """Return a running fake of the environment's runner, which accepts sessions of the agent host."""
    async with Runner().serving() as serving:
        yield serving


@pytest.fixture
async def environment(runner: Runner, tmp_path: Path) -> GuestEnvironment:
    """Return an environment whose commands and transfers the fake runner accepts."""
    found = GuestEnvironment("trial", tmp_path / "trial", workdir=None)
    found.guest.admit(runner.admission)
    return found
