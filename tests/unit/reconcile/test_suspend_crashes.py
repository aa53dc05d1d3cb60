"""Suspend a trial, and kill the operator, at points where the operator calls the API server, a runner or the results volume."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from multistep.errors import Unavailable
from tests.support.faults import Faults, Killed
from tests.support.in_part import in_part_or_whole, tried
from tests.support.world import MIXED, World, manifest, timeless
from tests.unit.reconcile.reconciler_cases import ran

LONG: Mapping[str, float] = {"/healthcheck": 3.0, "a/agent": 100.0, "b/verifier": 40.0, "c/agent": 200.0}
POLICIES = ["Pause", "ReleaseAfterStep", "Release"]
STRIDE = 7  # the long form of a test tries every 7th point, from another first point for each policy; all would take minutes
PART = 11  # and the short form every eleventh of these


class ActionFaults(Faults):
    """Faults that also run an action at the operator's at-th call (from 1) to the API server, a runner or the results volume."""

    def __init__(self, at: int, action: Callable[[], None]) -> None:
        super().__init__()
        self._at, self._action = at, action

    def point(self, name: str) -> None:
        super().point(name)
        if len(self.trace) == self._at:
            self._action()


@dataclass
class Suspension:
    """A trial that is suspended at a given point of its run, and resumed 1000 s later."""

    policy: str
    durations: Mapping[str, float]
    config: dict[str, Any] | None = None
    user: int = 0

    def world(self, at: int, faults: Mapping[int, BaseException] | None = None) -> World:
        injected = ActionFaults(at, lambda: world.change_trial(suspend=True))
        for point, fault in (faults or {}).items():
            injected.fail(point, fault)
        trial = manifest({"suspendPolicy": self.policy, "infrastructureRetries": 0}, config=self.config)
        world = World(trial=trial, durations=self.durations, user=self.user, faults=injected)
        return world

    async def play(self, at: int, faults: Mapping[int, BaseException] | None = None) -> World:
        world = self.world(at, faults)
        await world.run()
        if world.status.phase == "Suspended":
            assert_held(world)
        world.now += 1000
        world.change_trial(suspend=False)
        await world.run()
        assert_whole(world)
        return world


def assert_held(world: World) -> None:
    """Check that no phase of the trial is running, and that it has a pod if and only if its condition is Paused."""
    assert (world.condition[1] == "Paused") == bool(world.pods)
    assert all(step.completion_time for step in world.status.steps)
    running = [id for runner in world.cluster.runners.values() for id, each in runner.records.items() if each["state"] == "running"]
    assert not world.pods or not running


def assert_whole(world: World) -> None:
    """Check that the trial is Complete with the rewards of one attempt, and that no runner started a phase twice."""
    assert world.condition[0] == "Complete", world.condition
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}, {"reward": 0.5, "style": 1}, {"reward": 0}]
    assert [each.reason for each in world.status.attempts] in ([], ["Suspended"])
    assert (world.status.attempt, world.pods) == (1 + len(world.status.attempts), [])
    for runner in world.cluster.runners.values():
        assert set(runner.starts.values()) <= {1}


def reported(world: World) -> Any:
    """Return the status without times and pod uids; the fake cluster derives uids from the number of writes."""

    def without(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: without(each) for key, each in value.items() if key != "podUID"}
        return [without(each) for each in value] if isinstance(value, list) else value

    return without(timeless(world.object["status"]))


SHAPES = {
    "short phases": Suspension("", {}),
    "long phases": Suspension("", LONG),
    "one verified apart": Suspension("", {"a/verifier/verifier": 40.0}, MIXED),
    "pod made again as root": Suspension("", LONG, user=1000),
}


@in_part_or_whole
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", SHAPES)
async def test_whenever_a_trial_is_suspended_it_continues_to_the_same_end(shape: str, policy: str, whole: bool) -> None:
    made = SHAPES[shape]
    suspension = Suspension(policy, made.durations, made.config, made.user)
    calm = await ran(trial=manifest(config=made.config), durations=made.durations, user=made.user)
    wanted = timeless(calm.object["status"])["steps"]
    points = len(calm.faults.trace)
    held = released = 0
    number = POLICIES.index(policy)
    here = tried(range(1 + number, points + 1, STRIDE), whole, every=PART, first=number + list(SHAPES).index(shape))
    for at in here:
        world = await suspension.play(at)
        assert timeless(world.object["status"])["steps"] == wanted, f"suspended at point {at}: {calm.faults.trace[at - 1]}"
        assert (
            world.runner.starts.keys() == {f"{world.status.attempt}/{id.split('/', 1)[1]}" for id in calm.runner.starts}
            or made.config
        )
        held += world.status.suspended_seconds is not None
        released += len(world.status.attempts)
    if whole:
        assert held > len(here) / 2 and (released < held if policy == "Pause" else released > len(here) / 3)
    print(f"\n{shape}, {policy}: suspended at {len(here)} of {points} points, {held} held, {released} begun anew")


@in_part_or_whole
@pytest.mark.parametrize(
    ("policy", "fault"),
    [("Pause", Killed), ("ReleaseAfterStep", Killed), ("Release", Killed), ("Release", lambda: Unavailable("no answer"))],
    ids=["Pause, killed", "ReleaseAfterStep, killed", "Release, killed", "Release, failing"],
)
async def test_whenever_the_operator_dies_while_a_trial_is_suspended_it_continues_to_the_same_end(
    policy: str, fault: Callable[[], BaseException], whole: bool
) -> None:
    suspension = Suspension(policy, LONG)
    first = suspension.world(10**9)
    await first.run(until=lambda: first.status.current_step == "b" and first.status.steps[-1].phase == "Verifier")
    at = len(first.faults.trace)  # the last call so far: the operator has closed its exec session, and a long phase is running
    calm = await suspension.play(at)
    wanted, points = reported(calm), len(calm.faults.trace)
    assert calm.status.suspended_seconds
    here = tried(range(at + 1, points + 1, (points - at) // 40), whole, every=PART, first=POLICIES.index(policy))
    for dies in here:
        world = await suspension.play(at, {dies: fault()})
        assert reported(world) == wanted, f"at point {dies}: {calm.faults.trace[dies - 1]}"
    print(f"\n{policy}: {len(here)} of {points - at} points")


@in_part_or_whole
async def test_suspended_by_chance_and_dying_repeatedly_is_no_worse(whole: bool) -> None:
    chance = random.Random(5)
    calm = await ran(durations=LONG)
    wanted, points = timeless(calm.object["status"])["steps"], len(calm.faults.trace)
    trials = 24 if whole else 6
    for number in range(trials):
        suspension = Suspension(POLICIES[number % 3], LONG)
        faults: dict[int, BaseException] = {
            chance.randint(1, 2 * points): chance.choice([Killed(), Unavailable("no answer")]) for _ in range(chance.randint(1, 5))
        }
        world = await suspension.play(chance.randint(1, points), faults)
        assert timeless(world.object["status"])["steps"] == wanted, faults
    print(f"\n{trials} trials, suspended, with one to five deaths and failures each")


@in_part_or_whole
async def test_a_trial_that_is_stopped_at_any_point_has_no_reward_unless_it_was_finished(whole: bool) -> None:
    calm = await ran(durations=LONG)
    points = calm.faults.trace
    stopped = 0
    here = tried(range(1, len(points) + 1, 3), whole, every=PART)
    for at in here:
        injected = ActionFaults(at, lambda: world.change_trial(stop=True))  # noqa: B023 - called within this iteration
        world = World(durations=LONG, faults=injected)
        await world.run()
        if world.condition[0] == "Failed":
            stopped += 1
            assert (world.condition[1], world.status.rewards, world.status.attempts) == ("Stopped", None, [])
        else:
            assert world.condition[0] == "Complete" and world.status.rewards == calm.status.rewards
        assert world.pods == [], f"stopped at point {at}: {points[at - 1]}"
    assert stopped > len(here) - 10
    print(f"\nstopped at {len(here)} of {len(points)} points; {stopped} in time")
