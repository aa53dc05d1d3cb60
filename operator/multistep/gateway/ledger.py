"""The ledger: one row per request, in sqlite. A row is ``open`` from before the request is sent until its usage is known.

open -> done    the answer is complete            cut     the provider's answer ended too early or is missing
        failed  the provider or a budget refused  gone    the agent left, and the answer did not end in time
        lost    the gateway restarted while the request was open
A write returns after its transaction is on disk. One thread writes; writes that wait for it share a transaction.
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from multistep.gateway.tokens import StepKey

State = Literal["open", "done", "failed", "cut", "gone", "lost"]
Kind = Literal["", "Provider", "Configuration", "Budget"]
T = TypeVar("T")

RETENTION_SECONDS: Final = 30 * 86400.0
_MOST_IN_A_TRANSACTION: Final = 256


@dataclass(frozen=True)
class Row:
    """One request.

    step: a StepKey as text; input_tokens to cost_usd: None if unknown; reserved_*: what budgets count while usage is unknown;
    held_seconds: time in queues; refused_*: answers with that status after which the request was queued again;
    kind, message: why it failed.
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
        """Return whether the provider may have charged tokens that are unknown."""
        return self.input_tokens is None


@dataclass(frozen=True)
class Spent:
    """What a step or a sweep used. Requests of unknown usage count with what was reserved for them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


_NAMES: Final = tuple(each.name for each in fields(Row))
_SCHEMA: Final = f"""
create table if not exists requests ({", ".join(_NAMES)}, primary key (id));
create index if not exists requests_of_step on requests (step);
create index if not exists requests_of_sweep on requests (sweep);
create table if not exists closed (step text primary key, at real);
"""
_WRITE: Final = f"insert or replace into requests values ({', '.join('?' * len(_NAMES))})"
_LOSE: Final = """update requests set state = 'lost', ended = ?, kind = 'Provider', message = 'the gateway restarted'
    where state = 'open'"""
_SPENT: Final = """select coalesce(sum(coalesce(input_tokens, reserved_input)), 0),
    coalesce(sum(coalesce(output_tokens, reserved_output)), 0),
    coalesce(sum(case when input_tokens is null then reserved_usd else coalesce(cost_usd, 0) end), 0.0)
    from requests where state != 'open' and """


class Ledger:
    """The ledger in a file. Only one process may have it open. Call ``stop`` at the end."""

    def __init__(self, file: Path) -> None:
        self._database = sqlite3.connect(file, isolation_level=None, check_same_thread=False, timeout=30)
        self._database.executescript("pragma locking_mode = exclusive; pragma journal_mode = wal; pragma synchronous = full;")
        self._database.executescript(_SCHEMA)
        self._database.execute(_LOSE, [time.time()])
        self._forget(time.time() - RETENTION_SECONDS)
        self._work: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    async def write(self, row: Row) -> None:
        """Write or replace the row of a request."""
        await self._do(lambda database: database.execute(_WRITE, astuple(row)))

    async def close_step(self, step: StepKey) -> None:
        """Record that a step is closed: it may send no more requests. Idempotent."""
        await self._do(lambda database: database.execute("insert or ignore into closed values (?, ?)", (str(step), time.time())))

    async def closed_steps(self) -> list[StepKey]:
        """Return all closed steps."""
        rows = await self._do(lambda database: database.execute("select step from closed").fetchall())
        return [StepKey(*step.split("/")) for (step,) in rows]

    async def rows_of(self, step: StepKey) -> list[Row]:
        """Return a step's rows, oldest first."""
        query = f"select {', '.join(_NAMES)} from requests where step = ? order by began, rowid"
        rows = await self._do(lambda database: database.execute(query, [str(step)]).fetchall())
        return [Row(*each) for each in rows]

    async def spent(self, column: Literal["step", "sweep"], value: str) -> Spent:
        """Return what a step or a sweep used, without open requests."""
        return Spent(*await self._do(lambda database: database.execute(f"{_SPENT} {column} = ?", [value]).fetchone()))

    def stop(self) -> None:
        """Finish the writes and close the file."""
        self._work.put(None)
        self._thread.join()
        self._database.close()

    def _forget(self, before: float) -> None:
        """Delete rows of requests and steps that ended before a time. The retention is so long that their sweeps have finished."""
        self._database.execute("delete from requests where ended < ?", [before])
        self._database.execute("delete from closed where at < ?", [before])

    async def _do(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._work.put(_Work(statement, future))
        found: T = await future
        return found

    def _run(self) -> None:
        while (first := self._work.get()) is not None:
            batch, stopping = [first], False
            with suppress(queue.Empty):
                while len(batch) < _MOST_IN_A_TRANSACTION and not stopping:
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
            found = [each.statement(self._database) for each in batch]
            self._database.execute("commit")
        except Exception as error:
            if self._database.in_transaction:
                self._database.execute("rollback")
            for each in batch:
                each.fail(error)
        else:
            for each, result in zip(batch, found, strict=True):
                each.finish(result)


@dataclass(frozen=True)
class _Work:
    statement: Callable[[sqlite3.Connection], Any]
    future: asyncio.Future[Any]

    def finish(self, result: Any) -> None:
        self._call(lambda: self.future.set_result(result))

    def fail(self, error: Exception) -> None:
        self._call(lambda: self.future.set_exception(error))

    def _call(self, settle: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the event loop is closed, so nobody awaits the result
            self.future.get_loop().call_soon_threadsafe(lambda: None if self.future.done() else settle())


def settled(row: Row, **changes: Any) -> Row:
    """Return the row with these changes and with the current time as its end."""
    return replace(row, ended=time.time(), **changes)


def refusals(row: Row) -> Mapping[int, int]:
    """Return how often the provider refused the request, by status."""
    return {429: row.refused_429, 503: row.refused_503, 529: row.refused_529}
