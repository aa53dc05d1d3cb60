"""Decides what an error of a reconcile means for its object: one table for trials and sweeps. Pure.

Every error ends here. Either it ends the object at once, or the object waits and its condition says for what; an error that no rule
expects ends the object after a bounded time. No error is a score: it shows nothing about what an agent can do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.failure_table import ACCESS_DENIED, RECONCILE_FAILED
from multistep.api.trial.waiting_reasons import CONNECTION_LOST, GATEWAY_UNAVAILABLE
from multistep.engine.lifecycle.stop_and_suspend import RESULTS_NOT_WRITABLE
from multistep.errors import (
    ClusterError,
    Conflict,
    GatewayError,
    InvalidSpec,
    InvalidTask,
    NotFound,
    NotLeading,
    PodError,
    SourceError,
    StoreError,
    Unavailable,
)
from multistep.reconcile.admission.concurrency_limit import Key

END_SECONDS: Final = 300.0
"""An error that no rule expects ends its object after this time, if each reconcile since then failed."""
END_TIMES: Final = 5
REPORT_SECONDS: Final = 30.0  # a lost connection is not reported before this time: most are back after the first retry
_DENIED: Final = frozenset({401, 403})


@dataclass(frozen=True)
class Ends:
    """The object fails now. reason: condition reason; exception: Harbor's exception class, "" if it has none."""

    reason: str
    exception: str = ""


@dataclass(frozen=True)
class Waits:
    """The object waits, and its condition shows the reason. gated: whether the wait does not count toward its deadline; after: the
    wait is shown after this many seconds of errors in a row; ends: whether the object fails with the reason after END_SECONDS."""

    reason: str
    gated: bool = False
    after: float = 0.0
    ends: bool = False


@dataclass(frozen=True)
class Again:
    """Another replica leads: say nothing."""


Outcome = Ends | Waits | Again


def is_cancelled(error: BaseException) -> bool:
    """Return whether the running task is being cancelled. A CancelledError may also come from something that it awaited."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def outcome(error: BaseException) -> Outcome:
    """Return what an error of a reconcile means."""
    match error:
        case InvalidSpec() | InvalidTask():
            return Ends("InvalidSpec", str(getattr(error, "kind", "ValidationError")))
        case SourceError():
            return Waits(error.reason) if error.transient else Ends(error.reason)
        case StoreError():
            return Waits(RESULTS_NOT_WRITABLE, gated=True)
        case GatewayError():
            return Waits(GATEWAY_UNAVAILABLE)
        case NotLeading():
            return Again()
        case NotFound() if is_of_another_server(error):
            return Waits(CONNECTION_LOST, after=REPORT_SECONDS)
        case Conflict() | NotFound():  # the object changed meanwhile; if nothing else happens for long, something else is wrong
            return Waits(RECONCILE_FAILED, after=REPORT_SECONDS, ends=True)
        case Unavailable() | PodError():
            return Waits(CONNECTION_LOST, after=REPORT_SECONDS)
        case ClusterError() if error.status in _DENIED:
            return Waits(ACCESS_DENIED, ends=True)
    return Waits(RECONCILE_FAILED, ends=True)


def is_of_another_server(error: NotFound) -> bool:
    """Return whether a 404 is not the API server's, which names its reason, but that of a proxy, or of a kubelet that does not know
    the pod: the object may exist."""
    return error.reason != "NotFound"


def message(error: BaseException) -> str:
    """Return the text of a condition about the error."""
    text = str(error)
    expected = isinstance(error, ClusterError | PodError | StoreError | SourceError | GatewayError | InvalidSpec | InvalidTask)
    return text if expected and text else f"{type(error).__name__}: {text}".removesuffix(": ")


@dataclass(frozen=True)
class Series:
    """The errors of an object's reconciles in a row that all end it, if they last, or all do not. uid: the object's UID; ends:
    whether they end it; since, last: times of the first and of the last, in seconds since the epoch; before: the series' seconds
    before the last error."""

    uid: str
    ends: bool
    since: float
    last: float
    times: int
    before: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds between the first and the last error."""
        return self.last - self.since

    @property
    def ends_object(self) -> bool:
        """Whether the series is so long that it ends the object."""
        return self.ends and self.times >= END_TIMES and self.seconds >= END_SECONDS

    def passes(self, seconds: float) -> bool:
        """Return whether the last error is the first one after this many seconds."""
        return self.before < seconds <= self.seconds


class ErrorSeries:
    """The series of all objects of a kind whose last reconcile failed. In memory only: a new leader starts to count again."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Series] = {}

    def add(self, key: Key, uid: str, now: float, *, ends: bool) -> Series:
        """Return the object's series with one more error. An error of the other kind (``ends``) starts a new series: a full volume
        or a lost connection may last for hours, and must not shorten the time after which an unexpected error ends the object."""
        known = self._by_key.get(key)
        if known is None or (known.uid, known.ends) != (uid, ends) or known.since > now:
            known = Series(uid, ends, now, now, 0)
        self._by_key[key] = found = Series(uid, ends, known.since, now, known.times + 1, known.seconds)
        return found

    def end(self, key: Key) -> None:
        """Forget the series of an object whose reconcile succeeded, or that was deleted."""
        self._by_key.pop(key, None)
