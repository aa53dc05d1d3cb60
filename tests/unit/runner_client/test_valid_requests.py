"""The operator sends no request that the runner would refuse because of a value of the task or the spec."""

from __future__ import annotations

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from multistep.engine.journal.operations import Start
from multistep.errors import InvalidRequest, RunnerError
from multistep.runner_client.check_requests import MAX_STDIN_BYTES, require_valid
from multistep.runner_client.perform_operations import start_request
from tests.support.fake_runner import FakeRunner
from tests.unit.runner_client.session_cases import session

TABLE = Path(__file__).parents[3] / "runner/internal/wire/testdata/requests.json"  # the runner's test reads it, too
ROWS: list[dict[str, Any]] = json.loads(TABLE.read_text())


@pytest.mark.parametrize("row", ROWS, ids=[each["what"] for each in ROWS])
def test_operator_and_runner_agree_on_valid_requests(row: dict[str, Any]) -> None:
    with nullcontext() if row["valid"] else pytest.raises(InvalidRequest):
        require_valid(row["request"])


async def test_an_invalid_request_is_not_sent_and_names_what_is_wrong() -> None:
    runner = FakeRunner()
    async with session(runner) as used:
        await used.hello()
        with pytest.raises(InvalidRequest, match=r"'start' of '1/a/agent'.*the value of the variable 'KEY' has a NUL character"):
            await used.start({"id": "1/a/agent", "argv": ["true"], "env": {"KEY": "se\0cret"}})
    assert [each["op"] for each in runner.requests] == ["hello"]


async def test_an_error_does_not_contain_the_value_of_a_variable() -> None:
    with pytest.raises(InvalidRequest) as caught:
        require_valid({"op": "start", "id": "x", "argv": ["true"], "env": {"KEY": "se\0cret"}})
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize("stdin", ["x" * (MAX_STDIN_BYTES + 1), "é" * (MAX_STDIN_BYTES // 2 + 1)])
def test_an_instruction_that_the_runner_does_not_take_is_refused(stdin: str) -> None:
    with pytest.raises(InvalidRequest, match=r"use a shorter instruction\.md"):
        require_valid({"op": "start", "id": "x", "argv": ["true"], "stdin": stdin})


@pytest.mark.parametrize("value", [{"retries": math.inf}, {"env": {"A": "x" * (8 << 20)}}], ids=["infinity", "8 MiB"])
async def test_a_request_that_has_no_encoding_is_invalid(value: dict[str, Any]) -> None:
    async with session(FakeRunner()) as used:
        await used.hello()
        with pytest.raises(InvalidRequest):
            await used.healthcheck({"id": "x", "argv": ["true"], "intervalSeconds": math.inf, **value})


async def test_a_note_that_is_too_large_is_not_the_tasks_error() -> None:
    async with session(FakeRunner()) as used:
        await used.hello()
        with pytest.raises(RunnerError, match="cannot be sent"):
            await used.note("x", {"text": "x" * (8 << 20)})


@pytest.mark.parametrize(("seconds", "sent"), [(math.inf, None), (math.nan, None), (-math.inf, 0.0), (None, None), (2.5, 2.5)])
def test_a_timeout_that_never_ends_is_none(seconds: float | None, sent: float | None) -> None:
    assert start_request(Start("x", ("true",), timeout=seconds))["timeoutSeconds"] == sent
