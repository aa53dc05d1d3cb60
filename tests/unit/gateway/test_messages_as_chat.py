"""Messages requests as chat completions, and their answers as messages, as vLLM converts them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multistep.gateway.model_api.messages_as_chat import MessagesStream, document_of, to_chat
from tests.unit.gateway.world import documents

HEAD = {"id": "chatcmpl-1", "model": "m", "created": 1}
USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


def call(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **({"name": more.pop("name")} if "name" in more else {})}
    return {"index": index, "function": function, **more}


def chunk(finish: str | None = None, stop: Any = None, **delta: Any) -> bytes:
    return json.dumps({**HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": finish, "stop_reason": stop}]}).encode()


END = (json.dumps({**HEAD, "choices": [], "usage": USAGE}).encode(), b"[DONE]")


def test_a_conversation_with_tools() -> None:
    asked = {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: 1"}, {"type": "text", "text": "be brief"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": ""}, {"type": "tool_use", "id": "1", "name": "t", "input": {"x": 1}}],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "out"}]}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "2"}, {"type": "text", "text": "go on"}]},
        ],
        "tools": [{"name": "t", "input_schema": {"properties": {}}}],
        "tool_choice": {"type": "tool", "name": "t", "disable_parallel_tool_use": True},
        "stop_sequences": ["x"],
        "temperature": 0.5,
        "stream": True,
    }
    assert to_chat(asked) == {
        "model": "m",
        "max_completion_tokens": 5,
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "t", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "out"},
            {"role": "tool", "tool_call_id": "2", "content": ""},
            {"role": "user", "content": "go on"},
        ],
        "tools": [{"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}],
        "tool_choice": {"type": "function", "function": {"name": "t"}},
        "parallel_tool_calls": False,
        "stop": ["x"],
        "temperature": 0.5,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


@pytest.mark.parametrize(
    ("chunks", "blocks", "end"),
    [
        ([chunk(content="a"), chunk(content="b"), chunk("length")], [("text", "ab")], ("max_tokens", None)),
        ([chunk(content="a"), chunk("stop", "END")], [("text", "a")], ("stop_sequence", "END")),
        (
            [
                chunk(content="a"),
                chunk(tool_calls=[call(0, "", id="c1", name="t")]),
                chunk(content="late", tool_calls=[call(0, "{}")]),
                chunk(tool_calls=[call(1, '{"x"', id="c2", name="u")]),
                chunk("tool_calls", tool_calls=[call(1, ":1}")]),
            ],
            [("text", "a"), ("t", "{}"), ("text", "late"), ("u", '{"x":1}')],
            ("tool_use", None),
        ),
        ([chunk(tool_calls=[call(0, "{", id="c1", name="t")]), chunk("stop")], [("t", "{")], ("tool_use", None)),
        ([chunk("stop")], [], ("end_turn", None)),
    ],
)
def test_streams(chunks: list[bytes], blocks: list[tuple[str, str]], end: tuple[str, str | None]) -> None:
    stream = MessagesStream()
    found = documents(b"".join(map(stream.feed, [chunk(role="assistant", content=""), *chunks, *END])))
    names = {each["index"]: each["content_block"].get("name", "text") for each in found if each["type"] == "content_block_start"}
    contents = dict.fromkeys(names, "")
    for each in found:
        if each["type"] == "content_block_delta":
            contents[each["index"]] += each["delta"].get("text", "") + each["delta"].get("partial_json", "")
    assert [(names[index], contents[index]) for index in names] == blocks
    assert sum(each["type"] == "content_block_stop" for each in found) == len(blocks)
    assert found[-2]["delta"] == {"stop_reason": end[0], "stop_sequence": end[1]}
    assert found[-2]["usage"] == {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4}


def test_what_is_no_answer_passes_unchanged() -> None:
    for body in (b"<html>", b"[]", b'{"choices":[]}', b"[" * 9999):
        assert document_of(body) == body
        assert b"error" not in MessagesStream().feed(body)


def test_an_error_in_a_stream() -> None:
    assert documents(MessagesStream().feed(b'{"error":{"type":"Internal","message":"m","code":500}}')) == [
        {"type": "error", "error": {"type": "Internal", "message": "m"}}
    ]
