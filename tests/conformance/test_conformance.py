"""Run each of the project's own cases with the real operator and runner, without a cluster (tests.support.process_world)."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack import image
from tests.support.process_world import fresh

from .case import find_cases, read_case
from .images import Images
from .judging import Verdict, judged, read_cases
from .without_cluster import ground_at

CASES = Path(__file__).parent / "cases"
CASE_SECONDS = 400


@pytest.fixture(scope="session")
def images() -> Images:
    return Images(read_cases(find_cases(CASES))[0])


@pytest.mark.parametrize("case", find_cases(CASES), ids=lambda case: case.name)
async def test_case(case: Path, images: Images) -> None:
    with fresh() as directory:
        async with ground_at(directory, image.ensure_runner(), images, CASE_SECONDS) as ground:
            report = await judged(read_case(case), ground)

    assert report.verdict is Verdict.AGREE, "\n".join(report.lines)
