"""A record of one model request, and what a file of records contains."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, NonNegativeInt, Strict

PATH: Final = "agent/tokens.msgpack.zst"
"""Path of a step's file in the results of the step."""
BLOCK_BYTES: Final = 4 * 256
"""Bytes of a block's token ids."""
State = Literal["Done", "Aborted", "Cut", "Inexact", "Mixed", "Constrained", "OtherModel"]
"""Done: the record has exactly what the engine sampled. Aborted: the agent left the stream. Cut: the server's stream broke.
Inexact: the numbers of ids, of log-probabilities and of tokens in the usage differ. Mixed: the weights changed during the answer,
and which token had which weights is unknown. Constrained: the request changed what may be sampled. OtherModel: the request was for
another model than the trial's."""

_SAMPLING: Final = (
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "seed",
    "temperature",
    "top_k",
    "top_p",
)
_MAX_NUMBER: Final = 2**63 - 1  # msgpack has 64 bits


def _ids(value: Any) -> Any:
    return array("I", value) if isinstance(value, bytes) else value


def _floats(value: Any) -> Any:
    return array("f", value) if isinstance(value, bytes) else value


def sampling_of(request: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the sampling parameters of a request that an agent wrote: only numbers, and only known names."""
    found = {name: request[name] for name in _SAMPLING if name in request}
    return {name: value for name, value in found.items() if isinstance(value, int | float) and abs(value) <= _MAX_NUMBER}


TokenIds: TypeAlias = "array[int]"
LogProbs: TypeAlias = "array[float]"


@dataclass(frozen=True, slots=True)
class StoredPrompt:
    """The token ids of a prompt, as bytes. Prompts of a file share their blocks."""

    blocks: Sequence[bytes]
    rest: bytes

    def __len__(self) -> int:
        """Return the number of tokens."""
        return (len(self.blocks) * BLOCK_BYTES + len(self.rest)) // 4


class Record(BaseModel):
    """One choice of one request. Times are in seconds since the epoch."""

    model_config = ConfigDict(frozen=True, strict=True, arbitrary_types_allowed=True)

    id: str
    """Id of the request in the gateway's ledger."""
    answer: str
    """Id of the answer, as the server named it."""
    order: NonNegativeInt
    """Requests of a step in the order in which the gateway sent them."""
    began: float
    ended: float
    step: str
    choice: NonNegativeInt
    """Index of the choice; greater than 0 only for requests with ``n``."""
    context: str
    """Digest of the request's system prompt and tools. Requests of one agent have the same."""
    stored_prompt: InstanceOf[StoredPrompt]
    ids: Annotated[TokenIds, BeforeValidator(_ids)]
    """The sampled tokens."""
    logprobs: Annotated[LogProbs, BeforeValidator(_floats)]
    """The log-probability of each token of ``ids``; empty if the server gave none."""
    finish: str | None
    """The finish reason, as the server named it."""
    state: State
    seen: NonNegativeInt
    """How many tokens of ``ids`` the agent received."""
    versions: list[Annotated[tuple[NonNegativeInt, str], Strict(False)]] = []
    """Versions of the weights, each with the index of the first token that it sampled; empty if no version was set."""
    sampling: Mapping[str, int | float] = {}
    """The request's sampling parameters."""

    @property
    def prompt(self) -> TokenIds:
        """Return the prompt's token ids as a new array."""
        return array("I", b"".join([*self.stored_prompt.blocks, self.stored_prompt.rest]))


@dataclass(frozen=True)
class StepRecords:
    """What a step's file contains."""

    head: Mapping[str, Any]
    records: Sequence[Record]
    """In the order in which the gateway sent the requests."""
    why: str
    """Why records are missing; empty if the file is complete."""

    @property
    def complete(self) -> bool:
        """Whether no record is missing."""
        return not self.why
