"""Retries of a sweep: trials without a score are run again as new trials; of a trial and its retries, one counts."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.kube.cluster_protocols import Object
from multistep.report.rows import rows_that_count, trial_row
from multistep.report.summary import summarize
from tests.support.sweep_world import START, SweepWorld, assert_each_once, ended, sweep

EXCLUDED = (17, 100, 299)


def finish(world: SweepWorld, trial: Object) -> None:
    """Finish a trial: with an infrastructure failure if its own number is in EXCLUDED, else with a reward."""
    number = int(trial["metadata"]["labels"]["multistep.dev/number"])
    status = ended(4) if number in EXCLUDED else {**ended(0), "score": 1.0}
    world.cluster.put({**trial, "status": status})
    world.ended += 1


async def run(world: SweepWorld) -> None:
    for _ in range(1000):
        seconds = await world.reconcile()
        active = world.active
        for trial in active:
            finish(world, trial)
        world.now += 10.0
        if seconds is None and not active:
            return
    raise AssertionError(f"never finished: {world.why}")


def retried(world: SweepWorld) -> list[Object]:
    return [each for each in world.trials if "multistep.dev/retry-of" in each["metadata"]["labels"]]


async def test_of_300_trials_with_3_excluded_exactly_3_run_again_and_each_number_counts_once() -> None:
    world = SweepWorld(sweep(attempts=75, parallelism=40))
    await run(world)
    assert world.why == ("Complete", "SweepComplete")
    assert (world.status.trials.total, world.status.trials.counted, world.status.excluded) == (300, 297, {"Infrastructure": 3})
    world.change(retries=list(EXCLUDED))
    await run(world)
    assert world.why == ("Complete", "SweepComplete") and len(world.trials) == 303
    assert sorted(int(each["metadata"]["labels"]["multistep.dev/retry-of"]) for each in retried(world)) == list(EXCLUDED)
    trials = world.status.trials
    assert (trials.total, trials.created, trials.finished, trials.counted, trials.retried) == (300, 300, 300, 300, 3)
    assert world.status.excluded == {}
    assert [each.counted for each in world.status.agents] == [150, 150]
    assert_each_once(world, 40)
    rows = rows_that_count(map(trial_row, world.trials))
    assert len(rows) == 300 and all(each.counts == 1.0 for each in rows)
    assert [(each.trials, each.counted, each.excluded) for each in summarize(rows).standings] == [(150, 150, {}), (150, 150, {})]


async def test_a_retry_has_the_spec_task_agent_and_attempt_of_the_first_trial() -> None:
    world = SweepWorld()
    await world.run()
    world.change(retries=[4])
    await world.run()
    first = next(each for each in world.trials if each["metadata"]["labels"]["multistep.dev/number"] == "4")
    (again,) = retried(world)
    assert again["metadata"]["labels"]["multistep.dev/number"] == "8"
    assert again["metadata"]["annotations"] == first["metadata"]["annotations"] and again["spec"] == first["spec"]
    assert again["metadata"]["name"].startswith("s-t-a-2-r1-")


async def test_a_scored_trial_is_never_replaced() -> None:
    world = SweepWorld()
    await world.run()
    before = world.status.agents
    world.change(retries=[0])
    await world.run()
    assert len(world.trials) == 9 and world.status.agents == before
    assert [each.trial for each in rows_that_count(map(trial_row, world.trials)) if each.number == 8] == []


async def test_a_sweep_that_its_failures_ended_continues_with_their_retries() -> None:
    world = SweepWorld(sweep(stopWhen={"failures": {"Infrastructure": 0}}))
    await world.run()
    assert world.why == ("Failed", "TooManyFailures") and world.status.trials.created < 8
    world.change(retries=[4])
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and world.status.trials.counted == 8


async def test_a_failed_sweep_whose_limit_still_holds_fails_again_and_stays_so() -> None:
    world = SweepWorld(sweep(stopWhen={"podHours": 0.15}))
    await world.run()
    assert world.why == ("Failed", "BudgetSpent")
    world.change(retries=[0])
    await world.run()
    assert world.why == ("Failed", "BudgetSpent") and not retried(world)
    world.change(stopWhen={"podHours": 100})
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and len(retried(world)) == 1


async def test_the_time_after_a_sweep_finished_does_not_count_for_its_deadline() -> None:
    world = SweepWorld(sweep(activeDeadlineSeconds=200))
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    world.now = START + 100_000
    world.change(retries=[4])
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and world.status.trials.counted == 8


async def test_numbers_that_the_sweep_does_not_have_are_reported_and_create_nothing() -> None:
    world = SweepWorld(sweep(retries=[4, 900]))
    await world.run()
    assert world.why == ("Complete", "SweepComplete") and len(world.trials) == 9
    assert "the sweep has no trials 900 of spec.retries" in world.status.conditions[0].message


@pytest.mark.parametrize("which", [0, 1])
async def test_a_deleted_trial_of_a_number_leaves_the_other_one(which: int) -> None:
    world = SweepWorld()
    await world.run()
    world.change(retries=[4])
    await world.run()
    (again,) = retried(world)
    there: list[Any] = [each for each in world.trials if each["metadata"]["labels"]["multistep.dev/number"] == "4"]
    names = (there[0]["metadata"]["name"], again["metadata"]["name"])
    world.cluster.remove("MultiStepTrial", "default", names[which])
    rows = rows_that_count(map(trial_row, world.trials))
    assert len(rows) == 8 and names[1 - which] in {each.trial for each in rows}


async def test_branches_come_before_retries() -> None:
    agents = [{"name": "a", "agent": {"name": "nop"}}]
    world = SweepWorld(sweep(agents=agents, attempts=2, branch={"at": ["b"]}, retries=[1]))
    await world.run()
    assert world.why == ("Complete", "SweepComplete")
    (again,) = retried(world)
    assert int(again["metadata"]["labels"]["multistep.dev/number"]) == world.status.trials.total == len(world.trials) - 1
