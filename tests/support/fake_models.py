"""A fake of the operator's client of the model gateway: it returns scripted usage reports and records the calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.operations import HostCall, Start
from multistep.engine.journal.results_limits import Headroom
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.role_plans import JudgePlan, UserPlan
from multistep.errors import GatewayUnavailable
from multistep.reconcile.models.model_gateway import AgentOrUser, ModelUser, Write
from tests.support.faults import Faults


def counted(tokens: tuple[int, int, int], **usage: Any) -> dict[str, Any]:
    """Return a usage report with these numbers of input, cached and output tokens."""
    names = ("inputTokens", "cachedTokens", "outputTokens")
    amounts = dict(zip(names, tokens, strict=True))
    return {"usage": {**amounts, "requests": 1, "incomplete": 0, "heldSeconds": 0.0, "costUSD": 0.25, "priceTable": "t", **usage}}


def failed(kind: str, message: str = "529 from the provider") -> dict[str, Any]:
    return {**counted((1, 0, 0)), "failure": {"kind": kind, "message": message}}


@dataclass
class FakeModels:
    """A fake of the operator's client of the model gateway. reports: usage reports by "ATTEMPT/STEP", or by "ATTEMPT/NAME/ROLE" for
    judges and users. tokens: token records by "ATTEMPT/STEP"; deleted: the steps whose records were deleted. down: number of
    upcoming calls that raise GatewayUnavailable. faults: those of the world that uses it."""

    reports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    down: int = 0
    tokens: Mapping[str, bytes] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    missing_tokens: Mapping[str, str] = field(default_factory=dict)
    judged: list[str] = field(default_factory=list)
    lost: list[tuple[str, ...]] = field(default_factory=list)
    stalls_url: str = "http://gateway/multistep/stalls"
    faults: Faults = field(default_factory=Faults)

    def remember(self, user: ModelUser, namespace: str) -> None:
        self.known += user.credentials

    async def variables(self, trial: MultiStepTrial, hosted: HostedAgent, call: HostCall) -> Mapping[str, str]:
        self._answer("variables")
        return {**dict.fromkeys(hosted.credentials, f"token of {call.model_access}"), "OPENAI_BASE_URL": "http://gateway/openai/v1"}

    async def user_variables(self, trial: MultiStepTrial, user: UserPlan, call: HostCall) -> Mapping[str, str]:
        self._answer("user variables")
        return dict.fromkeys(user.credentials, f"user token of {call.user_access}")

    async def judge_variables(self, trial: MultiStepTrial, judge: JudgePlan, start: Start) -> Mapping[str, str]:
        self._answer("judge variables")
        self.judged.append(start.model_access)
        return {name: f"{name} of {start.model_access}" for name in judge.spec.sources}

    async def save_tokens(self, trial: MultiStepTrial, step: str, headroom: Headroom, write: Write) -> str:
        self._answer("tokens")
        await write(self.tokens.get(f"{trial.status.attempt}/{step}", b""))
        return self.missing_tokens.get(step, "")

    async def delete_tokens(self, trial: MultiStepTrial, step: str) -> None:
        self.deleted.append(f"{trial.status.attempt}/{step}")

    async def close_judge(
        self, trial: MultiStepTrial, access: str, judge: JudgePlan | None = None, lost: Collection[str] = ()
    ) -> Mapping[str, Any]:
        self.lost.append(tuple(lost))
        return await self.close(trial, f"{access}/judge")

    async def close(self, trial: MultiStepTrial, step: str, role: AgentOrUser = "agent") -> Mapping[str, Any]:
        self._answer("close")
        self.closed.append(f"{trial.status.attempt}/{step}" + ("/user" if role == "user" else ""))
        return self.reports.get(self.closed[-1], {})

    def _answer(self, call: str) -> None:
        self.faults.point(f"models {call}")
        if self.down:
            self.down -= 1
            raise GatewayUnavailable("the model gateway at http://gateway did not answer")
