"""Decides what an error of a reconcile means for its trial or sweep. All functions are pure.

Every error of a reconcile gets here. Either the object fails at once, or it waits and its condition shows the reason. If an error
that no rule expects lasts, the object fails after a bounded time. An error never leads to a score, because it shows nothing about
what an agent can do.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.failure_table import ACCESS_DENIED, MODEL_NOT_COUNTED, RECONCILE_FAILED
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
    UncountedModel,
)
from multistep.reconcile.admission.concurrency_limit import Key

END_SECONDS: Final = 300.0
"""An object fails because of an unexpected error if all its reconciles failed for this time."""
END_TIMES: Final = 5
REPORT_SECONDS: Final = 30.0  # a lost connection is reported only after this time, because most are back after the first retry
_DENIED: Final = frozenset({401, 403})


@dataclass(frozen=True)
class Ends:
    """The object fails now."""

    reason: str
    """Reason of its conditions."""
    exception: str = ""
    """Harbor's exception class for the error, "" if Harbor has none."""


@dataclass(frozen=True)
class Waits:
    """The object waits, and its conditions show the reason."""

    reason: str
    """Reason of its conditions."""
    gated: bool = False
    """Whether the wait does not count toward the object's deadline."""
    after: float = 0.0
    """The conditions show the reason only after this many seconds of errors in a row."""
    ends: bool = False
    """Whether the object fails with the reason after END_SECONDS."""


@dataclass(frozen=True)
class Again:
    """The reconcile is retried without a report, because another replica leads now."""


Outcome = Ends | Waits | Again


def is_cancelled(error: BaseException) -> bool:
    """Return whether the error means that the running task is being cancelled.

    A CancelledError may also come from something that the task awaited.
    """
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def outcome(error: BaseException) -> Outcome:
    """Return what an error of a reconcile means for its object."""
    match error:
        case UncountedModel():
            return Ends(MODEL_NOT_COUNTED, "ValidationError")
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
        case Conflict() | NotFound():  # the object changed meanwhile; only if this lasts, something else is wrong
            return Waits(RECONCILE_FAILED, after=REPORT_SECONDS, ends=True)
        case Unavailable() | PodError():
            return Waits(CONNECTION_LOST, after=REPORT_SECONDS)
        case ClusterError() if error.status in _DENIED:
            return Waits(ACCESS_DENIED, ends=True)
    return Waits(RECONCILE_FAILED, ends=True)


def is_of_another_server(error: NotFound) -> bool:
    """Return whether a 404 comes from a proxy, or from a kubelet that does not know the pod. The object may then exist.

    A 404 of the API server itself has a reason.
    """
    return error.reason != "NotFound"


def message(error: BaseException) -> str:
    """Return the message of a condition about the error."""
    text = str(error)
    expected = isinstance(error, ClusterError | PodError | StoreError | SourceError | GatewayError | InvalidSpec | InvalidTask)
    return text if expected and text else f"{type(error).__name__}: {text}".removesuffix(": ")


@dataclass(frozen=True)
class Series:
    """The errors of successive reconciles of one object, which all have the same ``Waits.ends``."""

    uid: str
    """UID of the object."""
    ends: bool
    """Whether the object fails if the errors last."""
    since: float
    """Time of the first error, in seconds since the epoch."""
    last: float
    """Time of the last error, in seconds since the epoch."""
    times: int
    """Number of errors."""
    before: float = 0.0
    """``seconds`` before the last error."""

    @property
    def seconds(self) -> float:
        """Return the seconds between the first and the last error."""
        return self.last - self.since

    @property
    def ends_object(self) -> bool:
        """Return whether the series is so long that the object fails."""
        return self.ends and self.times >= END_TIMES and self.seconds >= END_SECONDS

    def passes(self, seconds: float) -> bool:
        """Return whether the series reached this age, in seconds, with its last error."""
        return self.before < seconds <= self.seconds


class ErrorSeries:
    """The error series of all objects of a kind whose last reconcile failed. It is in memory, so a new leader starts from zero."""

    def __init__(self) -> None:
        self._by_key: dict[Key, Series] = {}

    def add(self, key: Key, uid: str, now: float, *, ends: bool) -> Series:
        """Return the object's series with one more error.

        An error with another value of ``ends`` starts a new series. A full volume or a lost connection may last for hours, and must
        not shorten the time after which an unexpected error fails the object.
        """
        known = self._by_key.get(key)
        if known is None or (known.uid, known.ends) != (uid, ends) or known.since > now:
            known = Series(uid, ends, now, now, 0)
        self._by_key[key] = found = Series(uid, ends, known.since, now, known.times + 1, known.seconds)
        return found

    def end(self, key: Key) -> None:
        """Forget the series of an object whose reconcile succeeded, or that was deleted."""
        self._by_key.pop(key, None)
