from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.trial.runner_records import Capture, Fault, HealthcheckResult, Hello, PhaseResult, Record
from multistep.errors import RunnerError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
RECORD = {"id": "1/a/agent", "op": "start", "state": "done", "startedAt": 1, "endedAt": 2.5, "acknowledged": False}
PHASE = {
    "exitCode": None,
    "signal": 9,
    "timedOut": True,
    "error": None,
    "tail": "bye",
    "outputBytes": 3,
    "outputTruncated": False,
    "oomKills": None,
    "memoryLimit": 2**26,
    "durationSeconds": 1,
    "captures": {"/r": {"base64": base64.b64encode(b"0.5").decode(), "size": 3, "truncated": False}, "/none": None},
}
HELLO = {
    "ok": True,
    "protocol": 1,
    "version": "1",
    "instance": "f00",
    "podUID": "u",
    "user": {"uid": 0, "gid": 0, "name": "", "home": "/"},
    "workdir": "/app",
    "runtimeDir": "/run/multistep",
    "startedAt": 1.5,
    "records": [],
}


def test_a_record_is_read() -> None:
    record = Record.from_json({**RECORD, "result": PHASE})
    assert (record.id, record.op, record.done, record.started_at, record.ended_at) == ("1/a/agent", "start", True, 1, 2.5)


def test_a_running_record_has_no_result() -> None:
    record = Record.from_json({**RECORD, "state": "running", "endedAt": None, "result": None})
    assert not record.done
    assert record.result is None


def test_the_result_of_a_phase_is_read() -> None:
    result = PhaseResult.from_record(Record.from_json({**RECORD, "result": PHASE}))
    assert (result.exit_code, result.signal, result.timed_out) == (None, 9, True)
    assert (result.oom_kills, result.memory_limit) == (None, 2**26)
    assert result.captures == {"/r": Capture(b"0.5", 3, truncated=False), "/none": None}


def test_a_runner_that_does_not_report_the_memory_limit_yet_is_understood() -> None:
    reported = {name: value for name, value in PHASE.items() if name != "memoryLimit"}
    assert PhaseResult.from_record(Record.from_json({**RECORD, "result": reported})).memory_limit is None


def test_a_phase_that_could_not_be_started_reports_why() -> None:
    reported = {**PHASE, "error": {"code": "NoSuchUser", "message": "no bob"}}
    result = PhaseResult.from_record(Record.from_json({**RECORD, "result": reported}))
    assert result.error == Fault("NoSuchUser", "no bob")


def test_the_result_of_a_healthcheck_is_read() -> None:
    reported = {**PHASE, "healthy": False, "attempts": 3}
    result = HealthcheckResult.from_record(Record.from_json({**RECORD, "op": "healthcheck", "result": reported}))
    assert (result.healthy, result.attempts) == (False, 3)


def test_the_records_of_the_longest_task_are_no_violation() -> None:
    records = [{**RECORD, "id": f"1/{step}/{operation}", "result": {}} for step in range(1000) for operation in range(20)]
    assert len(Hello.from_json({**HELLO, "records": records}).records) == 20_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 5},
        {"id": "x" * 2000},
        {"op": "format-disk"},
        {"state": "paused"},
        {"startedAt": "yesterday"},
        {"startedAt": True},
        {"startedAt": 1e300},
        {"endedAt": []},
        {"acknowledged": 1},
        {"result": []},
        {"result": None},
    ],
    ids=str,
)
def test_a_wrong_field_of_a_record_is_a_protocol_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunnerError) as caught:
        Record.from_json({**RECORD, "result": PHASE, **wrong})
    assert caught.value.code == "Protocol"


@pytest.mark.parametrize(
    "wrong",
    [
        {"exitCode": 1.5},
        {"exitCode": 2**60},
        {"tail": None},
        {"tail": "x" * 70_000},
        {"captures": {"/r": {"base64": "!", "size": 1, "truncated": False}}},
        {"captures": {"/r": 5}},
        {"error": "boom"},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_wrong_field_of_a_result_is_a_protocol_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(RunnerError) as caught:
        PhaseResult.from_record(Record.from_json({**RECORD, "result": {**PHASE, **wrong}}))
    assert caught.value.code == "Protocol"


@pytest.mark.parametrize("field", ["workdir", "runtimeDir"])
@pytest.mark.parametrize("wrong", ["app", "", "../app", "/app\0", "/" + "x" * 5000], ids=lambda wrong: repr(wrong)[:20])
def test_a_directory_that_is_no_absolute_path_is_the_runners_error_and_not_the_tasks(field: str, wrong: str) -> None:
    with pytest.raises(RunnerError, match=f"hello: {field} is not") as caught:
        Hello.from_json({**HELLO, field: wrong})
    assert caught.value.code == "Protocol"


@given(value=JSON, at=st.sampled_from([*HELLO, *RECORD, "result"]))
def test_no_json_at_all_makes_anything_but_a_protocol_error(value: object, at: str) -> None:
    for read in (
        lambda: Record.from_json(value),
        lambda: Hello.from_json({**HELLO, at: value}),
        lambda: PhaseResult.from_record(Record.from_json({**RECORD, "result": PHASE, at: value})),
        lambda: HealthcheckResult.from_record(Record.from_json({**RECORD, "result": {**PHASE, at: value}})),
    ):
        try:
            read()
        except RunnerError as error:
            assert error.code == "Protocol"
            assert len(str(error)) <= 1000
