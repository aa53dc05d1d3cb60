"""Sweeps of a dataset: each task is pinned to a commit once, and keeps it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from multistep.errors import SourceError
from multistep.settings import Settings
from multistep.sources.fetch.fetch_messages import FetchedTask, FetchRequest, FetchResult, FetchRules, progress_file
from multistep.sources.task.bundle import digest_of
from tests.support.faults import Faults, Killed
from tests.support.sweep_world import SweepWorld, assert_each_once, reconciles, started, sweep

ONE, TWO = "https://git.example/one.git", "https://other.example/two.git"
DATASET = {"registry": "https://git.example/registry.json", "name": "bench", "include": ["t*"], "limit": 2}
SECRET = {"secretRef": {"name": "login"}}


class FakeRegistry:
    """A registry with two repositories. commit: the commit of both branches; asked: the fetch requests so far."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commit = "a" * 40
        self.asked: list[FetchRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def fetch(self, request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
        self.asked.append(request)
        await self.gate.wait()
        file = cache / "incoming" / f"{len(self.asked)}"
        file.write_bytes(b"t")
        along = FetchedTask("t", digest_of(b"t"), file.name, ONE, self.commit, "all/t")
        return FetchResult(digest_of(b"registry"), "", tasks=(along, FetchedTask("t-2", url=TWO, revision=self.commit, path="t")))


@pytest.fixture
def registry(tmp_path: Path) -> FakeRegistry:
    return FakeRegistry(tmp_path)


def world(
    registry: FakeRegistry, faults: Faults | None = None, source: dict[str, Any] | None = None, **settings: Any
) -> SweepWorld:
    found = sweep(tasksFrom={"dataset": source or {**DATASET, **SECRET}})
    del found["spec"]["tasks"]
    chosen = Settings(task_cache_dir=registry.directory / "cache", **settings)
    made = SweepWorld(found, fetch=registry.fetch, settings=chosen, faults=faults or Faults())
    made.cluster.put({"kind": "Secret", "metadata": {"name": "login", "uid": "uid"}, "data": {"token": "eA=="}})
    return made


async def test_each_trial_has_the_repository_and_commit_of_its_task(registry: FakeRegistry) -> None:
    made = world(registry)
    await reconciles(made, started)
    pinned = made.status.tasks_from
    assert pinned is not None and (pinned.revision, pinned.count) == (digest_of(b"registry"), 2)
    first = made.active[0]["spec"]["task"]
    assert first == {"name": "t", "git": {"url": ONE, "ref": "a" * 40, "path": "all/t", **SECRET}}
    registry.commit = "b" * 40
    made.sweeps = made.fresh()
    await made.run()
    assert made.why == ("Complete", "SweepComplete") and len(registry.asked) == 1
    found = {json.dumps(each["spec"]["task"], sort_keys=True) for each in made.trials}
    other = {"name": "t-2", "git": {"url": TWO, "ref": "a" * 40, "path": "t"}}
    assert found == {json.dumps(each, sort_keys=True) for each in (first, other)}
    listed = made.cluster.objects["ConfigMap", "default", pinned.config_map]["data"]["tasks"]
    assert [json.loads(each) for each in listed.splitlines()] == [["t", ONE, "a" * 40, "all/t"], ["t-2", TWO, "a" * 40, "t"]]


async def test_the_request_has_the_selection_and_fetched_tasks_are_in_the_cache(registry: FakeRegistry) -> None:
    made = world(registry)
    await reconciles(made, started)
    (asked,) = registry.asked
    assert (asked.kind, asked.location, asked.revision) == ("dataset", DATASET["registry"], "")
    assert asked.dataset == {"name": "bench", "include": ["t*"], "exclude": [], "limit": 2}
    assert (asked.scope, asked.credentials) == ("uid", {"token": "x"})
    cache = made.sweeps.tasks.fetches.cache
    assert cache.find(FetchRequest("git", ONE, path="all/t", scope="uid").key("a" * 40)) is not None
    assert cache.find(FetchRequest("git", TWO, path="t").key("a" * 40)) is None


async def test_wherever_the_operator_dies_before_the_start_all_trials_have_the_commits_of_one_list(registry: FakeRegistry) -> None:
    calm = world(registry)
    await reconciles(calm, started)
    for at in range(1, len(calm.faults.trace) + 1):
        registry.commit = "a" * 40
        made = world(registry, Faults().fail(at, Killed()))
        await reconciles(made, lambda made: made.deaths)
        registry.commit = "b" * 40
        await reconciles(made, started)
        await made.run()
        assert_each_once(made)
        assert len({each["spec"]["task"]["git"]["ref"] for each in made.trials}) == 1, calm.faults.trace[at - 1]


async def test_a_lost_list_is_created_again_from_the_same_registry_and_commits_only(registry: FakeRegistry) -> None:
    made = world(registry)
    await reconciles(made, started)
    pinned = made.status.tasks_from
    assert pinned is not None
    made.cluster.remove("ConfigMap", "default", pinned.config_map)
    registry.commit, made.sweeps = "b" * 40, made.fresh()
    for _ in range(5):
        await made.reconcile()
        await asyncio.sleep(0)
    assert ("ConfigMap", "default", pinned.config_map) not in made.cluster.objects
    assert registry.asked[-1].revision == pinned.revision and len(made.trials) == 3
    registry.commit, made.sweeps = "a" * 40, made.fresh()
    await reconciles(made, lambda made: ("ConfigMap", "default", pinned.config_map) in made.cluster.objects)
    assert made.status.tasks_from == pinned


async def test_a_sweep_shows_how_many_tasks_are_fetched(registry: FakeRegistry) -> None:
    registry.gate.clear()
    made = world(registry)
    assert await made.reconcile() == 5.0
    assert made.why == ("Pending", "TaskFetching")
    assert made.status.conditions[0].message.endswith("the tasks of dataset bench are being fetched: listing them")
    await asyncio.sleep(0)
    file = progress_file(made.sweeps.tasks.fetches.cache.incoming, registry.asked[0])
    for text, shown in (("12 of 500", "12 of 500"), ("anything", "listing them"), ("1" * 1000, "listing them")):
        file.write_text(text)
        assert await made.reconcile() == 5.0
        assert made.status.conditions[0].message.endswith(f"are being fetched: {shown}")
    registry.gate.set()
    await reconciles(made, started)


@pytest.mark.parametrize(
    ("kinds", "wrong"), [(["git", "url"], False), (["git"], True), (["url"], True), (["oci", "git", "url"], False)]
)
async def test_an_operator_that_allows_no_git_or_no_urls_takes_no_datasets(
    registry: FakeRegistry, kinds: list[str], wrong: bool
) -> None:
    made = world(registry, task_sources=kinds)
    await reconciles(made, lambda made: started(made) or made.status.phase == "Failed")
    if wrong:
        assert made.why == ("Failed", "TaskSourceNotAllowed") and registry.asked == []
        assert "spec.tasksFrom.dataset: the operator's setting taskSources must have" in made.status.conditions[0].message


async def test_a_secret_of_a_dataset_that_is_missing_is_waited_for(registry: FakeRegistry) -> None:
    made = world(registry, source={**DATASET, "secretRef": {"name": "none"}})
    await made.reconcile()
    assert "spec.tasksFrom.dataset.secretRef: Secret 'none' does not exist yet" in made.status.conditions[0].message


async def test_a_dataset_that_is_not_there_fails_the_sweep(registry: FakeRegistry) -> None:
    async def fetch(request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
        raise SourceError("it has no dataset 'bench'", reason="TaskNotFound")

    registry.fetch = fetch  # type: ignore[method-assign]
    made = world(registry)
    await reconciles(made, lambda made: made.status.phase == "Failed")
    assert made.why == ("Failed", "TaskNotFound") and made.trials == []
