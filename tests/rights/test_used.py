"""Check the audit logs after all end-to-end tests: each permission of the operator was used, and no request was denied."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.rights import Request, Right, granted, read_used, requested, write_used

ASKED_FOR_BY_THE_API_SERVER = Right("", "pods/exec", "create")  # audit logs show an exec as `get`: see tests/e2e/test_rights.py


@pytest.fixture(scope="module")
def requests() -> Sequence[Request]:
    """Return the operator's requests to all clusters since the tests started."""
    logs = [Path(each) for each in os.environ["MULTISTEP_TEST_LOGS"].split(os.pathsep)]
    return list(requested(logs, os.environ["MULTISTEP_TEST_SINCE"]))


@pytest.fixture(scope="module", autouse=True)
def used(requests: Sequence[Request]) -> set[Right]:
    """Return the rights that the operator has used since the tests started. In a third of the long tests, write them to the file
    MULTISTEP_TEST_USED, and add those that it used in the last runs of the other thirds, which are in the files beside it."""
    found = {each.right for each in requests if each.allowed}
    if file := os.environ.get("MULTISTEP_TEST_USED"):
        write_used(Path(file), found)
        found = found.union(*map(read_used, Path(file).parent.glob("*.json")))
    return found


@pytest.mark.long  # some rights are used by long tests only
def test_every_right_of_the_operator_was_used(used: set[Right]) -> None:
    unused = granted("helm") - used - {ASKED_FOR_BY_THE_API_SERVER}
    assert not unused, f"the chart grants what no end-to-end test made use of: {', '.join(sorted(map(str, unused)))}"


def test_nothing_was_refused_to_the_operator(requests: Sequence[Request]) -> None:
    refused = sorted({each.shown for each in requests if not each.allowed})
    assert not refused, "\n".join(refused)
