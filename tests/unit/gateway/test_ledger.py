"""The schema version of the ledger's SQLite file (a file without a version is adopted, a later version is rejected), and the
gateway's downtimes."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest

from multistep.gateway.client import GatewayAdmin
from multistep.gateway.ledger import Ledger
from tests.unit.gateway.world import world


def version_of(file: Path) -> int:
    database = sqlite3.connect(file)
    (version,) = database.execute("pragma user_version").fetchone()
    database.close()
    return int(version)


def test_the_file_has_the_version_of_its_schema_and_one_without_is_adopted(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    for _ in range(2):
        Ledger(file).stop()
        assert version_of(file) == 1
    database = sqlite3.connect(file)
    database.execute("pragma user_version = 0")
    database.close()
    Ledger(file).stop()
    assert version_of(file) == 1


def test_a_file_of_a_later_release_is_refused_and_unchanged(tmp_path: Path) -> None:
    file = tmp_path / "ledger.db"
    database = sqlite3.connect(file)
    database.execute("pragma user_version = 2")
    database.close()
    with pytest.raises(ValueError, match=r"ledger.db has version 2 of the schema, this release knows 1: install a later release"):
        Ledger(file)
    assert version_of(file) == 2


async def test_the_time_from_the_last_beat_to_the_next_start_is_a_downtime(tmp_path: Path) -> None:
    file, before = tmp_path / "ledger.db", time.time()
    for _ in range(2):  # without a beat, it is unknown when the gateway ran last
        ledger = Ledger(file)
        assert ledger.downtimes == []
        ledger.stop()
    ledger = Ledger(file)
    await ledger.beat()
    ledger.stop()
    for _ in range(2):
        ledger = Ledger(file)
        ((began, ended), *_) = ledger.downtimes
        assert before <= began <= ended <= time.time()
        ledger.stop()
    assert len(ledger.downtimes) == 2


async def test_a_beat_that_cannot_be_written_is_logged_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("multistep.gateway.app._BEAT_SECONDS", 0.001)
    beat, failures = Ledger.beat, iter([True])

    async def failing(ledger: Ledger) -> None:
        if next(failures, False):
            raise sqlite3.OperationalError("disk full")
        await beat(ledger)

    monkeypatch.setattr(Ledger, "beat", failing)
    async with world(tmp_path, register=False) as it:
        while "disk full" not in caplog.text:
            await it.admin.downtimes()
        await asyncio.sleep(0.05)
    async with world(tmp_path, register=False) as it:
        assert len(await it.admin.downtimes()) == 1


async def test_the_gateway_reports_its_downtimes_to_the_operator(tmp_path: Path) -> None:
    async with world(tmp_path, register=False) as it:
        assert await it.admin.downtimes() == []
        former = GatewayAdmin(it.http, f"http://127.0.0.1:{it.port}", "")  # like a gateway of an earlier release, 404
        assert await former.downtimes() == []
    async with world(tmp_path, register=False) as it:
        ((began, ended),) = await it.admin.downtimes()
        assert began <= ended
