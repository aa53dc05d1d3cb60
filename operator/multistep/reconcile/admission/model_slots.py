"""The concurrency limit on active trials of each model, fair between sweeps.

A trial is active from its pod's creation until it finishes or its pod is released. The slots are counted from the trials' statuses:
a new leader reads them all before it creates a pod. Without a slot a trial gets no pod, so it occupies nothing in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from multistep.adaptive_limit import AdaptiveLimit
from multistep.api.common.labels import SWEEP
from multistep.api.trial.conditions import is_finished
from multistep.api.trial.trial import MultiStepTrial
from multistep.gateway.pace.answer_counts import ModelLoad
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake
from multistep.settings import ModelLimit


@dataclass(frozen=True)
class _Member:
    """A trial of a limited model. key: the trial's key in the model's limit; its first part names the sweep, because the limit is
    fair between sweeps."""

    model: str
    key: Key


class ModelSlots:
    """The slots of all limited models. wake: requeues a trial when it gets its slot."""

    def __init__(self, limits: Sequence[ModelLimit], wake: Wake) -> None:
        wake_member = partial(_wake_member, wake)
        self._limits = {each.model: ConcurrencyLimit(each.max_active, wake_member) for each in limits}
        self._adaptive = {each.model: AdaptiveLimit(each.max_active) for each in limits}
        self._members: dict[Key, _Member] = {}
        self._active: set[Key] = set()
        self._asked: set[Key] = set()

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
        """Return whether the trial may create a pod; if not, it is queued. first: queue it before trials that had no pod yet.

        The slot is kept as long as each reconcile of the trial asks for it, so a trial may wait for other limits meanwhile. After
        False the caller must end its reconcile without another await, as after ConcurrencyLimit.acquire.
        """
        member = self._member(trial)
        if member is None:
            return True
        self._asked.add(_key(trial))
        return self._limits[member.model].acquire(member.key, first=first)

    def waited(self, key: Key) -> float | None:
        """Return the seconds for which a trial has been queued; None if it is not queued."""
        member = self._members.get(key)
        if member is None or not self._limits[member.model].is_queued(member.key):
            return None
        return self._limits[member.model].waited(member.key)

    def observe(self, trial: MultiStepTrial) -> None:
        """Record whether the trial is active. An active one holds a slot, even beyond the limit."""
        key, member = _key(trial), self._member(trial)
        if member is None:
            return
        if trial.status.pod_uid is None or is_finished(trial.status):
            self._active.discard(key)
            if is_finished(trial.status):  # this reconcile may have asked for a slot before the trial failed
                self._asked.discard(key)
        elif key not in self._active:
            self._active.add(key)
            self._limits[member.model].hold(member.key, shared=True)

    def forget(self, key: Key) -> None:
        """Record that the trial was deleted, or belongs to another operator now."""
        self._active.discard(key)

    def release(self, key: Key) -> None:
        """Release the slot of a trial whose pod was rejected by a quota, so that other trials can use the model."""
        if key not in self._active:
            self._asked.discard(key)
            self.settle(key)

    def settle(self, key: Key) -> None:
        """Release the slot at the end of a reconcile that did not ask for it, if the trial is not active."""
        member = self._members.get(key)
        if member is not None and key not in self._active and key not in self._asked:
            limit = self._limits[member.model]
            limit.release(member.key)
            if not limit.is_queued(member.key):
                del self._members[key]
        self._asked.discard(key)

    def adapt(self, loads: Mapping[str, ModelLoad]) -> None:
        """Adapt the limits to the load of each model since the last call.

        A provider's refusal halves a limit, unless more trials are active than the limit allows: then the former reduction has not
        taken effect yet.
        """
        for model, load in loads.items():
            limit, adaptive = self._limits[model], self._adaptive[model]
            if not load.refused:
                adaptive.succeeded(load.answered)
            elif limit.held <= adaptive.allowed:
                adaptive.refused()
            limit.resize(adaptive.allowed)

    def _member(self, trial: MultiStepTrial) -> _Member | None:
        """Return the trial's model, and its key in the model's limit; None if the model has no limit. Both stay the same if the
        trial's labels change."""
        key, model = _key(trial), trial.spec.agent.model
        if key not in self._members and model in self._limits:
            sweep = trial.metadata.labels.get(SWEEP, "")
            self._members[key] = _Member(model, (f"{key[0]}/{sweep}", key[1]))
        return self._members.get(key)


def _key(trial: MultiStepTrial) -> Key:
    return trial.metadata.namespace, trial.metadata.name


def _wake_member(wake: Wake, member: Key) -> None:
    wake((member[0].partition("/")[0], member[1]))
