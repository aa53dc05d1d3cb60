"""The exit codes of every command: a contract that scripts rest on."""

from __future__ import annotations

from enum import IntEnum

from ..errors import MultistepError, StoreError, Unavailable


class Exit(IntEnum):
    """How a command ended. An unfinished trial or sweep has no code of its own: whoever only looks gets OK."""

    OK = 0  # the trial is Complete, without an exception or a failed gate; the sweep is Complete, and all of its trials count
    FAULT = 1  # it is Complete, with one; or some of its trials do not count
    BAD_INPUT = 2  # usage, task, image or manifest
    FAILED = 3  # the trial or sweep is Failed: it could not be run, or not to its end
    UNREACHABLE = 4  # no cluster, or no results from it
    INTERRUPTED = 130  # Ctrl-C


class Interrupted(MultistepError):
    """Ctrl-C, while something goes on elsewhere; the text says what, and what can be done about it."""


class Gone(MultistepError):
    """The trial or sweep was deleted while it was followed."""


def exit_of(error: MultistepError) -> Exit:
    """The code for an error that reached the edge."""
    if isinstance(error, Interrupted):
        return Exit.INTERRUPTED
    if isinstance(error, Gone):
        return Exit.FAILED
    return Exit.UNREACHABLE if isinstance(error, Unavailable | StoreError) else Exit.BAD_INPUT
