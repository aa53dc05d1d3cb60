"""The table of every way in which an agent's step can end, with failure class, score and whether the attempt is retried.

The engine and the gateway decide, and tests/unit/blame runs each row through both. docs/reference/failures.md shows the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from multistep.api.trial.failure_table import (
    AGENT_NOT_STARTED,
    MODEL_ACCESS_DENIED,
    MODEL_GATEWAY_DOWN,
    NO_SUCH_USER,
    PROVIDER_FAILED,
    VERIFIER_ENVIRONMENT_FAILED,
)
from multistep.api.trial.status import FailureClass

Score = Literal["verdict", "none"]
"""``verdict`` means that the step is verified, and counts 0 without a reward. ``none`` means that the trial has no score."""


@dataclass(frozen=True)
class Blame:
    """One way in which a step can end."""

    key: str
    """Name of the row's test."""
    what: str
    """Description of what happened, for the docs."""
    failure_class: FailureClass | None
    """None if the step did not fail."""
    reason: str = ""
    """Failure reason or type of exception (failure_table), "" for none."""
    score: Score = "none"
    retried: bool = False
    """Whether a new attempt starts."""
    if_failed: bool = False
    """Whether the row applies only to an agent that exits with an error or reaches its timeout. The step of another agent then has
    no failure."""


def _provider(key: str, what: str, *, if_failed: bool = False) -> Blame:
    return Blame(key, what, "Provider", PROVIDER_FAILED, "none", retried=True, if_failed=if_failed)


def _configuration(key: str, what: str, reason: str = MODEL_ACCESS_DENIED) -> Blame:
    return Blame(key, what, "Configuration", reason)


def _agent(key: str, what: str, reason: str = "NonZeroAgentExitCodeError") -> Blame:
    return Blame(key, what, "Agent", reason, "verdict", if_failed=True)


def _infrastructure(key: str, what: str, reason: str = MODEL_GATEWAY_DOWN) -> Blame:
    return Blame(key, what, "Infrastructure", reason, "none", retried=True)


AGENT: Final = (
    Blame("agent-ok", "all model requests were answered, and the agent exits with 0", None, score="verdict"),
    _agent("agent-fails", "all model requests were answered, and the agent exits with another status"),
    _agent("agent-timeout", "the agent reaches its timeout while it works, or waits for an answer as usual", "AgentTimeoutError"),
)
"""Ends by the agent's own exit."""

ANSWERS: Final = (
    _agent("recovered", "the provider failed, but answered a new request for the model later"),
    _agent("request-error", "400, 413 or 422, or an error in an answer that blames the request, such as a prompt that is too long"),
    _agent("limit-alone", "429 that says that the request alone exceeds a rate limit"),
    _agent("too-large-answer", "an answer, or one event of a stream, that the gateway cannot keep in memory; it is cut off"),
    _configuration("model-unknown", "the provider does not know the trial's model, and answered no request of the trial for it"),
    _configuration("account", "401, 402, or an error about the key, the account's credit, or a budget that the provider keeps"),
    _provider("server-error", "408 or a status from 500 on in the step's last request, or an error in its answer"),
    _provider("no-answer", "status 200 and a document or a stream that is no answer of the API"),
    _provider("cut", "the last request has no answer, or one without its end"),
    _provider("crowded", "the gateway cannot keep an answer of more than 2 MiB in memory, as those to other trials fill it"),
    _provider("malformed", "an answer with an event that is no JSON", if_failed=True),
    _provider("parallel", "one of several requests at the same time failed, though others were answered later", if_failed=True),
)
"""Ends by an answer of the provider."""

PROVIDER: Final = (
    _provider("refuses", "429, 503 or 529 until the gateway's hold ends"),
    _provider("unreachable", "the provider refuses connections for so long"),
    _provider("left-refused", "the agent leaves a request that the provider has refused for 10 s or more", if_failed=True),
    _provider("held-at-timeout", "a request is held at the agent's timeout, as the provider refuses it"),
    _provider(
        "silent",
        "the agent leaves its last request after 10 s or more of silence, and ends soon; no answer follows",
        if_failed=True,
    ),
    _provider("silent-at-timeout", "the same for half of the agent's timeout or more, until the timeout"),
)
"""Ends because the provider refused requests or did not answer."""

CONFIGURATION: Final = (
    _configuration("unknown-path", "all requests of the trial were for paths that the gateway does not serve"),
    _configuration("unbounded", "a budget applies, but the agent's requests name no maximum of output, and the model's is unknown"),
)
"""Ends by a configuration that cannot work."""

STARTS: Final = (
    _configuration(
        "not-started",
        "in the first step, the agent's program, its class, or an option, a model or a key that it needs is missing",
        AGENT_NOT_STARTED,
    ),
    Blame("no-user", "the image lacks a user that the task names for any step, or `spec.agent.user`", "Task", NO_SUCH_USER),
)
"""Ends of agents that could not start."""

GATEWAY: Final = (
    _infrastructure("killed", "the gateway was killed and started again while the agent ran"),
    _infrastructure(
        "drained", "the gateway was stopped and started again while the agent ran, by an upgrade or the drain of its node"
    ),
    _infrastructure("moved", "the gateway was moved to another node without its ledger, which was on an emptyDir"),
    _infrastructure("ledger-lost", "the gateway's ledger was deleted while the agent ran"),
    _infrastructure("ledger-damaged", "the gateway's ledger was damaged while the agent ran"),
    _infrastructure("ledger-put-back", "the gateway's ledger was put back from a copy that is older than the step"),
    _infrastructure("signing-key-replaced", "the key that signed the step's token was removed, or replaced under its id"),
    Blame(
        "key-rotated",
        "the provider's key was rotated: its Secret had the new one before the old one was rejected",
        None,
        score="verdict",
    ),
)
"""Ends by an outage of the model gateway or a change of keys."""

OUTSIDE: Final = (
    _infrastructure("egress-ended", "a signal, which no process of the pod can send, ended its egress sidecar", "EgressEnded"),
    _infrastructure(
        "volume-put-back",
        "the results volume was put back from an older copy, which lacks a verdict of a separate verifier",
        VERIFIER_ENVIRONMENT_FAILED,
    ),
)
"""States of the pod's network and of the results volume."""

BLAME: Final[tuple[Blame, ...]] = (*AGENT, *ANSWERS, *PROVIDER, *CONFIGURATION, *STARTS, *GATEWAY, *OUTSIDE)
