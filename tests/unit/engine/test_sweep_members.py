"""Which trials are a sweep's own."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.sweep.sweep import parse_sweep
from multistep.engine.sweep.own_trials import SweepMembers, members_of
from multistep.engine.sweep.trial_manifests import plan_sweep

DIGEST = f"sha256:{'0' * 64}"


def sweep(**changes: Any) -> Any:
    agents, tasks = [{"name": "a", "agent": {"name": "nop"}}], [{"name": "t", "inline": {"config": {}}}]
    spec = {"tasks": tasks, "agents": agents, "attempts": 2, **changes.pop("spec", {})}
    given = {name: value for name, value in spec.items() if value is not None}
    return parse_sweep({"metadata": {"name": "s", "namespace": "n", "uid": "u"}, "spec": given, **changes})


FOUND = sweep()
NAMES = plan_sweep(FOUND, FOUND.spec.tasks).names


def trial(name: str = NAMES[0], number: str | None = "0", uid: str = "u", kind: str = "TrialSweep") -> Any:
    owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": kind, "name": "s", "uid": uid, "controller": True}
    labels = {"multistep.dev/sweep": "s", **({} if number is None else {"multistep.dev/number": number})}
    return {"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}}


@pytest.mark.parametrize(
    ("found", "own"),
    [
        (trial(), True),
        (trial(NAMES[1], "1"), True),
        (trial("forged"), False),
        (trial("forged", "9"), False),
        (trial("forged", None), False),
        (trial(NAMES[1], "0"), False),
        (trial(NAMES[0], None), False),
        (trial(uid="another"), False),
        (trial(kind="Job"), False),
        ({"metadata": {"name": NAMES[0], "labels": {"multistep.dev/number": "0"}}}, False),
    ],
)
def test_a_trial_is_a_sweeps_own_under_the_owner_number_and_name_that_the_operator_gives(found: Any, own: bool) -> None:
    assert members_of(FOUND, None, None).has(found) is own


def test_retries_are_members_once_the_spec_requests_them() -> None:
    more = sweep(spec={"retries": [1]})
    name = plan_sweep(more, more.spec.tasks).names[2]
    assert members_of(more, None, None).has(trial(name, "2"))
    assert not members_of(FOUND, None, None).has(trial(name, "2"))


def test_of_tasks_from_a_source_the_record_decides() -> None:
    status = {"tasksFrom": {"revision": "r", "count": 1, "configMap": "c", "digest": DIGEST}}
    spec = {"tasks": None, "tasksFrom": {"git": {"url": "https://git.example/r.git", "path": "tasks"}}}
    found = sweep(spec=spec, status=status)
    assert members_of(found, "t", None).has(trial())
    assert not members_of(found, "t", None).has(trial("forged"))
    assert members_of(found, None, None) == SweepMembers("u"), "without the record, the owner decides"


def test_without_a_record_of_the_branches_the_plan_is_unknown() -> None:
    status = {"branches": {"trials": 1, "configMap": "c", "digest": DIGEST}}
    assert members_of(sweep(status=status), None, None) == SweepMembers("u")
    assert SweepMembers("u").has(trial("any", None)) and not SweepMembers("u").has(trial(uid="another"))


def test_of_a_sweep_that_cannot_be_planned_the_owner_decides() -> None:
    status = {"branches": {"trials": 1, "configMap": "c", "digest": DIGEST}}
    assert members_of(sweep(status=status), None, "no record") == SweepMembers("u")
