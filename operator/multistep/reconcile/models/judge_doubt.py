"""Tells why requests of a judge got no answer, by the gateway's records of them and of a request of the operator's own.

A process that the agent left may have sent any of the judge's requests. So the trial is only excluded because of a provider, or of
a key or model, with which a request that no process of the trial can influence fails, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.score.usage_totals import exceed, lost_runs_used_budget
from multistep.engine.script.judge_requests import Cause
from multistep.gateway.accounting.step_usage import StepUsage
from multistep.gateway.accounting.unanswered import Unanswered
from multistep.providers import Provider, is_name_of

_CHECKED: Final[frozenset[Cause]] = frozenset(("Configuration", "Provider", "Left"))
_ORDER: Final[tuple[Cause, ...]] = ("Configuration", "Request", "Provider", "Outage", "LostBudget", "Budget", "Left")
_TEXT: Final = "Reply with the word yes."
_MAX_OUTPUT_TOKENS: Final = 256  # a model may think before it answers


def unanswered_cause(trial: MultiStepTrial, usage: StepUsage, lost: Collection[str]) -> tuple[Cause, str] | None:
    """Return the first cause of _ORDER for which requests of a judge got no answer, and the gateway's message; None if each got
    one.

    lost: as in CloseModelAccess.
    """
    failed = {each.model for each in usage.unanswered}
    worked = bool(usage.models.keys() - failed) or any(each.others_answered for each in usage.unanswered)
    found = dict[Cause, str]()
    for each in usage.unanswered:
        if (cause := _cause(trial, usage, each, lost, worked=worked)) is not None:
            found.setdefault(cause, each.message or f"status {each.status}")
    if "Budget" in found and usage.incomplete:
        found["Budget"] += f"; {usage.incomplete} requests without a complete answer count with the most that they may have used"
    return next(((cause, found[cause]) for cause in _ORDER if cause in found), None)


def _cause(trial: MultiStepTrial, usage: StepUsage, found: Unanswered, lost: Collection[str], *, worked: bool) -> Cause | None:
    """Return why requests got no answer, None if that does not matter. worked: whether the provider answered any request."""
    judge = trial.spec.models.judge
    match found.cause:
        case "Path":
            return None if worked else "Request"
        case "Configuration" if judge is None or not is_name_of(judge.model, found.model):
            return "Left" if worked else "Request"
        case "Unbounded" if not worked:
            return "Request"
        case "Budget" if not worked and judge is not None and exceed(judge.limits, (), found.most):
            return "Request"  # the whole budget has no room for it
        case "Provider" if found.answered_elsewhere:
            return "Outage"
        case "Budget" | "Unbounded":
            return "LostBudget" if lost_runs_used_budget(trial, usage.spent, found.most, lost) else "Budget"
    return found.cause


def is_checked(cause: Cause, usage: StepUsage) -> bool:
    """Return whether the operator asks the judge's model itself. usage: that of the run of the verification.

    A provider that cuts requests off can use up a budget, because each of them counts with the most that it may have used.
    """
    return cause in _CHECKED or (cause == "Budget" and usage.incomplete > 0)


def check_name(access: str) -> str:
    """Return the name under which the model gateway counts the request with which the operator checks the judge's model after a
    run of a verification. access: name of the run's access."""
    return f"{access}/check"


def question(provider: Provider, model: str) -> tuple[str, Mapping[str, Any]]:
    """Return the path at the gateway and the body of a short request to the model."""
    messages = [{"role": "user", "content": _TEXT}]
    match provider.name:
        case "anthropic":
            return f"{provider.path}/v1/messages", {"model": model, "max_tokens": _MAX_OUTPUT_TOKENS, "messages": messages}
        case "gemini":
            contents = [{"role": "user", "parts": [{"text": _TEXT}]}]
            settings = {"maxOutputTokens": _MAX_OUTPUT_TOKENS}
            return f"{provider.path}/v1beta/models/{model}:generateContent", {"contents": contents, "generationConfig": settings}
    return f"{provider.path}/chat/completions", {"model": model, "max_completion_tokens": _MAX_OUTPUT_TOKENS, "messages": messages}


def confirmed(cause: Cause, check: StepUsage) -> Cause:
    """Return the cause after the operator's own request. check: the usage of this request, under each name of the model.

    It is an Outage if the provider failed here, too. A rejection of key or model stands if each name was rejected here, too.
    """
    causes = {each.cause for each in check.unanswered}
    answered = check.models.keys() - {each.model for each in check.unanswered}
    if answered or not causes <= {"Provider", "Configuration"}:
        return "Left" if cause == "Configuration" else cause
    return "Outage" if "Provider" in causes else "Configuration"


def with_usage_of(usage: StepUsage, check: StepUsage) -> StepUsage:
    """Return the usage of a run of the verification, with that of the operator's own request."""
    costs = (usage.cost_usd, check.cost_usd)
    return usage.model_copy(
        update={
            "requests": usage.requests + check.requests,
            "input_tokens": usage.input_tokens + check.input_tokens,
            "cached_tokens": usage.cached_tokens + check.cached_tokens,
            "output_tokens": usage.output_tokens + check.output_tokens,
            "incomplete": usage.incomplete + check.incomplete,
            "cost_usd": None if None in costs else sum(cost for cost in costs if cost is not None),
        }
    )
