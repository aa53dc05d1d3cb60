"""Reserves the most that a request may use in the budgets of its trial and sweep, or refuses the request."""

from __future__ import annotations

from multistep.gateway.accounting.budgets import BudgetSpent, Reservation
from multistep.gateway.accounting.ledger_rows import Kind, Spent
from multistep.gateway.accounting.prices import has_price
from multistep.gateway.accounting.upper_bounds import UpperBound
from multistep.gateway.http.request_types import AllowedRequest, GatewayServices
from multistep.gateway.model_api.error_answers import HELD_TOO_LONG


class BudgetRefusal(Exception):
    """A budget does not allow the request. The message is shown to the agent and in the trial's status."""

    def __init__(self, kind: Kind, message: str, *, own_choice: bool = False, status: int = 400) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.own_choice = own_choice
        """Whether the agent's own choice is the reason, rather than lost attempts or the sweep's budget."""


async def reserve(services: GatewayServices, allowed: AllowedRequest, bound: UpperBound, seconds: float) -> Reservation:
    """Reserve the upper bound in the budgets, and wait for at most ``seconds`` for room. Raises BudgetRefusal."""
    if not allowed.route.counted:
        return Reservation((), Spent())
    _refuse_without_bound(allowed, bound)
    try:
        return await services.budgets.reserve(allowed.claims, bound.most, seconds)
    except BudgetSpent as error:
        raise await _refusal(services, allowed, bound, error) from error


def _refuse_without_bound(allowed: AllowedRequest, bound: UpperBound) -> None:
    """Raise BudgetRefusal if a budget applies, but the request has no known upper bound of usage or cost."""
    claims, provider, model = allowed.claims, allowed.route.provider, allowed.parsed.model
    if claims.limits_cost:
        if not has_price(provider, model):
            text = f"the price of {model} is unknown, so a budget in US dollars cannot be kept"
            raise BudgetRefusal("Configuration", text)
        if allowed.parsed.tier:
            text = f"the price of the service tier that the request to {model} asks for is unknown"
            raise BudgetRefusal("Budget", text, own_choice=True)
        for other in allowed.parsed.others:
            if not has_price(provider, other):
                text = f"the price of {other!r}, a model that the request to {model} names, is unknown"
                raise BudgetRefusal("Budget", text, own_choice=True)
    if claims.limited and bound.unknown:
        text = f"no budget can be kept for a request to {model}: {bound.unknown}"
        raise BudgetRefusal("Budget" if bound.by_content else "Unbounded", text, own_choice=bound.by_content)


async def _refusal(services: GatewayServices, allowed: AllowedRequest, bound: UpperBound, error: BudgetSpent) -> BudgetRefusal:
    if error.by_own_requests:
        return BudgetRefusal("Own", str(error), status=HELD_TOO_LONG)
    # An agent that asks for many answers, or names a dear model, must not get a sweep suspended, nor make lost attempts look as if
    # they had used up the budget.
    if allowed.parsed.answers > 1 or await _fits_alone(services, allowed, bound):
        return BudgetRefusal("Budget", str(error), own_choice=True)
    smaller_fitted = error.alone and allowed.parsed.model in await services.ledger.answered(allowed.claims.key.uid)
    return BudgetRefusal("Budget" if error.scope == "trial" or smaller_fitted else "SweepBudget", str(error))


async def _fits_alone(services: GatewayServices, allowed: AllowedRequest, bound: UpperBound) -> bool:
    """Return whether the budgets have room for the request without the other models that it names."""
    if not allowed.parsed.others:
        return False
    try:
        reservation = await services.budgets.reserve(allowed.claims, bound.of_own_model, 0.0)
    except BudgetSpent:
        return False
    reservation.release(Spent())
    return True
