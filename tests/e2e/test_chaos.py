"""The short form of `make chaos`: every kind of blow, over a few trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.course import Options, run

pytestmark = [pytest.mark.alone, pytest.mark.long, pytest.mark.timeout(1500)]  # storm and calm take their time


async def test_trials_survive_everything_at_once(tmp_path: Path) -> None:
    outcome = await run(Options(trials=8, seconds=150, seed=1, out=tmp_path))
    print(outcome.summary())
    assert not outcome.wrong, outcome.summary()
