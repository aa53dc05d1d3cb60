"""Executes the statements of a sqlite database in one thread. Statements that wait at the same time share a transaction."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

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
