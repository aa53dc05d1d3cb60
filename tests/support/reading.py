"""Read tasks in the test's own process instead of a child process, for tests with virtual time."""

from __future__ import annotations

from multistep.reconcile.trial.reconciler import Reconciler
from multistep.sources.reader.__main__ import perform
from multistep.sources.reader.read_messages import ReadAnswer, ReadOrder, parse_answer


async def read_here(order: ReadOrder) -> ReadAnswer:
    """Read the task in this process; return the answer that the operator's reader process would give."""
    return parse_answer(perform(order))


def reads_here(reconciler: Reconciler) -> None:
    """Make a reconciler read tasks without a child process."""
    reconciler.reader._read = read_here
    reconciler.reads.patience_seconds = 60.0  # real seconds: a reconcile waits for the task even on a slow machine
