"""A trial's cost: its requests to the API server, its status writes, Events and exec sessions, counted exactly."""

from __future__ import annotations

from collections import Counter

from tests.support.world import KEY, World

THREE_STEPS = {
    ("get", "MultiStepTrial"): 3,  # at its creation, when its pod runs, and before its results are written
    ("apply_status", ""): 5,
    ("create", "Pod"): 1,
    ("get", "Pod"): 1,
    ("list", "Pod"): 1,
    ("delete", "Pod"): 1,
    ("open_exec", ""): 1,
    ("create_event", "PodCreated"): 1,
    ("create_event", "StepStarted"): 1,
    ("create_event", "StepCompleted"): 3,
    ("create_event", "TrialComplete"): 1,
}


def requests_of(world: World) -> Counter[tuple[str, str]]:
    """Return the operator's requests to the API server, by verb and by kind or reason."""
    verbs = {"get", "list", "apply_status", "create", "create_event", "delete", "open_exec"}
    sent = [each.split() for each in world.faults.trace if not each.endswith(" after")]
    return Counter((each[0], each[1].strip(",") if "/" not in each[1] else "") for each in sent if each[0] in verbs)


def run_pod(world: World) -> None:
    world.cluster.run_pod(KEY[0], "t-1")


async def test_a_trial_of_three_short_steps_costs_as_few_requests_as_documented() -> None:
    world = World(pods_run=False, happens={5.0: run_pod})
    await world.run()
    assert world.condition[0] == "Complete"
    assert requests_of(world) == THREE_STEPS
