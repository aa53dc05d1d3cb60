"""A pytest plugin that measures coverage only while tests below the directories of --core run, because measuring slows tests
down."""

from collections.abc import Sequence

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", metavar="DIRECTORY", action="append", default=[], help="measure coverage of tests below it only")


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    core = [config.rootpath / directory for directory in config.getoption("--core")]
    for item in items:
        if not any(item.path.is_relative_to(each) for each in core):
            item.add_marker("no_cover")
