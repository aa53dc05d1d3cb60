"""Trials whose agents' pods fill a node, on which their separate verifiers' pods then do not fit."""

from __future__ import annotations

from typing import Any

from multistep.reconcile.admission.unschedulable_verifiers import WAIT_SECONDS, UnschedulableVerifiers
from tests.support.world import CONFIG, SEPARATE, World, manifest

TOO_FULL = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: Insufficient cpu"}


class Node:
    """A node with room for some pods, and trials that run on it, each in a world of its own, with one clock."""

    def __init__(self, slots: int, trials: int, *, config: dict[str, Any] = SEPARATE, **spec: Any) -> None:
        self.slots, self.config, verifiers = slots, config, UnschedulableVerifiers()
        self.worlds = [self._world(number, spec, verifiers) for number in range(trials)]

    def _world(self, number: int, spec: dict[str, Any], verifiers: UnschedulableVerifiers) -> World:
        trial = manifest({"toStep": "a", **spec}, config=self.config)
        trial["metadata"]["uid"] = f"trial-{number}"
        world = World(trial=trial, durations={"a/agent": 50.0, "a/verifier/verifier": 50.0}, pods_run=False)
        world.reconciler.admission.verifiers = verifiers
        return world

    def schedule(self) -> None:
        """Start pods, those of the first trial first, while there is room."""
        pods = [(each, name) for each in self.worlds for name in each.pods]
        running = sum(each.cluster.objects["Pod", "default", name]["status"].get("phase") == "Running" for each, name in pods)
        for each, name in pods:
            if each.cluster.objects["Pod", "default", name]["status"].get("phase") == "Running":
                continue
            if running < self.slots:
                running += 1
                each.cluster.run_pod("default", name)
            else:
                each.cluster.set_pod_status("default", name, conditions=[TOO_FULL])

    async def run(self, seconds: int) -> None:
        for _ in range(seconds // 10):
            for each in self.worlds:
                await each.reconcile()
                self.schedule()
            for each in self.worlds:
                each.now += 10
                each.end_phases()


async def test_trials_that_fill_a_node_make_room_for_each_others_verifiers() -> None:
    node = Node(slots=3, trials=3, activeDeadlineSeconds=3000)
    await node.run(3000)
    assert [each.condition[:2] for each in node.worlds] == [("Complete", "TrialComplete")] * 3
    assert [each.status.score for each in node.worlds] == [1, 1, 1]
    gave_way = [[lost.reason for lost in each.status.attempts] for each in node.worlds]
    assert gave_way == [[], [], ["MadeRoom"]], "one trial made room for both others"


async def test_a_trial_that_leaves_room_only_waits() -> None:
    """Its wait is no suspension by a user, from which the trial would be resumed at each reconcile."""
    node = Node(slots=3, trials=3, activeDeadlineSeconds=3000)
    waits = node.worlds[2]
    while "WaitsForVerifiers" not in [each.reason for each in waits.status.conditions]:
        await node.run(10)
    phase, writes = waits.status.phase, waits.status_writes
    await waits.reconcile(3)
    assert (waits.status.phase, waits.status_writes) == (phase, writes) == ("Pending", writes)


async def test_trials_whose_steps_are_verified_once_more_keep_their_verdicts_if_there_is_no_room() -> None:
    node = Node(slots=2, trials=2, config=CONFIG, verifier={"isolation": "Both"}, activeDeadlineSeconds=3000)
    await node.run(3000)
    assert [each.condition[:2] for each in node.worlds] == [("Complete", "TrialComplete")] * 2
    assert [each.status.attempts for each in node.worlds] == [[], []]


async def test_a_trial_whose_verifier_alone_fits_no_node_gives_no_room_to_itself() -> None:
    node = Node(slots=1, trials=1)
    await node.run(2000)
    (world,) = node.worlds
    assert world.condition[:2] == ("Reconciling", "Unschedulable") and not world.status.attempts


def test_only_the_trial_that_began_to_wait_last_gives_way_and_no_other_soon_after() -> None:
    verifiers = UnschedulableVerifiers()
    assert not any([verifiers.wait("a", "ns", 0.0), verifiers.wait("b", "ns", 10.0), verifiers.wait("c", "ns", 10.0)])
    at = 10.0
    while at < 10.0 + WAIT_SECONDS:
        assert not any([verifiers.wait("a", "ns", at), verifiers.wait("b", "ns", at), verifiers.wait("c", "ns", at)])
        at += 30.0
    assert not verifiers.wait("a", "ns", at) and not verifiers.wait("b", "ns", at) and verifiers.wait("c", "ns", at)
    assert verifiers.others_wait("c", "ns", at) and not verifiers.wait("b", "ns", at + 30.0)
    assert verifiers.wait("b", "ns", at + 60.0) and not verifiers.wait("a", "ns", at + 60.0)
    assert not verifiers.others_wait("b", "ns", at + 500.0), "the operator does not reconcile a any more"


def test_a_trial_gives_way_three_times_at_most() -> None:
    verifiers = UnschedulableVerifiers()
    for at in range(0, 500, 30):
        verifiers.wait("a", "ns", at)
        assert not verifiers.wait("b", "ns", at, 3)


def test_a_trial_that_may_not_give_way_keeps_no_other_from_it() -> None:
    verifiers = UnschedulableVerifiers()
    waiting = [(at, *each) for at in range(0, 500, 30) for each in (("a", 0), ("b", 1), ("c", 3))]
    assert [name for at, name, times in waiting if verifiers.wait(name, "ns", at, times)] == ["b"]


def test_a_namespace_whose_trials_give_way_delays_no_other() -> None:
    verifiers = UnschedulableVerifiers()
    waiting = [(at, name) for at in range(0, int(WAIT_SECONDS) + 1, 30) for name in ("a1", "a2", "b1", "b2")]
    assert [(at, name) for at, name in waiting if verifiers.wait(name, name[0], at)] == [(WAIT_SECONDS, "a2"), (WAIT_SECONDS, "b2")]


def test_a_trial_gives_no_way_to_another_namespace() -> None:
    verifiers = UnschedulableVerifiers()
    assert not any(verifiers.wait(name, name, at) for at in range(0, 900, 30) for name in "ab")
    assert not verifiers.others_wait("a", "a", 900)
