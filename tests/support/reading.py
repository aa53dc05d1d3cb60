"""Tasks read in the process of the test, for worlds whose time is not the clock's."""

from __future__ import annotations

from multistep.reconcile.reconciler import Reconciler
from multistep.sources.reader.order import Answer, Order, parse_answer
from multistep.sources.reader.work import perform


async def read_here(order: Order) -> Answer:
    """What a child process would answer."""
    return parse_answer(perform(order))


def reads_here(reconciler: Reconciler) -> None:
    """Have a reconciler read tasks without a child process."""
    reconciler.reader._read = read_here
    reconciler.reads.patience_seconds = 60.0  # real seconds: a busy machine must not turn a quick read into a queued one
