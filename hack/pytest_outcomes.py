"""A pytest plugin that writes the outcome of each phase of each test to the file that --outcomes names, as lines of JSON."""

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", default="", help="write the outcome of each test to FILE, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Register the writer in the main process, but not in pytest-xdist's workers, whose reports the main process receives."""
    file = config.getoption("--outcomes")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(file)))


class _Writer:
    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        not_run = report.skipped or hasattr(report, "wasxfail")
        self._write(report, report.when, "skipped" if not_run else report.outcome, report.duration)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed or report.skipped:
            self._write(report, "collect", report.outcome, 0.0)

    def _write(self, report: pytest.TestReport | pytest.CollectReport, phase: str, outcome: str, seconds: float) -> None:
        line = {"test": report.nodeid, "phase": phase, "outcome": outcome, "seconds": seconds}
        if outcome != "passed":
            captured = [f"---- {title}\n{text}" for title, text in report.sections]
            line["output"] = "\n".join([report.longreprtext, *captured])
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")
