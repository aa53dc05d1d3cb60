"""Setup for all tests.

Tests run on the production event loop; Hypothesis generates the same examples each time; a test fails if asyncio or kopf only
logs an exception; the summary counts the points at which the crash tests killed the operator (tests/support/crash_counts.py).
"""

import asyncio
import gc
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop
from hypothesis import settings

from tests.support.crash_counts import crash_summary, crashes

# Each run searches little, and `make test-long` (--hypothesis-profile=wide) much more.
settings.register_profile("fixed", derandomize=True, database=None, deadline=None, max_examples=30)
settings.register_profile("wide", parent=settings.get_profile("fixed"), max_examples=200)
settings.load_profile("fixed")

SWALLOWING = ("asyncio", "kopf")  # loggers of libraries that catch and log exceptions of our callbacks and handlers


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class _Errors(logging.Handler):
    """A logging handler that collects all records of level ERROR or higher."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture(autouse=True)
def no_swallowed_exceptions() -> Iterator[list[logging.LogRecord]]:
    """Fail the test if a callback of the event loop, a task that nobody awaited or a kopf handler raised an exception.

    A test that causes such an exception on purpose checks the records and clears the list.
    """
    errors = _Errors()
    for name in SWALLOWING:
        logging.getLogger(name).addHandler(errors)
    yield errors.records
    for name in SWALLOWING:
        logging.getLogger(name).removeHandler(errors)
    reported = [logging.Formatter("%(name)s: %(message)s").format(each) for each in errors.records]
    assert not reported, "swallowed exceptions:\n" + "\n".join(reported)


def pytest_collection_finish() -> None:
    """Keep modules and tests out of garbage collections, which took a tenth of the tests' time. The operator does so, too."""
    gc.collect()
    gc.freeze()


_COUNTS = "crash_counts"  # key of the counts that each pytest-xdist worker sends to the controller


def pytest_sessionfinish(session: pytest.Session) -> None:
    sent = getattr(session.config, "workeroutput", None)
    if sent is not None:
        sent[_COUNTS] = dict(crashes)


class _FromWorkers:
    """A pytest plugin that adds the workers' crash counts to those of this process."""

    def pytest_testnodedown(self, node: object) -> None:
        crashes.update(Counter(getattr(node, "workeroutput", {}).get(_COUNTS, {})))


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.has_plugin("xdist"):
        config.pluginmanager.register(_FromWorkers())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if text := crash_summary():
        terminalreporter.write_line(text)
