"""A pytest plugin whose option --third=1, 2 or 3 selects one third of the long tests."""

import pytest

from hack import thirds


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--third", type=int, choices=thirds.ALL, help="run only this third of the tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if third := config.getoption("--third"):
        others = [item for item in items if thirds.third_of(item.nodeid) != third]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if thirds.third_of(item.nodeid) == third]
