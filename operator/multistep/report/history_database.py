"""The local copy of the history, a DuckDB database: stores packs, and answers queries. Needs the extra `history`.

The view `trials` has a row per finished trial, with the columns of history_row.TYPES. All texts in it are data of users and agents.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import duckdb

from multistep.errors import UsageError
from multistep.report.history_row import TYPES
from multistep.store.files.history_pack import unpacked

_COLUMNS: Final = ", ".join(TYPES)
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS packs (source VARCHAR, name VARCHAR, version VARCHAR)",
    f"CREATE TABLE IF NOT EXISTS stored ({', '.join(f'{name} {kind}' for name, kind in TYPES.items())}, pack VARCHAR,"
    " shadowed BOOLEAN)",
    f"CREATE VIEW IF NOT EXISTS trials AS SELECT {_COLUMNS} FROM stored WHERE NOT shadowed",
)
_OPEN: Final = "open"
_BATCH: Final = 10_000
_VERSION: Final = 1
"""Changes with the columns: a copy of another version is read again from the cluster."""


class HistoryDatabase:
    """The local copy in a file. The constructor raises UsageError if another process uses the file."""

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file = file.with_suffix(f".v{_VERSION}.duckdb")
        with self._opened(read_only=False) as database:
            for statement in _SCHEMA:
                database.execute(statement)

    @contextmanager
    def _opened(self, *, read_only: bool) -> Iterator[duckdb.DuckDBPyConnection]:
        try:
            database = duckdb.connect(str(self._file), read_only=read_only)
        except duckdb.Error as error:
            raise UsageError(f"{self._file} cannot be opened; does another command use it? {_first_line(error)}") from None
        try:
            yield database
        finally:
            database.close()

    def versions(self, source: str) -> dict[str, str]:
        """Return the versions of a source's packs, by name. A source is the name of an address of a namespace's history."""
        with self._opened(read_only=True) as database:
            return dict(database.execute("SELECT name, version FROM packs WHERE source = ?", [source]).fetchall())

    def update(self, source: str, gone: Sequence[str], packs: Mapping[str, tuple[str, bytes]], open_lines: bytes) -> None:
        """Delete the packs in ``gone``, store new ones and the open lines, in one transaction.

        packs: version and contents of the new packs, by name. Raises StoreError for a pack that is damaged or too large.
        """
        with self._opened(read_only=False) as database, tempfile.TemporaryDirectory() as directory:
            database.begin()
            for name in (*gone, *packs, _OPEN):
                database.execute("DELETE FROM stored WHERE pack = ?", [f"{source}/{name}"])
                database.execute("DELETE FROM packs WHERE source = ? AND name = ?", [source, name])
            for name, (version, data) in packs.items():
                _insert(database, Path(directory) / "pack.jsonl", unpacked(data), f"{source}/{name}")
                database.execute("INSERT INTO packs VALUES (?, ?, ?)", [source, name, version])
            if open_lines:
                _insert(database, Path(directory) / "open.jsonl", [open_lines], f"{source}/{_OPEN}")
            database.execute(
                # A trial may be in several packs after a crash. The row that is in no pack yet is the newest one.
                "UPDATE stored SET shadowed = best.row <> stored.rowid FROM (SELECT uid, arg_max(rowid, ("
                f"ends_with(pack, '/{_OPEN}'), finished, rowid)) AS row FROM stored GROUP BY uid) AS best "
                "WHERE best.uid = stored.uid AND shadowed IS DISTINCT FROM (best.row <> stored.rowid)"
            )
            database.commit()

    def query(self, sql: str, parameters: Sequence[object] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return the names of the columns and the rows of a query, which can read and change no file. Raises UsageError."""
        with self._opened(read_only=True) as database:
            database.execute("SET enable_external_access = false")
            database.execute("SET lock_configuration = true")
            try:
                found = database.execute(sql, list(parameters))
                return [column[0] for column in found.description or ()], found.fetchall()
            except duckdb.Error as error:
                raise UsageError(f"the query failed: {error}") from None

    def rows(self, where: str, parameters: Sequence[object]) -> Iterator[tuple[Any, ...]]:
        """Yield the rows with all columns, in batches, so that memory is bounded."""
        with self._opened(read_only=True) as database:
            found = database.execute(f"SELECT {_COLUMNS} FROM trials WHERE {where}", list(parameters))
            while batch := found.fetchmany(_BATCH):
                yield from batch

    def export(self, directory: Path, where: str, parameters: Sequence[object]) -> None:
        """Write the rows as Parquet, a directory per namespace and date. Raises UsageError."""
        target = str(directory).replace("'", "''")
        with self._opened(read_only=True) as database:
            try:
                database.execute(
                    f"COPY (SELECT * FROM trials WHERE {where}) TO '{target}' (FORMAT parquet, PARTITION_BY (namespace, date))",
                    list(parameters),
                )
            except duckdb.Error as error:
                raise UsageError(f"{directory}: the export failed: {_first_line(error)}") from None


def _insert(database: duckdb.DuckDBPyConnection, file: Path, lines: Iterable[bytes], pack: str) -> None:
    """Insert the lines of a pack. A damaged line is left out."""
    with file.open("wb") as written:
        written.writelines(lines)
    columns = ", ".join(f"'{name}': '{kind}'" for name, kind in TYPES.items())
    database.execute(
        f"INSERT INTO stored SELECT {_COLUMNS}, ?, false FROM read_json(?, columns = {{{columns}}}, format = 'newline_delimited',"
        " ignore_errors = true) WHERE uid IS NOT NULL",
        [pack, str(file)],
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
