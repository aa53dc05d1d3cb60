"""Recorded shapes of providers' answers, by API, each with its verdict if it answers the only request of a step.

Sources: the documentation of the providers and public bug reports, reworded. NAME stands for the requested model.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from multistep.gateway.model_api.answer_parsers import TokenUsage
from tests.support.model_answers import Api

Verdict = Literal["answered", "request", "provider", "provider, if the agent fails", "configuration"]
STREAM = {"Content-Type": "text/event-stream"}


@dataclass(frozen=True)
class Shape:
    """An answer. source: who sends it; usage: the usage that the ledger must have, None for any."""

    source: str
    api: Api
    verdict: Verdict
    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    usage: TokenUsage | None = None


def document(source: str, api: Api, verdict: Verdict, content: Any, status: int = 200, usage: TokenUsage | None = None) -> Shape:
    """Return an answer that is one JSON document; a text that is none is sent as it is."""
    body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
    return Shape(source, api, verdict, body, status, usage=usage)


def stream(source: str, api: Api, verdict: Verdict, events: Sequence[Any], usage: TokenUsage | None = None) -> Shape:
    """Return a stream of events: texts are sent as they are, other documents as JSON."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in events]
    body = "".join(each if each.startswith(("event:", ":")) else f"data: {each}\n\n" for each in texts).encode()
    return Shape(source, api, verdict, body, headers=STREAM, usage=usage)


def error(**fields: Any) -> dict[str, Any]:
    return {"error": fields}


DONE = "[DONE]"
SAID = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]}
STOP = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
CHAT_USAGE = {"prompt_tokens": 100, "completion_tokens": 7}
WHOLE = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}], "usage": CHAT_USAGE}
COUNTED = {"choices": [], "usage": CHAT_USAGE}
CHUNK_USAGE = TokenUsage(100, output=7)
START = {"type": "message_start", "message": {"type": "message", "content": [], "usage": {"input_tokens": 123, "output_tokens": 1}}}
TEXT = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}}
END_TURN = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
MESSAGE = {"type": "message", "content": [{"type": "text", "text": "hi"}], "usage": {"input_tokens": 5, "output_tokens": 2}}
CANDIDATE = {"content": {"role": "model", "parts": [{"text": "hi"}]}, "finishReason": "STOP"}
GEMINI_USAGE = {"promptTokenCount": 8, "candidatesTokenCount": 3}
OUTPUT = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}
RESPONSE = {"object": "response", "status": "completed", "output": [OUTPUT], "usage": {"input_tokens": 6, "output_tokens": 2}}

UNKNOWN_MODELS = (
    document("OpenRouter", "chat", "configuration", error(message="NAME is not a valid model ID", code=400), 400),
    document("DeepSeek", "chat", "configuration", error(message="Model Not Exist", type="invalid_request_error", code="x"), 400),
    document("LiteLLM", "chat", "configuration", error(message="Invalid model name passed in model=NAME", code="400"), 400),
    document("LiteLLM, detail", "chat", "configuration", {"detail": error(message="Invalid model name passed in model=NAME")}, 400),
    document(
        "Mistral", "chat", "configuration", {"object": "error", "message": "Invalid model: NAME", "type": "invalid_model"}, 400
    ),
    document("Perplexity", "chat", "configuration", error(message="Invalid model 'NAME'.", type="invalid_model", code=400), 400),
    document("OpenAI", "chat", "configuration", error(message="The model does not exist", code="model_not_found"), 404),
    document(
        "OpenAI, 400", "chat", "configuration", error(message="invalid model ID", type="invalid_request_error", code=None), 400
    ),
    document("OpenAI, parameter", "chat", "configuration", error(message="Bad value.", param="model", code=None), 400),
    document("FastAPI", "chat", "configuration", {"detail": [{"loc": ["body", "model"], "msg": "unexpected value"}]}, 422),
    document("xAI", "chat", "configuration", {"code": "invalid argument", "error": "The model NAME does not exist"}, 400),
    document("Groq", "chat", "configuration", error(message="gone", code="model_decommissioned"), 400),
    document("Together", "chat", "configuration", error(message="Unable to access model NAME", code="model_not_available"), 400),
    document("Alibaba", "chat", "configuration", error(message="Model not exist.", code="InvalidParameter"), 400),
    document("Zhipu", "chat", "configuration", error(code="1211", message="模型不存在,请检查模型代码"), 400),
    document("vLLM", "chat", "configuration", {"object": "error", "message": "The model `NAME` does not exist.", "code": 404}, 404),
    document("Bedrock proxy", "messages", "configuration", {"message": "The provided model identifier is invalid."}, 400),
    document(
        "Anthropic", "messages", "configuration", {"type": "error", **error(type="not_found_error", message="model: NAME")}, 404
    ),
    document("a text", "chat", "configuration", "unknown model NAME", 400),
    document("Gemini", "gemini", "configuration", error(code=404, status="NOT_FOUND", message="models/NAME is not found"), 404),
    document("Gemini, list", "gemini", "configuration", [error(code=400, message="unexpected model name format")], 400),
)
"""A misspelt model."""

ACCOUNTS = (
    document(
        "LiteLLM", "chat", "configuration", error(message="Budget has been exceeded!", type="budget_exceeded", code="400"), 400
    ),
    document("LiteLLM", "chat", "configuration", error(message="ExceededBudget: x", type="budget_exceeded", code="429"), 429),
    document("LiteLLM", "messages", "configuration", error(message="over", type="budget_exceeded", code=None), 429),
    document("Moonshot", "chat", "configuration", error(message="suspended", type="exceeded_current_quota_error"), 429),
    document("OpenRouter", "chat", "configuration", error(message="Key limit exceeded (total limit).", code=403), 403),
    document("OpenRouter", "chat", "configuration", error(message="Insufficient credits", code=402), 200),
    document("Alibaba", "chat", "configuration", error(code="Arrearage", message="Access denied"), 400),
    document("Anthropic", "messages", "configuration", error(type="billing_error", message="x"), 400),
    document("Gemini", "gemini", "configuration", error(code=400, details=[{"reason": "API_KEY_INVALID"}]), 400),
    document("Gemini", "gemini", "configuration", error(code=400, message="User location is not supported for the API use."), 400),
)
"""A key that does not work, or an account without credit."""

REQUESTS = (
    document("OpenAI", "chat", "request", error(message="too long", code="context_length_exceeded"), 400),
    document(
        "OpenAI", "chat", "request", error(message="Unsupported value: 'temperature' with this model.", param="temperature"), 400
    ),
    document("vLLM", "chat", "request", {"object": "error", "message": "This model's maximum context length is 9 tokens."}, 400),
    document(
        "OpenAI", "chat", "request", error(message="Request too large for NAME: Limit 300, Requested 363.", type="tokens"), 429
    ),
    document("others", "chat", "request", error(message="TPM limit: 1,000, requested: 2,500"), 429),
    document("Groq", "chat", "request", error(message="Request too large for model NAME", code="rate_limit_exceeded"), 413),
    document("Anthropic", "messages", "request", error(type="invalid_request_error", message="prompt is too long: 9 > 8"), 400),
    document("Gemini", "gemini", "request", error(code=400, status="INVALID_ARGUMENT", message="token count exceeds"), 400),
    stream("litellm#8886", "chat", "request", [SAID, error(message="bad", code="400"), DONE]),
    stream("OpenRouter", "chat", "request", [error(message="bad", code=400)]),
    stream("OpenAI", "responses", "request", [{"type": "response.failed", "response": error(code="content_policy_violation")}]),
    document("OpenRouter", "chat", "request", {"choices": [{"error": {"code": 400, "message": "m"}, "finish_reason": "error"}]}),
)
"""An error that the request caused."""

_JUNK: tuple[Any, ...] = (None, "text", '"text"', 0, [], {}, {"message": "hello"}, {"detail": "Not Found"}, {"status": "ok"})
NO_ANSWERS = (
    *(document("200", api, "provider", content) for api in ("chat", "responses", "messages", "gemini") for content in _JUNK),
    document("200", "chat", "provider", {"choices": []}),
    document("200", "chat", "provider", {"choices": None, "usage": CHAT_USAGE}),
    document("200", "chat", "provider", {"choices": [{"message": None}]}),
    document("200", "responses", "provider", {"object": "response", "status": "completed", "output": []}),
    document("200", "messages", "provider", {"type": "message", "content": None}),
    document("200", "gemini", "provider", {"candidates": [], "usageMetadata": GEMINI_USAGE}),
    document("OpenRouter", "chat", "provider", {"choices": [{"error": {"code": 502, "message": "m"}, "finish_reason": "error"}]}),
    *(stream("200", api, "provider", [DONE]) for api in ("chat", "responses", "messages", "gemini")),
    *(stream("200", api, "provider", ["upstream error"]) for api in ("chat", "responses", "messages", "gemini")),
    *(stream("200", api, "provider", ["upstream error", DONE]) for api in ("chat", "responses", "messages", "gemini")),
    stream("200", "chat", "provider", [{"detail": "no"}, DONE]),
    stream("200", "chat", "provider", [{"choices": []}, DONE]),
    stream("200", "messages", "provider", [{"type": "message_stop"}]),
    stream("200", "chat", "provider", [SAID, "event: error\ndata: Internal server error\n\n", DONE]),
    stream("200", "chat", "provider", [SAID, STOP, error(code="502", message="down"), DONE]),
    stream("200", "chat", "provider", [SAID, SAID]),
    stream("200", "chat", "provider, if the agent fails", [SAID, "<html>", STOP, COUNTED, DONE], CHUNK_USAGE),
    *(document("a proxy", "chat", "provider", "<html>bad gateway</html>", status) for status in (500, 502, 504)),
    document("a proxy", "chat", "provider", "", 408),
)
"""Answers with status 200 that are no answer of the API, or cut off; and errors of the provider."""

ANSWERS = (
    document("all", "chat", "answered", WHOLE, usage=CHUNK_USAGE),
    document(
        "a float", "chat", "answered", {**WHOLE, "usage": {"prompt_tokens": 100.0, "completion_tokens": 7.0}}, usage=CHUNK_USAGE
    ),
    document(
        "a text", "chat", "answered", {**WHOLE, "usage": {"prompt_tokens": "100", "completion_tokens": "7"}}, usage=CHUNK_USAGE
    ),
    document("no usage", "chat", "answered", {**WHOLE, "usage": None}),
    document("all", "messages", "answered", MESSAGE, usage=TokenUsage(5, output=2)),
    document("empty", "messages", "answered", {**MESSAGE, "content": []}, usage=TokenUsage(5, output=2)),
    document("all", "responses", "answered", RESPONSE, usage=TokenUsage(6, output=2)),
    document("a limit", "responses", "answered", {**RESPONSE, "status": "incomplete", "output": []}, usage=TokenUsage(6, output=2)),
    document(
        "all", "gemini", "answered", {"candidates": [CANDIDATE], "usageMetadata": GEMINI_USAGE}, usage=TokenUsage(8, output=3)
    ),
    document(
        "a list", "gemini", "answered", [{"candidates": [CANDIDATE], "usageMetadata": GEMINI_USAGE}], usage=TokenUsage(8, output=3)
    ),
    document("blocked", "gemini", "answered", {"promptFeedback": {"blockReason": "SAFETY"}}),
    stream("OpenAI", "chat", "answered", [SAID, STOP, COUNTED, DONE], CHUNK_USAGE),
    stream("Azure", "chat", "answered", [{"choices": [], "prompt_filter_results": []}, SAID, STOP, COUNTED, DONE], CHUNK_USAGE),
    stream("Perplexity", "chat", "answered", [{**SAID, "usage": CHAT_USAGE}, {**STOP, "usage": CHAT_USAGE}], CHUNK_USAGE),
    stream("Nous", "chat", "answered", [": wait\n\n", SAID, STOP, COUNTED], CHUNK_USAGE),
    stream(
        "zeros",
        "chat",
        "answered",
        [SAID, {**STOP, "usage": CHAT_USAGE}, {"choices": [], "usage": {"prompt_tokens": 0}}, DONE],
        CHUNK_USAGE,
    ),
    stream("Anthropic", "messages", "answered", [START, TEXT, END_TURN, {"type": "message_stop"}], TokenUsage(123, output=9)),
    stream("no message_stop", "messages", "answered", [START, TEXT, END_TURN], TokenUsage(123, output=9)),
    stream(
        "ai-gateway#1631",
        "messages",
        "answered",
        [START, TEXT, {**END_TURN, "usage": {"input_tokens": 0, "output_tokens": 9}}, {"type": "message_stop"}],
        TokenUsage(123, output=9),
    ),
    stream(
        "tokens become cached",
        "messages",
        "answered",
        [START, {**END_TURN, "usage": {"input_tokens": 23, "cache_read_input_tokens": 100}}, {"type": "message_stop"}],
        TokenUsage(123, 100, output=1),
    ),
    stream("Gemini", "gemini", "answered", [{"candidates": [CANDIDATE], "usageMetadata": GEMINI_USAGE}], TokenUsage(8, output=3)),
    stream("OpenAI", "responses", "answered", [{"type": "response.completed", "response": RESPONSE}], TokenUsage(6, output=2)),
)
"""Complete answers."""

SHAPES = (*UNKNOWN_MODELS, *ACCOUNTS, *REQUESTS, *NO_ANSWERS, *ANSWERS)
