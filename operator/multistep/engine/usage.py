"""What an agent's model requests used: per step and in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from multistep.api.trial_status import Usage

_AMOUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "cost_usd", "requests", "incomplete", "held_seconds")


def since(now: Usage | None, before: Usage | None) -> Usage | None:
    """Return the usage of one step of an agent that resumes its trajectory, and so counts the earlier steps, too.

    before: its count after the step before. An agent that counts less than before has not counted all steps.
    """
    if now is None or before is None:
        return now
    if now.source == "Gateway" or before.source == "Gateway":
        return now  # it counts each step
    pairs = [(getattr(now, name), getattr(before, name)) for name in _AMOUNTS]
    if any(new is not None and old is not None and new < old for new, old in pairs):
        return now
    return _usage([None if new is None else new - (old or 0) for new, old in pairs])


def total(steps: Iterable[Usage | None]) -> Usage | None:
    """Return the sum; None if no step has a usage. An amount that a step with a usage does not have is unknown in the sum."""
    known = [each for each in steps if each is not None]
    if not known:
        return None
    sources = {each.source for each in known}
    summed = _usage([_sum([getattr(each, name) for each in known]) for name in _AMOUNTS])
    return summed.model_copy(update={"source": sources.pop() if len(sources) == 1 else "Agent", "prices": known[-1].prices})


def _usage(amounts: Sequence[float | None]) -> Usage:
    return Usage.model_validate(dict(zip(_AMOUNTS, amounts, strict=True)))


def _sum(amounts: Sequence[float | None]) -> float | None:
    return None if None in amounts else sum(each for each in amounts if each is not None)
