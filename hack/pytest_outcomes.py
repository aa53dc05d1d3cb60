"""A pytest plugin that writes the outcome of each phase of each test to the file that --outcomes names, as lines of JSON.

A line has the phase's duration and its CPU time in seconds. The CPU time is that of the test's process and of the processes that it
waited for. In the workers of pytest-xdist, the plugin only measures. Their reports bring the figures to the main process.
"""

import json
import resource
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_CPU = "CPU seconds"  # property of a report
_measured = 0.0  # CPU seconds of this process when the last phase ended


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", metavar="FILE", default="", help="write the outcome of each test to FILE, as lines of JSON")


def pytest_configure(config: pytest.Config) -> None:
    """Register the writer in the main process, but not in pytest-xdist's workers, whose reports the main process receives."""
    file = config.getoption("--outcomes")
    if file and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Path(file)))


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def pytest_runtest_logstart() -> None:
    global _measured
    _measured = _cpu_seconds()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the phase's CPU seconds to the properties of its report, which pytest-xdist sends to the main process, too."""
    global _measured
    report = yield
    now = _cpu_seconds()
    report.user_properties.append((_CPU, now - _measured))
    _measured = now
    return report


class _Writer:
    def __init__(self, file: Path) -> None:
        self._file = file
        file.touch()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        outcome = "skipped" if report.skipped or hasattr(report, "wasxfail") else report.outcome
        self._write(report, report.when, outcome, report.duration, _cpu(report))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed or report.skipped:
            self._write(report, "collect", report.outcome, 0.0, 0.0)

    def _write(
        self, report: pytest.TestReport | pytest.CollectReport, phase: str, outcome: str, seconds: float, cpu: float
    ) -> None:
        line = {"test": report.nodeid, "phase": phase, "outcome": outcome, "seconds": seconds, "cpu": round(cpu, 4)}
        if outcome != "passed":
            captured = [f"---- {title}\n{text}" for title, text in report.sections]
            line["output"] = "\n".join([report.longreprtext, *captured])
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _cpu(report: pytest.TestReport) -> float:
    return sum(value for name, value in report.user_properties if name == _CPU and isinstance(value, float))
