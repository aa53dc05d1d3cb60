"""Claude Code's stream-json becomes text; all other output stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as each_of
from hypothesis import strategies as st

from multistep.report.stream_json import MAX_BYTES, readable_line


def line(type_: str, **fields: Any) -> bytes:
    return json.dumps({"type": type_, **fields}, separators=(",", ":")).encode() + b"\n"


def said(*parts: Any, type_: str = "assistant") -> bytes:
    return line(type_, message={"role": type_, "content": [*parts]}, session_id="s")


BASH = {"type": "tool_use", "id": "t", "name": "Bash", "input": {"command": "ls\npwd", "description": "List"}}
READ = {"type": "tool_use", "id": "t", "name": "Read", "input": {"file_path": "/é"}}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (line("system", subtype="init", cwd="/app", model="claude-x", tools=["Bash"]), "[model claude-x]\n"),
        (said({"type": "text", "text": "I look.\n"}, BASH), "I look.\n$ ls\npwd\n"),
        (said({"type": "thinking", "thinking": "hm", "signature": "x"}, READ), '[thinking] hm\n[Read] {"file_path": "/é"}\n'),
        (said({"type": "tool_result", "content": "a\nb\n", "is_error": False}, type_="user"), "a\nb\n"),
        (said({"type": "tool_result", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}, type_="user"), "a\n"),
        (said({"type": "tool_result", "content": ""}, type_="user"), ""),
        (said({"type": "tool_result", "content": "x" * 2003}, type_="user"), f"{'x' * 2000}\n[... 3 more characters]\n"),
        (line("result", subtype="success", num_turns=3, total_cost_usd=0.12, result="I look."), "[success, 3 turns, $0.1200]\n"),
        (line("result", subtype="error_max_turns"), "[error_max_turns]\n"),
        (
            line("result", subtype="success", is_error=True, num_turns=1, total_cost_usd=0, result="API Error: 401 invalid key"),
            "[error, 1 turns, $0.0000]\nAPI Error: 401 invalid key\n",
        ),
        (line("result", subtype="error_during_execution", errors=["boom", {"a": 1}]), '[error_during_execution]\nboom\n{"a": 1}\n'),
        (line("system", subtype="status", session_id="s"), ""),
        (line("rate_limit_event", rate_limit_info={"status": "allowed"}, session_id="s"), ""),
        (line("stream_event", event={}, session_id="s"), ""),
    ],
)
def test_what_the_agent_does_is_text(given: bytes, text: str) -> None:
    assert readable_line(given).decode() == text


@pytest.mark.parametrize(
    "given",
    [
        b"plain\n",
        b'{"a": 1}\n',
        b'{"type":"object"}\n',
        b'{"type":"assistant","message":1}\n',
        b'{"type":"assistant","message":{"content":["x"]}}\n',
        b'{"type":"assistant",\n',
        b'{"type":"assistant","message":{"content":[]}}\n',
        said({"type": "image"}, {"type": "tool_result", "content": 1}, "x"),
        b'{"type":"result","subtype":1}\n',
        b'{"type":"result","subtype":"of another program","value":1}\n',
        b'{"type":"system","message":"disk full"}\n',
        line("system", subtype="api_retry", error="overloaded", session_id="s"),
        line("system", subtype="status", message="disk full"),
        line("rate_limit_event", rate_limit_info={"status": "rejected"}, session_id="s"),
        line("stream_event"),
        b'{"type":"a","b":' + b"[" * 100_000 + b"\n",
        said({"type": "text", "text": "x" * MAX_BYTES}),
        b'{"type":"result","subtype":"success","total_cost_usd":' + b"9" * 400 + b"}\n",
        b'{"type":"result","subtype":"success","num_turns":' + b"9" * 5000 + b"}\n",
    ],
    ids=range(19),
)
def test_other_lines_stay(given: bytes) -> None:
    assert readable_line(given) == given


TEXTS = st.sampled_from(["text", "thinking", "tool_use", "tool_result", "success", "init", "status"]) | st.text(max_size=5)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**400)])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with some of the fields, each of the usual or of any other value."""
    return st.fixed_dictionaries({}, optional={name: each | VALUES for name, each in fields.items()})


PART = objects(
    type=TEXTS, text=TEXTS, thinking=TEXTS, name=TEXTS, input=objects(command=TEXTS), content=st.lists(objects(text=TEXTS))
)
LINES = objects(
    subtype=TEXTS,
    session_id=TEXTS,
    model=TEXTS,
    message=objects(content=st.lists(PART | VALUES, max_size=3)),
    is_error=st.booleans(),
    result=TEXTS,
    errors=st.lists(TEXTS),
    num_turns=NUMBERS,
    total_cost_usd=NUMBERS,
    rate_limit_info=objects(status=TEXTS),
)
TYPES = st.sampled_from(["system", "assistant", "user", "result", "rate_limit_event", "stream_event", "x"])


@each_of(type_=TYPES, fields=LINES)
def test_every_line_that_an_agent_prints_comes_through(type_: str, fields: dict[str, Any]) -> None:
    readable_line(line(type_, **fields))
