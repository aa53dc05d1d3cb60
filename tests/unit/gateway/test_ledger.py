"""The schema version of the ledger's SQLite file (a file without a version is adopted, a later version is rejected), and the
gateway's downtimes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from multistep.errors import StepUnknownToGateway
from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.keys.tokens import LONGEST_SECONDS, StepKey
from tests.unit.gateway.world import KEY, step_of, world


def version_of(file: Path) -> int:
    database = sqlite3.connect(file)
    (version,) = database.execute("pragma user_version").fetchone()
    database.close()
    return int(version)


def test_the_file_has_the_version_of_its_schema_and_one_without_is_adopted(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    for _ in range(2):
        RequestLedger(file).stop()
        assert version_of(file) == 3
    database = sqlite3.connect(file)
    database.execute("pragma user_version = 0")
    database.close()
    RequestLedger(file).stop()
    assert version_of(file) == 3


def test_a_file_of_a_later_release_is_refused_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    database = sqlite3.connect(file)
    database.execute("pragma user_version = 4")
    database.close()
    with pytest.raises(ValueError, match=r"ledger.db has version 4 of the schema, this release knows 3: install a later release"):
        RequestLedger(file)
    assert version_of(file) == 4


async def test_the_time_from_the_last_beat_to_the_next_start_is_a_downtime(tmp_path: Path) -> None:
    file, before = tmp_path / "ledger.db", time.time()
    ledger = RequestLedger(file)
    assert ledger.downtimes == []
    await ledger.beat()
    ledger.stop()
    for number in (1, 2):  # the start counts as a beat
        ledger = RequestLedger(file)
        assert len(ledger.downtimes) == number
        assert all(before <= began <= ended <= time.time() for began, ended in ledger.downtimes)
        ledger.stop()


async def test_a_beat_that_cannot_be_written_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multistep.gateway.http.servers._BEAT_SECONDS", 0.001)
    beat, failures, written = RequestLedger.beat, iter([True]), asyncio.Event()

    async def failing(ledger: RequestLedger) -> None:
        if next(failures, False):
            raise sqlite3.OperationalError("disk full")
        await beat(ledger)
        written.set()

    monkeypatch.setattr(RequestLedger, "beat", failing)
    async with world(tmp_path, register=False):
        await written.wait()
        assert "disk full" in caplog.text
    assert len(RequestLedger(tmp_path / "ledger.sqlite").downtimes) >= 1


async def test_a_time_in_which_nothing_can_be_written_is_a_downtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the gateway cannot write, the agents' requests fail as well, so these failures must not be scored."""
    now = [1000.0]
    monkeypatch.setattr(
        "multistep.gateway.accounting.request_ledger.time", SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0])
    )
    ledger = RequestLedger(tmp_path / "ledger.db")
    await ledger.beat()
    assert ledger.downtimes == []
    ledger._database.execute("pragma query_only = on")
    for now[0] in (1031.0, 1062.0):
        with pytest.raises(sqlite3.OperationalError):
            await ledger.beat()
        assert ledger.downtimes == [(1000.0, now[0])]  # the downtime has not ended yet
    ledger._database.execute("pragma query_only = off")
    now[0] = recorded = 1063.0
    await ledger.beat()
    assert ledger.downtimes == [(1000.0, recorded)]
    ledger.stop()
    now[0] = 1064.0
    ledger = RequestLedger(tmp_path / "ledger.db")
    assert ledger.downtimes == [(1000.0, recorded), (recorded, 1064.0)]
    ledger.stop()


async def test_a_running_gateway_deletes_what_is_older_than_its_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.gateway.http.servers._FORGET_SECONDS", 0.001)
    monkeypatch.setattr("multistep.gateway.http.servers.RETENTION_SECONDS", -60.0)  # everything that has ended is old enough
    async with world(tmp_path) as it:
        assert (await it.call("chat")).status == 200
        with pytest.raises(StepUnknownToGateway):
            async with asyncio.timeout(60):
                while True:
                    await it.admin.close(step_of())


async def test_the_metrics_have_the_free_space_of_the_ledgers_volume(tmp_path: Path) -> None:
    async with world(tmp_path, register=False) as it, it.http.get(f"http://127.0.0.1:{it.admin_port}/metrics") as answer:
        [free] = re.findall(r"^multistep_gateway_ledger_free_bytes (\S+)$", await answer.text(), re.MULTILINE)
    assert float(free) > 0


async def test_the_gateway_reports_its_downtimes_to_the_operator(tmp_path: Path) -> None:
    async with world(tmp_path, register=False) as it:
        await it.admin.open(step_of(), KEY, time.time() + 60)
        assert await it.admin.missed_by(step_of()) == []
    async with world(tmp_path, register=False) as it:
        ((began, ended, why),) = await it.admin.missed_by(step_of())
        assert began <= ended and why == "was down"


def test_a_commit_is_on_disk_before_it_is_reported(tmp_path: Path) -> None:
    ledger = RequestLedger(tmp_path / "ledger.db")
    assert ledger._database.execute("pragma synchronous").fetchone() == (2,)  # full: no power failure undoes a commit
    ledger.stop()


def test_a_step_closed_without_a_known_expiry_stays_closed_for_the_longest_life_of_a_token() -> None:
    now = 1000.0
    steps, step = OpenSteps({}, clock=lambda: now), StepKey("uid", "1", "0", "agent")
    steps.close(step)
    now += LONGEST_SECONDS - 1
    steps.forget()
    assert steps.is_closed(step)
    now += 1
    steps.forget()
    assert not steps.is_closed(step)
