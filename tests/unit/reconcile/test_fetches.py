"""Remote tasks of trials: their revision is resolved once, and they are fetched once, without blocking a reconcile worker."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from multistep.api.common.base_model import Metadata
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.errors import SourceError
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import CONFIG_MAPS, SECRETS
from multistep.reconcile.loading.background_jobs import RECHECK_SECONDS
from multistep.reconcile.loading.load_tasks import Fetches, Reads
from multistep.settings import Settings
from multistep.sources.fetch.fetch_messages import FetchRequest, FetchResult, FetchRules
from multistep.sources.load.load_trial import TrialLoader
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.sources.reader.read_task import TaskReader
from multistep.sources.task.bundle import BundleEntry, digest_of, tar_chunks
from tests.support.builds import NoBuilding
from tests.support.reading import read_here
from tests.support.virtual_time import in_virtual_time
from tests.support.world import FILES, World, manifest

GIT = {"url": "https://git.example/r.git", "ref": "main", "path": "tasks/t"}
TOML = '[environment]\ndocker_image = "img"\n[[steps]]\nname = "a"\n'


def task(text: str = TOML) -> bytes:
    entries = {path: BundleEntry("file", 0o755, data=each.encode()) for path, each in FILES.items() if path.startswith("steps/a/")}
    return b"".join(tar_chunks(sorted({**entries, "task.toml": BundleEntry("file", 0o644, data=text.encode())}.items())))


class RemoteSource:
    """A remote source with a branch and its commits. error: the exception that each fetch raises, or None."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.commits: dict[str, bytes] = {"c1": task()}
        self.head = "c1"
        self.error: SourceError | None = None
        self.asked: list[FetchRequest] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.running = self.most = 0

    def has(self, key: str) -> bool:
        return any(self.directory.glob(f"{key}-*"))

    async def fetch(self, request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
        self.asked.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.gate.wait()
            if self.error is not None:
                raise self.error
            revision = request.revision or self.head
            if revision not in self.commits:
                raise SourceError("no such commit", reason="TaskNotFound")
            if not self.has(request.key(revision)):
                name = f"new-{len(self.asked)}"
                (cache / "incoming" / name).write_bytes(self.commits[revision])
                return FetchResult(revision, digest_of(self.commits[revision]), name)
            return FetchResult(revision, digest_of(self.commits[revision]))
        finally:
            self.running -= 1


@pytest.fixture
def remote_source(tmp_path: Path) -> RemoteSource:
    return RemoteSource(tmp_path / "cache")


def world(remote_source: RemoteSource, source: Object | None = None, **fields: Any) -> World:
    made = World(manifest({"task": source or {"git": GIT}}), durations={"a/agent": 1000.0}, **fields)
    fresh = made.fresh

    def connected() -> Any:
        reconciler = fresh()
        fetches = Fetches(settings(remote_source), reconciler.wake, remote_source.fetch)
        reconciler.fetches, reconciler.admission.jobs = fetches, [fetches.limit, reconciler.reads.limit]
        remote = RemoteTasks(fetches, partial(reconciler.cluster.get, SECRETS), ["oci", "git", "url"])
        get_config_map, get_secret = (partial(reconciler.cluster.get, each) for each in (CONFIG_MAPS, SECRETS))
        loader = TrialLoader(
            get_config_map, get_secret, remote, TaskReader(remote_source.directory, read_here), reconciler.reads, NoBuilding()
        )
        reconciler.trials.loader = loader
        return reconciler

    made.fresh = connected  # type: ignore[method-assign]
    made.reconciler = connected()
    return made


def settings(remote_source: RemoteSource, **changes: Any) -> Settings:
    return Settings(task_cache_dir=remote_source.directory, **changes)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def reconciles(made: World, times: int = 4) -> None:
    for _ in range(times):
        await made.reconcile()
        await settle()


async def test_a_trial_keeps_what_its_branch_was_when_it_started(remote_source: RemoteSource) -> None:
    made = world(remote_source)
    await reconciles(made)
    started = made.status.task_source
    assert started is not None and (started.revision, started.digest) == ("c1", digest_of(task()))
    remote_source.commits["c2"], remote_source.head = task(TOML + "min_reward = 1.0\n"), "c2"
    made.reconciler = made.fresh()
    await made.run()
    assert made.status.phase == "Complete" and made.status.task_source == started


async def test_what_it_was_is_written_down_before_there_is_a_pod(remote_source: RemoteSource) -> None:
    made = world(remote_source)
    seen: list[object] = []
    create = made.cluster.create

    async def noted(manifest: Any, *, dry_run: bool = False) -> Any:
        if manifest["kind"] == "Pod":
            seen.append(made.status.task_source)
        return await create(manifest, dry_run=dry_run)

    made.cluster.create = noted  # type: ignore[method-assign]
    await reconciles(made)
    assert len(seen) == 1 and seen[0] is not None


async def test_after_the_cache_is_lost_the_same_commit_is_fetched_again(remote_source: RemoteSource) -> None:
    made = world(remote_source)
    await reconciles(made)
    remote_source.commits["c2"], remote_source.head = task("x"), "c2"
    for each in remote_source.directory.glob("*-*"):
        each.unlink()
    made.reconciler = made.fresh()
    await reconciles(made)
    assert [each.revision for each in remote_source.asked] == ["", "c1"]
    await made.run()
    assert made.status.phase == "Complete"


async def test_a_missing_commit_fails_the_trial_with_a_reason(remote_source: RemoteSource) -> None:
    made = world(remote_source)
    await reconciles(made)
    remote_source.commits, remote_source.head = {"c2": task()}, "c2"
    for each in remote_source.directory.glob("*-*"):
        each.unlink()
    made.reconciler = made.fresh()
    await reconciles(made)
    failure = made.status.failure
    assert failure is not None and (failure.reason, failure.class_) == ("TaskNotFound", "Task") and made.status.rewards is None


async def test_content_that_changed_behind_a_revision_is_refused(remote_source: RemoteSource) -> None:
    made = world(remote_source)
    await reconciles(made)
    remote_source.commits["c1"] = task(TOML + "min_reward = 1.0\n")
    for each in remote_source.directory.glob("*-*"):
        each.unlink()
    made.reconciler = made.fresh()
    await reconciles(made)
    assert made.status.failure is not None and made.status.failure.reason == "TaskDigestMismatch"


async def test_access_that_is_lost_while_a_trial_runs_is_waited_for(remote_source: RemoteSource) -> None:
    made = world(remote_source)
    await reconciles(made)
    for each in remote_source.directory.glob("*-*"):
        each.unlink()
    remote_source.error = SourceError("denied", reason="TaskAccessDenied")
    made.reconciler = made.fresh()
    made.now += 60
    await reconciles(made)
    assert made.status.failure is None and made.status.conditions[0].reason == "TaskAccessDenied"
    remote_source.error = None
    await reconciles(made)
    await made.run()
    assert made.status.phase == "Complete"


@pytest.mark.parametrize(
    ("source", "reason", "output"),
    [
        ({"git": {**GIT, "secretRef": {"name": "none"}}}, "TaskUnavailable", "Secret 'none' does not exist yet"),
        ({"git": {**GIT, "secretRef": {"name": "odd"}}}, "InvalidSpec", "it has other"),
        ({"oci": {"image": "r.example/i", "secretRef": {"name": "odd"}}}, "InvalidSpec", "dockerconfigjson"),
    ],
)
async def test_secrets_that_do_not_fit_are_reported(remote_source: RemoteSource, source: Object, reason: str, output: str) -> None:
    made = world(remote_source, source)
    value = base64.b64encode(b"very-secret").decode()
    metadata = {"name": "odd", "namespace": "default"}
    made.cluster.put({"kind": "Secret", "apiVersion": "v1", "metadata": metadata, "data": {"other": value}})
    await reconciles(made)
    shown = made.status.conditions[0]
    assert shown.reason == reason and output in shown.message and "very-secret" not in shown.message and remote_source.asked == []


# -- concurrent fetches


def trial(name: str, namespace: str = "default", source: Object | None = None) -> MultiStepTrial:
    found = manifest({"task": source or {"git": GIT}})
    found["metadata"] |= {"name": name, "namespace": namespace, "uid": f"uid-{namespace}-{name}"}
    return parse_trial(found)


def loader(
    remote_source: RemoteSource, wake: Callable[[Any], None] = lambda _: None, **changes: Any
) -> tuple[TrialLoader, Fetches]:
    async def none(namespace: str, name: str) -> Object:
        raise AssertionError

    fetches = Fetches(settings(remote_source, **changes), wake, remote_source.fetch)
    remote = RemoteTasks(fetches, none, ["git", "url"])
    return TrialLoader(
        none, none, remote, TaskReader(remote_source.directory, read_here), Reads(wake, patience_seconds=60.0), NoBuilding()
    ), fetches


async def test_many_trials_of_a_task_fetch_it_once_and_share_it(remote_source: RemoteSource) -> None:
    woken: list[Any] = []
    load, _ = loader(remote_source, woken.append)
    remote_source.gate.clear()
    trials = [trial(f"t{number}") for number in range(50)]
    for each in trials:
        with pytest.raises(SourceError) as caught:
            await load.load(each)
        assert caught.value.reason == "TaskFetching" and caught.value.retry_seconds == RECHECK_SECONDS
        await settle()
    remote_source.gate.set()
    await settle()
    assert sorted(woken) == sorted(("default", each.metadata.name) for each in trials)
    loaded = [await load.load(each) for each in trials]
    assert len(remote_source.asked) == 1 and len({id(each.task) for each in loaded}) == 1


async def test_only_a_few_are_fetched_at_once_and_namespaces_take_turns(remote_source: RemoteSource) -> None:
    woken: list[Any] = []
    load, fetches = loader(remote_source, woken.append, task_fetches=2)
    remote_source.gate.clear()
    trials = [trial(f"t{n}", "greedy", {"git": {**GIT, "ref": f"b{n}"}}) for n in range(5)] + [trial("t", "modest")]
    for each in trials:
        with pytest.raises(SourceError):
            await load.load(each)
        fetches.limit.settle((each.metadata.namespace, each.metadata.name))
        await settle()
    assert len(remote_source.asked) == remote_source.most == 2
    remote_source.gate.set()
    await settle()
    assert ("modest", "t") in woken


# -- fairness: trials and sweeps of one namespace need 40 slow downloads


class Downloads:
    """Trials and sweeps that need downloads of one minute each. started: start times of the downloads in seconds, by namespace."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        self.directory = directory
        self.started: dict[str, list[float]] = {}
        self.running = self.most = 0
        self.fetches = Fetches(Settings(task_cache_dir=directory, **changes), lambda key: self._wake(self.trials, key), self._run)
        self.sweep_fetches = self.fetches.of_sweeps(lambda key: self._wake(self.sweeps, key))
        self.trials: dict[tuple[str, str], FetchRequest] = {}
        self.sweeps: dict[tuple[str, str], FetchRequest] = {}
        self.fetched: set[str] = set()

    async def _run(self, request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
        self.running += 1
        self.most = max(self.most, self.running)
        self.started.setdefault(request.location.split("/")[2], []).append(asyncio.get_running_loop().time())
        await asyncio.sleep(60)
        self.running -= 1
        return FetchResult("c1", "sha256:0")

    def ask(self, namespace: str, name: str, *, sweep: bool = False) -> None:
        """Reconcile a new trial or sweep once. No other one has the same task, so the task must be downloaded."""
        kind = self.sweeps if sweep else self.trials
        kind[namespace, name] = FetchRequest("git", f"https://{namespace}/{name}{'s' * sweep}")
        self._wake(kind, (namespace, name))

    def _wake(self, kind: dict[tuple[str, str], FetchRequest], key: tuple[str, str]) -> None:
        asker = Metadata(namespace=key[0], name=key[1], uid=f"{kind is self.sweeps}-{key}")
        fetches = self.sweep_fetches if kind is self.sweeps else self.fetches
        try:
            fetches.ask(asker, kind[key], started=False)
            self.fetched.add(kind[key].id)
        except SourceError as error:
            assert error.reason == "TaskFetching"
        finally:
            self.fetches.limit.settle((key[0], f"sweep/{key[1]}") if kind is self.sweeps else key)


@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_forty_slow_downloads_of_a_namespace_do_not_delay_another_namespaces_trial(tmp_path: Path, slots: int) -> None:
    @in_virtual_time
    async def check() -> None:
        downloads = Downloads(tmp_path, task_fetches=slots)
        for number in range(20):
            downloads.ask("crowd", f"t{number}")
            downloads.ask("crowd", f"t{number}", sweep=True)  # a trial and a sweep may have the same name
        await asyncio.sleep(1)
        for namespace in ("second", "third", "fourth"):
            downloads.ask(namespace, "t")
        await asyncio.sleep(4000)
        alone = slots == 1  # with one slot, the other namespaces wait until the running download has finished
        assert downloads.started["second"] == [60 if alone else 1]
        # Namespaces third and fourth wait for at most one download of every other namespace, although "crowd" has queued 40.
        assert max(downloads.started["third"][0], downloads.started["fourth"][0]) <= (180 if alone else 61)
        assert len(downloads.started["crowd"]) == 40 and len(downloads.fetched) == 43
        assert downloads.most == slots
        assert len([each for each in downloads.started["crowd"] if each < 60]) == max(1, slots - 1)

    check()


async def test_a_server_with_errors_is_asked_less_and_less_whoever_asks(remote_source: RemoteSource) -> None:
    load, fetches = loader(remote_source)
    remote_source.error = SourceError("away", transient=True)
    pauses = []
    for number in range(3):
        for _ in range(2):
            with pytest.raises(SourceError) as caught:
                await load.load(trial("t"))
            await settle()
        pauses.append(caught.value.retry_seconds)
        with pytest.raises(SourceError, match="away"):
            await load.load(trial("another"))
        assert len(remote_source.asked) == number + 1
        for id_, failure in list(fetches._failures.items()):
            fetches._failures[id_] = type(failure)(failure.error, 0.0, failure.pause)
    assert pauses == [5.0, 10.0, 20.0]


async def test_a_changed_file_in_the_cache_is_fetched_again(remote_source: RemoteSource) -> None:
    source = {"url": {"url": "https://e.example/t.tar.gz", "digest": digest_of(task())}}
    remote_source.commits[digest_of(task())] = task()
    # Trial a waits once, for the fetch. Trial b waits twice: its first load finds the changed file and deletes it, and its second
    # load fetches the task again.
    for name, waits in (("a", 1), ("b", 2)):
        load, _ = loader(remote_source)
        for _ in range(waits):
            with pytest.raises(SourceError) as caught:
                await load.load(trial(name, source=source))
            assert caught.value.transient
            await settle()
        await load.load(trial(name, source=source))
        next(remote_source.directory.glob("*-*")).write_bytes(b"evil")
    assert len(remote_source.asked) == 2
