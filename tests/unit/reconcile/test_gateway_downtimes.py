"""The operator's client of the model gateway reports the downtimes since a step's start, whatever the step requested later."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from multistep.api.trial.trial import parse_trial
from multistep.engine.score.usage_totals import SETUP_ACCESS
from multistep.errors import GatewayUnavailable
from multistep.gateway.accounting.ledger_rows import RequestRow
from multistep.gateway.accounting.request_ledger import RequestLedger
from tests.support.world import manifest
from tests.unit.gateway.test_crash import process, reached
from tests.unit.gateway.world import World, world
from tests.unit.reconcile.test_model_gateway import CALL, gateway, hosted, reported, trial


def moved_aside(directory: Path) -> list[bytes]:
    """Return the contents of the damaged ledgers."""
    return [each.read_bytes() for each in directory.glob("ledger.sqlite.damaged-*") if not each.name.endswith(("-wal", "-shm"))]


async def start(here: World, step: str) -> str:
    """Start a step; return its token."""
    call = replace(CALL, model_access=step)
    return (await gateway(here).variables(trial(), hosted(f"{here.model.url}/v1"), call))["OPENAI_API_KEY"]


async def test_a_downtime_since_the_steps_start_is_reported_though_the_agent_requested_something_later(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        token = await start(here, "a")
        await start(here, "silent")
        assert (await here.call("chat", token=token)).status == 200
    async with world(tmp_path) as here:
        again = await start(here, "a")  # as the operator repeats it; the step's start remains the first one
        assert (await here.call("chat", token=again)).status == 200
        for step in ("a", "silent"):
            found = reported(await gateway(here).close(trial(), step))
            (down,) = found.downtimes
            assert found.downtime(down.began) == down and down.why == "was down"
            assert found.downtime(down.began - 1) is None
        assert (await here.call("chat", token=await start(here, "b"))).status == 200
        assert reported(await gateway(here).close(trial(), "b")).downtimes == ()


async def test_no_step_starts_while_nodes_may_not_reach_a_new_gateway_yet(tmp_path: Path) -> None:
    """The operator's node may, as it got an answer: so it retries."""
    async with world(tmp_path, settle_seconds=3600.0) as here:
        with pytest.raises(GatewayUnavailable, match="has just started"):
            await start(here, "a")


async def test_a_step_that_the_ledger_does_not_know_may_have_lost_any_request(tmp_path: Path) -> None:
    """The volume was lost, or put back from an older copy: no record of the gateway's downtime is left."""
    async with world(tmp_path) as here:
        await start(here, "a")
        here.settings.ledger_file.rename(tmp_path / "lost")
    async with world(tmp_path) as here:
        (down,) = reported(await gateway(here).close(trial(), "a")).downtimes
        assert down.began == 0.0 and "has no record of the step's start" in down.why


async def test_a_signing_key_that_was_removed_or_replaced_ends_the_attempts_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokens are rejected at once, as the key may have leaked. The agents are not to blame for that."""
    monkeypatch.setattr("multistep.gateway.keys.tokens._REREAD_SECONDS", -1.0)
    async with world(tmp_path) as here:
        await start(here, "a")
        keys = here.settings.signing_keys_dir
        (keys / "k2").write_bytes(b"2" * 32)
        (keys / "k1").write_bytes(b"another key of the same id" * 2)
        await gateway(here).renew()
        token = await start(here, "b")
        assert (await here.call("chat", token=token)).status == 200
        (down,) = reported(await gateway(here).close(trial(), "a")).downtimes
        assert down.why == "did not accept the key that signed the step's token"
        assert reported(await gateway(here).close(trial(), "b")).downtimes == ()


async def test_a_stopping_gateway_reports_a_downtime_from_the_first_connection_that_it_refuses(tmp_path: Path) -> None:
    async with process(tmp_path) as (here, running):
        streaming = asyncio.create_task(here.call("chat", "-slow-60", stream=True, token=await start(here, "a")))
        await reached(here, streaming)
        await start(here, "b")
        assert running.running is not None
        running.running.send_signal(signal.SIGTERM)
        while not (found := reported(await gateway(here).close(trial(), "b")).downtimes):
            assert running.running.returncode is None
        assert found[0].why == "was down" and found[0].began <= time.time()
        await streaming


@pytest.mark.parametrize(
    "content", [b"no database at all" * 300, b"SQLite format 3\0" + b"\xff" * 8192], ids=["no-database", "garbage"]
)
async def test_a_damaged_ledger_is_moved_aside_and_the_steps_that_run_lose_their_attempts(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as here:
        await start(here, "a")
        file = here.settings.ledger_file
    file.write_bytes(content)
    async with world(tmp_path) as here:
        assert reported(await gateway(here).close(trial(), "a")).downtime(1)
        await start(here, "b")
    assert moved_aside(tmp_path) == [content]
    assert "is damaged" in caplog.text and "budgets" in caplog.text


async def test_a_ledger_that_is_damaged_while_the_gateway_runs_ends_it(tmp_path: Path) -> None:
    ended = threading.Event()
    ledger = RequestLedger(tmp_path / "ledger.sqlite", ended.set)
    await ledger.beat()
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT | 1 << 8  # an extended code of the same kind

    def fail(_: sqlite3.Connection) -> None:
        raise error

    with pytest.raises(sqlite3.DatabaseError):
        await ledger._thread.execute(fail)
    assert ended.is_set()
    ledger.stop()
    assert len(moved_aside(tmp_path)) == 1


async def test_a_time_in_which_writes_failed_is_a_downtime_however_short(tmp_path: Path) -> None:
    """The gateway answers agents' requests with errors while it cannot record them."""
    ledger = RequestLedger(tmp_path / "ledger.sqlite")
    ledger._database.execute("pragma query_only = on")
    with pytest.raises(sqlite3.OperationalError):
        await ledger.write(RequestRow("r", "u/1/a/agent", "", "codex", "openai", "gpt-5", 1, 1, 0.0))
    assert len(ledger.downtimes) == 1
    ledger._database.execute("pragma query_only = off")
    await ledger.beat()
    ((began, ended),) = ledger.downtimes
    assert began <= ended
    await ledger.beat()
    assert ledger.downtimes == [(began, ended)]
    ledger.stop()


async def test_the_downtime_in_which_a_steps_last_request_was_lost_is_reported(tmp_path: Path) -> None:
    """The provider never answered the lost request's model, so the loss alone is no evidence of a failure of the provider."""
    agent = {"name": "codex", "model": "openai/gpt-5-mini", "credentials": [{"name": "OPENAI_API_KEY", "value": "x"}]}
    other = parse_trial({**manifest({"agent": agent}), "status": {"attempt": 1}})
    async with world(tmp_path) as here:
        token = (await gateway(here).variables(other, hosted(f"{here.model.url}/v1"), CALL))["OPENAI_API_KEY"]
        assert (await here.call("chat", token=token)).status == 200
        file = here.settings.ledger_file
    ledger = RequestLedger(file)
    await ledger.beat()
    await ledger.write(RequestRow("r", f"{other.metadata.uid}/1/a/agent", "", "codex", "openai", "gpt-5-nano", 1, 1, 0.0))
    ledger.stop()
    async with world(tmp_path) as here:
        told = reported(await gateway(here).close(other, "a"))
    assert (told.failure, told.usage.incomplete) == (None, 1)
    (*_, last) = told.downtimes
    assert told.downtime(last.began)


@pytest.mark.parametrize(("ended", "next_step"), [(SETUP_ACCESS, "-"), ("a b", "a%20b"), ("é-1", "é 1"), ("%2Fsetup", "setup")])
async def test_the_end_of_the_setup_or_of_a_step_leaves_the_token_of_any_other_step_valid(
    tmp_path: Path, ended: str, next_step: str
) -> None:
    async with world(tmp_path) as here:
        for uid, step, other in (("u1", ended, next_step), ("u2", next_step, ended)):
            asked = parse_trial({**manifest(), "metadata": {**manifest()["metadata"], "uid": uid}, "status": {"attempt": 1}})
            call = replace(CALL, model_access=other)
            variables = await gateway(here).variables(asked, hosted(f"{here.model.url}/v1"), call)
            assert reported(await gateway(here).close(asked, step)).usage is None
            assert (await here.call("chat", token=variables["OPENAI_API_KEY"])).status == 200
            assert reported(await gateway(here).close(asked, other)).usage.requests == 1
