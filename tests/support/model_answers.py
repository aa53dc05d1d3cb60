"""Build the fake model's answers in the four APIs, as documents and as events, from the request alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.support.model_script import Item, Turn, next_turn, plain_text, shell_arguments, shell_tool, text_of
from tests.support.vllm_answers import vllm_chat

Api = Literal["chat", "responses", "messages", "gemini"]
Asked = Mapping[str, Any]
_CREATED = 1_700_000_000


@dataclass(frozen=True)
class Tokens:
    """The token counts that the fake model charges. `input` includes `cached` and `written`."""

    input: int
    cached: int
    written: int
    output: int


@dataclass(frozen=True)
class Answer:
    """One answer. document: the response body if it is not streamed; events: (name or "", data) of each event if it is."""

    document: Mapping[str, Any]
    events: list[tuple[str, str]]
    tokens: Tokens


@dataclass(frozen=True)
class _Said:
    """The content of the model's answer: a text, or a call of a tool. id: the answer's id, a digest of the request."""

    text: str
    tool: str | None
    arguments: Mapping[str, Any]
    id: str
    tokens: Tokens
    custom: bool = False


def answer(api: Api, asked: Asked, model: str, body: bytes) -> Answer:
    """Return the answer to a request in this API."""
    parts = {"chat": _chat, "responses": _responses, "messages": _messages, "gemini": _gemini}
    items, tools = _CONVERSATIONS[api](asked)
    said = _said(next_turn(items), tools, body)
    return parts[api](said, model, asked)


def _said(turn: Turn, tools: Mapping[str, Any], body: bytes) -> _Said:
    digest = hashlib.sha256(body).hexdigest()
    name = shell_tool(list(tools)) if turn.kind == "run" else None
    if name is not None:
        arguments = shell_arguments(tools[name], turn.value)
        return _Said("", name, arguments, digest[:20], _tokens(body, json.dumps(arguments)))
    if turn.kind == "run" and "exec" in tools:
        return _Said("", "exec", {"cmd": turn.value}, digest[:20], _tokens(body, turn.value), custom=True)
    text = plain_text(turn, body.decode(errors="replace"))
    return _Said(text, None, {}, digest[:20], _tokens(body, text))


def _tokens(body: bytes, text: str) -> Tokens:
    size = len(body) // 4 + 1
    return Tokens(input=size, cached=size * 2 // 5, written=size // 10, output=len(text) // 4 + 1)


# -- the conversation so far, and the tools


def _of_chat(asked: Asked) -> tuple[list[Item], dict[str, Any]]:
    roles: dict[str, Any] = {"tool": "tool", "function": "tool", "assistant": "assistant"}
    items = [Item(roles.get(each.get("role"), "user"), text_of(each.get("content"))) for each in asked.get("messages", [])]
    tools = [each["function"] for each in asked.get("tools") or [] if each.get("type") == "function"]
    return items, {each["name"]: each.get("parameters") for each in tools}


def _of_responses(asked: Asked) -> tuple[list[Item], dict[str, Any]]:
    given = asked.get("input") or []
    items = [Item("user", given)] if isinstance(given, str) else [_response_item(each) for each in given]
    tools = {each["name"]: each.get("parameters") for each in asked.get("tools") or [] if each.get("type") == "function"}
    for each in asked.get("tools") or []:
        if each.get("type") == "local_shell" or (each.get("type") == "custom" and each.get("name") == "exec"):
            tools.setdefault(each.get("name", "local_shell"), None)
    return items, tools


def _response_item(item: Mapping[str, Any]) -> Item:
    kind = item.get("type", "message")
    if kind == "message":
        return Item("assistant" if item.get("role") == "assistant" else "user", text_of(item.get("content")))
    return Item("tool" if kind.endswith("_output") else "call")


def _of_messages(asked: Asked) -> tuple[list[Item], dict[str, Any]]:
    items: list[Item] = []
    for message in asked.get("messages", []):
        content = message.get("content")
        results = [each for each in content if each.get("type") == "tool_result"] if isinstance(content, list) else []
        role: Any = "assistant" if message.get("role") == "assistant" else "user"
        items += [Item("tool") for _ in results] or [Item(role, text_of(content))]
        others = [each for each in content if each.get("type") == "text"] if results and isinstance(content, list) else []
        items += [Item("user", text_of(others))] if others else []
    return items, {each["name"]: each.get("input_schema") for each in asked.get("tools") or [] if "name" in each}


def _of_gemini(asked: Asked) -> tuple[list[Item], dict[str, Any]]:
    items = []
    for content in asked.get("contents", []):
        for part in content.get("parts", []):
            if "functionResponse" in part:
                items.append(Item("tool"))
            elif "functionCall" in part:
                items.append(Item("call"))
            elif "text" in part:
                items.append(Item("assistant" if content.get("role") == "model" else "user", part["text"]))
    declared = [each for tool in asked.get("tools") or [] for each in tool.get("functionDeclarations") or []]
    return items, {each["name"]: each.get("parametersJsonSchema") or each.get("parameters") for each in declared}


_CONVERSATIONS = {"chat": _of_chat, "responses": _of_responses, "messages": _of_messages, "gemini": _of_gemini}


# -- OpenAI chat completions


def _chat(said: _Said, model: str, asked: Asked) -> Answer:
    if "vllm" in model:
        return _vllm(said, model, asked)
    usage = {
        "prompt_tokens": said.tokens.input,
        "completion_tokens": said.tokens.output,
        "total_tokens": said.tokens.input + said.tokens.output,
        "prompt_tokens_details": {"cached_tokens": said.tokens.cached},
    }
    base = {"id": f"chatcmpl-{said.id}", "created": _CREATED, "model": model}
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None}
    if said.tool:
        function = {"name": said.tool, "arguments": json.dumps(said.arguments)}
        message["tool_calls"] = [{"id": f"call_{said.id}", "type": "function", "function": function}]
    finish = "tool_calls" if said.tool else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    document = {**base, "object": "chat.completion", "choices": [choice], "usage": usage}
    delta = {**message, **({"tool_calls": [{"index": 0, **message["tool_calls"][0]}]} if said.tool else {})}
    chunk = {**base, "object": "chat.completion.chunk"}
    choices: list[list[dict[str, Any]]] = [[{"index": 0, "delta": delta, "finish_reason": None}]]
    choices.append([{"index": 0, "delta": {}, "finish_reason": finish}])
    wants_usage = (asked.get("stream_options") or {}).get("include_usage")
    chunks = [{**chunk, "choices": each, **({"usage": None} if wants_usage else {})} for each in choices]
    chunks += [{**chunk, "choices": [], "usage": usage}] if wants_usage else []
    return Answer(document, [*(("", json.dumps(each)) for each in chunks), ("", "[DONE]")], said.tokens)


def _vllm(said: _Said, model: str, asked: Asked) -> Answer:
    document, events = vllm_chat(asked, model, json.dumps(said.arguments) if said.tool else said.text, said.tool)
    usage = document["usage"]
    return Answer(document, events, Tokens(usage["prompt_tokens"], 0, 0, usage["completion_tokens"]))


# -- OpenAI responses


def _responses(said: _Said, model: str, _: Asked) -> Answer:
    usage = {
        "input_tokens": said.tokens.input,
        "input_tokens_details": {"cached_tokens": said.tokens.cached},
        "output_tokens": said.tokens.output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": said.tokens.input + said.tokens.output,
    }
    item = _response_output(said)
    document = {
        **{"id": f"resp_{said.id}", "object": "response", "created_at": _CREATED, "status": "completed", "model": model},
        **{"output": [item], "usage": usage, "parallel_tool_calls": False, "tool_choice": "auto", "tools": [], "error": None},
        **{"incomplete_details": None, "instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0},
    }
    events = [
        {"type": kind, "sequence_number": number, **rest}
        for number, (kind, rest) in enumerate(_response_events(said, item, document))
    ]
    return Answer(document, [(str(each["type"]), json.dumps(each)) for each in events], said.tokens)


def _response_output(said: _Said) -> dict[str, Any]:
    if said.tool and said.custom:  # codex expects JavaScript that calls its tools
        call = f"const r = await tools.exec_command({json.dumps(said.arguments)}); text(r.output ?? JSON.stringify(r));"
        head = {"type": "custom_tool_call", "id": f"ctc_{said.id}", "call_id": f"call_{said.id}", "name": "exec"}
        return {**head, "input": call, "status": "completed"}
    if said.tool:
        head = {"type": "function_call", "id": f"fc_{said.id}", "call_id": f"call_{said.id}", "name": said.tool}
        return {**head, "arguments": json.dumps(said.arguments), "status": "completed"}
    content = [{"type": "output_text", "text": said.text, "annotations": []}]
    return {"type": "message", "id": f"msg_{said.id}", "role": "assistant", "status": "completed", "content": content}


def _response_events(said: _Said, item: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": {**document, "status": "in_progress", "output": [], "usage": None}}
    open_item = {**item, "status": "in_progress", **({"content": []} if not said.tool else {})}
    yield "response.output_item.added", {"output_index": 0, "item": open_item}
    if not said.tool:
        at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
        empty = {"type": "output_text", "text": "", "annotations": []}
        yield "response.content_part.added", {**at, "part": empty}
        yield "response.output_text.delta", {**at, "delta": said.text}
        yield "response.output_text.done", {**at, "text": said.text}
        yield "response.content_part.done", {**at, "part": {**empty, "text": said.text}}
    yield "response.output_item.done", {"output_index": 0, "item": item}
    yield "response.completed", {"response": document}


# -- Anthropic messages


def _messages(said: _Said, model: str, _: Asked) -> Answer:
    tokens = said.tokens
    usage = {
        "input_tokens": tokens.input - tokens.cached - tokens.written,
        "cache_read_input_tokens": tokens.cached,
        "cache_creation_input_tokens": tokens.written,
        "output_tokens": tokens.output,
        "service_tier": "standard",
    }
    block: dict[str, Any] = {"type": "text", "text": said.text}
    if said.tool:
        block = {"type": "tool_use", "id": f"toolu_{said.id}", "name": said.tool, "input": said.arguments}
    stop = {"stop_reason": "tool_use" if said.tool else "end_turn", "stop_sequence": None}
    head: dict[str, Any] = {"id": f"msg_{said.id}", "type": "message", "role": "assistant", "model": model}
    document = {**head, "content": [block], **stop, "usage": usage}
    started = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1}}
    empty: dict[str, Any] = {**block, **({"input": {}} if said.tool else {"text": ""})}
    delta = {"type": "text_delta", "text": said.text}
    if said.tool:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(said.arguments)}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": started},
        {"type": "content_block_start", "index": 0, "content_block": empty},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": tokens.output}},
        {"type": "message_stop"},
    ]
    return Answer(document, [(str(each["type"]), json.dumps(each)) for each in events], tokens)


# -- Gemini


def _gemini(said: _Said, model: str, asked: Asked) -> Answer:
    usage = {
        "promptTokenCount": said.tokens.input,
        "cachedContentTokenCount": said.tokens.cached,
        "candidatesTokenCount": said.tokens.output,
        "totalTokenCount": said.tokens.input + said.tokens.output,
    }
    part: dict[str, Any] = {"text": said.text}
    if said.tool:
        part = {"functionCall": {"name": said.tool, "args": said.arguments, "id": said.id[:12]}}
    elif (asked.get("generationConfig") or {}).get("responseMimeType") == "application/json":  # gemini-cli's internal requests
        part = {"text": json.dumps({"model_choice": "flash", "reasoning": "scripted", "next_speaker": "user"})}
    tail = {"modelVersion": model, "responseId": said.id}
    candidate = {"content": {"role": "model", "parts": [part]}, "index": 0}
    document = {"candidates": [{**candidate, "finishReason": "STOP"}], "usageMetadata": usage, **tail}
    first = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": said.tokens.input}, **tail}
    last = {"candidates": [{"content": {"role": "model", "parts": [{"text": ""}]}, "finishReason": "STOP", "index": 0}]}
    return Answer(document, [("", json.dumps(first)), ("", json.dumps({**last, "usageMetadata": usage, **tail}))], said.tokens)
