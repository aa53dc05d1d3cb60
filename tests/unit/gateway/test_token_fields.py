"""The fields of token ids are cut out of an answer's text, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.gateway.model_api.request_parsers import parse_request
from multistep.gateway.model_api.routes import find_route
from multistep.gateway.model_api.token_fields import FIELDS, IDS_FIELD, AnswerForm, AnswerForms, AnswerTokens, form_of
from tests.support.vllm_answers import vllm_chat

CHAT = find_route("POST", "/openai/v1/chat/completions")
ABSENT = AnswerForms(AnswerForm(), AnswerForm())
TEXT = '\\"prompt_token_ids\\":[9]'
LOGPROBS = f'{{"content": [{{"token": "{TEXT}", "logprob": -1.5e-1}}]}}'
NAMES = ["token_ids", "logprobs", "x", "prompt_token_ids", "y"]


@pytest.mark.parametrize(
    ("document", "expected", "forms"),
    [
        (
            f'{{"choices":[{{"index":0,"delta":{{"content":"a"}},"logprobs":{LOGPROBS},"token_ids":[7]}}],"prompt_token_ids":[1,2]}}',
            '{"choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"token_ids":null}],"prompt_token_ids":null}',
            AnswerForms(),
        ),
        (
            f'{{"choices":[{{"index":0,"delta":{{"content":"a"}},"logprobs":{LOGPROBS},"token_ids":[7]}}],"prompt_token_ids":[1,2]}}',
            '{"choices":[{"index":0,"delta":{"content":"a"}}]}',
            ABSENT,
        ),
        (
            f'{{ "prompt_token_ids": [1,2],\n "x" : 1.50e3, "choices": [ {{"token_ids":[7], "logprobs":{LOGPROBS}, "index":0}} ]}}',
            '{ "x" : 1.50e3, "choices": [ {"index":0} ]}',
            ABSENT,
        ),
    ],
)
def test_the_added_members_are_cut_and_the_rest_stays(document: str, expected: str, forms: AnswerForms) -> None:
    tokens = AnswerTokens(FIELDS, forms)
    assert tokens.cut(document.encode(), streamed=True) == expected.encode()
    assert tokens.read_prompt() and tokens.prompt is not None
    assert (list(tokens.prompt), list(tokens.choices[0].ids), tokens.malformed) == ([1, 2], [7], False)
    assert list(tokens.choices[0].logprobs) == [pytest.approx(-0.15)]


@given(order=st.permutations(NAMES), nulls=st.sets(st.sampled_from(["choices.token_ids", "choices.logprobs"])))
def test_members_are_cut_in_any_order(order: list[str], nulls: set[str]) -> None:
    values: dict[str, Any] = {"token_ids": [1, 2], "logprobs": {"content": []}, "prompt_token_ids": [3], "x": [], "y": {"a": 1}}
    form = AnswerForm(frozenset(nulls))
    document = {"choices": [{name: values[name] for name in order}]}
    kept = {
        name: None if name in ("token_ids", "logprobs") else values[name]
        for name in order
        if name in "xy" or f"choices.{name}" in nulls
    }
    cut = AnswerTokens(FIELDS, AnswerForms(form, form)).cut(json.dumps(document).encode(), streamed=False)
    assert cut == json.dumps({"choices": [kept]}).encode()


def test_what_the_agent_asked_for_itself_stays() -> None:
    document = b'{"choices":[{"index":0,"delta":{},"token_ids":[7],"finish_reason":null}],"prompt_token_ids":[1,2]}'
    assert AnswerTokens(["logprobs"], AnswerForms()).cut(document, streamed=True) == document
    assert AnswerTokens(FIELDS, AnswerForms()).cut(document, streamed=True) is None, "the server would not have sent it"


@pytest.mark.parametrize(
    "document",
    [b"{", b"[]", b'{"choices":[1]}', b'{"choices":[{"index":"a"}]}', b'{"choices":[{"token_ids":["a"]}]}', b"\xff", b"[" * 9999],
)
def test_what_cannot_be_read_passes_unchanged_and_is_marked(document: bytes) -> None:
    tokens = AnswerTokens(FIELDS, AnswerForms())
    assert tokens.cut(document, streamed=True) == document
    assert tokens.malformed


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tool", [None, "bash"])
@pytest.mark.parametrize("own", [{}, {"logprobs": True}, {"return_token_ids": True}])
def test_an_answer_of_vllm_becomes_the_answer_to_the_agents_own_request(
    stream: bool, tool: str | None, own: dict[str, Any]
) -> None:
    asked = {"messages": [{"role": "user", "content": "hello you"}], "n": 2, **own}
    plain, asked_too = (vllm_chat({**asked, **more}, "m", "some text", tool) for more in ({}, dict.fromkeys(FIELDS, True)))
    texts = [
        [json.dumps(document)] if not stream else [data for _, data in events if data != "[DONE]"]
        for document, events in (plain, asked_too)
    ]
    forms = AnswerForms()
    tokens = AnswerTokens([name for name in FIELDS if name not in own], forms)
    cut = [tokens.cut(text.encode(), streamed=stream) for text in texts[1]]
    if not own:
        assert [each.decode() for each in cut if each is not None] == texts[0]
    assert [len(choice.ids) for choice in tokens.choices.values()] == [3, 3]
    assert form_of([json.loads(text) for text in texts[0]]).nulls >= ({"choices.token_ids"} if IDS_FIELD not in own else set())


@pytest.mark.parametrize(
    ("body", "expected", "added"),
    [
        ('{"model":"a"}', '{"return_token_ids":true,"logprobs":true,"model":"a"}', FIELDS),
        ('{"model":"a", "logprobs" : false}', '{"return_token_ids":true,"model":"a", "logprobs" : true}', FIELDS),
        ('{"logprobs":true,"n":1.0,"model":"a"}', '{"return_token_ids":true,"logprobs":true,"n":1.0,"model":"a"}', [IDS_FIELD]),
    ],
)
def test_a_request_asks_for_tokens_and_stays_the_same_otherwise(body: str, expected: str, added: list[str]) -> None:
    assert CHAT is not None
    parsed = parse_request(body.encode(), CHAT, captures=True)
    assert json.loads(parsed.body) == json.loads(expected)
    assert parsed.body.decode().endswith(body[1:].replace("false", "true"))
    assert parsed.added == frozenset(added)
