"""Tasks of trials: trials with the same task and source share one read; the number of tasks in memory is bounded."""

from __future__ import annotations

import asyncio
import gzip
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import pytest

from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.reconcile.loading.load_tasks import TRIES, Reads
from multistep.sources.load import load_trial
from multistep.sources.load.load_trial import TrialLoader
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.sources.reader.fork_server import ReadFailed
from multistep.sources.reader.read_messages import ReadAnswer, ReadOrder
from multistep.sources.reader.read_task import TaskReader
from multistep.sources.task.bundle import digest_of, tar_chunks
from multistep.sources.task.stored_bundles import split_bundle
from tests.support.builds import NoBuilding
from tests.support.world import READING
from tests.unit.sources.trees import task


class Cluster:
    """A cluster with task bundles in ConfigMaps. reads: how often each ConfigMap was read."""

    def __init__(self) -> None:
        self.maps: dict[tuple[str, str], Mapping[str, Any]] = {}
        self.reads: Counter[tuple[str, str]] = Counter()
        reads = Reads(lambda _: None, patience_seconds=60.0)
        self.loader = TrialLoader(self._get, self._get, cast(RemoteTasks, None), TaskReader(READING), reads, NoBuilding())

    async def _get(self, namespace: str, name: str) -> Mapping[str, Any]:
        self.reads[namespace, name] += 1
        if (namespace, name) not in self.maps:
            raise NotFound(f"no {name}", status=404, reason="NotFound")
        return self.maps[namespace, name]

    def bundle(self, namespace: str, text: str) -> Mapping[str, Any]:
        """Store a task that contains this text in ConfigMaps; return the spec.task.bundle for trials with this task."""
        data = gzip.compress(b"".join(tar_chunks(sorted(task({"environment/text": text}).entries.items()))))
        maps = split_bundle(data, "task")
        self.maps |= {(namespace, each["metadata"]["name"]): each for each in maps}
        return {"configMaps": [each["metadata"]["name"] for each in maps], "digest": digest_of(data)}

    def load(self, trial: MultiStepTrial) -> load_trial.LoadedTrial:
        return asyncio.run(self.loader.load(trial))


def trial(uid: str, bundle: Mapping[str, Any], namespace: str = "a") -> MultiStepTrial:
    environment = {"image": "img"}
    spec = {"task": {"bundle": bundle}, "environment": environment, "agent": {"name": "nop"}}
    return parse_trial({"metadata": {"name": uid, "namespace": namespace, "uid": uid}, "spec": spec})


def test_however_many_trials_have_a_task_it_is_read_once() -> None:
    cluster = Cluster()
    bundle = cluster.bundle("a", "text")
    loaded = [cluster.load(trial(f"uid-{number}", bundle)) for number in range(2 * load_trial.MAX_CACHED)]
    assert list(cluster.reads.values()) == [1]
    assert len({id(each.task) for each in loaded}) == 1


def test_who_cannot_read_a_bundle_is_not_given_it_for_its_digest() -> None:
    cluster = Cluster()
    bundle = cluster.bundle("a", "text")
    cluster.load(trial("ours", bundle))
    with pytest.raises(SourceError, match="does not exist"):
        cluster.load(trial("theirs", bundle, namespace="b"))


def test_a_task_is_checked_for_each_way_of_running_it() -> None:
    cluster = Cluster()
    bundle = cluster.bundle("a", "text")
    cluster.load(trial("nop", bundle))
    oracle = trial("oracle", bundle)
    oracle.spec.agent.name = "oracle"
    assert cluster.load(oracle).task.config == cluster.load(trial("nop", bundle)).task.config
    assert list(cluster.reads.values()) == [2]


def test_only_a_trial_that_has_not_started_fails_if_the_process_that_reads_its_task_dies_repeatedly() -> None:
    """The task of a trial that has started was read before, so the operator or its node must be short of memory."""

    async def dies(_: ReadOrder) -> ReadAnswer:
        raise ReadFailed("the process that read the task was killed")

    cluster = Cluster()
    cluster.loader._reader._read = dies
    bundle = cluster.bundle("a", "text")
    runs = trial("runs", bundle)
    runs.status.attempt = 1
    for _ in range(TRIES + 1):
        with pytest.raises(ReadFailed):
            cluster.load(runs)
    with pytest.raises(InvalidSpec, match="times in a row"):
        cluster.load(trial("new", bundle))


def test_tasks_that_are_too_large_together_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_trial, "MAX_CACHED_BYTES", 5000)
    cluster = Cluster()
    large = {name: cluster.bundle("a", name * 1500) for name in "xy"}
    for name in "xyx":
        cluster.load(trial(name, large[name]))
    assert sorted(cluster.reads.values()) == [1, 2]


def test_plans_are_bounded_and_what_was_dropped_is_created_again() -> None:
    cluster = Cluster()
    bundle = cluster.bundle("a", "text")
    first = cluster.load(trial("first", bundle))
    for number in range(load_trial.MAX_CACHED):
        cluster.load(trial(f"uid-{number}", bundle))
    again = cluster.load(trial("first", bundle))
    assert again is not first and again.plan == first.plan


def test_kept_plans_count_the_texts_of_the_trial_itself() -> None:
    """The cache limits the total size of plans, because 512 plans with 4 MiB of extra instructions each would exceed the memory."""
    cluster = Cluster()
    bundle = cluster.bundle("a", "text")
    for number in range(40):
        each = trial(str(number), bundle)
        spec = each.spec.model_copy(update={"extra_instructions": [f"{number}" + "x" * (1 << 20)]})
        cluster.load(each.model_copy(update={"spec": spec}))
    assert 0 < len(cluster.loader._plans) <= 32
