"""Run the short form of `make chaos`: inject every kind of fault while a few trials run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.course import Options, run

pytestmark = [pytest.mark.alone, pytest.mark.long]


async def test_trials_survive_everything_at_once(tmp_path: Path) -> None:
    outcome = await run(Options(trials=8, seconds=150, seed=1, out=tmp_path))
    print(outcome.summary())
    assert not outcome.wrong, outcome.summary()
