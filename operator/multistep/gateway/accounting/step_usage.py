"""A step's usage, which the operator reads when it closes the step."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from multistep.gateway.accounting.ledger_rows import NOT_COUNTED, RequestRow, Spent
from multistep.gateway.accounting.unanswered import Unanswered


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class LastFailure(_Model):
    """The failure of a step's last request, or of a request for which the sweep's budget had no room."""

    status: int
    """HTTP status of the answer, or 0 without an answer."""
    model: str = ""
    """The requested model."""
    kind: Literal["Provider", "Configuration", "Budget", "SweepBudget", "Unbounded", "Path"]
    """The cause.

    - Provider: infrastructure.
    - Configuration: the provider rejects the key or the model, or the model's price is unknown.
    - Budget: the trial's budget has no room for the request, or no upper bound of the request's usage or cost is known. This is
    also the cause if the sweep's budget has no room because the request asks for several answers or names dearer models.
    - SweepBudget: the sweep's budget has no room for the request.
    - Unbounded: a budget applies, but the request names no maximum of output tokens, and the model's maximum is unknown.
    - Path: all requests of the step were for paths that the gateway does not serve.
    """
    message: str
    answered: bool = True
    """Whether the provider answered another request of the trial for this model."""
    most: Spent = Spent()
    """The most that the request could have used. 0 if the agent's own choice caused the failure, e.g. several answers."""
    at_timeout: bool = Field(default=False, alias="atTimeout")
    """Whether the failure counts only if the agent reached its timeout, because the agent left the request soon."""


class ModelUsage(_Model):
    """Requests, tokens and cost of one model."""

    requests: int = 0
    input_tokens: int = Field(default=0, alias="inputTokens")
    """All tokens of the requests, cached ones included."""
    cached_tokens: int = Field(default=0, alias="cachedTokens")
    output_tokens: int = Field(default=0, alias="outputTokens")
    cost_usd: float | None = Field(default=0.0, alias="costUSD")
    """None if a price is unknown."""
    incomplete: int = 0
    """Number of requests whose usage is unknown (lost, cut, or left by the agent). The other fields do not count them."""


class CaptureFacts(_Model):
    """The file with the token records of a step."""

    bytes: int
    sha256: str
    records: int
    """Number of choices that have a record."""
    tokens: int
    """Number of sampled tokens in all records."""
    why: str = ""
    """Why requests lack a record, or "" if none does."""

    @property
    def complete(self) -> bool:
        """Whether no request lacks a record."""
        return not self.why


class StepUsage(ModelUsage):
    """Usage of a step and role. Times are in seconds since the epoch."""

    held_seconds: float = Field(default=0.0, alias="heldSeconds")
    """Sum of the times for which the step's requests were queued."""
    models: dict[str, ModelUsage] = {}
    refusals: dict[str, int] = {}
    """Number of the provider's refusals, by HTTP status."""
    last_failure: LastFailure | None = Field(default=None, alias="lastFailure")
    failures: dict[str, LastFailure] = {}
    """The failure of the last request for each model whose last request failed."""
    price_table: str = Field(default="", alias="priceTable")
    stalled_seconds: float = Field(default=0.0, alias="stalledSeconds")
    """Time for which the provider stalled the step (waiting_seconds.Stalls)."""
    last_request_at: float | None = Field(default=None, alias="lastRequestAt")
    """When the step's last request ended."""
    spent: dict[str, Spent] = {}
    """The amounts that each of the trial's steps used, by ATTEMPT/STEP. They are set if the trial's budget refused the last
    request."""
    fault: LastFailure | None = None
    """The provider's last failure after which the provider answered no new request for the model. It counts if the agent fails."""
    silent_seconds: float = Field(default=0.0, alias="silentSeconds")
    """Time for which the step had waited for the provider when the agent left (waiting_seconds.Silence)."""
    unanswered: list[Unanswered] = []
    """The requests of a judge that got no answer."""
    silent_until: float | None = Field(default=None, alias="silentUntil")
    """When the agent left, or when the operator reported that the agent had ended."""
    capture: CaptureFacts | None = None
    """The step's token records, or None if the gateway does not record the step's tokens."""


def usage_of(
    rows: Sequence[RequestRow],
    price_table: str,
    stalled_seconds: float,
    silent_seconds: float = 0.0,
    silent_until: float | None = None,
) -> StepUsage:
    """Return the sum of a step's rows. Requests that failed with a kind in NOT_COUNTED add only their waiting time and refusals."""
    sent = [row for row in rows if row.kind not in NOT_COUNTED]
    by_model: defaultdict[str, list[RequestRow]] = defaultdict(list)
    refused: Counter[str] = Counter()
    for row in sent:
        by_model[row.model].append(row)
    for row in rows:
        refused.update({str(status): count for status, count in row.refusals.items() if count})
    last_failures = {model: _last_failure(of_model, left=True) for model, of_model in by_model.items()}
    return StepUsage(
        **_sum(sent).model_dump(),
        held_seconds=round(sum(row.held_seconds for row in rows), 3),
        models={model: _sum(of_model) for model, of_model in sorted(by_model.items())},
        refusals=dict(refused),
        last_failure=_last_failure(rows, left=False),
        failures={model: failure for model, failure in last_failures.items() if failure is not None},
        price_table=price_table,
        stalled_seconds=round(stalled_seconds, 3),
        fault=_fault(rows),
        silent_seconds=round(silent_seconds, 3),
        silent_until=silent_until,
        last_request_at=max((time.time() if row.ended is None else row.ended for row in rows), default=None),
    )


def judge_failures(usage: StepUsage, answered: Collection[str]) -> StepUsage:
    """Return the usage without the failures that the agent's own request caused, as the trial's other requests show.

    ``answered`` has the models for which the provider answered a request of the trial. If there is one, the agent knows the
    gateway's paths, and knows how to send a request whose usage has an upper bound.
    """
    update = {
        "last_failure": usage.last_failure and _judged(usage.last_failure, answered),
        "fault": usage.fault and _judged(usage.fault, answered),
        "failures": {model: failure for model, failure in usage.failures.items() if _judged(failure, answered)},
    }
    return usage.model_copy(update=update)


def _judged(failure: LastFailure, answered: Collection[str]) -> LastFailure | None:
    if failure.kind == "Path" and answered:
        return None
    works = failure.model in answered
    kind = "Budget" if failure.kind == "Unbounded" and works else failure.kind
    return failure.model_copy(update={"answered": works, "kind": kind})


def _sum(rows: Sequence[RequestRow]) -> ModelUsage:
    known = [row for row in rows if not row.incomplete]
    costs = [row.cost_usd for row in known]
    return ModelUsage(
        requests=len(rows),
        input_tokens=sum(row.input_tokens or 0 for row in known),
        cached_tokens=sum(row.cached_tokens or 0 for row in known),
        output_tokens=sum(row.output_tokens or 0 for row in known),
        cost_usd=None if None in costs else sum(cost for cost in costs if cost is not None),
        incomplete=len(rows) - len(known),
    )


def _last_failure(rows: Sequence[RequestRow], *, left: bool) -> LastFailure | None:
    """Return why the last request failed. ``left`` tells whether a request that the agent left while the provider refused it
    counts, if the provider has answered no request since."""
    if rows and all(row.kind == "Path" for row in rows):
        return _failure_of(rows[-1])
    answered_at = max((row.ended or 0.0 for row in rows if row.state == "done"), default=0.0)
    refused = [row for row in rows if row.kind == "SweepBudget"]
    ended = [row for row in refused or rows if row.ended is not None and row.kind not in ("Own", "Path")]
    counted = [row for row in ended if not (row.state == "gone" and row.kind and (not left or answered_at >= row.began))]
    last = max(counted, key=lambda row: row.ended or 0.0, default=None)
    return None if last is None or last.state == "done" else _failure_of(last)


def _fault(rows: Sequence[RequestRow]) -> LastFailure | None:
    """Return the provider's last failure after which the provider answered no new request for the model. Answers to requests that
    were already open do not count, because the agent may need the one that failed. A request that the agent left soon is returned
    only if there is no other."""
    asked_again: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.state == "done" and not row.kind:
            asked_again[row.model] = max(asked_again[row.model], row.began)
    ended = [row for row in rows if row.kind in ("Provider", "Left") and row.ended is not None]
    faults = [row for row in ended if (row.ended or 0.0) > asked_again[row.model]]
    last = max(faults, key=lambda row: (row.kind == "Provider", row.ended or 0.0), default=None)
    return None if last is None else _failure_of(last)


def _failure_of(row: RequestRow) -> LastFailure | None:
    if row.kind in ("", "Own"):
        return None
    failure = LastFailure(status=row.status, model=row.model, kind="Provider", message=row.message, most=row.reserved)
    return failure.model_copy(update={"at_timeout": True} if row.kind == "Left" else {"kind": row.kind})
