"""The training samples of a rollout."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from multistep.token_records.record import LogProbs, TokenIds

Why = Literal["First", "SamePrompt", "OtherAgent", "AnswerChanged", "HistoryChanged"]
"""Why a sequence starts. First: it is the first. SamePrompt: an earlier request had the same prompt. OtherAgent: system prompt or
tools are new, as of a sub-agent. AnswerChanged: the prompt departs from an earlier sequence inside of an answer, for example
because the agent dropped the reasoning, or because the text was tokenised differently. HistoryChanged: it departs elsewhere, for
example after a compaction."""
Credit = Literal["ToGo", "Step", "Trial"]
"""The credit of a token. ToGo: what its own step and all later steps add to the reward. Step: what its own step adds. Trial: the
reward."""
CONTEXT = -1
"""The version index of a token that is not trained."""


class Answer(NamedTuple):
    """Where a sequence has an answer."""

    start: int
    """Index of its first token."""
    end: int
    """Index after its last token."""
    request: str
    """STEP/ID/CHOICE of the request."""


@dataclass
class Sample:
    """One sequence. The arrays have one item per token."""

    why: Why
    shared: int
    """Number of tokens that it shares with the earlier sequence from which it departs."""
    context: str
    """Digest of the system prompt and tools of its first request."""
    ids: TokenIds = field(default_factory=lambda: array("I"))
    mask: array[int] = field(default_factory=lambda: array("B"))
    """1 for a token to train, which the model sampled with exactly the tokens before it as its context; otherwise 0."""
    logprobs: LogProbs = field(default_factory=lambda: array("f"))
    """Log-probabilities when the tokens were sampled; 0 where the mask is 0."""
    steps: array[int] = field(default_factory=lambda: array("H"))
    """Indexes in ``Samples.steps``."""
    versions: array[int] = field(default_factory=lambda: array("i"))
    """Indexes in ``Samples.versions``; CONTEXT where the mask is 0."""
    answers: list[Answer] = field(default_factory=list)
    credit: array[float] | None = None
    """The credit of each token, 0 where the mask is 0. None if the rollout is not valid."""


@dataclass(frozen=True)
class Samples:
    """The sequences of a rollout. Each sampled token is trained in one of them."""

    sequences: Sequence[Sample]
    steps: Sequence[str]
    """Names of the steps."""
    versions: Sequence[str]
    """Versions of the weights; "" is an unknown version."""
    left_out: Mapping[str, str]
    """Requests (STEP/ID/CHOICE) that are trained in no sequence, each with the reason: the record's state, or TooMany."""
    missing: Mapping[str, str]
    """Steps whose records are not complete, each with the reason. What is there is exact, so it can be trained. An agent may cause
    this with requests beyond the file's limit, so the reward is not masked."""
    reward: float | None
    """The rollout's reward; None if the rollout is not valid, which training must mask."""

    @property
    def valid(self) -> bool:
        """Whether the rollout has a reward."""
        return self.reward is not None

    def staleness(self, version: int) -> float | None:
        """Return by how many versions the weights that sampled the trained tokens are behind on average. None if no version is
        known. version: the trainer's current version, a number like those in ``versions``."""
        behind = [version - int(name) if name.isdecimal() else None for name in self.versions]
        known = [behind[index] for each in self.sequences for index in each.versions if index != CONTEXT]
        numbers = [each for each in known if each is not None]
        return sum(numbers) / len(numbers) if numbers else None
