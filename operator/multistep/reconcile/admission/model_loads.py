"""Computes, from the model gateway's totals, the load that each model with a concurrency limit had since the last call."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, Protocol

from multistep.gateway.pace.answer_counts import ModelLoad

LOAD_SECONDS: Final = 5.0
"""Interval at which the operator reads the totals."""
_VERSION: Final = re.compile(r"[-@]\d{3,}")  # start of a version after a model's name, such as -20250929 or -2025-08-07


class Gateway(Protocol):
    """Counts the loads; implemented in reconcile.trial.model_gateway."""

    async def loads(self) -> Mapping[str, ModelLoad]:
        """Return the loads since the gateway's start, by requested model. Raises GatewayError."""


class ModelLoads:
    """The loads of the models with a concurrency limit. models: the models' names, as in spec.agent.model."""

    def __init__(self, models: Collection[str]) -> None:
        self._models = models
        self._totals: Mapping[str, ModelLoad] | None = None

    def since_last(self, totals: Mapping[str, ModelLoad]) -> Mapping[str, ModelLoad]:
        """Return each limited model's load since the last call. totals: loads since the gateway's start, by requested model.

        The first call returns no load, because the totals contain answers from any time before it.
        """
        before, self._totals = self._totals, dict(totals)
        if before is None:
            return {}
        increases = {name: _increase(now, before.get(name, ModelLoad())) for name, now in totals.items()}
        return {model: _sum([load for name, load in increases.items() if is_model(model, name)]) for model in self._models}


def is_model(model: str, requested: str) -> bool:
    """Return whether a request's model name is this model. model: as in spec.agent.model; in the request, a date or version may
    follow the name."""
    name, requested = model.removesuffix("[1m]").rpartition("/")[2], requested.rpartition("/")[2]  # suffix that claude-code removes
    return requested == name or (requested.startswith(name) and _VERSION.match(requested[len(name) :]) is not None)


def _increase(now: ModelLoad, before: ModelLoad) -> ModelLoad:
    if now.answered < before.answered or now.refused < before.refused:
        return now  # the gateway restarted and counts from 0
    return ModelLoad(answered=now.answered - before.answered, refused=now.refused - before.refused)


def _sum(loads: Collection[ModelLoad]) -> ModelLoad:
    return ModelLoad(answered=sum(each.answered for each in loads), refused=sum(each.refused for each in loads))
