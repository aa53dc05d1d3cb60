"""A pytest plugin that fails a run with skipped, xfailed or xpassed tests."""

import pytest

_NOT_RUN = ("skipped", "xfailed", "xpassed")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the session if a test was skipped, xfailed or xpassed."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and any(reporter.stats.get(outcome) for outcome in _NOT_RUN) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
