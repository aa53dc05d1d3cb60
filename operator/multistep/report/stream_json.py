"""Converts a line of Claude Code's output (stream-json) to text that people read. No IO; the lines are untrusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

START: Final = b'{"type":"'
"""How each such line starts."""
MAX_BYTES: Final = 1 << 20  # maximum length of a line to convert; a longer line is printed unchanged
_MAX_RESULT: Final = 2000  # maximum number of characters to print of a tool's result or input
_SILENT: Final = ("status", "compact_boundary", "hook_started", "hook_progress", "task_started", "task_progress")
"""Subtypes of lines of the type ``system`` that are not printed, as they have nothing for people."""


def output_lines(data: bytes) -> list[bytes]:
    """Return the lines of an output with their ends; the last one may have none."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def readable_line(line: bytes) -> bytes:
    """Return a line of stream-json as text; b"" if it has nothing for people. Return another line unchanged."""
    if not line.startswith(START) or len(line) > MAX_BYTES:
        return line
    try:
        texts = _said(json.loads(line))
        return line if texts is None else _lines(texts)
    except (ValueError, OverflowError, RecursionError):  # e.g. a number with 400 digits
        return line


def _said(document: Any) -> list[str] | None:
    """Return the texts of a line; [] if it has nothing for people; None if it is no known line of stream-json."""
    match document:
        case {"type": "system", "subtype": "init", "model": str(model)}:
            return [f"[model {model}]"]
        case {"type": "assistant" | "user", "message": {"content": list(parts)}}:
            said = [_part(part) for part in parts]
            return None if all(texts is None for texts in said) else [text for texts in said for text in texts or ()]
        case {"type": "result", "subtype": str(subtype)} if subtype == "success" or subtype.startswith("error"):
            return _result(subtype, document)
        case {"type": "system", "subtype": subtype, "session_id": str()} if subtype in _SILENT:
            return []
        case {"type": "rate_limit_event", "rate_limit_info": {"status": str(status)}, "session_id": str()} if status != "rejected":
            return []
        case {"type": "stream_event", "session_id": str()}:
            return []
    return None


def _result(subtype: str, result: Mapping[str, Any]) -> list[str]:
    """Return the texts at the end of a session: its figures, and its errors. The result itself is the last message before."""
    turns, cost = result.get("num_turns"), result.get("total_cost_usd")
    failed, errors = result.get("is_error") is True, result.get("errors") or []
    figures = f"{f', {turns} turns' if isinstance(turns, int) else ''}{f', ${cost:.4f}' if isinstance(cost, (int, float)) else ''}"
    why = [*([result.get("result")] if failed else []), *(errors if isinstance(errors, list) else [errors])]
    texts = [
        _short(reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False))
        for reason in why
        if reason is not None
    ]
    return [f"[{'error' if failed and subtype == 'success' else subtype}{figures}]", *texts]


def _part(part: Any) -> list[str] | None:
    """Return the texts of a part of a message; None if it is of no known type."""
    match part:
        case {"type": "text", "text": str(text)}:
            return [text]
        case {"type": "thinking", "thinking": str(text)}:
            return [f"[thinking] {text}"]
        case {"type": "tool_use", "name": str(name), "input": Mapping() as given}:
            command = given.get("command")
            return [f"$ {command}" if isinstance(command, str) else f"[{name}] {_short(json.dumps(given, ensure_ascii=False))}"]
        case {"type": "tool_result", "content": str() | list() as content}:
            return [_short(piece) for piece in _texts(content) if piece.strip()]
    return None


def _texts(content: str | list[Any]) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    else:
        yield from (text for part in content if isinstance(part, Mapping) and isinstance(text := part.get("text"), str))


def _short(text: str) -> str:
    left_out = len(text) - _MAX_RESULT
    return text if left_out <= 0 else f"{text[:_MAX_RESULT]}\n[... {left_out} more characters]"


def _lines(texts: list[str]) -> bytes:
    return "".join(f"{text.rstrip()}\n" for text in texts).encode(errors="backslashreplace")
