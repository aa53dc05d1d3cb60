"""Counts the provider's answers and refusals by model, from which the operator adapts the number of active trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

_MAX_MODELS: Final = 1024


class ModelLoad(BaseModel):
    """Numbers of a provider's answers for one model. refused: answers with status 429, 503 or 529; answered: all other answers."""

    model_config = ConfigDict(frozen=True)

    answered: int = Field(default=0, ge=0)
    refused: int = Field(default=0, ge=0)


class Loads:
    """The totals by requested model since the gateway's start. Above _MAX_MODELS, the least recently requested model is dropped,
    because agents can request any name."""

    def __init__(self) -> None:
        self._totals: dict[str, ModelLoad] = {}

    @property
    def totals(self) -> Mapping[str, ModelLoad]:
        """The totals by model."""
        return self._totals

    def count(self, model: str, *, refused: bool) -> None:
        """Count an answer of the provider."""
        before = self._totals.pop(model, ModelLoad())
        self._totals[model] = ModelLoad(answered=before.answered + (not refused), refused=before.refused + refused)
        if len(self._totals) > _MAX_MODELS:
            del self._totals[next(iter(self._totals))]
