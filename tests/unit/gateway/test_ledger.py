"""The schema version of the ledger's SQLite file: a file without a version is adopted, a later version is rejected."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from multistep.gateway.ledger import Ledger


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
