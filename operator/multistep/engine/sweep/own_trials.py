"""Decides which trials are a sweep's own: the one rule of the operator, reports, results, retries and the Python client. Pure.

Labels and owner references are no proof: any user who may create trials can write them. A sweep's own trial has the sweep's UID as
owner, and its number's name, which the operator gave it. Names are unique, and the operator creates each of them itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multistep.api.sweep.sweep import SweepTask, TrialSweep
from multistep.engine.sweep.plan_branches import parse_record
from multistep.engine.sweep.trial_manifests import number_of, owner_of, plan_sweep, tasks_at, with_branches
from multistep.errors import InvalidSpec

Object = Mapping[str, Any]


@dataclass(frozen=True)
class SweepMembers:
    """The trials of a sweep."""

    uid: str
    """The sweep's UID."""
    names: Sequence[str] | None = field(default=None, repr=False)
    """Name of each planned trial, by its number; None if the plan is unknown, for example because the sweep was deleted: then
    its UID as owner decides."""

    def has(self, trial: Object) -> bool:
        """Return whether the trial is the sweep's own."""
        return self.is_claimed_by(trial) and self.plans(trial["metadata"]["name"], number_of(trial))

    def is_claimed_by(self, trial: Object) -> bool:
        """Return whether the trial's owner reference names the sweep, which anyone may write."""
        owner = owner_of(trial)
        return owner is not None and owner[1] == self.uid

    def plans(self, name: str, number: int) -> bool:
        """Return whether the sweep's trial with this number has this name."""
        return self.names is None or (0 <= number < len(self.names) and self.names[number] == name)


def members_of(sweep: TrialSweep, tasks: str | None, branches: str | None) -> SweepMembers:
    """Return the members of a sweep that exists. tasks, branches: texts of the ConfigMaps that status.tasksFrom and status.branches
    name; None if they cannot be read."""
    uid, status = sweep.metadata.uid, sweep.status
    try:
        planned = plan_sweep(sweep, _tasks(sweep, tasks))
        if status.branches is not None and branches is not None:
            planned = with_branches(sweep, planned, parse_record(branches, planned.grid))
    except (InvalidSpec, ValueError):
        return SweepMembers(uid)
    if status.branches is not None and branches is None:
        return SweepMembers(uid)
    return SweepMembers(uid, planned.names)


def _tasks(sweep: TrialSweep, text: str | None) -> Sequence[SweepTask]:
    source, pinned = sweep.spec.tasks_from, sweep.status.tasks_from
    if source is None:
        return sweep.spec.tasks
    if pinned is None or text is None:
        raise ValueError("the list of tasks is unknown")
    return tasks_at(source, pinned.revision, text.split("\n"))
