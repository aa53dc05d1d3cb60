"""Computes the tokens and costs of an agent's model requests, per step and in total, and parses the model gateway's report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args
from urllib.parse import quote

from multistep.api.common.plural import plural
from multistep.api.trial.agent_spec import ModelLimits
from multistep.api.trial.failure_table import RETRIED_BY_SPEC
from multistep.api.trial.runner_records import Fields
from multistep.api.trial.status import TrialStatus, Usage
from multistep.api.trial.trial import MultiStepTrial

_AMOUNTS: Final = ("input_tokens", "cached_tokens", "output_tokens", "cost_usd", "requests", "incomplete", "held_seconds")


def parse_usage(fields: Fields) -> Usage:
    """Return the tokens and the cost in a report of the agent host or of the model gateway. Raises RunnerError (code Protocol)."""
    return Usage(
        input_tokens=fields.optional_integer("inputTokens"),
        cached_tokens=fields.optional_integer("cachedTokens"),
        output_tokens=fields.optional_integer("outputTokens"),
        cost_usd=fields.optional_number("costUSD"),
    )


def usage_of_step(now: Usage | None, before: Usage | None) -> Usage | None:
    """Return one step's usage for an agent that resumes its trajectory, None if it is unknown.

    Such an agent reports totals that include the earlier steps. ``now`` and ``before`` are its totals after this step and after the
    previous step. Both steps belong to the same attempt, because such a trial has no checkpoints. If a total decreased, the agent
    did not include the earlier steps, so ``now`` is returned unchanged.
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


def total_usage(steps: Iterable[Usage | None]) -> Usage | None:
    """Return the sum of the steps' usages, None if no step has a usage.

    An amount that is None in any usage is None in the sum. The only exception is the number of incomplete requests: a step whose
    usage the agent counted has no such number, and must not hide the numbers that the gateway reports for other steps.
    """
    known = [usage for usage in steps if usage is not None]
    if not known:
        return None
    sources = {usage.source for usage in known}
    summed = _usage([_sum([getattr(usage, name) for usage in known]) for name in _AMOUNTS])
    incomplete = [usage.incomplete for usage in known if usage.incomplete is not None]
    source = sources.pop() if len(sources) == 1 else "Agent"
    return summed.model_copy(
        update={"incomplete": sum(incomplete) if incomplete else None, "source": source, "prices": known[-1].prices}
    )


def omission(incomplete: int | None) -> str:
    """Return the remark that tokens and costs do not include the incomplete requests, "" if there are none."""
    return f"without {plural(incomplete, 'request')} of unknown usage" if incomplete else ""


def usage_of_all_attempts(status: TrialStatus) -> Usage | None:
    """Return a trial's usage, summed over all attempts, None if it is unknown.

    Once the trial has finished, status.usage is the usage of the last attempt, including the setup of a hosted agent.
    """
    return total_usage(usages(status, whole=status.usage is not None))


def judge_usage_of_all_attempts(status: TrialStatus) -> Usage | None:
    """Return the usage of a trial's judge, summed over all attempts; None if it made no request."""
    return total_usage(step.judge_usage for steps in status.steps_by_attempt().values() for step in steps)


def user_usage_of_all_attempts(status: TrialStatus) -> Usage | None:
    """Return the usage of a trial's simulated user, summed over all attempts; None if it made no request."""
    return total_usage(step.user_usage for steps in status.steps_by_attempt().values() for step in steps)


def usages(status: TrialStatus, *, whole: bool) -> list[Usage]:
    """Return status.usage, and the usages of those steps of all attempts that it does not include.

    ``whole`` means that status.usage includes the steps of the last attempt.
    """
    last = status.listed_steps().get(status.attempt or 1, []) if whole else []
    included = {(runner, step.name) for runner, step in last}
    ran = [(runner, step) for runner, steps in status.steps_by_attempt().items() for step in steps]
    others = [step.usage for runner, step in ran if (runner, step.name) not in included]
    return [step_usage for step_usage in (status.usage, *others) if step_usage is not None]


def _usage(amounts: Sequence[float | None]) -> Usage:
    return Usage.model_validate(dict(zip(_AMOUNTS, amounts, strict=True)))


def _sum(amounts: Sequence[float | None]) -> float | None:
    return None if None in amounts else sum(amount for amount in amounts if amount is not None)


SETUP_ACCESS: Final = "/setup"
"""Name under which the model gateway counts the requests of an agent's setup. No step has this name, because it contains a
slash."""

_UNKNOWN_REASON: Final = "was down"  # reason of a downtime if the gateway reports none, as earlier releases did
SILENCE_SECONDS: Final = 10.0
"""If the provider sends nothing for this time and the agent then closes its request, the agent gave up waiting for the answer."""
_SHARE_OF_TIMEOUT: Final = 0.5
_LONGEST_ANSWER_SECONDS: Final = 600.0  # the gateway gives up a request after this time (its answer_timeout_seconds)
MAX_DOWNTIMES: Final = 8
"""Maximum number of downtimes in a report."""

FailureKind: TypeAlias = Literal["Provider", "Configuration", "Budget", "LostBudget", "SweepBudget"]


@dataclass(frozen=True)
class ModelFailure:
    """Why the step's last model request failed, as the gateway observed it. The agent's own output is not trusted as evidence."""

    kind: FailureKind
    """LostBudget means that the trial's budget had no room for the request, because attempts that were lost had used a part of
    it."""
    message: str
    at_timeout: bool = False
    """Whether the failure counts only if the agent reached its timeout."""


@dataclass(frozen=True)
class Downtime:
    """A period in which the gateway may not have answered a step's requests. Times are in seconds since the epoch."""

    began: float
    ended: float
    why: str = _UNKNOWN_REASON
    """The cause, as the end of a sentence about the gateway, e.g. "was down"."""


@dataclass(frozen=True)
class ModelReport:
    """The gateway's report on a step."""

    usage: Usage | None = None
    """The usage that the gateway counted, None if it received no request of the step."""
    failure: ModelFailure | None = None
    """A failed request that counts however the agent ended."""
    fault: ModelFailure | None = None
    """A failure of the provider that counts only if the agent failed."""
    stalled_seconds: float = 0.0
    """Number of seconds in which at least one request of the step waited because the provider refused requests."""
    silent_seconds: float = 0.0
    """Number of seconds for which the provider had sent no part of an answer when the agent closed its last requests."""
    silent_until: float | None = None
    """When the agent closed its last requests, or the operator reported the agent's end, in seconds since the epoch."""
    last_request_at: float | None = None
    """When the gateway ended the last request, in seconds since the epoch. That is at most a minute after the agent closed it."""
    downtimes: tuple[Downtime, ...] = ()
    """The first downtimes that ended after the step's start."""

    def provider_fault(self, *, failed: bool, timeout: float | None, ended: float) -> str:
        """Return why the provider is to blame for the end of the agent although no request failed, "" if it is not to blame.

        ``failed`` is whether the agent exited with an error or reached its timeout. An agent that exits with status 0 did not need
        the answer. ``timeout`` is the timeout in seconds that the agent reached, None if it reached none. ``ended`` is when the
        agent ended, in seconds since the epoch.

        A silence of the provider explains a timeout only if it took at least half of it, because every agent may reach its timeout
        while it waits for a slow answer. A silence explains nothing if the agent continued to run without the answer.
        """
        if not failed:
            return ""
        if self.fault is not None and (timeout is not None or not self.fault.at_timeout):
            return self.fault.message
        least = SILENCE_SECONDS if timeout is None else timeout * _SHARE_OF_TIMEOUT
        if self.last_request_at is not None and ended - self.last_request_at > SILENCE_SECONDS:
            return ""
        # A process that the agent left running may keep its request open until the operator reports the agent's end to the gateway.
        silent = self.silent_seconds - max(0.0, (self.silent_until or ended) - ended)
        if not silent >= min(least, _LONGEST_ANSWER_SECONDS) > 0:
            return ""
        return f"the provider sent nothing for {silent:.0f} s until the agent left"

    def downtime(self, ended: float) -> Downtime | None:
        """Return the first downtime between the step's start and the agent's end, None if there is none.

        An agent that ran meanwhile may have lost a request. Its exit status and its later requests do not prove the contrary,
        because a program can print the error and continue, or exit with status 0. The gateway has no record of a connection that
        was refused.
        """
        return next((downtime for downtime in self.downtimes if downtime.began <= ended), None)


def parse_report(result: Mapping[str, Any] | None) -> ModelReport:
    """Parse the gateway's report, which is its answer or the result in the record of a CloseModelAccess.

    Raises RunnerError (code Protocol).
    """
    fields = Fields(result, "the model gateway's report")
    usage, failure, fault = (fields.optional_mapping(name) for name in ("usage", "failure", "fault"))
    measured = Fields(usage or {}, "usage")
    downtimes = fields.sequence("downtimes", MAX_DOWNTIMES) if result and "downtimes" in result else []
    return ModelReport(
        usage=None if usage is None else _reported_usage(Fields(usage, "usage")),
        stalled_seconds=measured.optional_number("stalledSeconds") or 0.0,
        silent_seconds=measured.optional_number("silentSeconds") or 0.0,
        silent_until=measured.optional_number("silentUntil"),
        last_request_at=measured.optional_number("lastRequestAt"),
        failure=None if failure is None else _failure(Fields(failure, "failure")),
        fault=None if fault is None else _failure(Fields(fault, "fault")),
        downtimes=tuple(_downtime(Fields(downtime, "downtimes")) for downtime in downtimes),
    )


def _downtime(fields: Fields) -> Downtime:
    return Downtime(fields.number("began"), fields.number("ended"), fields.optional_text("why", 200) or _UNKNOWN_REASON)


def _reported_usage(fields: Fields) -> Usage:
    only_gateway = {
        "requests": fields.optional_integer("requests"),
        "incomplete": fields.optional_integer("incomplete"),
        "held_seconds": fields.optional_number("heldSeconds"),
        "source": "Gateway",
        "prices": fields.optional_text("priceTable", 200),
    }
    return parse_usage(fields).model_copy(update=only_gateway)


def _failure(fields: Fields) -> ModelFailure:
    kinds: dict[str, FailureKind] = {name: name for name in get_args(FailureKind)}
    kind, message = kinds[fields.one_of("kind", set(kinds))], fields.text("message", 2000)
    return ModelFailure(kind, message, fields.optional_boolean("atTimeout"))


class Amounts(Protocol):
    """The amounts that budgets limit, implemented by gateway.accounting.request_ledger.Spent."""

    @property
    def input_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...
    @property
    def cost_usd(self) -> float: ...


def step_segment(step: str) -> str:
    """Return a step's name, or SETUP_ACCESS, with the slashes quoted, because slashes separate the parts of a key of the
    gateway."""
    return quote(step, safe="")


def lost_attempts_used_budget(status: TrialStatus, limits: ModelLimits | None, spent: Mapping[str, Amounts], most: Amounts) -> bool:
    """Return whether the trial's budget of a role refused a request only because lost attempts had used a part of it.

    No agent can cause the loss of an attempt. Attempts that the spec runs again after an agent's exception are not lost. ``spent``
    is what each of the trial's steps used, by ATTEMPT/STEP. ``most`` is the maximum that the request could have used.
    """
    kept = status.resumed.attempts if status.resumed else []
    names = status.task_steps or [each.name for each in status.steps]  # a status that is too large has no task_steps
    if len(kept) > len(names):
        return False
    keys = {f"{attempt}/{step_segment(name)}" for attempt, name in zip(kept, names, strict=False)}
    prefixes = tuple(f"{number}/" for number in (*_run_again(status), status.attempt or 1))
    own = [used for key, used in spent.items() if key in keys or key.startswith(prefixes)]
    return exceed(limits, spent.values(), most) and not exceed(limits, own, most)


def _run_again(status: TrialStatus) -> list[int]:
    """Return the numbers of the attempts that the spec runs again after an exception. No infrastructure lost them."""
    return [each.number for each in status.attempts if each.reason == RETRIED_BY_SPEC]


def lost_runs_used_budget(trial: MultiStepTrial, spent: Mapping[str, Amounts], most: Amounts, lost: Collection[str]) -> bool:
    """Return whether the judge's budget refused a request only because of what lost attempts, and lost runs of the step's
    verification, had used.

    spent: what each of the judge's accesses used, by ATTEMPT/NAME; most: the most that the request could have used; lost: names of
    the lost runs of the current attempt.
    """
    judge, status = trial.spec.models.judge, trial.status
    kept = {*(status.resumed.attempts if status.resumed else ()), *_run_again(status), status.attempt or 1}
    gone = {f"{status.attempt or 1}/{step_segment(name)}" for name in lost}
    own = [used for key, used in spent.items() if int(key.partition("/")[0]) in kept and key not in gone]
    limits = judge.limits if judge is not None else None
    return exceed(limits, spent.values(), most) and not exceed(limits, own, most)


def exceed(limits: ModelLimits | None, amounts: Iterable[Amounts], most: Amounts) -> bool:
    """Return whether the amounts and the most that a further request may use exceed a limit."""
    used = [*amounts, most]
    return any(limit is not None and sum(getattr(each, name) for each in used) > limit for name, limit in limits or ModelLimits())
