"""Test what kubectl shows of a trial."""

from __future__ import annotations

import yaml

from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS

KUBECTLS_WIDTH = 80  # longer texts are folded at their spaces


async def test_kubectl_shows_a_finished_trial_of_three_steps_on_two_screens() -> None:
    checkpoints = {"policy": "AfterStep", "keep": "WithResults"}
    world = World(trial=manifest({**HOSTED, "checkpoints": checkpoints}), **HOSTED_OPTIONS)
    await world.run()
    found = world.object
    assert len(found["status"]["steps"]) == 3 and found["status"]["usage"] and found["status"]["steps"][2]["exception"]
    found["spec"]["task"] = {"bundle": {"configMaps": ["task-0"], "digest": f"sha256:{'0' * 64}"}}  # not the files of a test
    assert len(yaml.safe_dump(found, width=KUBECTLS_WIDTH).splitlines()) <= 120
