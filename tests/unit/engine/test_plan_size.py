"""Test that making a trial's plan takes little time and memory, because the operator makes plans in its event loop."""

from __future__ import annotations

import time
from typing import Any

import pytest

from multistep.api.layout import StepLayout, TaskLayout
from multistep.api.task_toml import TaskConfig
from multistep.api.trial import parse_trial
from multistep.engine.make_plan import make_plan
from multistep.engine.plan import TrialEnv, TrialPlan
from multistep.engine.plan_size import MAX_CHARACTERS, MAX_ENTRIES, MAX_HOSTS
from multistep.errors import InvalidSpec
from tests.support.world import manifest

STEPS = 1000  # the highest number of steps that a task may have
VARIABLES = {f"V{number}": "${X:-y}" for number in range(256)}
HOOKS = [{"command": "x"}]


def hosts(count: int) -> dict[str, Any]:
    return {"network_mode": "allowlist", "allowed_hosts": [f"10.0.{number // 250}.{number % 250}" for number in range(count)]}


def separate(count: int) -> dict[str, Any]:
    return {"environment_mode": "separate", "environment": {"docker_image": "y", **hosts(count)}}


def planned(steps: int, env: TrialEnv | None = None, spec: dict[str, Any] | None = None, **config: Any) -> TrialPlan:
    names = [f"s{number}" for number in range(steps)]
    layout = TaskLayout(steps={name: StepLayout(instruction="x", tests=True) for name in names})
    own = config.pop("step", {})
    table = {"environment": {"docker_image": "x"}, **config, "steps": [{"name": name, **own} for name in names]}
    task = {"inline": {"config": {"steps": [{"name": "a"}]}}}
    trial = parse_trial(manifest({"task": task, "agent": {"name": "nop"}, **(spec or {})}))
    return make_plan(TaskConfig.model_validate(table), layout, trial.spec, env or TrialEnv(), name="t", egress="NetworkPolicy")


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
def test_steps_that_inherit_too_much_are_rejected_in_little_time(fields: dict[str, Any], where: str) -> None:
    """Regression: planning such a trial used to take minutes of CPU time and gigabytes of memory at each start of the operator."""
    start = time.process_time()
    with pytest.raises(InvalidSpec, match=f"{where}.* over all {STEPS} steps, more than the limit of"):
        planned(STEPS, **fields)
    assert time.process_time() - start < 2.0


def test_the_largest_plans_take_little_time() -> None:
    """The documented CPU time is 0.06 s. The test's limit is higher, to allow for a busy machine and for validating task.toml."""
    each = MAX_ENTRIES // STEPS
    for fields in (
        {"env": TrialEnv(verifier=dict(list(VARIABLES.items())[:each]))},
        {"verifier": {"collect": HOOKS * each}},
        {"spec": {"artifacts": [{"source": f"/a{number}"} for number in range(each)]}},
        {"spec": {"extraInstructions": ["x" * (MAX_CHARACTERS // STEPS)]}},
        {"verifier": separate(MAX_HOSTS // STEPS)},
    ):
        start = time.process_time()
        assert len(planned(STEPS, **fields).steps) == STEPS
        assert time.process_time() - start < 1.0
