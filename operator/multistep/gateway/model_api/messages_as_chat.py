"""Requests of the messages API as chat completions, and answers to these as answers of the messages API.

No server gives token ids for the messages API, so a request whose tokens are recorded is sent as a chat completion. The conversion
is that of vLLM 0.32 itself, whose messages API sends the same prompt to the model and answers with the same events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

CHAT_PATH: Final = "/v1/chat/completions"
"""Path of chat completions after the base URL of the messages API."""
_BILLING: Final = "x-anthropic-billing-header"  # start of a block of claude-code's system prompt that differs in each request
_SAME_FIELDS: Final = ("temperature", "top_p", "top_k")
_TOOL_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_INVALID: Final = (KeyError, TypeError, AttributeError, ValueError, RecursionError)
_MAX_CALLS: Final = 1000  # of tools, in one answer
_MAX_CHARACTERS: Final = 16 << 20  # of the arguments of a call, and of text that waits for the end of a call
Document = Mapping[str, Any]


class NotConvertible(Exception):
    """A request has a part that the gateway cannot convert. The message is shown to the agent."""

    def __init__(self, message: str, *, malformed: bool = False) -> None:
        super().__init__(message)
        self.malformed = malformed
        """Whether the body is no request of the messages API."""
        self.model = ""
        """The requested model, or "" if it is not known yet."""


def to_chat(asked: Document) -> dict[str, Any]:
    """Return the chat completion request for a messages request. Raises NotConvertible."""
    try:
        return _chat(asked)
    except _INVALID as error:
        message = f"the body is no request of the messages API: {type(error).__name__}: {error}"
        raise NotConvertible(message[:300], malformed=True) from error


def _chat(asked: Document) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    if system := _system(asked.get("system")):
        messages.append({"role": "system", "content": system})
    for message in asked["messages"]:
        messages += _messages(message)
    chat: dict[str, Any] = {"model": asked["model"], "messages": messages, "max_completion_tokens": asked["max_tokens"]}
    chat |= {name: asked[name] for name in _SAME_FIELDS if asked.get(name) is not None}
    if asked.get("stop_sequences"):
        chat["stop"] = asked["stop_sequences"]
    if asked.get("stream"):
        chat |= {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    if asked.get("tools") is not None:
        chat["tools"] = [{"type": "function", "function": _tool(tool)} for tool in asked["tools"]]
        chat["tool_choice"] = "auto"
    if choice := asked.get("tool_choice"):
        named = {"type": "function", "function": {"name": choice.get("name")}}
        chat["tool_choice"] = _TOOL_CHOICES.get(choice["type"], named)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    return chat


def _system(system: Any) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    texts = [block["text"] for block in system if block["type"] == "text"]
    return "".join(text for text in texts if not text.startswith(_BILLING))


def _tool(tool: Document) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise NotConvertible(f"capture Tokens: the tool {str(tool.get('name'))[:100]!r} has no input_schema")
    function = {
        "name": tool["name"],
        "description": tool.get("description"),
        "parameters": tool["input_schema"] if "type" in tool["input_schema"] else {"type": "object", **tool["input_schema"]},
    }
    return {name: value for name, value in function.items() if value is not None}


def _messages(message: Document) -> list[dict[str, Any]]:
    """Return a message as messages of a chat: first the results of tools, then the rest."""
    if isinstance(message["content"], str):
        return [{"role": message["role"], "content": message["content"]}]
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for block in message["content"]:
        match block["type"]:
            case "text":
                parts += [{"type": "text", "text": block["text"]}] if block["text"] else []
            case "tool_use":
                function = {"name": block["name"], "arguments": json.dumps(block.get("input") or {})}
                calls.append({"id": block["id"], "type": "function", "function": function})
            case "tool_result":
                results.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": _result(block.get("content"))})
            case kind:
                raise NotConvertible(
                    f"capture Tokens: the gateway does not record messages with a block of type {str(kind)[:100]!r}"
                )
    rest: dict[str, Any] = {"role": message["role"]}
    if calls:
        rest["tool_calls"] = calls
    if parts:
        rest["content"] = parts[0]["text"] if len(parts) == 1 else parts
    return results if message["role"] == "user" and not parts else [*results, rest]


def _result(content: Any) -> str:
    if not content or isinstance(content, str):
        return content or ""
    if others := sorted({str(block["type"])[:100] for block in content} - {"text"}):
        raise NotConvertible(f"capture Tokens: the gateway does not record tool results with a block of type {others[0]!r}")
    return "\n".join(block["text"] for block in content)


def document_of(body: bytes) -> bytes:
    """Return the body of a messages answer, or of an error, for that of a whole chat completion. A body that is neither is returned
    unchanged."""
    try:
        chat = json.loads(body)
        return _text(_error(chat) if chat.get("error") else _answer(chat)).encode()
    except (*_INVALID, IndexError):
        return body


def _error(chat: Document) -> dict[str, Any]:
    return {"type": "error", "error": {"type": chat["error"].get("type"), "message": chat["error"].get("message")}}


def _answer(chat: Document) -> dict[str, Any]:
    choice = chat["choices"][0]
    calls = choice["message"].get("tool_calls") or []
    text = choice["message"].get("content")
    content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    for call in calls:
        block = {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": json.loads(call["function"]["arguments"]),
        }
        content.append({name: value for name, value in block.items() if value is not None})
    reason, sequence = _stop(choice["finish_reason"], choice.get("stop_reason"), used=bool(calls), complete=bool(calls))
    answer = {
        "id": chat["id"],
        "type": "message",
        "role": "assistant",
        "content": content or [{"type": "text", "text": ""}],
        "model": chat["model"],
        "stop_reason": reason,
        "stop_sequence": sequence,
        "usage": _usage(chat.get("usage")),
    }
    return {name: value for name, value in answer.items() if value is not None}


def _usage(usage: Document | None) -> dict[str, int]:
    usage = usage or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    counts = {"input_tokens": usage.get("prompt_tokens", 0) - (cached or 0), "output_tokens": usage.get("completion_tokens") or 0}
    return counts if cached is None else {**counts, "cache_read_input_tokens": cached}


def _stop(finish: str | None, sequence: Any, *, used: bool, complete: bool) -> tuple[str | None, str | None]:
    """Return stop_reason and stop_sequence. ``used`` tells whether a tool was called, ``complete`` whether the last call's
    arguments are valid JSON."""
    if finish == "length":
        return "max_tokens", None
    if finish not in ("stop", "tool_calls"):
        return None, None
    if complete:
        return "tool_use", None
    if isinstance(sequence, str):
        return "stop_sequence", sequence
    return "tool_use" if finish == "tool_calls" or used else "end_turn", None


class MessagesStream:
    """Converts the stream of a chat completion, chunk by chunk."""

    def __init__(self) -> None:
        self._started = False
        self._used = False  # whether a tool was called
        self._index = 0  # of the current content block
        self._block = ""  # type of the open content block, or ""
        self._call = ""  # id of the current call of a tool
        self._ids: dict[int, str] = {}  # of the calls, by their index in the chat
        self._arguments = ""  # of the current call
        self._late_text = ""  # text that arrived during a call
        self._finish: str | None = None
        self._sequence: Any = None

    def feed(self, data: bytes) -> bytes:
        """Return the events for the data of a chunk. Data that is no chunk has no events."""
        if data.strip() == b"[DONE]":
            return self._close_block() + _event({"type": "message_stop"})
        try:
            chunk = json.loads(data)
            return _event(_error(chunk)) if chunk.get("error") else self._chunk(chunk)
        except (*_INVALID, IndexError):
            return b""

    def _chunk(self, chunk: Document) -> bytes:
        if not self._started:
            self._started = True
            return _event({"type": "message_start", "message": _start(chunk)})
        if not chunk["choices"]:
            return self._end(chunk)
        choice = chunk["choices"][0]
        if choice["finish_reason"] is not None:
            self._finish, self._sequence = choice["finish_reason"], choice.get("stop_reason")
        calls = choice["delta"].get("tool_calls") or ()
        return self._text(choice["delta"].get("content")) + b"".join(map(self._tool, calls))

    def _end(self, chunk: Document) -> bytes:
        events, complete = self._close_block(), self._used and _is_json(self._arguments)
        reason, sequence = _stop(self._finish or "stop", self._sequence, used=self._used, complete=complete)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return events + _event({"type": "message_delta", "delta": delta, "usage": _usage(chunk.get("usage"))})

    def _text(self, text: str | None) -> bytes:
        if not text:
            return b""
        if self._block == "tool_use":
            self._late_text += text[: _MAX_CHARACTERS - len(self._late_text)]
            return b""
        events = b"" if self._block == "text" else self._close_block() + self._open_block({"type": "text", "text": ""})
        return events + self._delta({"type": "text_delta", "text": text})

    def _tool(self, call: Document) -> bytes:
        events, function = b"", call.get("function") or {}
        if call.get("id") is not None and len(self._ids) < _MAX_CALLS:
            self._ids[call["index"]] = call["id"]
            if self._call != call["id"] and function.get("name") is not None:
                events = self._close_block()
                self._used, self._arguments = True, ""
                events += self._open_block({"type": "tool_use", "id": call["id"], "name": function["name"], "input": {}})
                self._call = call["id"]
        if function.get("arguments") and len(self._arguments) < _MAX_CHARACTERS and self._ids.get(call["index"]) == self._call:
            self._arguments += function["arguments"]
            events += self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})
        return events

    def _open_block(self, block: Document) -> bytes:
        self._block = block["type"]
        return _event({"type": "content_block_start", "content_block": block, "index": self._index})

    def _delta(self, delta: Document) -> bytes:
        return _event({"type": "content_block_delta", "delta": delta, "index": self._index})

    def _close_block(self) -> bytes:
        """End the open block, and send the text that arrived during a call."""
        if not self._block:
            return b""
        events = _event({"type": "content_block_stop", "index": self._index})
        text, self._late_text = self._late_text, ""
        self._index, self._block, self._call = self._index + 1, "", ""
        if text:
            events += self._open_block({"type": "text", "text": ""}) + self._delta({"type": "text_delta", "text": text})
            events += self._close_block()
        return events


def _start(chunk: Document) -> dict[str, Any]:
    return {
        "id": chunk["id"],
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": chunk["model"],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(chunk.get("usage")),
    }


def _text(document: Document) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _event(document: Document) -> bytes:
    return f"event: {document['type']}\ndata: {_text(document)}\n\n".encode()


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
