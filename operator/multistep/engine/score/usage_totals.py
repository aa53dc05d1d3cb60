"""Computes the tokens and costs of an agent's model requests: per step and in total."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from multistep.api.common.plural import plural
from multistep.api.trial.runner_records import Fields
from multistep.api.trial.status import TrialStatus, Usage
from multistep.api.trial.step_runs import with_runner

_AMOUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "cost_usd", "requests", "incomplete", "held_seconds")


def counted(fields: Fields) -> Usage:
    """Return the tokens and the cost in a report of the agent host or of the model gateway. Raises RunnerError (code Protocol)."""
    return Usage(
        input_tokens=fields.optional_integer("inputTokens"),
        cached_tokens=fields.optional_integer("cachedTokens"),
        output_tokens=fields.optional_integer("outputTokens"),
        cost_usd=fields.optional_number("costUSD"),
    )


def since(now: Usage | None, before: Usage | None) -> Usage | None:
    """Return one step's usage, for an agent that resumes its trajectory: the totals that it reports include the earlier steps.

    now, before: the agent's totals after this step and after the previous step. Both steps belong to the same attempt, because such
    a trial has no checkpoints. If a total decreased, the agent did not include the earlier steps, so ``now`` is returned unchanged.
    Return None if the step's own usage is unknown.
    """
    if now is None or before is None:
        return now
    if now.source == "Gateway":
        return now  # the gateway counts each step separately
    if before.source == "Gateway":
        return None  # the agent's total includes requests that the gateway counted for the earlier steps
    pairs = [(getattr(now, name), getattr(before, name)) for name in _AMOUNTS]
    if any(new is not None and old is not None and new < old for new, old in pairs):
        return now
    return _usage([None if new is None else new - (old or 0) for new, old in pairs])


def total(steps: Iterable[Usage | None]) -> Usage | None:
    """Return the sum of the steps' usages; None if no step has a usage. An amount that is None in any usage is None in the sum,
    except the number of incomplete requests: a step whose usage the agent counted has no such number, and must not hide the numbers
    that the gateway reports for other steps."""
    known = [each for each in steps if each is not None]
    if not known:
        return None
    sources = {each.source for each in known}
    summed = _usage([_sum([getattr(each, name) for each in known]) for name in _AMOUNTS])
    incomplete = [each.incomplete for each in known if each.incomplete is not None]
    source = sources.pop() if len(sources) == 1 else "Agent"
    return summed.model_copy(
        update={"incomplete": sum(incomplete) if incomplete else None, "source": source, "prices": known[-1].prices}
    )


def omission(incomplete: int | None) -> str:
    """Return the remark that tokens and costs leave out the incomplete requests, and so are a lower bound; "" if there are none."""
    return f"without {plural(incomplete, 'request')} of unknown usage" if incomplete else ""


def of_all_attempts(status: TrialStatus) -> Usage | None:
    """Return a trial's usage, summed over all attempts; None if it is unknown. Once the trial has finished, status.usage is the
    usage of the last attempt, including the setup of a hosted agent."""
    kept = status.resumed.attempts if status.resumed else []
    last = with_runner(status.attempt or 1, kept, status.steps) if status.usage else []
    counted = {(runner, each.name) for runner, each in last}
    ran = [(runner, each) for runner, steps in status.steps_by_attempt().items() for each in steps]
    return total([status.usage, *(each.usage for runner, each in ran if (runner, each.name) not in counted)])


def _usage(amounts: Sequence[float | None]) -> Usage:
    return Usage.model_validate(dict(zip(_AMOUNTS, amounts, strict=True)))


def _sum(amounts: Sequence[float | None]) -> float | None:
    return None if None in amounts else sum(each for each in amounts if each is not None)
