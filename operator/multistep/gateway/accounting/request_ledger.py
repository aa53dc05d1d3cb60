"""The ledger: one row per request, in sqlite. A row is ``open`` from before the request is sent until its usage is known.

A write returns after its transaction is on disk. If the gateway finds the file damaged, it renames the file and starts a new one.
The steps that run then have no record, so their attempts are lost.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from multistep.gateway.accounting.ledger_rows import RequestRow, Spent
from multistep.gateway.keys.tokens import LONGEST_SECONDS, StepKey, account_of

RETENTION_SECONDS: Final = 30 * 86400.0
DOWN_SECONDS: Final = 30.0
"""Maximum seconds between two calls of ``beat``. A longer gap is a downtime, in which agents' requests fail or hang. The value is
so large that agents cannot cause a downtime with requests that keep the event loop busy."""
_MAX_DOWNTIMES: Final = 100
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
Missed: TypeAlias = tuple[float, float, str]
"""Start, end (seconds since the epoch) and cause of a time in which the gateway may not have answered a step's requests."""
_UNKNOWN: Final = "has no record of the step's start: its ledger is new, or was put back from an older copy"
_log: Final = logging.getLogger(__name__)


_COLUMNS: Final = tuple(column.name for column in fields(RequestRow))
_SCHEMA: Final = f"""
create table if not exists requests ({", ".join(_COLUMNS)}, primary key (id));
create index if not exists requests_of_step on requests (step);
create index if not exists requests_of_sweep on requests (sweep);
create table if not exists closed (step text primary key, at real);
create table if not exists forgotten (sweep, input_tokens, output_tokens, cost_usd);
create index if not exists forgotten_of_sweep on forgotten (sweep);
create table if not exists stalls (step text primary key, seconds real, at real);
create table if not exists alive (id integer primary key, at real);
create table if not exists downtimes (began real, ended real);
create table if not exists captured (step text primary key, sweep text, bytes integer, at real);
create index if not exists captured_of_sweep on captured (sweep);
create table if not exists opened (step text, key text, at real, until real, primary key (step, key));
"""
_VERSION: Final = 3  # whoever changes the schema must raise this version, and convert files of the former version
_ADDED: Final = {"content": "''", "left_at": "null"}  # columns of requests that version 1 lacks, with their defaults
_WRITE: Final = f"insert or replace into requests ({', '.join(_COLUMNS)}) values ({', '.join('?' * len(_COLUMNS))})"
_LOSE: Final = """update requests set state = 'lost', ended = ?, kind = 'Provider', message = 'the gateway restarted'
    where state = 'open'"""
_BEAT: Final = "insert or replace into alive values (1, ?)"
_CLOSED: Final = """select closed.step, coalesce(max(until), closed.at + ?) as expires from closed left join opened using (step)
    group by closed.step having expires > ?"""
_USED: Final = """coalesce(sum(coalesce(input_tokens, reserved_input)), 0),
    coalesce(sum(coalesce(output_tokens, reserved_output)), 0),
    coalesce(sum(case when input_tokens is null then reserved_usd else coalesce(cost_usd, 0) end), 0.0) from requests"""
_OF_TRIAL: Final = "step >= ? and step < ?"  # the two bounds are those of _steps_of
_OF_ROLE: Final = f"{_OF_TRIAL} and substr(step, -length(?)) = ?"  # the four parameters are those of _steps_of_role
_SPENT: Final = f"select {_USED} where state != 'open' and"
_FORGET: Final = f"insert into forgotten select sweep, {_USED} where ended < ? and sweep != '' group by sweep"
_FORGOTTEN: Final = "select input_tokens, output_tokens, cost_usd from forgotten where sweep = ?"


@dataclass(frozen=True)
class StepStart:
    """The start of a step's model access. Times are in seconds since the epoch."""

    at: float
    """When the start was first recorded."""
    until: float
    """When the step's last token expires. The operator signs several tokens if it restarts before the agent runs."""
    keys: tuple[str, ...]
    """Fingerprints of the keys that signed the step's tokens."""


class RequestLedger:
    """The ledger in an sqlite file, which only one process may open at a time. Call ``stop`` at the end."""

    def __init__(self, file: Path, damaged: Callable[[], object] = lambda: None) -> None:
        """Open the file. If the file later turns out to be damaged, ``damaged`` is called from any thread. The process must then
        end."""
        self._file = file
        self._damaged = damaged
        try:
            self._database, self._downtimes = _open(file)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            _move_aside(file, error)
            self._database, self._downtimes = _open(file)
        self._beaten_at = time.monotonic()
        self._failed_since: float | None = None  # when a statement failed for the first time since the last beat
        self._draining = False
        self._moved = False  # whether the damaged file was moved aside
        self._thread = DatabaseThread(self._database, self._record_failure)

    async def write(self, row: RequestRow) -> None:
        """Write or replace the row of a request."""
        await self._run(_WRITE, *astuple(row))

    async def open_step(self, step: StepKey, key: str, until: float) -> None:
        """Record that a step starts, with the fingerprint of the key that signs its token, and the time when the token expires.
        The call is idempotent."""
        statement = "insert into opened values (?, ?, ?, ?) on conflict do update set until = max(until, excluded.until)"
        await self._run(statement, str(step), key, time.time(), until)

    async def opened(self, step: StepKey) -> StepStart | None:
        """Return the record of a step's start, or None if the ledger has no such record."""
        rows = await self._rows("select at, until, key from opened where step = ?", str(step))
        if not rows:
            return None
        recorded, expires, keys = zip(*rows, strict=True)
        return StepStart(min(recorded), max(expires), keys)

    async def close_step(self, step: StepKey) -> None:
        """Record that a step may send no more requests. The call is idempotent."""
        await self._run("insert or ignore into closed values (?, ?)", str(step), time.time())

    async def closed_steps(self) -> Mapping[StepKey, float]:
        """Return the closed steps that may still have a valid token, each with the time when its last token expires."""
        rows = await self._rows(_CLOSED, LONGEST_SECONDS, time.time())
        return {StepKey(*step.split("/")): until for step, until in rows}

    async def write_captured(self, step: StepKey, sweep: str, size: int) -> None:
        """Record the bytes of a step's token records. The call is idempotent."""
        await self._run("insert or replace into captured values (?, ?, ?, ?)", str(step), sweep, size, time.time())

    async def captured_bytes(self, sweep: str) -> int:
        """Return the bytes of the token records of a sweep's steps that ended in the last RETENTION_SECONDS."""
        return int((await self._rows("select coalesce(sum(bytes), 0) from captured where sweep = ?", sweep))[0][0])

    async def write_stall(self, step: StepKey, seconds: float) -> None:
        """Record the total seconds for which the provider stalled a step (waiting_seconds.Stalls). The call is idempotent."""
        await self._run("insert or replace into stalls values (?, ?, ?)", str(step), seconds, time.time())

    async def stalls(self) -> Mapping[str, float]:
        """Return the seconds for which each step that is not closed was stalled."""
        return dict(await self._rows("select step, seconds from stalls where step not in (select step from closed)"))

    async def stall(self, step: StepKey) -> float:
        """Return the seconds for which a step was stalled, without a wait that has not ended."""
        rows = await self._rows("select seconds from stalls where step = ?", str(step))
        return rows[0][0] if rows else 0.0

    async def beat(self) -> None:
        """Record that the gateway runs now. After a restart, the time since the last such record is a downtime."""
        began = time.monotonic()
        missed = self._missed()
        failed = self._failed_since

        def write(database: sqlite3.Connection) -> None:
            database.executemany("insert into downtimes values (?, ?)", missed)
            database.execute(_BEAT, [time.time()])

        await self._thread.execute(write)
        self._beaten_at = began  # if this write hung, the next beat records that time as a downtime
        self._downtimes = [*self._downtimes, *missed][-_MAX_DOWNTIMES:]
        if self._failed_since == failed:
            self._failed_since = None

    def drain(self) -> None:
        """Record that the gateway refuses connections from now on. The time since the last beat becomes a downtime."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Whether the gateway is stopping."""
        return self._draining

    @property
    def downtimes(self) -> Sequence[tuple[float, float]]:
        """The starts and ends (seconds since the epoch) of downtimes, the oldest first. In a downtime, the gateway did not run,
        refused connections because it was stopping, or could not write to the ledger. The list has at most _MAX_DOWNTIMES downtimes
        and the current one."""
        return [*self._downtimes, *self._missed()]

    def _missed(self) -> list[tuple[float, float]]:
        """Return the time since the last beat if that is a downtime, otherwise the time in which writes failed, if they did."""
        now = time.time()
        seconds = time.monotonic() - self._beaten_at
        if seconds > DOWN_SECONDS or self._draining:
            return [(now - seconds, now)]
        return [] if self._failed_since is None else [(self._failed_since, now)]

    async def missed_by(self, step: StepKey, missing: Callable[[str], Sequence[tuple[float, float]]]) -> list[Missed]:
        """Return the times since the step's start in which the gateway may not have answered its requests, and why.

        ``missing`` maps a fingerprint to the times in which the gateway did not accept the signing key.
        """
        opened = await self.opened(step)
        if opened is None:
            return [(0.0, time.time(), _UNKNOWN)]
        times: list[Missed] = [(*downtime, "was down") for downtime in self.downtimes]
        for key in opened.keys:
            times += [(*absence, "did not accept the key that signed the step's token") for absence in missing(key)]
        return sorted((began, ended, why) for began, ended, why in times if ended >= opened.at)

    async def forget(self, before: float) -> None:
        """Delete all rows that ended before a time. The totals of sweeps stay, because a sweep may continue later."""
        await self._thread.execute(lambda database: _forget(database, before))

    async def rows_of(self, step: StepKey) -> list[RequestRow]:
        """Return a step's rows, oldest first."""
        query = f"select {', '.join(_COLUMNS)} from requests where step = ? order by began, rowid"
        return [RequestRow(*values) for values in await self._rows(query, str(step))]

    async def rows_of_trial(self, uid: str, most: int) -> list[RequestRow]:
        """Return the first ``most`` finished rows of a trial, in all its attempts and roles, oldest first."""
        query = f"select {', '.join(_COLUMNS)} from requests where {_OF_TRIAL} and ended is not null order by began, rowid limit ?"
        return [RequestRow(*values) for values in await self._rows(query, *_steps_of(uid), most)]

    async def answered(self, uid: str) -> set[str]:
        """Return the models for which the provider completely answered a request of a trial, in any step or attempt."""
        rows = await self._rows(f"select distinct model from requests where {_OF_TRIAL} and state = 'done'", *_steps_of(uid))
        return {model for (model,) in rows}

    async def answered_contents(self, step: StepKey) -> set[str]:
        """Return the contents that the provider answered in other steps of the same role of the trial (RequestRow.content)."""
        query = f"select distinct content from requests where {_OF_ROLE} and step != ? and state = 'done' and kind = ''"
        rows = await self._rows(f"{query} and content != '' and left_at is null", *_steps_of_role(account_of(step)), str(step))
        return {content for (content,) in rows}

    async def spent(self, scope: Literal["trial", "sweep"], name: str) -> Spent:
        """Return the amounts that a role of a trial, in all its steps and attempts, or a sweep used, without open requests.

        name: the role as in StepClaims.account, or the sweep as in StepClaims.
        """
        if scope == "sweep":
            return await self._thread.execute(lambda database: _spent_by_sweep(database, name))
        rows = await self._rows(f"{_SPENT} {_OF_ROLE}", *_steps_of_role(name))
        return Spent(*rows[0])

    async def spent_by_step(self, account: str) -> Mapping[str, Spent]:
        """Return the amounts that a role of a trial used in each step, by the step's key as text. account: as in StepClaims."""
        query = f"select step, {_USED} where state != 'open' and {_OF_ROLE} group by step"
        return {step: Spent(*amounts) for step, *amounts in await self._rows(query, *_steps_of_role(account))}

    async def _run(self, statement: str, *parameters: Any) -> None:
        await self._thread.execute(lambda database: database.execute(statement, parameters))

    async def _rows(self, query: str, *parameters: Any) -> list[Any]:
        return await self._thread.execute(lambda database: database.execute(query, parameters).fetchall())

    def stop(self) -> None:
        """Finish the pending writes, then close the file."""
        self._thread.stop()
        self._database.close()

    def _record_failure(self, error: Exception) -> None:
        if not isinstance(error, sqlite3.Error):
            return
        if self._failed_since is None:
            self._failed_since = time.time()
        if _is_damage(error) and not self._moved:
            self._moved = True
            _move_aside(self._file, error)
            self._damaged()


def _open(file: Path) -> tuple[sqlite3.Connection, list[tuple[float, float]]]:
    """Open the file, and mark the requests that the last process left open as lost. Return the connection and the last
    downtimes."""
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        database.executescript("pragma locking_mode = exclusive; pragma journal_mode = wal; pragma synchronous = full;")
        _require_known_version(database, file)
        database.executescript(_SCHEMA)
        present = {name for _, name, *_ in database.execute("pragma table_info(requests)")}
        for name in [name for name in _COLUMNS if name not in present]:
            database.execute(f"alter table requests add column {name} default {_ADDED[name]}")
        database.execute(f"pragma user_version = {_VERSION}")
        now = time.time()
        database.execute("begin")
        database.execute(_LOSE, [now])
        database.execute("insert into downtimes select at, ? from alive where at < ?", [now, now])
        database.execute(_BEAT, [now])  # the process may end before its first beat
        _forget(database, now - RETENTION_SECONDS)
        database.execute("commit")
        latest = database.execute("select began, ended from downtimes order by ended desc limit ?", [_MAX_DOWNTIMES])
        return database, latest.fetchall()[::-1]
    except BaseException:
        database.close()
        raise


def _is_damage(error: sqlite3.Error) -> bool:
    """Return whether the error shows that the file is damaged. The lower byte of sqlite's error code is the kind of error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _move_aside(file: Path, error: Exception) -> None:
    name = f"{file.name}.damaged-{int(time.time())}"
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            file.with_name(file.name + suffix).rename(file.with_name(name + suffix))
    _log.error(
        "the ledger %s is damaged (%s) and was moved to %s: a new one is begun, the attempts of steps that run are lost, and what "
        "trials and sweeps used of their budgets before is not known any more", file, error, name
    )  # fmt: skip


def _require_known_version(database: sqlite3.Connection, file: Path) -> None:
    """Raise ValueError if a later release wrote the file, which may have columns whose meaning this release does not know."""
    (version,) = database.execute("pragma user_version").fetchone()  # the version is 0 if the file is new or has none
    if version > _VERSION:
        raise ValueError(
            f"the ledger {file} has version {version} of the schema, this release knows {_VERSION}: install a later release"
        )


def _forget(database: sqlite3.Connection, before: float) -> None:
    """Delete all rows that ended before a time. The totals of sweeps are kept."""
    database.execute(_FORGET, [before])
    database.execute("delete from requests where ended < ?", [before])
    for table, column in (("closed", "at"), ("opened", "until"), ("stalls", "at"), ("captured", "at"), ("downtimes", "ended")):
        database.execute(f"delete from {table} where {column} < ?", [before])


def _steps_of(uid: str) -> list[str]:
    """Return bounds (inclusive, exclusive) that select all steps of a trial. A step's text starts with "UID/", and "0" follows "/"
    in ASCII."""
    return [f"{uid}/", f"{uid}0"]


def _steps_of_role(account: str) -> list[str]:
    """Return the parameters of _OF_ROLE for the account UID/ROLE."""
    uid, _, role = account.rpartition("/")
    return [*_steps_of(uid), f"/{role}", f"/{role}"]


def _spent_by_sweep(database: sqlite3.Connection, sweep: str) -> Spent:
    amounts = [*database.execute(f"{_SPENT} sweep = ?", [sweep]), *database.execute(_FORGOTTEN, [sweep])]
    return Spent(*map(sum, zip(*amounts, strict=True)))


_MAX_PER_TRANSACTION: Final = 256
T = TypeVar("T")


class DatabaseThread:
    """The thread that executes statements. Call ``stop`` at the end."""

    def __init__(self, database: sqlite3.Connection, failed: Callable[[Exception], None]) -> None:
        """Start the thread, which calls ``failed`` with each error of a statement or transaction."""
        self._database = database
        self._failed = failed
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    async def execute(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        """Execute a statement, and return its result once its transaction is on disk."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._work.put(_Work(statement, future))
        result: T = await future
        return result

    def stop(self) -> None:
        """Execute the statements that wait, then end the thread."""
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._work.get()) is not None:
            batch = [first]
            stopping = False
            with suppress(queue.Empty):
                while len(batch) < _MAX_PER_TRANSACTION and not stopping:
                    more = self._work.get_nowait()
                    if more is None:
                        stopping = True
                    else:
                        batch.append(more)
            self._transact(batch)
            if stopping:
                return

    def _transact(self, batch: Sequence[_Work]) -> None:
        try:
            self._database.execute("begin")
            reports = [self._execute(work) for work in batch]
            self._database.execute("commit")
        except Exception as error:
            self._failed(error)
            with suppress(sqlite3.Error):  # this thread must continue if the volume fails
                self._database.execute("rollback")
            for work in batch:
                work.fail(error)
        else:
            for report in reports:
                report()

    def _execute(self, work: _Work) -> Callable[[], None]:
        """Execute a statement, and return a function that reports the result. Call the function after the commit. A statement that
        fails changes nothing and does not affect the other statements of the transaction."""
        self._database.execute("savepoint statement")
        try:
            result = work.statement(self._database)
        except Exception as error:
            self._failed(error)
            self._database.execute("rollback to statement")
            return partial(work.fail, error)
        finally:
            self._database.execute("release statement")
        return partial(work.finish, result)


@dataclass(frozen=True)
class _Work:
    statement: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]

    def finish(self, result: Any) -> None:
        self._report(lambda: self.future.set_result(result))

    def fail(self, error: Exception) -> None:
        self._report(lambda: self.future.set_exception(error))

    def _report(self, settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so the result is not awaited
            self.future.get_loop().call_soon_threadsafe(lambda: None if self.future.done() else settle())
