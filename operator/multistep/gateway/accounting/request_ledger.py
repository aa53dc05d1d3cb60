"""The ledger: one row per request, in sqlite. A row is ``open`` from before the request is sent until its usage is known.

open -> done    the answer is complete            cut     the provider's answer ended too early or is missing
        failed  the provider or gateway refused   gone    the agent disconnected, and the answer did not end within drain_seconds
        lost    the gateway restarted while the request was open
A write returns after its transaction is on disk. One thread writes; all writes that wait for the thread share a transaction.
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
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from multistep.gateway.keys.tokens import LONGEST_SECONDS, StepKey

State = Literal["open", "done", "failed", "cut", "gone", "lost"]
Kind = Literal["", "Provider", "Configuration", "Budget", "SweepBudget", "Unbounded", "Own", "Path", "Left"]
"""Left: the agent left the request soon after the provider had refused it."""
NOT_COUNTED: Final[frozenset[Kind]] = frozenset(("Budget", "SweepBudget", "Unbounded", "Own", "Path"))
"""The kinds of failures of requests without an answer for which the provider is not to blame: the budget of the trial or of its
sweep, or the trial's own requests in flight, left no room or too little time; no upper bound of the request is known; or its path
is unknown."""
T = TypeVar("T")

RETENTION_SECONDS: Final = 30 * 86400.0
DOWN_SECONDS: Final = 30.0
"""A time without a beat is a downtime if it is longer than this: writes fail or hang then, and so do agents' requests. Agents must
not be able to cause it by requests that keep the event loop busy."""
_MAX_PER_TRANSACTION: Final = 256
_MAX_DOWNTIMES: Final = 100
_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
Missed: TypeAlias = tuple[float, float, str]
"""A time in which the gateway may not have answered a step's requests: start and end in seconds since the epoch, and why."""
_UNKNOWN: Final = "has no record of the step's start: its ledger is new, or was put back from an older copy"
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One request.

    step: a StepKey as text; input_tokens to cost_usd: None if unknown; reserved_*: upper bounds, which budgets count while the
    usage is unknown; held_seconds: time in queues; refused_*: number of answers with that status, each of which queued the request
    again; kind, message: why the request failed.
    """

    id: str
    step: str
    sweep: str
    agent: str
    provider: str
    model: str
    reserved_input: int
    reserved_output: int
    reserved_usd: float
    began: float = field(default_factory=time.time)
    ended: float | None = None
    state: State = "open"
    status: int = 0
    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    held_seconds: float = 0.0
    refused_429: int = 0
    refused_503: int = 0
    refused_529: int = 0
    kind: Kind = ""
    message: str = ""

    @property
    def incomplete(self) -> bool:
        """Return whether the usage is unknown, although the provider may have charged for it."""
        return self.input_tokens is None

    @property
    def reserved(self) -> Spent:
        """Return the most that the request could use."""
        return Spent(self.reserved_input, self.reserved_output, self.reserved_usd)


@dataclass(frozen=True)
class Spent:
    """The amounts that a trial or a sweep used. A request of unknown usage counts with its reservation."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


_NAMES: Final = tuple(each.name for each in fields(Row))
_SCHEMA: Final = f"""
create table if not exists requests ({", ".join(_NAMES)}, primary key (id));
create index if not exists requests_of_step on requests (step);
create index if not exists requests_of_sweep on requests (sweep);
create table if not exists closed (step text primary key, at real);
create table if not exists forgotten (sweep, input_tokens, output_tokens, cost_usd);
create index if not exists forgotten_of_sweep on forgotten (sweep);
create table if not exists stalls (step text primary key, seconds real, at real);
create table if not exists alive (id integer primary key, at real);
create table if not exists downtimes (began real, ended real);
create table if not exists opened (step text, key text, at real, until real, primary key (step, key));
"""
_VERSION: Final = 1  # version of the schema: a change of the schema must raise it and convert files of the former version
_WRITE: Final = f"insert or replace into requests values ({', '.join('?' * len(_NAMES))})"
_LOSE: Final = """update requests set state = 'lost', ended = ?, kind = 'Provider', message = 'the gateway restarted'
    where state = 'open'"""
_BEAT: Final = "insert or replace into alive values (1, ?)"
_CLOSED: Final = """select closed.step, coalesce(max(until), closed.at + ?) as expires from closed left join opened using (step)
    group by closed.step having expires > ?"""
_USED: Final = """coalesce(sum(coalesce(input_tokens, reserved_input)), 0),
    coalesce(sum(coalesce(output_tokens, reserved_output)), 0),
    coalesce(sum(case when input_tokens is null then reserved_usd else coalesce(cost_usd, 0) end), 0.0) from requests"""
_SPENT: Final = f"select {_USED} where state != 'open' and"
_FORGET: Final = f"insert into forgotten select sweep, {_USED} where ended < ? and sweep != '' group by sweep"
_FORGOTTEN: Final = "select input_tokens, output_tokens, cost_usd from forgotten where sweep = ?"


@dataclass(frozen=True)
class Opened:
    """The start of a step's model access. at: when it was first recorded; until: when its last token expires; keys: fingerprints of
    the signing keys of its tokens. Several tokens are signed if the operator restarts before the agent runs."""

    at: float
    until: float
    keys: tuple[str, ...]


class Ledger:
    """The ledger in an sqlite file, which only one process may open at a time. Call ``stop`` at the end.

    A damaged file is moved aside, and a new one is begun: the new one has no record of the steps that run. damaged: called, from
    any thread, if the file turns out to be damaged later; the process must end then."""

    def __init__(self, file: Path, damaged: Callable[[], None] = lambda: None) -> None:
        self._file, self._damaged = file, damaged
        try:
            self._database, self._downtimes = _open(file)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            _move_aside(file, error)
            self._database, self._downtimes = _open(file)
        self._beaten_at = time.monotonic()
        self._failed_since: float | None = None  # when a statement failed for the first time since the last beat
        self._draining = self._moved = False
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    async def write(self, row: Row) -> None:
        """Write or replace the row of a request."""
        await self._do(lambda database: database.execute(_WRITE, astuple(row)))

    async def open_step(self, step: StepKey, key: str, until: float) -> None:
        """Record that a step starts. key: fingerprint of the key that signs its token; until: when the token expires.
        Idempotent."""
        row = (str(step), key, time.time(), until)
        statement = "insert into opened values (?, ?, ?, ?) on conflict do update set until = max(until, excluded.until)"
        await self._do(lambda database: database.execute(statement, row))

    async def opened(self, step: StepKey) -> Opened | None:
        """Return the record of a step's start; None if the ledger has none."""
        query = "select at, until, key from opened where step = ?"
        rows = await self._do(lambda database: database.execute(query, [str(step)]).fetchall())
        return (
            Opened(min(each[0] for each in rows), max(each[1] for each in rows), tuple(each[2] for each in rows)) if rows else None
        )

    async def close_step(self, step: StepKey) -> None:
        """Record that a step is closed: it may send no more requests. Idempotent."""
        await self._do(lambda database: database.execute("insert or ignore into closed values (?, ?)", (str(step), time.time())))

    async def closed_steps(self) -> Mapping[StepKey, float]:
        """Return the closed steps whose tokens may not have expired, with the time when the last one expires."""
        rows = await self._do(lambda database: database.execute(_CLOSED, [LONGEST_SECONDS, time.time()]).fetchall())
        return {StepKey(*step.split("/")): until for step, until in rows}

    async def write_stall(self, step: StepKey, seconds: float) -> None:
        """Record the total time for which a step was stalled, in seconds. Idempotent."""
        row = (str(step), seconds, time.time())
        await self._do(lambda database: database.execute("insert or replace into stalls values (?, ?, ?)", row))

    async def stalls(self) -> Mapping[str, float]:
        """Return how long each step that is not closed was stalled, in seconds."""
        query = "select step, seconds from stalls where step not in (select step from closed)"
        return dict(await self._do(lambda database: database.execute(query).fetchall()))

    async def stall(self, step: StepKey) -> float:
        """Return how long a step was stalled in the waits that have ended, in seconds."""
        query = "select coalesce(sum(seconds), 0.0) from stalls where step = ?"
        return float((await self._do(lambda database: database.execute(query, [str(step)]).fetchone()))[0])

    async def beat(self) -> None:
        """Record that the gateway runs now. When the gateway starts again, the time since this record is a downtime."""
        began, missed, failed = time.monotonic(), self._missed(), self._failed_since

        def write(database: sqlite3.Connection) -> None:
            database.executemany("insert into downtimes values (?, ?)", missed)
            database.execute(_BEAT, [time.time()])

        await self._do(write)
        self._beaten_at = began  # if this write hung, the next beat records that time as a downtime
        self._downtimes = [*self._downtimes, *missed][-_MAX_DOWNTIMES:]
        if self._failed_since == failed:
            self._failed_since = None

    def drain(self) -> None:
        """Count the time from the last beat on as a downtime, because the gateway refuses connections from now on."""
        self._draining = True

    @property
    def draining(self) -> bool:
        """Return whether the gateway is stopping."""
        return self._draining

    @property
    def downtimes(self) -> Sequence[tuple[float, float]]:
        """Start and end (seconds since the epoch) of the times in which no gateway ran, refused connections because it was
        stopping, or could not write to the ledger, oldest first; at most the last _MAX_DOWNTIMES, and the current one."""
        return [*self._downtimes, *self._missed()]

    def _missed(self) -> list[tuple[float, float]]:
        """Return the time since the last beat, if it is a downtime; else the time in which writes failed, if they did."""
        now, seconds = time.time(), time.monotonic() - self._beaten_at
        if seconds > DOWN_SECONDS or self._draining:
            return [(now - seconds, now)]
        return [] if self._failed_since is None else [(self._failed_since, now)]

    async def missed_by(self, step: StepKey, missing: Callable[[str], Sequence[tuple[float, float]]]) -> list[Missed]:
        """Return the times since the step's start in which the gateway may not have answered its requests, and why.

        missing: returns when a signing key with this fingerprint was not accepted.
        """
        if (opened := await self.opened(step)) is None:
            return [(0.0, time.time(), _UNKNOWN)]
        found = [(*each, "was down") for each in self.downtimes]
        found += [(*each, "did not accept the key that signed the step's token") for key in opened.keys for each in missing(key)]
        return sorted((began, ended, why) for began, ended, why in found if ended >= opened.at)

    async def forget(self, before: float) -> None:
        """Delete all rows that ended before a time; keep the totals of sweeps, because a sweep may continue later."""
        await self._do(lambda database: _forget(database, before))

    async def rows_of(self, step: StepKey) -> list[Row]:
        """Return a step's rows, oldest first."""
        query = f"select {', '.join(_NAMES)} from requests where step = ? order by began, rowid"
        rows = await self._do(lambda database: database.execute(query, [str(step)]).fetchall())
        return [Row(*each) for each in rows]

    async def answered(self, uid: str) -> set[str]:
        """Return the models for which the provider completely answered a request of a trial, in any step or attempt."""
        query = "select distinct model from requests where step >= ? and step < ? and state = 'done'"
        return {model for (model,) in await self._do(lambda database: database.execute(query, _steps_of(uid)).fetchall())}

    async def spent(self, scope: Literal["trial", "sweep"], name: str) -> Spent:
        """Return the amounts that a trial (in all its steps and attempts) or a sweep used; open requests are not included.

        name: the trial's UID, or the sweep as in StepClaims.
        """
        if scope == "sweep":
            return await self._do(lambda database: _spent_by_sweep(database, name))
        query = f"{_SPENT} step >= ? and step < ?"
        return Spent(*await self._do(lambda database: database.execute(query, _steps_of(name)).fetchone()))

    async def spent_by_step(self, uid: str) -> Mapping[str, Spent]:
        """Return the amounts that each step of a trial used, by the step's key as text."""
        query = f"select step, {_USED} where state != 'open' and step >= ? and step < ? group by step"
        rows = await self._do(lambda database: database.execute(query, _steps_of(uid)).fetchall())
        return {step: Spent(*amounts) for step, *amounts in rows}

    def stop(self) -> None:
        """Finish the writes and close the file."""
        self._work.put(None)
        self._thread.join()
        self._database.close()

    async def _do(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._work.put(_Work(statement, future))
        found: T = await future
        return found

    def _run(self) -> None:
        while (first := self._work.get()) is not None:
            batch, stopping = [first], False
            with suppress(queue.Empty):
                while len(batch) < _MAX_PER_TRANSACTION and not stopping:
                    if (more := self._work.get_nowait()) is None:
                        stopping = True
                    else:
                        batch.append(more)
            self._transact(batch)
            if stopping:
                return

    def _transact(self, batch: Sequence[_Work]) -> None:
        try:
            self._database.execute("begin")
            settlements = [self._settlement(each) for each in batch]
            self._database.execute("commit")
        except Exception as error:
            self._note_failure(error)
            with suppress(sqlite3.Error):  # this thread must survive a volume that fails
                self._database.execute("rollback")
            for each in batch:
                each.fail(error)
        else:
            for settle in settlements:
                settle()

    def _settlement(self, work: _Work) -> Callable[[], None]:
        """Execute a statement, and return the function that settles its future after the commit. A statement that fails changes
        nothing and does not affect the other statements of the transaction."""
        self._database.execute("savepoint statement")
        try:
            found = work.statement(self._database)
        except Exception as error:
            self._note_failure(error)
            self._database.execute("rollback to statement")
            return partial(work.fail, error)
        finally:
            self._database.execute("release statement")
        return partial(work.finish, found)

    def _note_failure(self, error: Exception) -> None:
        if not isinstance(error, sqlite3.Error):
            return
        if self._failed_since is None:
            self._failed_since = time.time()
        if _is_damage(error) and not self._moved:
            self._moved = True
            _move_aside(self._file, error)
            self._damaged()


@dataclass(frozen=True)
class _Work:
    statement: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]

    def finish(self, result: Any) -> None:
        self._call(lambda: self.future.set_result(result))

    def fail(self, error: Exception) -> None:
        self._call(lambda: self.future.set_exception(error))

    def _call(self, settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so the result is not awaited
            self.future.get_loop().call_soon_threadsafe(lambda: None if self.future.done() else settle())


def _open(file: Path) -> tuple[sqlite3.Connection, list[tuple[float, float]]]:
    """Open the file, and settle what the process that had it before left open. Return the connection and the last downtimes."""
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30)
    try:
        database.executescript("pragma locking_mode = exclusive; pragma journal_mode = wal; pragma synchronous = full;")
        _require_known_version(database, file)
        database.executescript(f"{_SCHEMA} pragma user_version = {_VERSION};")
        now = time.time()
        database.execute("begin")
        database.execute(_LOSE, [now])
        database.execute("insert into downtimes select at, ? from alive where at < ?", [now, now])
        database.execute(_BEAT, [now])  # the end may come before the first beat
        _forget(database, now - RETENTION_SECONDS)
        database.execute("commit")
        latest = database.execute("select began, ended from downtimes order by ended desc limit ?", [_MAX_DOWNTIMES])
        return database, latest.fetchall()[::-1]
    except BaseException:
        database.close()
        raise


def _is_damage(error: sqlite3.Error) -> bool:
    """Return whether the file is damaged. The lower byte of an error code is the kind of the error."""
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
    """Raise ValueError if a later release wrote the file: it may have columns whose meaning this release does not know."""
    (version,) = database.execute("pragma user_version").fetchone()  # 0: a new file, or one without a version
    if version > _VERSION:
        raise ValueError(
            f"the ledger {file} has version {version} of the schema, this release knows {_VERSION}: install a later release"
        )


def _forget(database: sqlite3.Connection, before: float) -> None:
    """Delete all rows that ended before a time; keep the totals of sweeps."""
    database.execute(_FORGET, [before])
    database.execute("delete from requests where ended < ?", [before])
    for table, column in (("closed", "at"), ("opened", "until"), ("stalls", "at"), ("downtimes", "ended")):
        database.execute(f"delete from {table} where {column} < ?", [before])


def _steps_of(uid: str) -> list[str]:
    """Return bounds (inclusive, exclusive) that select all steps of a trial, whose texts start with "UID/": "0" follows "/" in
    ASCII."""
    return [f"{uid}/", f"{uid}0"]


def _spent_by_sweep(database: sqlite3.Connection, sweep: str) -> Spent:
    amounts = [*database.execute(f"{_SPENT} sweep = ?", [sweep]), *database.execute(_FORGOTTEN, [sweep])]
    return Spent(*map(sum, zip(*amounts, strict=True)))


def settled(row: Row, **changes: Any) -> Row:
    """Return the row with these changes, ended at the current time."""
    return replace(row, ended=time.time(), **changes)


def refusals(row: Row) -> Mapping[int, int]:
    """Return how often the provider refused the request, by status."""
    return {429: row.refused_429, 503: row.refused_503, 529: row.refused_529}
