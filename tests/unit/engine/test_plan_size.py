"""Test that making a trial's plan takes little work and memory, because the operator makes plans in its event loop."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import TaskConfig
from multistep.api.trial.trial import parse_trial
from multistep.engine.plan.make_plan import MAX_ARTIFACTS, MAX_CHARACTERS, MAX_ENTRIES, MAX_HOSTS, make_plan
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.errors import InvalidSpec
from tests.support.work import Work, measured
from tests.support.world import manifest

STEPS = 1000  # the highest number of steps that a task may have
PEAK_BYTES = 10 << 20  # the documented maximum memory for making a plan
VARIABLES = {f"V{number}": "${X:-y}" for number in range(256)}
HOOKS = [{"command": "x"}]


def hosts(count: int) -> dict[str, Any]:
    return {"network_mode": "allowlist", "allowed_hosts": [f"10.0.{number // 250}.{number % 250}" for number in range(count)]}


def separate(count: int) -> dict[str, Any]:
    return {"environment_mode": "separate", "environment": {"docker_image": "y", **hosts(count)}}


def planner(steps: int, env: TrialEnv | None = None, spec: dict[str, Any] | None = None, **config: Any) -> Callable[[], TrialPlan]:
    """Return a function that makes the plan of a trial with this number of steps, whose task and spec have been parsed."""
    names = [f"s{number}" for number in range(steps)]
    layout = TaskLayout(steps={name: StepLayout(instruction="x", tests=True) for name in names})
    own = config.pop("step", {})
    table = TaskConfig.model_validate(
        {"environment": {"docker_image": "x"}, **config, "steps": [{"name": name, **own} for name in names]}
    )
    task = {"inline": {"config": {"steps": [{"name": "a"}]}}}
    trial = parse_trial(manifest({"task": task, "agent": {"name": "nop"}, **(spec or {})}))
    return partial(make_plan, table, layout, trial.spec, env or TrialEnv(), name="t", egress="NetworkPolicy")


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"spec": {"extraInstructions": ["x" * 1_400_000]}}, "extraInstructions"),  # 1.4 GB: each of the 1000 steps has a copy
        ({"spec": {"artifacts": [{"source": f"/a{number}"} for number in range(256)]}}, "artifacts"),
        ({"artifacts": [{"source": "/a"}] * 256}, "artifacts"),
        ({"env": TrialEnv(verifier=VARIABLES)}, "variables"),
        ({"env": TrialEnv(environment=VARIABLES)}, "variables"),
        ({"verifier": {"collect": HOOKS * 256}}, "collect hooks"),
        ({"verifier": {"env": VARIABLES}}, "variables"),
        ({"verifier": separate(25)}, "allowed_hosts"),
        ({"environment": {"docker_image": "x", **hosts(25)}}, "allowed_hosts"),
        ({"step": {"verifier": separate(25)}}, "allowed_hosts"),
    ],
)
def test_steps_that_inherit_too_much_are_rejected_with_little_work(fields: dict[str, Any], where: str) -> None:
    """Regression: planning such a trial used to take minutes of CPU time and gigabytes of memory at each start of the operator."""
    plan = planner(STEPS, **fields)
    with pytest.raises(InvalidSpec, match=f"{where}.* over all {STEPS} steps, more than the limit of"), measured() as work:
        plan()
    assert work.events < 30 * STEPS
    assert work.peak_bytes < 1 << 20


EACH = MAX_ENTRIES // STEPS
LARGEST = {
    "variables": {"env": TrialEnv(verifier=dict(list(VARIABLES.items())[:EACH]))},
    "collect hooks": {"verifier": {"collect": HOOKS * EACH}},
    "artifacts": {"spec": {"artifacts": [{"source": f"/a{number}"} for number in range(EACH)]}},
    "instructions": {"spec": {"extraInstructions": ["x" * (MAX_CHARACTERS // STEPS)]}},
    "hosts": {"verifier": separate(MAX_HOSTS // STEPS)},
}


@pytest.mark.parametrize("fields", LARGEST.values(), ids=LARGEST)
def test_the_work_for_the_largest_plans_is_linear_and_little(fields: dict[str, Any]) -> None:
    """The documented CPU time is 0.06 s. The measured plans have fewer steps than the largest ones, because tracing large plans
    takes long."""
    assert len(planner(STEPS, **fields)().steps) == STEPS
    done: list[Work] = []
    for steps in (STEPS // 8, STEPS // 4):
        plan = planner(steps, **fields)
        with measured() as work:
            plan()
        done.append(work)
    part, twice = done
    assert twice.events < min(2.05 * part.events, 2000 * STEPS // 4)
    assert twice.peak_bytes < min(2.2 * part.peak_bytes, PEAK_BYTES // 4)


def test_one_entry_more_than_the_largest_plan_has_is_too_much() -> None:
    with pytest.raises(InvalidSpec, match=f"{MAX_ENTRIES + STEPS} over all {STEPS} steps, more than the limit of {MAX_ENTRIES}"):
        planner(STEPS, verifier={"collect": HOOKS * (EACH + 1)})()


def test_one_artifact_more_than_the_record_of_a_steps_collection_holds_is_too_much() -> None:
    def made(number: int) -> TrialPlan:
        return planner(1, step={"artifacts": [{"source": f"/a{each}"} for each in range(number)]})()

    assert len(made(MAX_ARTIFACTS).steps) == 1
    with pytest.raises(InvalidSpec, match=f"artifacts: {MAX_ARTIFACTS + 1} in step 1, more than the limit of {MAX_ARTIFACTS}"):
        made(MAX_ARTIFACTS + 1)
