"""Decides whether the pod or the connection is to blame for an error of the exec sessions, and records it in the pod's hint."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from multistep.engine.lifecycle import decisions
from multistep.engine.lifecycle.decisions import ProtocolViolation, ViolationReason
from multistep.errors import (
    ContradictoryRecords,
    EgressError,
    EgressRefused,
    ExecKilled,
    NoCommonProtocol,
    NotFound,
    PodError,
    StreamLost,
    Unavailable,
)
from multistep.reconcile.queue.error_outcome import Waits, is_of_another_server, message, outcome
from multistep.reconcile.trial.pod_hints import PodHint
from multistep.reconcile.trial.trial_run import TrialRun


@contextmanager
def recording_violations(run: TrialRun, hint: PodHint) -> Iterator[None]:
    """Record an error of the exec sessions in the hint if only the pod's containers can have caused it.

    An error that the connection may have caused, such as a broken stream, is not recorded. If another error occurs, e.g. of the
    model gateway, a session in which the runner answered counts as working.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, PodError | NotFound) and (reason := violation_reason(error)) is not None:
            hint.violation = ProtocolViolation.after(hint.violation, str(error), run.clock(), reason)
        if hint.answered and not isinstance(error, StreamLost):
            run.memory.hints.did_not_break(hint, run.clock())
        raise
    hint.violation = None
    run.memory.hints.worked(hint, run.clock())


def violation_reason(error: PodError | NotFound) -> ViolationReason | None:
    """Return the reason with which the trial or its attempt fails if this error repeats.

    Return None if the connection may have caused the error, or if the kubelet will report its cause.
    """
    match error:
        case NotFound():
            return "PodUnknown" if is_of_another_server(error) else None
        case ExecKilled():
            return "ExecSessionsKilled"
        case ContradictoryRecords():
            return "Tampered"
        case EgressRefused(invalid_hosts=invalid):
            return "InvalidSpec" if invalid else "EgressRefused"
        case StreamLost() | NoCommonProtocol() | EgressError():
            return None
    return "RunnerBroken"


@contextmanager
def noting_failed_reads(run: TrialRun, decision: decisions.Decision) -> Iterator[None]:
    """Record in the hint an error that leaves unknown what the pod has finished. The pod must then be read again after the
    deadline."""
    hint = run.hint
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(decision, decisions.Drive | decisions.DriveWithoutVerifier):
            if _shows_nothing(error):
                hint.was_not_read(message(error))
            elif isinstance(error, StreamLost) and not isinstance(error, ExecKilled):
                run.memory.hints.session_lost(hint, str(error), run.clock())
        raise


def _shows_nothing(error: BaseException) -> bool:
    """Return whether an error leaves unknown what the pod has finished, although the pod's containers did not cause the error."""
    found = outcome(error)
    return isinstance(error, Unavailable | NotFound) or (isinstance(found, Waits) and found.ends)
