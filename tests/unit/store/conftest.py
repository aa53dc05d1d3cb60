"""Provide a results volume for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from multistep.store.results_volume import ResultsVolume


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[ResultsVolume]:
    volume = ResultsVolume(tmp_path / "results", 2)
    yield volume
    volume.close()
