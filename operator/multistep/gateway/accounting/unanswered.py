"""Finds the requests of a judge that got no answer. A verdict that the judge gave without these answers does not count.

A program that grades may note the lack of an answer as a 0, and go on. So each request must have an answer. The program may get it
when it sends the same content again in a later request. Only a request that the program need not have left may lack it, e.g. the
slower one of two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from multistep.gateway.accounting.ledger_rows import RequestRow, Spent

Cause = Literal["Provider", "Configuration", "Budget", "Unbounded", "Path", "Left"]
"""Why requests got no answer. Most values are kinds of the ledger's rows. Left means that the client left, or did not wait for its
turn, and that the provider is not known to be the cause."""
_CAUSES: Final[dict[str, Cause]] = {
    "Provider": "Provider",
    "Configuration": "Configuration",
    "Budget": "Budget",
    "SweepBudget": "Budget",
    "Unbounded": "Unbounded",
    "Path": "Path",
}
_NOTICED_SECONDS: Final = 0.5
SILENT_SECONDS: Final = 10.0
"""A client that left a request after such a time without an answer may have left it because the provider was slow."""


class Unanswered(BaseModel):
    """Requests of one model that got no answer, for one cause."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    cause: Cause
    model: str
    status: int = 0
    """HTTP status of the last of these requests, or 0 without an answer."""
    message: str = ""
    """Why the last of these requests failed."""
    requests: int = 1
    others_answered: bool = Field(default=False, alias="othersAnswered")
    """Whether the provider answered another request of the step for the model."""
    answered_elsewhere: bool = Field(default=False, alias="answeredElsewhere")
    """Whether the provider failed each of these requests, and answered the same content in another run of a verification. Then not
    the content is why it failed."""
    most: Spent = Spent()
    """The upper bound of the last request's usage, or 0 if the program's own choice was the reason, e.g. several answers."""


def unanswered(rows: Sequence[RequestRow], elsewhere: Collection[str] = ()) -> list[Unanswered]:
    """Return the requests that got no answer, by model and cause. ``rows`` has all requests of a judge's step, ``elsewhere`` the
    contents that the provider answered in the judge's other steps."""
    by_content: defaultdict[tuple[str, str], list[RequestRow]] = defaultdict(list)
    for row in rows:
        by_content[row.model, row.content].append(row)
    answered = _longest_answers(rows)
    found: defaultdict[tuple[str, Cause], list[RequestRow]] = defaultdict(list)
    for (model, _), alike in by_content.items():
        for row in _not_repeated(alike):
            if not _left_by_choice(row, answered.get(model)):
                found[model, _cause(row, answered=model in answered)].append(row)
    return [
        Unanswered(
            cause=cause,
            model=model,
            status=failed[-1].status,
            message=failed[-1].message or _how(failed[-1]),
            requests=len(failed),
            others_answered=model in answered,
            answered_elsewhere=all(_fails_sometimes(row, elsewhere) for row in failed),
            most=failed[-1].reserved,
        )
        for (model, cause), failed in sorted(found.items())
    ]


def _is_answered(row: RequestRow) -> bool:
    """Return whether the client got a complete answer, or an error that blames its request."""
    return row.left_at is None and not row.kind and row.state in ("done", "failed")


def _longest_answers(rows: Sequence[RequestRow]) -> dict[str, float]:
    """Return for how many seconds the client waited for the slowest answer that it got, by model."""
    longest = dict[str, float]()
    for row in rows:
        if _is_answered(row):
            longest[row.model] = max(longest.get(row.model, 0.0), (row.ended or row.began) - row.began)
    return longest


def _left_by_choice(row: RequestRow, longest: float | None) -> bool:
    """Return whether the client did not leave the request at a timeout of its own, because it has waited longer for another answer.

    longest: seconds of the slowest answer that it got from the model, None without one. A request that was queued is never left by
    choice: an agent could send so many requests that those of the tests wait.
    """
    if row.left_at is None or row.kind or longest is None or row.held_seconds > _NOTICED_SECONDS:
        return False
    return row.left_at - row.began <= longest + _NOTICED_SECONDS


def _not_repeated(alike: Sequence[RequestRow]) -> list[RequestRow]:
    """Return the requests without an answer that were not sent again. ``alike`` has requests with the same content. A request
    repeats at most one other, which had failed before it began, because a program may send the same content several times at
    once."""
    later, spare = sorted(row.began for row in alike), 0
    missing = list[RequestRow]()
    for row in sorted((row for row in alike if not _is_answered(row)), key=_failed_at, reverse=True):
        while later and later[-1] > _failed_at(row):
            later.pop()
            spare += 1
        if spare:
            spare -= 1
        else:
            missing.append(row)
    return missing[::-1]


def _fails_sometimes(row: RequestRow, elsewhere: Collection[str]) -> bool:
    """Return whether the provider failed the request, but not because of its content, nor of requests that it had to wait for."""
    return row.kind == "Provider" and row.held_seconds < SILENT_SECONDS and row.content in elsewhere


def _failed_at(row: RequestRow) -> float:
    """Return when the client knew that it would get no answer. The gateway may notice that a client left only after the client's
    next request."""
    if row.left_at is not None:
        return max(row.left_at - _NOTICED_SECONDS, row.began)
    return float("inf") if row.ended is None else row.ended


def _cause(row: RequestRow, *, answered: bool) -> Cause:
    """Return why a request got no answer. If the provider answered no request for the model, its silence counts as its failure."""
    if (cause := _CAUSES.get(row.kind)) is not None:
        return cause
    waited = (row.left_at or row.ended or row.began) - row.began
    return "Provider" if row.kind != "Own" and not answered and waited >= SILENT_SECONDS else "Left"


def _how(row: RequestRow) -> str:
    if row.ended is None:
        return "the verification ended before the provider answered"
    seconds = (row.left_at or row.ended) - row.began
    return f"the client left the request after {seconds:.0f} s without a complete answer"
