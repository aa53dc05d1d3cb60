"""For all tests: generated examples are the same each time, and what was enumerated is told at the end."""

import pytest
from hypothesis import settings

from tests.support.tally import crash_summary

settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
settings.load_profile("fixed")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if text := crash_summary():
        terminalreporter.write_line(text)
