"""Budgets of trials' roles and of sweeps. The gateway sends a request only if the amount spent, the reservations of other
requests and the request's own upper bound together fit in each budget.

So concurrent requests cannot exceed a budget. A request that does not fit waits for the requests in flight, because they usually
use less than they reserved. The gateway refuses a request at once if it would not fit even without the reservations.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from multistep.gateway.accounting.ledger_rows import Spent
from multistep.gateway.keys.tokens import BudgetLimits, StepClaims

Scope = Literal["trial", "sweep"]
LoadSpent = Callable[[Scope, str], Awaitable[Spent]]

_MAX_ACCOUNTS: Final = 20_000


class BudgetSpent(Exception):
    """A budget has no room for a request. The message names the budget, and is shown to the agent and in the trial's status."""

    def __init__(self, scope: Scope, message: str, *, by_own_requests: bool = False, alone: bool = False) -> None:
        super().__init__(message)
        self.scope: Final = scope
        self.by_own_requests: Final = by_own_requests
        """Whether the sweep's budget lacks room only because the same trial has other requests in flight."""
        self.alone: Final = alone
        """Whether the request may use more than the whole budget."""


@dataclass
class BudgetAccount:
    """The amounts that one role of a trial, or a sweep, has spent, and the amounts that their requests in flight reserve."""

    spent: Spent
    owner: str = ""
    """Whose budget it is, for messages: trial, judge, user or sweep."""
    reserved: Spent = field(default_factory=Spent)
    in_flight: int = 0
    users: int = 0
    """Number of requests that wait for this account or are in flight. An account with users is not evicted."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def reserve(self, most: Spent) -> None:
        """Reserve the upper bound of a request's usage."""
        self.reserved += most
        self.in_flight += 1

    def release(self, most: Spent, used: Spent) -> None:
        """Replace a reservation by the request's actual usage, and wake the requests that wait."""
        self.in_flight -= 1
        # Set the reservation to exactly 0, without rounding errors.
        self.reserved = self.reserved - most if self.in_flight else Spent()
        self.spent += used
        self.changed.set()
        self.changed = asyncio.Event()


_Limited: TypeAlias = tuple[Scope, BudgetAccount, BudgetLimits]


@dataclass(frozen=True)
class Reservation:
    """The budget reserved for one request. Call ``release`` exactly once."""

    accounts: tuple[BudgetAccount, ...]
    most: Spent
    own_seconds: float = 0.0
    """Time for which the request waited because the trial's other requests left no room."""

    def release(self, used: Spent) -> None:
        """Replace the reservation by the request's actual usage. Pass Spent() if the request was not sent."""
        for account in self.accounts:
            account.release(self.most, used)
            account.users -= 1


class Budgets:
    """The accounts of trials' roles and of sweeps. Each is loaded from the ledger at its first use."""

    def __init__(self, load: LoadSpent) -> None:
        self._load = load
        self._accounts: OrderedDict[tuple[Scope, str], asyncio.Future[BudgetAccount]] = OrderedDict()

    async def reserve(self, claims: StepClaims, most: Spent, seconds: float) -> Reservation:
        """Reserve a request's upper bound in the trial's and the sweep's account. If a budget lacks room, wait for at most
        ``seconds``.

        Raises BudgetSpent if the spending leaves no room for the request, or if reservations of other requests still leave no room
        after ``seconds``.
        """
        scopes: list[tuple[Scope, str, BudgetLimits]] = [("trial", claims.account, claims.limits)]
        if claims.sweep:
            scopes.append(("sweep", claims.sweep, claims.sweep_limits))
        limited = [(scope, await self._account(scope, name), limits) for scope, name, limits in scopes]
        accounts = tuple(account for _, account, _ in limited)
        for account in accounts:
            account.users += 1
        try:
            own_seconds = await _wait_for_room(limited, most, seconds)
        except BaseException:
            for account in accounts:
                account.users -= 1
            raise
        for account in accounts:
            account.reserve(most)
        return Reservation(accounts, most, own_seconds)

    async def _account(self, scope: Scope, name: str) -> BudgetAccount:
        account = self._accounts.get((scope, name))
        if account is None:
            account = asyncio.ensure_future(self._loaded(scope, name))
            self._accounts[scope, name] = account
            self._forget_some()
        self._accounts.move_to_end((scope, name))
        try:
            return await asyncio.shield(account)
        except Exception:
            if self._accounts.get((scope, name)) is account:
                del self._accounts[scope, name]
            raise

    async def _loaded(self, scope: Scope, name: str) -> BudgetAccount:
        role = name.rpartition("/")[2] if scope == "trial" else scope
        return BudgetAccount(await self._load(scope, name), "trial" if role == "agent" else role)

    def _forget_some(self) -> None:
        """If there are more than _MAX_ACCOUNTS, evict the least recently used accounts, except accounts that have users."""
        for key in list(self._accounts)[: max(0, len(self._accounts) - _MAX_ACCOUNTS)]:
            future = self._accounts[key]
            if future.done() and not future.cancelled() and not future.exception() and not future.result().users:
                del self._accounts[key]


async def _wait_for_room(limited: Sequence[_Limited], most: Spent, seconds: float) -> float:
    """Wait until every budget has room for the request. Return the seconds for which only the trial's other requests left no room.
    Raises BudgetSpent."""
    loop = asyncio.get_running_loop()
    own_seconds = 0.0
    deadline = loop.time() + seconds
    while (full := _first_full(limited, most)) is not None:
        account, refusal = full
        since = loop.time()
        try:
            async with asyncio.timeout_at(deadline):
                await account.changed.wait()
        except TimeoutError:
            raise refusal from None
        if refusal.scope == "trial" or refusal.by_own_requests:
            own_seconds += loop.time() - since
    return own_seconds


def _first_full(limited: Sequence[_Limited], most: Spent) -> tuple[BudgetAccount, BudgetSpent] | None:
    """Return the first account whose budget has no room for the request now, and the error to raise if it still has none at the
    deadline. Return None if every budget has room. Raises BudgetSpent if the spending leaves no room even without the reservations.

    A trial with requests in flight may reserve more of the sweep's budget only if the rest of the budget then is at least as large
    as these reservations. Otherwise the requests of one trial could make those of all other trials wait and fail."""
    for scope, account, limits in limited:
        if lacking := _exceeded(account.spent, most, limits, "used"):
            alone = bool(_exceeded(Spent(), most, limits, "used"))
            raise BudgetSpent(scope, f"the {account.owner}'s budget has no room for this request: {lacking}", alone=alone)
    own = limited[0][1].reserved
    for scope, account, limits in limited:
        how = "used or reserved by other requests"
        used = account.spent + account.reserved
        if scope == "sweep" and not _exceeded(used - own, most, limits, how):
            if lacking := _exceeded(used + own, most, limits, "used or reserved, or kept for other trials"):
                message = f"the trial's other requests leave no room for this one in the sweep's budget: {lacking}"
                return account, BudgetSpent(scope, message, by_own_requests=True)
        elif lacking := _exceeded(used, most, limits, how):
            return account, BudgetSpent(scope, f"the {account.owner}'s budget has no room for this request: {lacking}")
    return None


def _exceeded(used: Spent, most: Spent, limits: BudgetLimits, how: str) -> str:
    """Return a message about the first limit that the request would exceed, e.g. "7 of 10 input tokens are used, ...", or "".

    ``how`` describes the amount ``used`` in the message, e.g. "used or reserved by other requests".
    """
    for name, before, more, limit in (
        ("input tokens", used.input_tokens, most.input_tokens, limits.input_tokens),
        ("output tokens", used.output_tokens, most.output_tokens, limits.output_tokens),
        ("US dollars", used.cost_usd, most.cost_usd, limits.cost_usd),
    ):
        if limit is not None and before + more > limit:
            return f"{round(before, 6)} of {limit} {name} are {how}, and it may use {round(more, 6)}"
    return ""
