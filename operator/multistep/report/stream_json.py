"""Makes the lines in which Claude Code reports what it does (``--output-format stream-json``) readable. No IO.

The lines are untrusted, as all output of agents: the text is not escaped here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

START: Final = b'{"type":"'
"""How each such line starts."""
MAX_BYTES: Final = 1 << 20  # of a line; longer ones stay as they are
_MAX_RESULT: Final = 2000  # characters of a tool's result, and of a tool's input


def lines_of(data: bytes) -> list[bytes]:
    """Return the lines of an output with their ends; the last one may have none."""
    return re.findall(rb"[^\n]*\n|[^\n]+", data)


def readable(line: bytes) -> bytes:
    """Return a line as text; unchanged if it is no line of stream-json, "" if it says nothing to a reader. line: with its end."""
    if not line.startswith(START) or len(line) > MAX_BYTES:
        return line
    try:
        return _readable(line, json.loads(line))
    except (ValueError, OverflowError, RecursionError):  # e.g. a number with 400 digits
        return line


def _readable(line: bytes, document: Any) -> bytes:
    match document:
        case {"type": "system", "subtype": "init", "model": str(model)}:
            return _lines([f"[model {model}]"])
        case {"type": "assistant" | "user", "message": {"content": list(parts)}} if all(
            isinstance(each, Mapping) for each in parts
        ):
            return _lines(text for each in parts for text in _part(each))
        case {"type": "result", "subtype": str(subtype)}:
            return _lines([f"[{subtype}{_figures(document)}]"])
        case {"type": "system" | "rate_limit_event" | "stream_event"}:
            return b""
    return line


def _are_objects(parts: list[Any]) -> bool:
    return all(isinstance(each, Mapping) for each in parts)


def _part(part: Mapping[str, Any]) -> Iterator[str]:
    match part:
        case {"type": "text", "text": str(text)}:
            yield text
        case {"type": "thinking", "thinking": str(text)}:
            yield f"[thinking] {text}"
        case {"type": "tool_use", "name": str(name), "input": Mapping() as given}:
            command = given.get("command")
            yield f"$ {command}" if isinstance(command, str) else f"[{name}] {_short(json.dumps(given, ensure_ascii=False))}"
        case {"type": "tool_result", "content": content}:
            yield from (_short(each) for each in _texts(content) if each.strip())


def _texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, list):
        yield from (text for each in content if isinstance(each, Mapping) and isinstance(text := each.get("text"), str))


def _figures(result: Mapping[str, Any]) -> str:
    turns, cost = result.get("num_turns"), result.get("total_cost_usd")
    return f"{f', {turns} turns' if isinstance(turns, int) else ''}{f', ${cost:.4f}' if isinstance(cost, (int, float)) else ''}"


def _short(text: str) -> str:
    left_out = len(text) - _MAX_RESULT
    return text if left_out <= 0 else f"{text[:_MAX_RESULT]}\n[... {left_out} more characters]"


def _lines(texts: Iterator[str] | list[str]) -> bytes:
    return "".join(f"{each.rstrip()}\n" for each in texts).encode(errors="backslashreplace")
