"""A step's usage, as the operator reads it when it closes the step."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from multistep.gateway.accounting.request_ledger import NOT_COUNTED, Row, Spent, refusals


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class LastFailure(_Model):
    """Why the step's last request failed, or that the sweep's budget had no room for one of its requests.

    status: HTTP status, 0 without an answer; model: the requested model; kind: the cause: Provider (infrastructure), Configuration
    (the key or the model is rejected, or the model's price is unknown), Budget (the trial's budget has no room for the request; or
    the sweep's budget has none, and the request is for several answers or names dearer models; or no upper bound of its usage or
    cost is known),
    SweepBudget (the sweep's budget has no room), Unbounded (a budget applies, but the request names no maximum of output tokens,
    and the model's is unknown), Path (all requests of the step were for paths that the gateway does not serve). answered: whether
    the provider answered another request of the trial for this model. most: the most that the request could have used, 0 if the
    agent's own choice was the reason, e.g. several answers. at_timeout: whether the failure counts only for an agent that reached
    its timeout, because the agent left the request soon.
    """

    status: int
    model: str = ""
    kind: Literal["Provider", "Configuration", "Budget", "SweepBudget", "Unbounded", "Path"]
    message: str
    answered: bool = True
    most: Spent = Spent()
    at_timeout: bool = Field(default=False, alias="atTimeout")


class ModelUsage(_Model):
    """Usage of one model. input_tokens includes cached_tokens; cost_usd: None if a price is unknown.

    incomplete: requests whose usage is unknown (lost, cut, or left by the agent); the sums do not contain them.
    """

    requests: int = 0
    input_tokens: int = Field(default=0, alias="inputTokens")
    cached_tokens: int = Field(default=0, alias="cachedTokens")
    output_tokens: int = Field(default=0, alias="outputTokens")
    cost_usd: float | None = Field(default=0.0, alias="costUSD")
    incomplete: int = 0


class StepUsage(ModelUsage):
    """Usage of a step and role. held_seconds: sum of the times that its requests waited; refusals: the provider's refusals by HTTP
    status; failures: why the last request for a model failed, by model; stalled_seconds: time for which the provider stalled the
    step (see stalled_seconds); last_request_at: end of its last request, in seconds since the epoch. spent: if the budget
    of the trial refused the last request, what each of the trial's steps used, by ATTEMPT/STEP.

    fault: the provider's last failure after which it answered no new request for the model; it counts if the agent fails.
    silent_seconds: for how long the step had waited for the provider when the agent left (see silent_seconds);
    silent_until: when this was, or when the gateway was told that the agent had ended, in seconds since the epoch."""

    held_seconds: float = Field(default=0.0, alias="heldSeconds")
    models: dict[str, ModelUsage] = {}
    refusals: dict[str, int] = {}
    last_failure: LastFailure | None = Field(default=None, alias="lastFailure")
    failures: dict[str, LastFailure] = {}
    price_table: str = Field(default="", alias="priceTable")
    stalled_seconds: float = Field(default=0.0, alias="stalledSeconds")
    last_request_at: float | None = Field(default=None, alias="lastRequestAt")
    spent: dict[str, Spent] = {}
    fault: LastFailure | None = None
    silent_seconds: float = Field(default=0.0, alias="silentSeconds")
    silent_until: float | None = Field(default=None, alias="silentUntil")


def usage_of(
    rows: Sequence[Row], price_table: str, stalled_seconds: float, silent_seconds: float = 0.0, silent_until: float | None = None
) -> StepUsage:
    """Return the sum of a step's rows. Of requests whose failure is of a kind in NOT_COUNTED, only the waiting time
    and the refusals count."""
    sent = [row for row in rows if row.kind not in NOT_COUNTED]
    by_model: defaultdict[str, list[Row]] = defaultdict(list)
    refused: Counter[str] = Counter()
    for row in sent:
        by_model[row.model].append(row)
    for row in rows:
        refused.update({str(status): count for status, count in refusals(row).items() if count})
    return StepUsage(
        **_sum(sent).model_dump(),
        held_seconds=round(sum(row.held_seconds for row in rows), 3),
        models={model: _sum(of_model) for model, of_model in sorted(by_model.items())},
        refusals=dict(refused),
        last_failure=_last_failure(rows, left=False),
        failures={
            model: failure for model, of_model in by_model.items() if (failure := _last_failure(of_model, left=True)) is not None
        },
        price_table=price_table,
        stalled_seconds=round(stalled_seconds, 3),
        fault=_fault(rows),
        silent_seconds=round(silent_seconds, 3),
        silent_until=silent_until,
        last_request_at=max((time.time() if row.ended is None else row.ended for row in rows), default=None),
    )


def _sum(rows: Sequence[Row]) -> ModelUsage:
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


def _last_failure(rows: Sequence[Row], *, left: bool) -> LastFailure | None:
    """Return why the last request failed. left: whether a request that the agent left while the provider refused it counts, if the
    provider has answered none since."""
    if rows and all(row.kind == "Path" for row in rows):
        return _failure_of(rows[-1])
    answered_at = max((row.ended or 0.0 for row in rows if row.state == "done"), default=0.0)
    refused = [row for row in rows if row.kind == "SweepBudget"]
    ended = [row for row in refused or rows if row.ended is not None and row.kind not in ("Own", "Path")]
    counted = [row for row in ended if not (row.state == "gone" and row.kind and (not left or answered_at >= row.began))]
    last = max(counted, key=lambda row: row.ended or 0.0, default=None)
    return None if last is None or last.state == "done" else _failure_of(last)


def _fault(rows: Sequence[Row]) -> LastFailure | None:
    """Return the last failure of the provider after which it answered no new request for the model. Of requests at the same time,
    an agent may need the one that failed. A request that the agent left soon counts least."""
    asked_again: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if row.state == "done" and not row.kind:
            asked_again[row.model] = max(asked_again[row.model], row.began)
    ended = [row for row in rows if row.kind in ("Provider", "Left") and row.ended is not None]
    faults = [row for row in ended if (row.ended or 0.0) > asked_again[row.model]]
    last = max(faults, key=lambda row: (row.kind == "Provider", row.ended or 0.0), default=None)
    return None if last is None else _failure_of(last)


def _failure_of(row: Row) -> LastFailure | None:
    if row.kind in ("", "Own"):
        return None
    found = LastFailure(status=row.status, model=row.model, kind="Provider", message=row.message, most=row.reserved)
    return found.model_copy(update={"at_timeout": True} if row.kind == "Left" else {"kind": row.kind})
