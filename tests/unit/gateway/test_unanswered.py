"""Test which requests of a judge count as unanswered: by the rows of the ledger, and at a gateway with a provider that fails."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.accounting.unanswered import unanswered
from multistep.gateway.keys.tokens import StepKey
from tests.unit.gateway.world import token_for, world

JUDGE = StepKey("uid-1", "1", "0", "judge")


def judges_token(**claims: Any) -> str:
    return token_for("chat", sub=str(JUDGE), agent="judge", **claims)


def row(content: str, began: float, ended: float | None, **changes: Any) -> RequestRow:
    """Return the row of a request, answered unless ``changes`` say otherwise."""
    asked = {"id": f"{content} {began}", "step": str(JUDGE), "sweep": "", "agent": "judge", "provider": "openai", "model": "m"}
    most = {"reserved_input": 1, "reserved_output": 1, "reserved_usd": 0.0}
    ends = {"began": began, "ended": ended, "state": "done", "status": 200, "content": content}
    return RequestRow(**{**asked, **most, **ends, **changes})


def cut(content: str, began: float, ended: float) -> RequestRow:
    return row(content, began, ended, state="cut", kind="Provider", status=0)


def left(content: str, began: float, at: float, **changes: Any) -> RequestRow:
    return row(content, began, at + 5, left_at=at, **changes)


CASES: dict[str, tuple[list[RequestRow], list[tuple[str, int]]]] = {
    "all answered": ([row("a", 1, 2), row("b", 1, 2)], []),
    "an error that blames the request is an answer": ([row("a", 1, 2, state="failed", status=400)], []),
    "repeated, as an SDK does, until it was answered": ([cut("a", 1, 2), cut("a", 3, 4), row("a", 5, 6)], []),
    "repeated in vain": ([cut("a", 1, 2), cut("a", 3, 4), row("b", 5, 6)], [("Provider", 1)]),
    "an answer to another question stands for none": ([cut("a", 1, 2), row("b", 3, 4)], [("Provider", 1)]),
    "one of three equal requests at the same time": ([cut("a", 1, 5), row("a", 1.1, 5), row("a", 1.2, 5)], [("Provider", 1)]),
    "two of them, of which one was repeated": ([cut("a", 1, 5), cut("a", 1.1, 5), row("a", 6, 7)], [("Provider", 1)]),
    "a client that left, although the answer came": ([left("a", 1, 4), row("b", 5, 6)], [("Left", 1)]),
    "a client that left and asked again": ([left("a", 1, 4), row("a", 3.9, 6)], []),
    "a client that left a silent provider, which answered nothing": ([left("a", 1, 61, state="gone")], [("Provider", 1)]),
    "the same, but another request was answered": ([left("a", 1, 61, state="gone"), row("b", 62, 63)], [("Left", 1)]),
    "a client that raced two requests, and left the slower one": ([left("a", 1, 31.2, state="gone"), row("b", 1, 31)], []),
    "one of three models' requests that lost a race": ([row("a", 1, 20), left("b", 2, 9), row("c", 9, 10)], []),
    "left like this, but queued before": ([left("a", 1, 9, held_seconds=5.0), row("b", 1, 20)], [("Left", 1)]),
    "left like this, after a refusal": ([left("a", 1, 9, kind="Left", state="gone"), row("b", 1, 20)], [("Left", 1)]),
    "left at a timeout that is as long as no answer took": ([left("a", 1, 6), row("b", 1, 4), row("c", 7, 9)], [("Left", 1)]),
    "still open": ([row("a", 1, None, state="open"), row("b", 1, 2)], [("Left", 1)]),
    "refused by a budget": ([row("a", 1, 2, state="failed", kind="Budget", status=400)], [("Budget", 1)]),
    "an answer with an event that is no JSON": ([row("a", 1, 2, kind="Provider")], [("Provider", 1)]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_each_request_must_have_an_answer_of_its_own_or_of_its_repetition(case: str) -> None:
    rows, wanted = CASES[case]
    assert [(each.cause, each.requests) for each in unanswered(rows)] == wanted


@pytest.mark.parametrize(
    ("rows", "elsewhere", "found"),
    [
        ([cut("a", 1, 2)], {"a"}, True),
        ([cut("a", 1, 2)], {"b"}, False),
        ([cut("a", 1, 2), cut("b", 1, 2)], {"a"}, False),
        ([left("a", 1, 9)], {"a"}, False),
        ([row("a", 1, 2, state="failed", kind="Provider", held_seconds=10.0)], {"a"}, False),
    ],
)
def test_a_provider_that_answers_the_same_content_elsewhere_fails_not_because_of_it(
    rows: list[RequestRow], elsewhere: set[str], found: bool
) -> None:
    assert [each.answered_elsewhere for each in unanswered(rows, elsewhere)] == [found]


async def test_the_gateway_tells_requests_apart_by_their_content(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.model.faults = ["-fail-500", "", "-cut", ""]
        assert (await here.call("chat", text="say: one", token=judges_token())).status == 500
        assert (await here.call("chat", text="say: one", token=judges_token())).status == 200  # sent again
        assert (await here.call("chat", text="say: two", token=judges_token())).error
        assert (await here.call("chat", text="say: three", token=judges_token())).status == 200
        (found,) = (await here.admin.close(JUDGE)).unanswered
        assert (found.cause, found.requests, found.others_answered) == ("Provider", 1, True)


async def test_an_answer_that_its_client_did_not_wait_for_is_none(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await here.call("chat", "-slow-4000", token=judges_token())
        (found,) = (await here.admin.close(JUDGE)).unanswered
        assert (found.cause, found.others_answered) == ("Left", False)
        assert "the client left the request after" in found.message


async def test_a_ledger_of_the_former_version_gets_the_new_columns(tmp_path: Path) -> None:
    file = tmp_path / "ledger.sqlite"
    database = sqlite3.connect(file)
    former = [name for name in RequestRow.__dataclass_fields__ if name not in ("content", "left_at")]
    database.execute(f"create table requests ({', '.join(former)}, primary key (id))")
    given = {**dict.fromkeys(former, 0), "id": "r", "step": str(JUDGE), "state": "done", "kind": "", "ended": 2e9, "began": 2e9}
    database.execute(f"insert into requests values ({', '.join('?' * len(former))})", [given[name] for name in former])
    database.execute("pragma user_version = 1")
    database.commit()
    database.close()
    ledger = RequestLedger(file)
    try:
        (found,) = await ledger.rows_of(JUDGE)
        assert (found.id, found.content, found.left_at) == ("r", "", None)
        await ledger.write(row("a", 1, 2))
    finally:
        ledger.stop()
