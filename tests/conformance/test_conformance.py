"""Run the project's own cases once on the cluster that KUBECONFIG names; then check each result."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from .case import find_cases
from .report import brief, summary
from .run import DEFAULT_JOBS, Report, Settings, Verdict, run

if not os.environ.get("KUBECONFIG"):
    pytest.skip("needs a cluster with the operator in it: set KUBECONFIG", allow_module_level=True)

CASES = Path(__file__).parent / "cases"
CASE_SECONDS = 400
JOBS = int(os.environ.get("MULTISTEP_TEST_CASES", DEFAULT_JOBS))


def _write_line(config: pytest.Config) -> Callable[[str], None]:
    """Return a function that writes to the terminal at once, because a run of minutes without output seems to hang."""
    capture = config.pluginmanager.getplugin("capturemanager")
    terminal = config.pluginmanager.getplugin("terminalreporter")
    assert capture is not None and terminal is not None

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled():
            terminal.write_line(line)

    return write


@pytest.fixture(scope="session")
def reports(request: pytest.FixtureRequest) -> Mapping[str, Report]:
    """Run the selected cases (for example with -k) and return their reports by name."""
    items = (item for item in request.session.items if isinstance(item, pytest.Function) and item.function is test_case)
    chosen = [CASES / str(item.callspec.id) for item in items]
    write = _write_line(request.config)
    settings = Settings(jobs=JOBS, limit_seconds=CASE_SECONDS, say=write, reported=lambda report: write("\n".join(brief(report))))
    found = asyncio.run(run(chosen, settings))
    write("\n".join(summary(found)))
    return {report.name: report for report in found}


@pytest.mark.parametrize("case", find_cases(CASES), ids=lambda case: case.name)
def test_case(case: Path, reports: Mapping[str, Report]) -> None:
    report = reports[case.name]

    assert report.verdict is Verdict.AGREE, "\n".join(report.lines)
