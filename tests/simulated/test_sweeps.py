"""Test a sweep: its trials, exclusions, suspension, and end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from multistep.errors import ClusterError, NotFound
from multistep.kube.resources import PODS, SWEEPS, TRIALS
from tests.e2e.given import Object, condition, finished, holds, in_agent
from tests.simulated.given import HOLD, IMAGE, NO_IMAGE, Given, Step, reward, trial

IF_SOLVED = "if *-solver-* reward 0.5\nif *-idler-* reward 0"
NAME = "nightly"
SELECTOR = f"multistep.dev/sweep={NAME}"


def sweep(**spec: object) -> Object:
    tasks = {
        "known": Step("a", test=IF_SOLVED),
        "held": Step("a", solve=HOLD, test=reward(0.25)),
    }
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": NAME},
        "spec": {
            "tasks": [{"name": name, "inline": trial(step)["spec"]["task"]["inline"]} for name, step in tasks.items()],
            "agents": [{"name": "solver", "agent": {"name": "oracle"}}, {"name": "idler", "agent": {"name": "nop"}}],
            "attempts": 2,
            "parallelism": 4,
            "template": {"spec": {"environment": {"image": NO_IMAGE}, "infrastructureRetries": 0}},
            "overrides": [{"spec": {"environment": {"image": IMAGE}}}],
            **spec,
        },
    }


async def now(given: Given) -> Object:
    return await given.client.get(SWEEPS, given.namespace, NAME)


async def until(given: Given, done: Callable[[Object], bool]) -> Object:
    return await given.sweep_until(NAME, done)


async def changed(given: Given, **spec: object) -> None:
    await given.client.patch(SWEEPS, given.namespace, NAME, {"spec": spec})


async def trials(given: Given) -> dict[str, Object]:
    """Return the trials by "TASK AGENT ATTEMPT"."""
    listed = await given.client.list_all(TRIALS, given.namespace, label_selector=SELECTOR)
    names = ("multistep.dev/task", "multistep.dev/agent", "multistep.dev/attempt")
    return {" ".join(each["metadata"]["annotations"][name] for name in names): each for each in listed}


async def at_work(given: Given, which: str) -> str:
    """Wait until the agent of the trial "TASK AGENT ATTEMPT" runs, and return the trial's name."""
    name = await made(given, which)
    await given.until(name, in_agent)
    return name


async def made(given: Given, which: str) -> str:
    """Wait until the trial "TASK AGENT ATTEMPT" exists, and return its name."""

    async def name() -> str:
        found = (await trials(given)).get(which)
        return str(found["metadata"]["name"]) if found else ""

    return await given.when(name)


async def lose_when_at_work(given: Given, which: str) -> None:
    """Delete the trial's pod while its agent runs. The trial then fails, because it has no retries."""
    name = await at_work(given, which)
    (pod,) = await given.pods(name)
    await given.client.delete(PODS, given.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])


async def test_a_sweep_is_suspended_resumed_counted_and_deleted_with_its_trials_when_its_time_has_come(given: Given) -> None:
    await given.applied(sweep())
    await at_work(given, "held solver 1")
    await changed(given, suspend=True)
    await until(given, lambda found: found["status"].get("phase") == "Suspended")
    there = await trials(given)
    assert there["held solver 1"]["spec"]["suspend"] is True
    assert there["held solver 1"]["metadata"]["annotations"]["multistep.dev/suspended-by"] == NAME
    await changed(given, suspend=False, parallelism=8)

    async def resumed() -> bool:
        return "suspend" not in (await trials(given))["held solver 1"]["spec"]

    await given.when(resumed)
    await lose_when_at_work(given, "held solver 1")
    await lose_when_at_work(given, "held solver 2")
    status = (await given.sweep_ended(NAME))["status"]
    assert condition({"status": status}, "Complete")["status"] == "True"
    assert status["agents"] == [
        {"name": "solver", "counted": 2, "finished": 4, "passed": 0, "mean": 0.5},
        {"name": "idler", "counted": 4, "finished": 4, "passed": 0, "mean": 0.125},
    ]
    assert status["excluded"] == {"Infrastructure": 2}
    counts = status["trials"]
    assert [counts[each] for each in ("total", "created", "complete", "failed", "deleted", "active")] == [8, 8, 6, 2, 0, 0]
    assert status["podHours"] > 0
    found = await trials(given)
    assert len(found) == 8 and "suspend" not in found["held solver 1"]["spec"]
    assert all(holds(each, "Complete") for each in found.values() if "suspend" in each["spec"]), "others ended meanwhile"
    reported = await given.reported(NAME, "SweepComplete")
    assert [reported.count(reason) for reason in ("SweepStarted", "Suspended", "Resumed", "SweepComplete")] == [1, 1, 1, 1]
    await changed(given, ttlSecondsAfterFinished=0)
    await given.when(lambda: is_gone(given))


async def is_gone(given: Given) -> bool:
    """Return whether neither the sweep nor any of its trials exists."""
    with suppress(NotFound):
        await now(given)
        return False
    return not await trials(given)


async def test_a_suspended_sweep_creates_no_trial_although_it_may_have_more(given: Given) -> None:
    held = [each for each in sweep()["spec"]["tasks"] if each["name"] == "held"]
    await given.applied(sweep(tasks=held, parallelism=1))
    await at_work(given, "held solver 1")
    await changed(given, suspend=True, parallelism=4)
    await until(given, lambda found: found["status"].get("phase") == "Suspended")
    assert len(await trials(given)) == 1
    await changed(given, suspend=False)
    await until(given, lambda found: found["status"]["trials"]["created"] == 4)


async def test_what_cannot_be_a_sweep_is_refused_or_failed_with_the_field(given: Given) -> None:
    with pytest.raises(ClusterError, match="must have exactly one of tasks and tasksFrom"):
        await given.applied(sweep(tasksFrom={"git": {"url": "https://git.example/tasks"}}))
    with pytest.raises(ClusterError, match="at most 63 characters"):
        await given.applied({**sweep(), "metadata": {"name": "n" * 64}})
    await given.applied(sweep(overrides=[{"tasks": ["helt"], "spec": {}}]))
    failed = condition(await given.sweep_ended(NAME), "Failed")
    assert (failed["status"], failed["reason"]) == ("True", "InvalidSpec")
    assert "overrides[0].tasks: 'helt' does not exist in the sweep, which has held, known" in failed["message"]
    with pytest.raises(ClusterError, match="attempts cannot be changed: create a new sweep"):
        await changed(given, attempts=3)


def is_ready(found: Object) -> bool:
    """Return whether a prestarted trial has a running pod and waits for a slot of its sweep."""
    return bool(found.get("status")) and condition(found, "Suspended")["reason"] == "Paused"


async def test_the_next_trial_of_a_sweep_is_ready_before_its_turn_and_starts_in_that_pod(given: Given) -> None:
    held = [each for each in sweep()["spec"]["tasks"] if each["name"] == "held"]
    await given.applied(sweep(tasks=held, attempts=1, parallelism=1, prestart=1))
    first = await at_work(given, "held solver 1")
    second = await made(given, "held idler 1")
    ready = (await given.until(second, is_ready))["status"]
    assert ready.get("steps", []) == []
    await until(given, lambda found: found["status"]["trials"]["active"] == 2)
    await lose_when_at_work(given, "held solver 1")
    done = (await given.until(second, finished))["status"]
    assert (done["rewards"], done["podUID"], done.get("attempts", [])) == ({"reward": 0.25}, ready["podUID"], [])
    assert (await given.get(first))["status"]["failure"]["reason"] == "PodDeleted"
    counts = (await given.sweep_ended(NAME))["status"]["trials"]
    assert (counts["finished"], counts["counted"], counts["failed"]) == (2, 1, 1)
