"""For all tests: what was enumerated is told at the end."""

import pytest

from tests.support.tally import crash_summary


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if text := crash_summary():
        terminalreporter.write_line(text)
