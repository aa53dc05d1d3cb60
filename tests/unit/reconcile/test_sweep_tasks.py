"""Sweeps with remote tasks: the task list is resolved once and kept, whatever happens to the source and the operator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from multistep.api.common.base_model import Metadata
from multistep.errors import SourceError
from multistep.kube.shard import LABEL_SHARD
from multistep.settings import Settings
from multistep.sources.fetch.fetch_messages import FetchedTask, FetchRequest, FetchResult, FetchRules
from multistep.sources.task.bundle import digest_of
from tests.support.faults import Faults, Killed
from tests.support.sweep_world import KEY, SweepWorld, assert_each_once, reconciles, started, sweep
from tests.support.virtual_time import in_virtual_time

GIT = {"url": "https://git.example/r.git", "ref": "main", "path": "/all/", "secretRef": {"name": "login"}}
COMMITS = [f"{number}" * 40 for number in range(3)]


class TaskRepository:
    """A git branch whose directory contains tasks. asked: the fetch requests so far."""

    def __init__(self, tmp_path: Path) -> None:
        self.cache = tmp_path
        self.names: dict[str, list[str]] = {COMMITS[0]: ["t", "u"], COMMITS[1]: ["t", "u", "new"]}
        self.head = COMMITS[0]
        self.asked: list[FetchRequest] = []
        self.error: SourceError | None = None

    async def fetch(self, request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
        self.asked.append(request)
        if self.error:
            raise self.error
        revision, made = request.revision or self.head, []
        for number, name in enumerate(self.names[revision]):
            file = cache / "incoming" / f"{len(self.asked)}-{number}"
            file.write_bytes(name.encode())
            made.append(FetchedTask(name, digest_of(name.encode()), file.name))
        return FetchResult(revision, "", tasks=tuple(made))


@pytest.fixture
def repository(tmp_path: Path) -> TaskRepository:
    return TaskRepository(tmp_path)


def world(repository: TaskRepository, faults: Faults | None = None, **spec: Any) -> SweepWorld:
    found = sweep(**{"tasksFrom": {"git": GIT}, **spec})
    del found["spec"]["tasks"]
    made = SweepWorld(
        found, fetch=repository.fetch, settings=Settings(task_cache_dir=repository.cache / "cache"), faults=faults or Faults()
    )
    made.cluster.put({"kind": "Secret", "metadata": {"name": "login"}, "data": {"token": "eA=="}})
    return made


async def test_its_trials_are_of_the_revision_that_was_found_when_it_started(repository: TaskRepository) -> None:
    made = world(repository)
    await reconciles(made, started)
    pinned = made.status.tasks_from
    assert pinned is not None and (pinned.revision, pinned.count) == (COMMITS[0], 2)
    assert made.active[0]["spec"]["task"] == {"name": "t", "git": {**GIT, "ref": COMMITS[0], "path": "all/t"}}
    repository.head = COMMITS[1]
    made.sweeps = made.fresh()
    await made.run()
    assert made.why == ("Complete", "SweepComplete") and len(made.trials) == 8 and len(repository.asked) == 1
    assert {each["spec"]["task"]["git"]["ref"] for each in made.trials} == {COMMITS[0]}
    names = made.cluster.objects["ConfigMap", "default", pinned.config_map]
    assert (names["data"], names["immutable"]) == ({"tasks": "t\nu"}, True)
    assert names["metadata"]["ownerReferences"][0]["uid"] == "sweep-uid"


async def test_the_tasks_are_in_the_cache_for_its_trials(repository: TaskRepository) -> None:
    made = world(repository)
    await reconciles(made, started)
    (asked,) = repository.asked
    assert (asked.many, asked.ref, asked.credentials) == (True, "main", {"token": "x"})
    assert made.sweeps.tasks.fetches.cache.find(asked.below("t").key(COMMITS[0]))


async def test_wherever_the_operator_dies_before_it_started_its_trials_are_all_of_one_revision(repository: TaskRepository) -> None:
    calm = world(repository)
    await reconciles(calm, started)
    for at in range(1, len(calm.faults.trace) + 1):
        made = world(repository, Faults().fail(at, Killed()))
        await reconciles(made, lambda made: made.deaths)
        repository.head = COMMITS[1]
        await reconciles(made, started)
        await made.run()
        assert_each_once(made)
        assert len({each["spec"]["task"]["git"]["ref"] for each in made.trials}) == 1, calm.faults.trace[at - 1]
        assert len(made.trials) == made.status.trials.total
        repository.head = COMMITS[0]


async def test_names_that_were_lost_are_created_again_from_the_same_revision(repository: TaskRepository) -> None:
    made = world(repository)
    await reconciles(made, started)
    pinned = made.status.tasks_from
    assert pinned is not None
    made.cluster.remove("ConfigMap", "default", pinned.config_map)
    repository.head, made.sweeps = COMMITS[1], made.fresh()
    await reconciles(made, lambda made: ("ConfigMap", "default", pinned.config_map) in made.cluster.objects)
    assert repository.asked[-1].revision == COMMITS[0] and made.status.tasks_from == pinned
    made.cluster.remove("ConfigMap", "default", pinned.config_map)
    repository.names[COMMITS[0]], made.sweeps = ["other"], made.fresh()
    for _ in range(3):
        await made.reconcile()
        await asyncio.sleep(0.01)
    assert made.why == ("Running", "TaskDigestMismatch") and len(made.trials) == 3


async def test_changed_names_are_not_believed(repository: TaskRepository) -> None:
    made = world(repository)
    await reconciles(made, started)
    pinned = made.status.tasks_from
    assert pinned is not None
    found = made.cluster.objects["ConfigMap", "default", pinned.config_map]
    made.cluster.put({**found, "data": {"tasks": "t\nother"}})
    made.sweeps = made.fresh()
    made.end(made.active[0])
    assert await made.reconcile() == 10.0
    assert len(made.trials) == 3
    made.cluster.put(found)
    await made.run()
    assert len(made.trials) == 8


async def test_a_place_that_is_away_is_waited_for_and_one_that_is_wrong_is_not(repository: TaskRepository) -> None:
    made = world(repository)
    repository.error = SourceError("https://git.example/r.git cannot be reached", transient=True)
    await reconciles(made, lambda made: made.status.conditions and made.why[1] == "TaskUnavailable")
    assert "spec.tasksFrom: https://git.example/r.git cannot be reached" in made.status.conditions[0].message
    wrong = world(repository)
    repository.error = SourceError("it has no branch main", reason="TaskNotFound")
    await reconciles(wrong, lambda made: made.status.conditions and made.why == ("Failed", "TaskNotFound"))
    assert wrong.trials == []


async def test_of_a_sweep_that_is_suspended_from_its_start_the_tasks_are_asked_for_when_it_starts(
    repository: TaskRepository,
) -> None:
    made = world(repository, suspend=True)
    await reconciles(made, lambda made: made.status.phase)
    assert (made.status.phase, repository.asked, made.status.start_time) == ("Suspended", [], None)
    repository.head = COMMITS[1]
    made.change(suspend=False)
    await reconciles(made, started)
    pinned = made.status.tasks_from
    assert pinned is not None and pinned.revision == COMMITS[1] and made.status.suspended_seconds is None


async def test_a_sweep_that_is_stopped_before_its_start_is_failed(repository: TaskRepository) -> None:
    repository.error = SourceError("https://git.example/r.git cannot be reached", transient=True)
    for made in (world(repository), world(repository, suspend=True)):
        await reconciles(made, lambda made: made.status.phase)
        made.change(stop=True)
        await reconciles(made, lambda made: made.status.phase == "Failed")
        assert (made.why, made.trials, made.status.start_time) == (("Failed", "Stopped"), [], None)


async def test_a_secret_that_is_missing_is_reported_with_its_field(repository: TaskRepository) -> None:
    made = world(repository)
    made.cluster.remove("Secret", "default", "login")
    await made.reconcile()
    assert "spec.tasksFrom.git.secretRef: Secret 'login' does not exist yet" in made.status.conditions[0].message


async def test_overrides_are_checked_when_the_tasks_are_known(repository: TaskRepository) -> None:
    made = world(repository, overrides=[{"tasks": ["helo"], "spec": {}}])
    await reconciles(made, lambda made: made.status.phase == "Failed")
    assert (
        made.why[1] == "InvalidSpec" and "'helo' does not exist in the sweep, which has t, u" in made.status.conditions[0].message
    )


async def test_names_that_are_too_many_to_keep_are_refused(repository: TaskRepository) -> None:
    repository.names[COMMITS[0]] = [f"{'n' * 240}{number}" for number in range(4000)]
    made = world(repository)
    await reconciles(made, lambda made: made.status.phase == "Failed")
    assert "use several sweeps" in made.status.conditions[0].message


async def test_a_config_map_of_that_name_and_another_owner_is_reported(repository: TaskRepository) -> None:
    other = world(repository)
    await reconciles(other, started)
    assert other.status.tasks_from is not None
    made = world(repository)
    made.cluster.put({"kind": "ConfigMap", "metadata": {"name": other.status.tasks_from.config_map}, "data": {"tasks": "x"}})
    await reconciles(made, lambda made: made.status.conditions and "did not create it" in made.status.conditions[0].message)


@pytest.mark.parametrize("end", ["deleted", "deleting", "relabelled"])
@in_virtual_time
async def test_a_sweep_that_is_deleted_while_its_fetch_is_queued_releases_the_slot(repository: TaskRepository, end: str) -> None:
    """Regression: such a sweep used to keep the slot that it got later; after a few such sweeps, no slot for fetches was left."""
    gate = asyncio.Event()
    fetch = repository.fetch

    async def slow(request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
        await gate.wait()
        return await fetch(request, rules, cache)

    repository.fetch = slow  # type: ignore[method-assign]
    made = world(repository)
    made.settings = made.settings.model_copy(update={"task_fetches": 1})
    made.sweeps = made.fresh()
    fetches = made.sweeps.tasks.fetches
    other = Metadata(namespace="other", name="s", uid="u")
    with pytest.raises(SourceError):
        fetches.ask(other, FetchRequest("git", "https://elsewhere/x", many=True), started=False)
    await made.reconcile()  # this sweep's fetch waits for the slot of the other sweep
    found = made.cluster.objects["TrialSweep", *KEY]
    if end == "deleted":
        del made.cluster.objects["TrialSweep", *KEY]
    elif end == "deleting":
        made.cluster.put({**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    else:
        made.cluster.put({**found, "metadata": {**found["metadata"], "labels": {LABEL_SHARD: "elsewhere"}}})
    gate.set()
    await asyncio.sleep(0.05)
    await made.sweeps.reconcile(KEY)  # the freed slot requeued this sweep, which must release it
    with pytest.raises(SourceError):
        fetches.ask(other, FetchRequest("git", "https://elsewhere/y", many=True), started=False)
    await asyncio.sleep(0.05)
    assert [each.location for each in repository.asked] == ["https://elsewhere/x", "https://elsewhere/y"]
