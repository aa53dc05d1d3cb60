"""A pytest plugin: a run in which a test was skipped, or was expected to fail, has failed."""

import pytest

_NOT_RUN = ("skipped", "xfailed", "xpassed")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Runs before pytest writes its summary, which stays the last thing on the screen."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and any(reporter.stats.get(outcome) for outcome in _NOT_RUN) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
