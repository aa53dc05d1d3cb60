"""Decides which trials belong to a sweep. The operator, reports, results, retries and the Python client all use this rule.

Labels and owner references prove nothing, because any user who may create trials can write them. A sweep's own trial has the sweep
as its owner, and the name that the operator gives to the trial with its number. Names are unique, and the operator creates the
trials with these names itself.
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
    """Names of the planned trials, by number. None if the plan is unknown, for example because the sweep was deleted. Then only the
    owner reference decides."""

    def has(self, trial: Object) -> bool:
        """Return whether the trial belongs to the sweep."""
        return self.is_claimed_by(trial) and self.plans(trial["metadata"]["name"], number_of(trial))

    def is_claimed_by(self, trial: Object) -> bool:
        """Return whether the trial's owner reference names the sweep. Any user may write such a reference."""
        owner = owner_of(trial)
        return owner is not None and owner[1] == self.uid

    def plans(self, name: str, number: int) -> bool:
        """Return whether the sweep's trial with this number has this name."""
        return self.names is None or (0 <= number < len(self.names) and self.names[number] == name)


def members_of(sweep: TrialSweep, tasks: str | None, branches: str | None) -> SweepMembers:
    """Return the trials of a sweep that exists.

    ``tasks`` and ``branches`` are the texts of the ConfigMaps that status.tasksFrom and status.branches name, None if a ConfigMap
    cannot be read.
    """
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
