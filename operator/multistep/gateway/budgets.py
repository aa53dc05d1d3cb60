"""Budgets of steps and sweeps: a request is sent if its estimate, the reservations and the spending fit the budget together.

A request whose estimate does not fit waits for requests in flight, as they usually use less than they reserved. Without others
in flight it is sent if any budget is left. So concurrent requests never exceed a budget together; only the last request may.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from multistep.gateway.fair_queue import HoldExpired
from multistep.gateway.ledger import Spent
from multistep.gateway.tokens import Limits, StepClaims

Scope = Literal["step", "sweep"]
Load = Callable[[Scope, str], Awaitable[Spent]]

NOTHING: Final = Spent()
_MOST_ACCOUNTS: Final = 20_000


class BudgetSpent(Exception):
    """A budget is spent. The text says which, and is shown to the agent and in the trial's status."""


def plus(one: Spent, other: Spent) -> Spent:
    """Return the sum."""
    return Spent(one.input_tokens + other.input_tokens, one.output_tokens + other.output_tokens, one.cost_usd + other.cost_usd)


def minus(one: Spent, other: Spent) -> Spent:
    """Return the difference."""
    return plus(one, Spent(-other.input_tokens, -other.output_tokens, -other.cost_usd))


@dataclass
class Account:
    """What one step or sweep spent, and what its requests in flight reserve. users: requests that wait or are in flight."""

    spent: Spent
    reserved: Spent = NOTHING
    in_flight: int = 0
    users: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def reserve(self, estimate: Spent) -> None:
        """Reserve the estimate of a request."""
        self.reserved = plus(self.reserved, estimate)
        self.in_flight += 1

    def settle(self, estimate: Spent, used: Spent) -> None:
        """Replace the estimate by what the request used, and wake the requests that wait."""
        self.in_flight -= 1
        self.reserved = minus(self.reserved, estimate) if self.in_flight else NOTHING  # exactly 0: avoids rounding errors
        self.spent = plus(self.spent, used)
        self.changed.set()
        self.changed = asyncio.Event()


@dataclass(frozen=True)
class Reservation:
    """The budget reserved for one request. Call ``settle`` exactly once."""

    accounts: tuple[Account, ...]
    estimate: Spent

    def settle(self, used: Spent) -> None:
        """Replace the reservation by what the request used: Spent() if it was not sent."""
        for account in self.accounts:
            account.settle(self.estimate, used)
            account.users -= 1


class Budgets:
    """The accounts, loaded from the ledger when they are first needed."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._accounts: OrderedDict[tuple[Scope, str], asyncio.Future[Account]] = OrderedDict()

    async def reserve(self, claims: StepClaims, estimate: Spent, seconds: float) -> Reservation:
        """Reserve the estimate in the step's and the sweep's account; wait for at most ``seconds``.

        Raises BudgetSpent if nothing is left of a budget, HoldExpired if the estimate still does not fit after ``seconds``.
        """
        scopes: list[tuple[Scope, str, Limits]] = [("step", claims.sub, claims.limits)]
        if claims.sweep:
            scopes.append(("sweep", claims.sweep, claims.sweep_limits))
        limited = [(scope, await self._account(scope, name), limits) for scope, name, limits in scopes]
        accounts = tuple(account for _, account, _ in limited)
        for account in accounts:
            account.users += 1
        try:
            async with asyncio.timeout(seconds):
                while (full := _first_full(limited, estimate)) is not None:
                    await full.changed.wait()
        except BaseException as error:
            for account in accounts:
                account.users -= 1
            if isinstance(error, TimeoutError):
                raise HoldExpired from error
            raise
        for account in accounts:
            account.reserve(estimate)
        return Reservation(accounts, estimate)

    async def _account(self, scope: Scope, name: str) -> Account:
        found = self._accounts.get((scope, name))
        if found is None:
            found = asyncio.ensure_future(self._loaded(scope, name))
            self._accounts[scope, name] = found
            self._forget_some()
        self._accounts.move_to_end((scope, name))
        try:
            return await asyncio.shield(found)
        except Exception:
            self._accounts.pop((scope, name), None)
            raise

    async def _loaded(self, scope: Scope, name: str) -> Account:
        return Account(await self._load(scope, name))

    def _forget_some(self) -> None:
        """Evict the least recently used accounts above the maximum; ``_account`` loads them from the ledger again."""
        for key in list(self._accounts)[: max(0, len(self._accounts) - _MOST_ACCOUNTS)]:
            future = self._accounts[key]
            if future.done() and not future.cancelled() and not future.exception() and not future.result().users:
                del self._accounts[key]


def _first_full(limited: list[tuple[Scope, Account, Limits]], estimate: Spent) -> Account | None:
    """Return the first account in which the estimate does not fit now. Raises BudgetSpent."""
    for scope, account, limits in limited:
        if spent := _exceeded(account.spent, limits, strictly=False):
            raise BudgetSpent(f"the {scope}'s budget is spent: {spent}")
    for _, account, limits in limited:
        if account.in_flight and _exceeded(plus(plus(account.spent, account.reserved), estimate), limits, strictly=True):
            return account
    return None


def _exceeded(used: Spent, limits: Limits, *, strictly: bool) -> str:
    """Return a text with the first limit that is exceeded (if not ``strictly``: exceeded or reached); "" if there is none."""
    for name, amount, limit in (
        ("input tokens", used.input_tokens, limits.input_tokens),
        ("output tokens", used.output_tokens, limits.output_tokens),
        ("US dollars", used.cost_usd, limits.cost_usd),
    ):
        if limit is not None and (amount > limit if strictly else amount >= limit):
            return f"{round(amount, 6)} of {limit} {name}"
    return ""
