"""Each row of the table "who is to blame" (agent_end_table), with agents that exit with 0 and with 1, that retry or give up."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from multistep.api.trial.agent_end_table import AGENT, ANSWERS, BLAME, CONFIGURATION, OUTSIDE, PROVIDER, STARTS, Blame
from multistep.backoff import Backoff
from multistep.engine.score import failure_class
from multistep.gateway.accounting.waiting_seconds import Silence
from multistep.gateway.http import model_request, refusals, servers
from multistep.gateway.model_api import answer_memory
from tests.support.played import IMAGE, plan, play
from tests.support.played import outcome as played_outcome
from tests.support.waiting import eventually
from tests.support.world import SEPARATE, World, manifest
from tests.unit.agents.test_harbor_agents import CREDENTIALS, OWN
from tests.unit.blame.runs import TIMEOUT_SECONDS, Answer, Provider, Step, provided
from tests.unit.gateway.answer_shapes import CHAT_USAGE, DONE, SAID, STOP, STREAM, WHOLE, error, stream
from tests.unit.reconcile.scenarios import SCENARIOS
from tests.unit.reconcile.test_older_volume import LONG, results, two_steps

Agent = Callable[[Step], Awaitable[object]]
HELD_AS_LONG_AS_THE_TEST = Backoff(first=100.0, last=100.0)
FAILURE = "NonZeroAgentExitCodeError"
TIMEOUT = "AgentTimeoutError"


async def asks(step: Step) -> None:
    await step.ask()


async def asks_for_a_stream(step: Step) -> None:
    await step.ask(stream=True)


def answers_with(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(content, status=status, headers=headers or {})

    return answer


def streams(*events: Any) -> Answer:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=stream("", "chat", "answered", events).body, headers=STREAM)

    return answer


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def one_long_event(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b"data: " + b"x" * 2000, headers=STREAM)


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    return web.Response()


async def recovers(step: Step) -> None:
    step.provider.answer = answers_with({}, 500)
    await step.ask()
    step.provider.answer = answers_with(WHOLE)
    await step.ask()


async def reaches_the_keys_limit(step: Step) -> None:
    step.provider.answer = answers_with(WHOLE)
    await step.ask()
    step.provider.answer = answers_with(error(message="Key limit exceeded (total limit).", code=403), 403)
    await step.ask()


async def asks_twice_at_once(step: Step) -> None:
    """One of two requests fails; the other one, which was sent before that, is answered later."""
    arrived, failed = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        if "late" not in await request.text():
            return web.json_response({}, status=500)
        arrived.set()
        await failed.wait()
        return web.json_response(WHOLE)

    step.provider.answer = answer
    late = asyncio.create_task(step.ask("late"))
    await arrived.wait()
    await step.ask()
    failed.set()
    assert (await late).status == 200


async def leaves_when_held(step: Step) -> None:
    async def is_held() -> bool:
        headers = {"Authorization": f"Bearer {step.token}"}
        async with step.it.http.get(f"http://127.0.0.1:{step.it.port}/multistep/stalls", headers=headers) as found:
            return bool((await found.json())["stalledSeconds"])

    call = asyncio.create_task(step.ask())
    await eventually(is_held)
    call.cancel()
    await asyncio.wait([call])


async def leaves_after(seconds: float, step: Step) -> None:
    """Leave a request that the provider has, but does not answer, after so many seconds."""
    arrived = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        arrived.set()
        return await never(request)

    step.provider.answer = answer
    call = asyncio.create_task(step.ask())
    await arrived.wait()
    step.provider.clock += seconds
    call.cancel()
    await asyncio.wait([call])


async def asks_unknown_path(step: Step) -> None:
    for _ in range(step.tries):
        url, headers = f"http://127.0.0.1:{step.it.port}/openai/v1/completions", {"Authorization": f"Bearer {step.token}"}
        async with step.it.http.post(url, json={}, headers=headers) as answer:
            assert answer.status == 404


async def asks_without_maximum(step: Step) -> None:
    step.limits, step.model = {"outputTokens": 1000}, "our-own"
    await step.start()
    assert (await step.ask()).status == 400


ANSWERED = answers_with(WHOLE)
JUNK: tuple[Any, ...] = (None, "text", {"detail": "x"}, {"choices": []})


@dataclass(frozen=True)
class Case:
    """What the provider and the agent do in a row. failure: the error of an agent that fails; hold_seconds: the gateway's hold;
    reachable: whether the provider accepts connections."""

    answer: Answer = ANSWERED
    agent: Agent = asks
    failure: str = FAILURE
    hold_seconds: float = 240.0
    reachable: bool = True


CASES: dict[str, tuple[Case, ...]] = {
    "agent-ok": (Case(failure=""),),
    "agent-fails": (
        Case(),
        Case(answers_with({}, 429, {"Retry-After": "100"}), leaves_when_held),  # before the ten seconds
        Case(agent=leaves_when_held, reachable=False),
        Case(streams(SAID, STOP, {"choices": [], "usage": CHAT_USAGE}, DONE), asks_for_a_stream),
    ),
    "agent-timeout": (Case(failure=TIMEOUT), Case(never, partial(leaves_after, 0.4 * TIMEOUT_SECONDS), TIMEOUT)),
    "recovered": (Case(never, recovers),),
    "request-error": (
        *(Case(answers_with(error(message="no"), status)) for status in (400, 413, 422)),
        Case(answers_with(error(message="too long", code="400"))),
    ),
    "limit-alone": (Case(answers_with(error(message="Limit 300, Requested 363"), 429)),),
    "too-large-answer": (
        Case(answers_with({**WHOLE, "more": "x" * 2000})),
        Case(one_long_event, asks_for_a_stream),
    ),
    "model-unknown": (
        *(Case(answers_with(error(message="NAME is not a valid model ID", code=400), status)) for status in (200, 400)),
        Case(answers_with(error(message="no such model"), 404)),
    ),
    "account": (
        *(Case(answers_with({}, status)) for status in (401, 402)),
        *(Case(answers_with(error(message="x", type="budget_exceeded"), status)) for status in (400, 429)),
        Case(agent=reaches_the_keys_limit),
    ),
    "server-error": (*(Case(answers_with({}, status)) for status in (408, 500, 502, 504)), Case(answers_with(error(code=502)))),
    "no-answer": (
        *(Case(answers_with(content)) for content in JUNK),
        *(Case(streams(*events), asks_for_a_stream) for events in ((DONE,), ("no JSON", DONE), ("no JSON",))),
    ),
    "cut": (Case(cut), Case(streams(SAID), asks_for_a_stream)),
    "crowded": (Case(answers_with({**WHOLE, "more": "x" * 2000})),),
    "malformed": (Case(streams(SAID, "<no JSON>", STOP, DONE), asks_for_a_stream),),
    "parallel": (Case(never, asks_twice_at_once),),
    "refuses": (*(Case(answers_with({}, status), hold_seconds=0.1) for status in (429, 503, 529)),),
    "unreachable": (Case(hold_seconds=0.1, reachable=False),),
    "left-refused": (
        Case(answers_with({}, 429, {"Retry-After": "100"}), leaves_when_held),
        Case(agent=leaves_when_held, reachable=False),
    ),
    "held-at-timeout": (
        Case(answers_with({}, 429, {"Retry-After": "100"}), leaves_when_held, TIMEOUT),
        Case(answers_with({}, 503, {"Retry-After": "100"}), leaves_when_held, TIMEOUT),
        Case(agent=leaves_when_held, failure=TIMEOUT, reachable=False),
    ),
    "silent": (Case(never, partial(leaves_after, 15.0)),),
    "silent-at-timeout": (Case(never, partial(leaves_after, 0.6 * TIMEOUT_SECONDS), TIMEOUT),),
    "unknown-path": (Case(agent=asks_unknown_path),),
    "unbounded": (Case(agent=asks_without_maximum),),
}
ROWS = {row.key: row for row in (*AGENT, *ANSWERS, *PROVIDER, *CONFIGURATION)}


def test_each_row_has_a_key_of_its_own_and_a_case() -> None:
    assert len({row.key for row in BLAME}) == len(BLAME)
    assert CASES.keys() == ROWS.keys()


@pytest.mark.parametrize("hold_seconds", [240.0, 0.1])
async def test_each_row_of_the_table_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_seconds: float) -> None:
    """All cases with the same hold share one gateway."""
    provider, found = Provider(), dict[str, tuple[object, object]]()
    monkeypatch.setattr(servers, "Silence", lambda: Silence(lambda: provider.clock))
    cases = [(key, case) for key, each in CASES.items() for case in each if case.hold_seconds == hold_seconds]
    async with provided(tmp_path, provider, hold_seconds=hold_seconds, drain_seconds=0.0) as it:
        for number, (key, case) in enumerate(cases):
            monkeypatch.setattr(answer_memory, "MAX_ANSWER", 1000 if key == "too-large-answer" else 1 << 20)
            monkeypatch.setattr(model_request, "LEFT_SECONDS", 0.0 if key == "left-refused" else 10.0)
            monkeypatch.setattr(answer_memory, "MAX_TOTAL", 1000 if key == "crowded" else 1 << 20)
            monkeypatch.setattr(answer_memory, "_ALWAYS", 1000)
            monkeypatch.setattr(refusals, "_BACKOFF", HELD_AS_LONG_AS_THE_TEST)
            exits = {"", case.failure} - ({""} if case.failure == TIMEOUT else set())
            for failure, tries in product(exits, (1, 2)):
                provider.answer, provider.reachable = case.answer, case.reachable
                step = Step(it, provider, f"uid-{number}-{failure}-{tries}", tries, failure, f"model-{number}")
                await step.start()
                await case.agent(step)
                expected = ROWS["agent-ok"] if ROWS[key].if_failed and not failure else ROWS[key]
                found[step.uid] = (outcome_of(await step.verdict()), outcome_of(expected))
    assert {uid: each for uid, each in found.items() if each[0] != each[1]} == {}


NO_USER = {"exitCode": None, "error": {"code": "NoSuchUser", "message": "no user"}}
NO_PROGRAM = {"exitCode": None, "error": {"code": "NoSuchCommand", "message": "no program"}}


@pytest.mark.parametrize(
    ("key", "agent", "results"),
    [
        ("not-started", {"name": "command", "command": ["x"]}, {"task/agent": NO_PROGRAM}),
        ("not-started", OWN, {"/host/agent-setup": played_outcome(error=("AgentClassNotFoundError", "x"), exitCode=78)}),
        ("not-started", CREDENTIALS, {"task/host/agent": played_outcome(error=("ValueError", "model_api is missing"))}),
        ("no-user", {"name": "command", "command": ["x"], "user": "alice"}, {"/user-0": NO_USER}),
        ("no-user", {"name": "oracle", "user": "alice"}, {"/user-0": NO_USER}),
        ("no-user", {**CREDENTIALS, "user": "alice"}, {"/user-0": NO_USER}),
    ],
)
def test_an_agent_that_could_not_start_has_the_verdict_of_its_row(key: str, agent: dict[str, Any], results: dict[str, Any]) -> None:
    (row,) = (each for each in STARTS if each.key == key)
    lost = play(plan(IMAGE, {"agent": agent}), results).journal.lost
    assert lost is not None and (lost.reason, lost.final) == (row.reason, not row.retried)
    assert failure_class.class_of_failure(row.reason, None) == row.failure_class


async def with_a_killed_sidecar() -> World:
    world = World(**SCENARIOS["the egress sidecar was killed"].options)
    await world.run()
    return world


async def with_a_lost_verdict() -> World:
    world = World(manifest(config=two_steps(SEPARATE)), durations=LONG)
    await world.run(until=lambda: world.status.current_step == "a")
    copy = pickle.dumps(results(world))
    await world.run(until=lambda: world.status.current_step == "b")
    results(world).clear()
    results(world).update(pickle.loads(copy))
    await world.run()
    return world


RUNS = {"egress-ended": with_a_killed_sidecar, "volume-put-back": with_a_lost_verdict}


def test_every_row_about_what_no_agent_reaches_has_its_run() -> None:
    assert RUNS.keys() == {row.key for row in OUTSIDE}


@pytest.mark.parametrize("row", OUTSIDE, ids=[row.key for row in OUTSIDE])
async def test_what_no_agent_reaches_costs_its_trial_an_attempt_and_no_score(row: Blame) -> None:
    world = await RUNS[row.key]()
    (lost,) = world.status.attempts
    assert (lost.reason, row.retried) == (row.reason, True)
    assert failure_class.class_of_failure(row.reason, None) == row.failure_class
    assert (world.condition[0], world.status.failure) == ("Complete", None)


def outcome_of(row: Blame) -> tuple[object, ...]:
    return row.failure_class, row.reason, row.score, row.retried
