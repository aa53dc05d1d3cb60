"""Limits the number of active trials of each model, fairly between sweeps.

A trial is active from its pod's creation until it finishes or its pod is released. The slots in use are counted from the statuses
of the trials, which a new leader reads before it creates a pod. A trial without a slot gets no pod, so it occupies nothing in the
cluster.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from multistep.adaptive_limit import AdaptiveLimit
from multistep.api.common.labels import SWEEP
from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.gateway.pace import ModelLoad
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake
from multistep.settings import ModelLimit


@dataclass(frozen=True)
class _Member:
    """A trial of a model that has a limit."""

    model: str
    key: Key
    """The trial's key in the model's limit. It names the sweep in place of the namespace, because the limit is fair between
    sweeps."""


class ModelSlots:
    """The slots of all models that have a limit."""

    def __init__(self, limits: Sequence[ModelLimit], wake: Wake) -> None:
        """Create the slots. ``wake`` requeues a trial when it gets its slot."""
        wake_member = partial(_wake_member, wake)
        self._limits = {each.model: ConcurrencyLimit(each.max_active, wake_member) for each in limits}
        self._adaptive = {each.model: AdaptiveLimit(each.max_active) for each in limits}
        self._members: dict[Key, _Member] = {}

    @property
    def waiting(self) -> int:
        """Number of queued trials."""
        return sum(each.waiting for each in self._limits.values())

    def active(self, model: str) -> int:
        """Return the number of the model's slots in use."""
        return self._limits[model].held

    def limit(self, model: str) -> int:
        """Return the model's current limit."""
        return self._limits[model].limit

    def acquire(self, trial: MultiStepTrial, *, first: bool) -> bool:
        """Return whether the trial may create a pod. If not, it is queued, and with ``first`` before trials that had no pod yet.

        The trial holds the slot as long as each of its reconciles calls this, so it may wait for other limits meanwhile.
        """
        member = self._member(trial)
        if member is None:
            return True
        acquired = self._limits[member.model].acquire(member.key, first=first)
        self._limits[member.model].carry(member.key)
        return acquired

    def waited(self, key: Key) -> float | None:
        """Return the seconds for which a trial has been queued, None if it is not queued."""
        member = self._members.get(key)
        if member is None or not self._limits[member.model].is_queued(member.key):
            return None
        return self._limits[member.model].waited(member.key)

    def observe(self, trial: MultiStepTrial) -> None:
        """Record whether the trial is active. An active trial holds a slot, even beyond the limit."""
        member = self._member(trial)
        if member is None:
            return
        limit = self._limits[member.model]
        if is_finished(trial.status):  # this reconcile may have acquired a slot before the trial failed
            limit.drop(member.key)
        elif trial.status.pod_uid is None:
            limit.drop(member.key, carried=False)
        elif not limit.keeps(member.key):
            limit.hold(member.key, shared=True)

    def forget(self, key: Key) -> None:
        """Record that the trial was deleted or belongs to another operator now."""
        if (member := self._members.get(key)) is not None:
            self._limits[member.model].drop(member.key)

    def release(self, key: Key) -> None:
        """Release the slot of a trial whose pod a quota rejected, so that other trials can use the model."""
        member = self._members.get(key)
        if member is not None and not self._limits[member.model].keeps(member.key):
            self._limits[member.model].release(member.key)

    def settle(self, key: Key) -> None:
        """Release the slot at the end of a reconcile that did not acquire it, unless the trial is active."""
        if (member := self._members.get(key)) is None:
            return
        limit = self._limits[member.model]
        limit.settle(member.key)
        if not limit.has(member.key) and not limit.is_queued(member.key):
            del self._members[key]

    def adapt(self, loads: Mapping[str, ModelLoad]) -> None:
        """Adapt the limits to the load of each model since the last call.

        If the provider refused requests, the limit is halved. But while more trials are active than the limit allows, the former
        reduction has not taken effect yet, so the limit does not change.
        """
        for model, load in loads.items():
            limit, adaptive = self._limits[model], self._adaptive[model]
            if not load.refused:
                adaptive.succeeded(load.answered)
            elif limit.held <= adaptive.allowed:
                adaptive.refused()
            limit.resize(adaptive.allowed)

    def _member(self, trial: MultiStepTrial) -> _Member | None:
        """Return the trial's model and its key in the model's limit, None if the model has no limit.

        Both stay the same if the trial's labels change.
        """
        key, model = _key(trial), trial.spec.agent.model
        if key not in self._members and model in self._limits:
            sweep = trial.metadata.labels.get(SWEEP, "")
            self._members[key] = _Member(model, (f"{key[0]}/{sweep}", key[1]))
        return self._members.get(key)


def _key(trial: MultiStepTrial) -> Key:
    return trial.metadata.namespace, trial.metadata.name


def _wake_member(wake: Wake, member: Key) -> None:
    wake((member[0].partition("/")[0], member[1]))


LOAD_SECONDS: Final = 5.0
"""Interval at which the operator reads the models' loads from the gateway."""
_VERSION: Final = re.compile(r"[-@]\d{3,}")  # start of a version after a model's name, such as -20250929 or -2025-08-07


class Gateway(Protocol):
    """The part of the model gateway that counts the models' loads. reconcile.models.model_gateway implements it."""

    async def loads(self) -> Mapping[str, ModelLoad]:
        """Return the loads since the gateway's start, by requested model. Raises GatewayError."""


class ModelLoads:
    """Computes the load of each model with a concurrency limit, from the gateway's totals."""

    def __init__(self, models: Collection[str]) -> None:
        """Create the loads. ``models`` are the models' names, as in spec.agent.model."""
        self._models = models
        self._totals: Mapping[str, ModelLoad] | None = None

    def since_last(self, totals: Mapping[str, ModelLoad]) -> Mapping[str, ModelLoad]:
        """Return each model's load since the last call. ``totals`` are the loads since the gateway's start, by requested model.

        The first call returns no load, because its totals include all earlier answers.
        """
        before, self._totals = self._totals, dict(totals)
        if before is None:
            return {}
        increases = {name: _increase(now, before.get(name, ModelLoad())) for name, now in totals.items()}
        return {model: _sum([load for name, load in increases.items() if is_model(model, name)]) for model in self._models}


def is_model(model: str, requested: str) -> bool:
    """Return whether the model name of a request means ``model``, a name as in spec.agent.model.

    In a request, a date or version may follow the name.
    """
    name, requested = model.removesuffix("[1m]").rpartition("/")[2], requested.rpartition("/")[2]  # suffix that claude-code removes
    return requested == name or (requested.startswith(name) and _VERSION.match(requested[len(name) :]) is not None)


def _increase(now: ModelLoad, before: ModelLoad) -> ModelLoad:
    if now.answered < before.answered or now.refused < before.refused:
        return now  # the gateway restarted and counts from 0
    return ModelLoad(answered=now.answered - before.answered, refused=now.refused - before.refused)


def _sum(loads: Collection[ModelLoad]) -> ModelLoad:
    return ModelLoad(answered=sum(each.answered for each in loads), refused=sum(each.refused for each in loads))
