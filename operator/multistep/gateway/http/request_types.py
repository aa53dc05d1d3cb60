"""The services that the handlers of both ports share, and an agent's request that passed all checks."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import ClientSession

from multistep.gateway.accounting.budgets import Budgets
from multistep.gateway.accounting.open_steps import OpenSteps
from multistep.gateway.accounting.request_ledger import RequestLedger
from multistep.gateway.accounting.waiting_seconds import Silence, Stalls
from multistep.gateway.capture.step_files import StepFiles
from multistep.gateway.capture.weights import Weights
from multistep.gateway.http.answer_forms import ServerForms
from multistep.gateway.http.gateway_metrics import GatewayMetrics
from multistep.gateway.keys.credentials import Credential, Credentials
from multistep.gateway.keys.tokens import StepClaims
from multistep.gateway.model_api.answer_memory import AnswerMemory
from multistep.gateway.model_api.request_parsers import ParsedRequest
from multistep.gateway.model_api.routes import Route
from multistep.gateway.pace import AnswerCounts, Lanes
from multistep.gateway.settings import GatewaySettings


@dataclass(frozen=True)
class GatewayServices:
    """The objects of the gateway process that all requests use."""

    settings: GatewaySettings
    ledger: RequestLedger
    budgets: Budgets
    lanes: Lanes
    credentials: Credentials
    steps: OpenSteps
    metrics: GatewayMetrics
    loads: AnswerCounts
    stalls: Stalls
    silence: Silence
    answers: AnswerMemory
    files: StepFiles
    weights: Weights
    forms: ServerForms
    http: ClientSession


@dataclass(frozen=True)
class AllowedRequest:
    """An agent's request that passed all checks."""

    claims: StepClaims
    route: Route
    parsed: ParsedRequest
    credential: Credential
    """The provider's key at the time when the request arrived. Its id is claims.credential."""
    long_context: bool = False
    """Whether the request asks for Anthropic's context window of 1 million tokens."""
    held_seconds: float = 0.0
    """Time for which the body waited to be parsed."""

    @property
    def models(self) -> tuple[str, ...]:
        """The requested model, then the other models that may answer in its place."""
        return (self.parsed.model, *self.parsed.others)
