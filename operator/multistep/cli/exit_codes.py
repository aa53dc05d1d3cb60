"""The exit codes of all commands, which scripts rely on: by error, and by outcome of a trial or sweep."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from multistep.errors import ClusterError, MultistepError, StoreError, Unavailable

if TYPE_CHECKING:
    from multistep.client.outcome import Outcome


class Exit(IntEnum):
    """The exit code of a command. A command that only shows an unfinished trial or sweep exits with OK."""

    OK = 0
    """A trial is Complete without an exception or a failed gate, or a sweep is Complete and all of its trials are scored."""
    FAULT = 1
    """A trial is Complete with an exception or a failed gate. A sweep is Complete, but trials are excluded or images of tasks could
    not be built. Fetched results differ from their evidence. With `check --strict`, a task has warnings. `doctor` found a fault. A
    candidate is worse than its baseline (`gate`)."""
    BAD_INPUT = 2  # invalid usage, task, image or manifest
    FAILED = 3  # the trial or sweep is Failed: it could not be run completely, or not at all
    UNREACHABLE = 4  # the cluster or its results cannot be reached
    UNDECIDED = 5  # `gate`: the trials show neither that the candidate is worse nor that it is not
    INTERRUPTED = 130  # Ctrl-C


class Interrupted(MultistepError):
    """Raised after Ctrl-C if a trial or sweep continues in the cluster; the text has the commands to follow or stop it."""


def exit_of(error: MultistepError) -> Exit:
    """Return the exit code for an error."""
    from multistep.client.watch import Gone

    if isinstance(error, Interrupted):
        return Exit.INTERRUPTED
    if isinstance(error, Gone):
        return Exit.FAILED
    rejected = isinstance(error, ClusterError) and error.status == 401  # the server rejected the credentials, not the input
    return Exit.UNREACHABLE if rejected or isinstance(error, Unavailable | StoreError) else Exit.BAD_INPUT


def exit_of_outcome(found: Outcome) -> Exit:
    """Return the exit code of a command that followed a trial or sweep."""
    if found.failed:
        return Exit.FAILED
    return Exit.FAULT if found.faults else Exit.OK
