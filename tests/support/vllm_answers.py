"""Chat completions as vLLM writes them, with token ids and log-probabilities if they are asked for.

A token stands for up to four characters. A prompt that repeats the former prompt and its answer extends both. If a message has
NO-IDS, the answer has no token ids.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ROLE_TOKENS = {"system": 1, "user": 2, "assistant": 3, "tool": 4}


def tokens_of(text: str) -> list[int]:
    """Return the token ids of a text."""
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    return [10 + int.from_bytes(hashlib.sha256(piece.encode()).digest()[:2], "big") for piece in pieces]


def prompt_of(asked: Mapping[str, Any]) -> list[int]:
    """Return the token ids of a request's prompt."""
    found = []
    for message in asked["messages"]:
        content = message.get("content") or "".join(call["function"]["arguments"] for call in message.get("tool_calls") or ())
        found += [ROLE_TOKENS[message["role"]], *tokens_of(content)]
    return [*found, ROLE_TOKENS["assistant"]]


def logprob_of(token: int) -> float:
    """Return the log-probability with which a token was sampled."""
    return -(token % 1000) / 1024


def vllm_chat(asked: Mapping[str, Any], model: str, text: str, tool: str | None) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """Return an answer as a document and as events. text: what the model says, or the arguments of ``tool``."""
    digest = hashlib.sha256(json.dumps([asked["messages"], asked.get("n")]).encode()).hexdigest()[:16]
    head = {"id": f"chatcmpl-{digest}", "object": "chat.completion", "created": 1_700_000_000, "model": model}
    count, ids = asked.get("n") or 1, tokens_of(text)
    limit = asked.get("max_tokens") or len(ids)
    finish = "length" if limit < len(ids) else "tool_calls" if tool else "stop"
    ids = ids[:limit]
    prompt = prompt_of(asked)
    usage = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + count * len(ids), "completion_tokens": count * len(ids)}
    function = {"name": tool, "arguments": text}
    message: dict[str, Any] = {"role": "assistant", "content": None if tool else text[: 4 * limit], "refusal": None}
    message["tool_calls"] = [{"id": f"call_{digest}", "type": "function", "function": function}] if tool else []
    choices = [
        {
            "index": index,
            "message": message,
            "logprobs": _logprobs(asked, ids),
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": _if_asked(asked, ids),
        }
        for index in range(count)
    ]
    more = {"system_fingerprint": "vllm-0.32", "usage": usage, "prompt_token_ids": _if_asked(asked, prompt)}
    document = {**head, "choices": choices, **more}
    chunks = _chunks({**head, "object": "chat.completion.chunk"}, asked, prompt, text[: 4 * limit], tool, finish, usage)
    return document, [*(("", json.dumps(chunk, separators=(",", ":"))) for chunk in chunks), ("", "[DONE]")]


def _if_asked(asked: Mapping[str, Any], ids: Sequence[int]) -> Sequence[int] | None:
    return ids if asked.get("return_token_ids") and "NO-IDS" not in str(asked["messages"]) else None


def _logprobs(asked: Mapping[str, Any], ids: Sequence[int]) -> Any:
    if not asked.get("logprobs"):
        return None
    return {"content": [{"token": str(token), "logprob": logprob_of(token), "bytes": [], "top_logprobs": []} for token in ids]}


def _chunks(
    head: dict[str, Any], asked: Mapping[str, Any], prompt: list[int], text: str, tool: str | None, finish: str, usage: Any
) -> Iterator[dict[str, Any]]:
    wants_usage = (asked.get("stream_options") or {}).get("include_usage")
    count = asked.get("n") or 1

    def chunk(index: int, delta: dict[str, Any], ids: Sequence[int] | None, end: str | None = None, **more: Any) -> dict[str, Any]:
        given = {"index": index, "delta": delta, "logprobs": None if ids is None else _logprobs(asked, ids), "finish_reason": end}
        return {**head, "choices": [{**given, "token_ids": None if ids is None else _if_asked(asked, ids)}], **more}

    for index in range(count):
        yield chunk(index, {"role": "assistant", "content": ""}, None, prompt_token_ids=_if_asked(asked, prompt))
    digest = head["id"].removeprefix("chatcmpl-")
    pieces = [text[start : start + 4] for start in range(0, len(text), 4)]
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        for index in range(count):
            delta: dict[str, Any] = {"content": piece}
            if tool:
                pending = pieces[number - 1] + piece if number % 2 else piece  # the tool parser holds every other token back
                called: dict[str, Any] = {"index": 0, "function": {"arguments": pending}}
                if number == 1:
                    called = {
                        "id": f"call_{digest}",
                        "type": "function",
                        "index": 0,
                        "function": {"name": tool, "arguments": pending},
                    }
                delta = {"tool_calls": [called]} if number % 2 or last else {}
            fingerprint = {} if wants_usage or not last or index < count - 1 else {"system_fingerprint": "vllm-0.32"}
            if last:
                yield chunk(index, delta, tokens_of(piece), finish, **fingerprint)
            elif delta or asked.get("return_token_ids"):
                yield chunk(index, delta, tokens_of(piece))
    if wants_usage:
        yield {**head, "choices": [], "system_fingerprint": "vllm-0.32", "usage": usage}
