"""Claude Code's stream-json becomes text; all other output stays as it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multistep.report.stream_json import MAX_BYTES, readable


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
        (line("system", subtype="status"), ""),
        (line("rate_limit_event"), ""),
    ],
)
def test_what_the_agent_does_is_text(given: bytes, text: str) -> None:
    assert readable(given).decode() == text


@pytest.mark.parametrize(
    "given",
    [
        b"plain\n",
        b'{"a": 1}\n',
        b'{"type":"object"}\n',
        b'{"type":"assistant","message":1}\n',
        b'{"type":"assistant","message":{"content":["x"]}}\n',
        b'{"type":"assistant",\n',
        b'{"type":"result","subtype":1}\n',
        b'{"type":"a","b":' + b"[" * 100_000 + b"\n",
        said({"type": "text", "text": "x" * MAX_BYTES}),
    ],
    ids=range(9),
)
def test_other_lines_stay(given: bytes) -> None:
    assert readable(given) == given
