"""The gateway records the tokens of a step's requests, and the agent gets the bytes that it would have got without that."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from multistep.engine.status.status_size import shortened
from multistep.errors import GatewayError
from multistep.gateway.accounting.step_usage import CaptureFacts
from multistep.gateway.capture import step_files, weights
from multistep.gateway.capture.record_limits import RecordLimits, exceeded, why_incomplete
from multistep.token_records.read_file import read
from multistep.token_records.record import PATH, Record, StepRecords
from tests.support.vllm_answers import logprob_of, prompt_of, tokens_of
from tests.unit.gateway.world import REAL_KEYS, Seen, World, documents, request_of, step_of, token_for, world

MODEL = "policy-vllm"
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": PARAMETERS}}]
SWEEP = "default/training/sweep-uid"
SAY, RUN = "say: hello world", "run: echo hello > hello.txt"


async def ask(
    it: World,
    text: str = SAY,
    *,
    captures: bool = True,
    uid: str = "uid-1",
    model: str = MODEL,
    after: int = 0,
    then: Callable[[], Awaitable[object]] | None = None,
    **more: Any,
) -> Seen:
    """Send a chat completion with these further members. After so many pieces of the answer, disconnect or call ``then``."""
    path, headers, body = request_of("chat", model, token_for("chat", uid=uid, captures=captures, sweep=SWEEP), text=text)
    got, pieces = b"", 0
    async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json={**body, **more}) as answer:
        try:
            async for piece in answer.content.iter_any():
                got, pieces = got + piece, pieces + 1
                if pieces == after and then is None:
                    answer.close()
                    break
                if pieces == after and then is not None:
                    await then()
        except (aiohttp.ClientError, OSError) as error:
            return Seen(answer.status, got, error=type(error).__name__)
    return Seen(answer.status, got)


async def held(it: World) -> asyncio.Task[Seen]:
    """Send a request to whose answer the provider holds until it.model.open is set, and wait until the provider has it."""
    model = MODEL + "-cap-9-1"
    await ask(it, model=model, uid="uid-0")  # the gateway learns how the server answers
    it.model.open.clear()
    sent = len(it.model.entries)
    call = asyncio.create_task(ask(it, model=model))
    while len(it.model.entries) == sent:
        await asyncio.sleep(0.01)
    return call


async def records(it: World, uid: str = "uid-1") -> tuple[CaptureFacts, StepRecords]:
    """Close a step; return what the gateway reports of its file, and the file's records."""
    usage = await it.admin.close(step_of(uid))
    assert usage.capture is not None
    file = it.settings.ledger_file.parent / f"{uid}.msgpack.zst"
    file.write_bytes(b"".join([piece async for piece in it.admin.read_capture(step_of(uid))]))
    assert file.stat().st_size == usage.capture.bytes
    return usage.capture, read(file)


def sampled(found: Sequence[Record]) -> list[tuple[list[int], list[int], str, int]]:
    return [(list(each.prompt), list(each.ids), each.state, each.seen) for each in found]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [SAY, RUN])
@pytest.mark.parametrize("more", [{}, {"n": 3}, {"stream_options": {"include_usage": True}}, {"logprobs": False}])
async def test_the_agent_gets_the_same_bytes_and_the_file_has_the_tokens(
    tmp_path: Path, stream: bool, text: str, more: dict[str, Any]
) -> None:
    asked = {**more, **({"stream": True} if stream else {}), **({"tools": TOOLS} if text == RUN else {})}
    async with world(tmp_path) as it:
        plain = await ask(it, text, captures=False, uid="uid-2", **asked)
        seen = await ask(it, text, **asked)
        assert (seen.status, seen.body) == (200, plain.body)
        facts, found = await records(it)
        without = await it.admin.close(step_of("uid-2"))
    count = more.get("n", 1)
    answer = "hello world" if text == SAY else json.dumps({"command": "echo hello > hello.txt"})
    ids = tokens_of(answer)
    prompt = prompt_of({"messages": [{"role": "user", "content": text}]})
    assert sampled(found.records) == [(prompt, ids, "Done", len(ids))] * count
    assert list(found.records[0].logprobs) == [pytest.approx(logprob_of(token)) for token in ids]
    assert (found.complete, facts.complete, facts.records, facts.tokens) == (True, True, count, count * len(ids))
    assert without.capture is None


@pytest.mark.parametrize(
    "more",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "bash"}}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"logit_bias": {"7": 100}},
        {"structured_outputs": {"choice": ["the tokens that the agent wants to be trained"]}},
        {"allowed_token_ids": [7]},
        {"lora_path": "another"},
    ],
)
async def test_tokens_that_an_agent_can_choose_are_not_like_those_that_the_model_sampled(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    """Otherwise an agent could have any text trained with its trial's reward."""
    usual: dict[str, Any] = {"response_format": {"type": "text"}, "tool_choice": "auto", "logit_bias": {}, "min_tokens": 0}
    async with world(tmp_path) as it:
        await ask(it, **more)
        await ask(it, **usual)
        _, found = await records(it)
    assert [each.state for each in found.records] == ["Constrained", "Done"]


async def test_tokens_of_another_model_are_not_like_those_of_the_trials(tmp_path: Path) -> None:
    token = token_for("chat", captures=True, trainedModels=[f"openai/{MODEL}", MODEL])
    async with world(tmp_path) as it:
        for model in (MODEL, f"{MODEL}-teacher"):
            path, headers, body = request_of("chat", model, token, text=SAY)
            async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
                assert answer.status == 200
        _, found = await records(it)
    assert [each.state for each in found.records] == ["Done", "OtherModel"]


async def test_requests_that_the_provider_refused_leave_no_record(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        assert (await ask(it, model=MODEL + "-fail-429-3")).status == 200  # two of them are the gateway's own requests
        assert (await ask(it, model=MODEL + "-fail-400")).status == 400
        facts, found = await records(it)
    assert [each.state for each in found.records] == ["Done"]
    assert facts.complete


async def test_a_stream_that_the_agent_leaves_has_the_tokens_that_it_got(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await ask(it, "say: " + "word " * 50, model=MODEL + "-slow-20", stream=True, after=5)
        facts, found = await records(it)
        usage = await it.admin.close(step_of())
        assert it.model.entries[-1].outcome == "left"
    (record,) = found.records
    assert (record.state, facts.complete) == ("Aborted", True)
    assert 0 < record.seen <= len(record.ids) < 60
    assert (usage.output_tokens, usage.incomplete) == (len(record.ids), 0)


@pytest.mark.parametrize("fault", ["-cut", "-short", "-error"])
async def test_a_stream_that_the_server_breaks_is_cut(tmp_path: Path, fault: str) -> None:
    async with world(tmp_path) as it:
        await ask(it, model=MODEL + fault, stream=True)
        _, found = await records(it)
    assert [each.state for each in found.records] == ["Cut"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_without_token_ids_is_a_wrong_configuration(tmp_path: Path, stream: bool) -> None:
    async with world(tmp_path) as it:
        await ask(it, model="gpt-5", stream=stream)
        usage = await it.admin.close(step_of())
    assert usage.last_failure is not None
    assert (usage.last_failure.kind, usage.last_failure.message[:14]) == ("Configuration", "capture Tokens")


async def test_an_answer_without_token_ids_that_another_one_of_the_model_has_makes_the_records_incomplete(tmp_path: Path) -> None:
    """An agent may find a request to which the server gives no ids, and must not be excused by it."""
    async with world(tmp_path) as it:
        await ask(it)
        await ask(it, "say: NO-IDS")
        facts, found = await records(it)
        assert (await it.admin.close(step_of())).last_failure is None
    assert (facts.complete, found.complete, len(found.records)) == (False, False, 1)


async def test_a_provider_without_token_ids_is_a_wrong_configuration(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.admin.register("openai", it.credential("openai", base_url=None))
        seen = await ask(it)
        usage = await it.admin.close(step_of())
    assert (seen.status, it.model.entries) == (400, [])
    assert usage.last_failure is not None
    assert (usage.last_failure.kind, usage.last_failure.message[:35]) == ("Configuration", "capture Tokens: openai gives no tok")


async def test_a_record_beyond_the_limit_makes_the_file_incomplete(tmp_path: Path) -> None:
    async with world(tmp_path, capture_step_bytes=10) as it:
        await ask(it)
        facts, found = await records(it)
    assert (facts.why, found.complete, found.records) == (
        "1 record exceeded gateway.settings.captureStepBytes, 10: raise it",
        False,
        [],
    )


async def test_the_steps_of_a_sweep_share_a_limit_that_a_restart_of_the_gateway_does_not_renew(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await ask(it)
        await ask(it, uid="uid-2")
        first, second = (await records(it))[0], await it.admin.close(step_of("uid-2"))
        await it.admin.delete_capture(step_of())
    assert second.capture is not None
    most = first.bytes + second.capture.bytes + 10
    async with world(tmp_path, capture_sweep_bytes=most) as it:
        await ask(it, uid="uid-3")
        facts, _ = await records(it, "uid-3")
        path, headers, body = request_of("chat", MODEL, token_for("chat", uid="uid-4", captures=True, sweep="default/other/uid"))
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 200
        others, _ = await records(it, "uid-4")
    assert facts.why == f"1 record exceeded gateway.settings.captureSweepBytes, {most}: raise it or start a new sweep"
    assert others.complete, "another sweep has a limit of its own"


async def test_an_agent_that_runs_cannot_fill_the_volume_of_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger could not be written then, and the attempts of all agents would be lost."""
    async with world(tmp_path) as it:
        await ask(it)
        monkeypatch.setattr(step_files, "MIN_FREE", 1.1)  # now less than that is free
        await ask(it)
        facts, found = await records(it)
    assert len(found.records) == 1
    assert facts.why == "1 record found less than 10% of the gateway's volume free: raise gateway.persistence.size"


@pytest.mark.parametrize(
    ("step", "sweep", "full", "limit"),
    [(100, 0, False, ""), (101, 0, False, "Step"), (100, 200, False, ""), (100, 201, False, "Sweep"), (0, 0, True, "Volume")],
)
def test_the_first_limit_that_a_record_exceeds_is_named(step: int, sweep: int, full: bool, limit: str) -> None:
    assert exceeded(RecordLimits(100, 200), step=step, sweep=sweep, full=full) == limit


def test_each_cause_of_missing_records_is_named_within_what_a_status_shows() -> None:
    limits = RecordLimits(1 << 40, 1 << 40)
    causes = [why_incomplete([], {limit: 1000}, limits) for limit in ("Step", "Sweep", "Volume")]
    causes.append(why_incomplete(["0123456789abcdef"] * 3, {}, limits))
    assert [len(shortened(f"{PATH}: {cause}")) - len(PATH) - 2 for cause in causes] == [len(cause) for cause in causes]
    assert causes[-1] == "3 requests without a record, such as 0123456789abcdef: see the gateway's log"
    assert why_incomplete([], {"Step": 1, "Volume": 2}, limits).count(";") == 1
    assert why_incomplete([], {}, limits) == ""


async def test_tokens_of_a_stream_have_the_version_of_the_weights(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.admin.set_weights(SWEEP, "7", paused=False)
        change = partial(it.admin.set_weights, SWEEP, "8", paused=False)
        await ask(it, "say: " + "word " * 20, model=MODEL + "-slow-20", stream=True, after=8, then=change)
        _, found = await records(it)
    (record,) = found.records
    (_, first), (start, second) = record.versions
    assert (first, second, record.state) == ("7", "8", "Done")
    assert 0 < start < len(record.ids)


async def test_metrics_count_the_recorded_tokens_and_by_how_many_versions_a_steps_tokens_are_behind(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.admin.set_weights(SWEEP, "7", paused=False)
        await ask(it)
        await ask(it, captures=False, uid="uid-2")
        await it.admin.set_weights(SWEEP, "10", paused=False)
        facts, _ = await records(it)
        await it.admin.close(step_of())
        async with it.http.get(f"http://127.0.0.1:{it.admin_port}/metrics") as answer:
            shown = (await answer.text()).splitlines()
    assert f'multistep_gateway_sampled_tokens_total{{agent="agent",model="{MODEL}"}} {facts.tokens}.0' in shown
    assert {"multistep_gateway_staleness_versions_sum 3.0", "multistep_gateway_staleness_versions_count 1.0"} <= set(shown)


@pytest.mark.parametrize(
    ("version", "tokens", "behind"),
    [
        ("3", {"3": 5}, 0.0),
        ("3", {"3": 1, "1": 3}, 1.5),
        ("3", {"": 2, "1": 1, "base": 4}, 2.0),
        ("", {"1": 1}, None),
        ("3", {}, None),
    ],
)
def test_staleness_is_a_mean_over_the_tokens_of_known_versions(version: str, tokens: dict[str, int], behind: float | None) -> None:
    assert weights.staleness(version, tokens) == behind


async def test_a_whole_answer_during_which_the_weights_changed_is_mixed(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.admin.set_weights(SWEEP, "7", paused=False)
        await ask(it)
        call = await held(it)
        await it.admin.set_weights(SWEEP, "8", paused=False)
        it.model.open.set()
        await call
        _, found = await records(it)
    assert [(each.state, each.versions) for each in found.records] == [("Done", [(0, "7")]), ("Mixed", [(0, "7")])]


async def test_a_pause_holds_the_requests_of_its_sweep_until_it_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        running = await held(it)
        assert await it.admin.set_weights(SWEEP, "", paused=True) == 1
        waiting = asyncio.create_task(ask(it))
        it.model.open.set()
        assert (await running).status == 200
        while await it.admin.set_weights(SWEEP, "", paused=True):
            await asyncio.sleep(0.01)
        path, headers, body = request_of("chat", MODEL, token_for("chat", uid="uid-2"))
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert answer.status == 200, "a trial of no sweep is not held"
        assert await it.admin.set_weights(SWEEP, "2", paused=False) in (0, 1)
        assert (await waiting).status == 200
        _, found = await records(it)
    assert [each.versions for each in found.records] == [[], [(0, "2")]]


def test_weights_outlast_a_restart_and_the_oldest_sweeps_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_SWEEPS", 2)
    file = tmp_path / "weights.json"
    of = weights.Weights(file)
    for number, name in enumerate(("n/a/1", "n/b/2", "n/c/3")):
        of.set(name, str(number), paused=name == "n/c/3")
    again = weights.Weights(file)
    assert [again.version(name) for name in ("n/a/1", "n/b/2", "n/c/3")] == ["", "1", "2"]
    assert [again.is_paused(name) for name in ("n/a/1", "n/b/2", "n/c/3")] == [False, False, True]


async def test_weights_without_a_version_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        with pytest.raises(GatewayError, match="must have version"):
            await it.admin.set_weights(SWEEP, "v" * 101, paused=False)


async def test_a_file_is_kept_until_it_is_deleted(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await ask(it)
        first = await records(it)
        assert await records(it) == first
        for _ in range(2):
            await it.admin.delete_capture(step_of())
        assert not list((it.settings.ledger_file.parent / "capture").iterdir())


def said(body: bytes) -> tuple[str, str, str]:
    """Return the text, the arguments of a tool and the stop reason of a messages answer."""
    found = documents(body)
    if found[0]["type"] == "message":
        blocks = {block["type"]: block for block in found[0]["content"]}
        arguments = json.dumps(blocks["tool_use"]["input"]) if "tool_use" in blocks else ""
        return blocks.get("text", {}).get("text", ""), arguments, found[0]["stop_reason"]
    deltas = [each["delta"] for each in found if each["type"] == "content_block_delta"]
    (end,) = [each["delta"] for each in found if each["type"] == "message_delta"]
    assert [found[0]["type"], found[-1]["type"]] == ["message_start", "message_stop"]
    text, arguments = ("".join(delta.get(name, "") for delta in deltas) for name in ("text", "partial_json"))
    return text, arguments, end["stop_reason"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", [SAY, RUN])
async def test_a_messages_request_is_sent_as_a_chat_completion_and_its_answer_converted(
    tmp_path: Path, stream: bool, text: str
) -> None:
    async with world(tmp_path) as it:
        path, headers, body = request_of("messages", MODEL, token_for("messages", captures=True), stream=stream, text=text)
        tools = [{"name": "bash", "input_schema": PARAMETERS}] if text == RUN else []
        body |= {"system": [{"type": "text", "text": "be brief"}], **({"tools": tools} if tools else {})}
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            status, got = answer.status, await answer.read()
        _, found = await records(it)
        usage = await it.admin.close(step_of())
        (entry,) = it.model.entries
    arguments = json.dumps({"command": "echo hello > hello.txt"})
    assert (status, said(got)) == (200, ("hello world", "", "end_turn") if text == SAY else ("", arguments, "tool_use"))
    assert (entry.api, entry.path, entry.key) == ("chat", "/v1/chat/completions", REAL_KEYS["anthropic"])
    ids = tokens_of("hello world" if text == SAY else arguments)
    prompt = prompt_of({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]})
    assert sampled(found.records) == [(prompt, ids, "Done", len(ids))]
    assert (usage.input_tokens, usage.output_tokens, usage.incomplete) == (len(prompt), len(ids), 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([{"type": "image", "source": {}}], "a block of type 'image'"),
        ([{"text": "no type"}], "no request of the messages API"),
        (5, "no request of the messages API"),
    ],
)
async def test_a_messages_request_that_cannot_be_recorded_is_refused_by_name(tmp_path: Path, content: Any, message: str) -> None:
    async with world(tmp_path) as it:
        path, headers, body = request_of("messages", MODEL, token_for("messages", captures=True))
        body["messages"] = [{"role": "user", "content": content}]
        async with it.http.post(f"http://127.0.0.1:{it.port}{path}", headers=headers, json=body) as answer:
            assert (answer.status, message in await answer.text()) == (400, True)
        assert it.model.entries == []
        if "block" in message:
            failure = (await it.admin.close(step_of())).last_failure
            assert failure is not None
            assert (failure.kind, failure.model) == ("Configuration", MODEL)


async def test_an_error_of_the_server_reaches_an_agent_of_the_messages_api_in_its_form(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        seen = await it.call("messages", "-vllm-fail-400", token=token_for("messages", captures=True))
    assert (seen.status, documents(seen.body)[0]) == (
        400,
        {"type": "error", "error": {"type": "api_error", "message": "Internal server error"}},
    )
