"""Test image builds: crashes, lost pods, an unreachable registry, which processes get the secret, and builds that trials share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from multistep.api.trial.content_references import Content
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.builds.next_build_action import BuildPause
from multistep.engine.plan.image_builds import ImageBuild, build_id
from multistep.errors import SourceError
from multistep.kube.cluster_protocols import Object
from multistep.pods import builder_pod as pods
from multistep.reconcile.loading.build_images import Builds
from multistep.reconcile.loading.build_one_image import BuildJob, Tools
from multistep.settings import BuildSettings, Settings
from multistep.sources.load.load_trial import BUILDING, RETRYING, ImageMissing
from multistep.sources.reader.read_task import ReadTask
from multistep.store.results_volume import ResultsVolume
from multistep.store.trial.access_tokens import AccessTokens
from tests.support.builds import DIGEST, SECRET, FakeBuildLogs, FakeRegistry
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeRunner
from tests.support.faults import Faults, Killed
from tests.support.virtual_time import in_virtual_time

BUILD = ImageBuild("environment", Content("environment"), "environment")
CONTEXT = "c" * 64
ID = build_id(BUILD, CONTEXT, "linux/amd64")
IMAGE = f"registry.example/builds@{DIGEST}"
SETTINGS = Settings(builds=BuildSettings(registry="registry.example/builds", image="builder", retries=2, parallelism=2))


class FakeTask:
    """A task whose build context is a few bytes."""

    digest = CONTEXT

    def content(self, ref: Content) -> list[bytes]:
        return [ref.kind.encode()]

    async def sha256(self, ref: Content) -> str:
        return self.digest


TASK = cast(ReadTask, FakeTask())


@dataclass
class BuildEnvironment:
    """A cluster with runners of builders' pods, a registry and logs. build, push: the fields in which a phase's result differs from
    success; a push that succeeds creates the tag."""

    faults: Faults = field(default_factory=Faults)
    build: Mapping[str, Any] = field(default_factory=dict)
    push: Callable[[int], Mapping[str, Any]] = lambda _: {}
    registry: FakeRegistry = field(default_factory=FakeRegistry)
    logs: FakeBuildLogs = field(default_factory=FakeBuildLogs)
    reports: list[BuildPause] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.made: list[FakeRunner] = []
        self.cluster = FakeCluster(make_runner=self._runner, faults=self.faults)

    def _runner(self, pod: Object) -> FakeRunner:
        def pushed(request: Mapping[str, Any]) -> dict[str, Any]:
            result = dict(self.push(int(request["id"].removeprefix("push/"))))
            if not result:
                self.registry.tags[pods.build_of(pod)] = DIGEST
            return result

        pushes = {f"push/{number}": pushed for number in range(1, 9)}
        runner = FakeRunner(pod["metadata"]["uid"], results={"build": dict(self.build), **pushes}, finish="at_once", clock=_time)
        runner.printed["build"] = b"STEP 1/2: FROM x\nSTEP 2/2: RUN y\n"
        self.made.append(runner)
        return runner

    def job(self) -> BuildJob:
        tools = Tools(self.cluster, self.registry, self.logs, SETTINGS, _time)
        return BuildJob(tools, BUILD, ID, TASK, "default/t", self.reports.append)

    @property
    def pods(self) -> list[str]:
        return [name for kind, _, name in self.cluster.objects if kind == "Pod"]

    def check(self) -> None:
        """Check that no phase ran twice, and that only pushes got the secret."""
        for runner in self.made:
            assert set(runner.starts.values()) <= {1}
            for request in runner.requests:
                assert (SECRET in str(request)) == (request["op"] == "start" and request["id"].startswith("push/"))


def _time() -> float:
    import asyncio

    return asyncio.get_event_loop().time()


@in_virtual_time
async def test_a_build_ends_with_the_image_in_the_registry_and_without_a_pod() -> None:
    env = BuildEnvironment()
    assert await env.job().run() == IMAGE
    assert (env.pods, len(env.made)) == ([], 1)
    assert env.logs.logs[ID] == b"STEP 1/2: FROM x\nSTEP 2/2: RUN y\n"
    assert set(env.made[0].uploads) == {"context", "config"}
    env.check()


@in_virtual_time
async def test_an_image_that_exists_is_not_built() -> None:
    env = BuildEnvironment()
    env.registry.tags[ID] = DIGEST
    assert await env.job().run() == IMAGE
    assert not env.made


def points() -> int:
    """Return the number of points of a build at which a fault can be injected."""
    env = BuildEnvironment()

    @in_virtual_time
    async def run() -> None:
        await env.job().run()

    run()
    return len(env.faults.trace)


@pytest.mark.parametrize("at", range(1, points() + 1))
def test_an_operator_that_dies_anywhere_costs_no_second_build(at: int) -> None:
    @in_virtual_time
    async def run() -> None:
        env = BuildEnvironment(Faults().fail(at, Killed()))
        with pytest.raises(Killed):
            await env.job().run()
        env.faults.dead = False
        assert await env.job().run() == IMAGE
        assert (env.pods, len(env.made)) == ([], 1)
        env.check()

    run()


@pytest.mark.parametrize("at", range(1, points() + 1))
def test_a_pod_that_vanishes_anywhere_is_replaced(at: int) -> None:
    @in_virtual_time
    async def run() -> None:
        env = BuildEnvironment()

        def vanish() -> None:
            for name in env.pods:
                env.cluster.remove("Pod", "default", name)

        env.faults.fail(at, vanish)
        assert await env.job().run() == IMAGE
        assert env.pods == [] and len(env.made) <= 2
        env.check()

    run()


@in_virtual_time
async def test_a_registry_that_is_away_during_the_push_costs_no_second_build() -> None:
    env = BuildEnvironment(push=lambda number: {"exitCode": 1, "tail": "connection refused"} if number < 4 else {})
    assert await env.job().run() == IMAGE
    assert len(env.made) == 1 and set(env.made[0].starts) >= {"push/1", "push/4"}
    assert any(each.failing and "connection refused" in each.message for each in env.reports)
    env.check()


@in_virtual_time
async def test_a_broken_dockerfile_fails_with_its_last_lines_and_leaves_no_pod() -> None:
    env = BuildEnvironment(build={"exitCode": 1, "tail": "Error: building at STEP"})
    with pytest.raises(SourceError, match="Error: building at STEP") as caught:
        await env.job().run()
    assert (caught.value.reason, caught.value.transient, env.pods) == ("ImageBuildFailed", False, [])


@in_virtual_time
async def test_a_base_image_that_cannot_be_pulled_fails_after_retries_as_infrastructure() -> None:
    env = BuildEnvironment(
        build={"exitCode": 1, "tail": "Error: creating build container: pinging container registry x: connection refused"}
    )
    with pytest.raises(SourceError) as caught:
        await env.job().run()
    assert (caught.value.reason, len(env.made), env.pods) == ("ImageBuildLost", 3, [])


def test_the_pod_keeps_the_push_apart_from_the_build() -> None:
    manifest = pods.builder_manifest(ID, "default/t", SETTINGS)["spec"]
    main, push = manifest["containers"]
    mounts = [{each["name"] for each in container["volumeMounts"]} for container in (main, push)]
    assert mounts[0] & mounts[1] == {"multistep-runner", "out"}
    assert next(each for each in push["volumeMounts"] if each["name"] == "out")["readOnly"]
    assert push["securityContext"]["runAsUser"] != main["securityContext"]["runAsUser"]
    assert not manifest["automountServiceAccountToken"] and "shareProcessNamespace" not in manifest


# -- builds for many trials


def trial(name: str, namespace: str = "default", **status: Any) -> MultiStepTrial:
    metadata = {"name": name, "uid": f"uid-{name}", "namespace": namespace}
    made = parse_trial({"metadata": metadata, "spec": {"task": {"inline": {"config": {}}}}})
    return made.model_copy(update={"status": TrialStatus(**status)})


class OperatorBuilds:
    """The builds of an operator. woken: the trials that were requeued."""

    def __init__(self, env: BuildEnvironment, settings: Settings = SETTINGS) -> None:
        self.woken: list[str] = []
        volume = cast(ResultsVolume, _Volume(env.logs))
        self.builds = Builds(env.cluster, volume, settings, env.registry, lambda key: self.woken.append(key[1]), _time)

    async def ask(self, trial: MultiStepTrial, task: ReadTask = TASK) -> str | ImageMissing:
        try:
            [found] = await self.builds.images(trial, task, [BUILD])
        except ImageMissing as error:
            return error
        finally:
            for each in self.builds.limits:
                each.settle((trial.metadata.namespace, trial.metadata.name))
        assert found.image is not None
        return found.image

    async def until_image(self, trial: MultiStepTrial, task: ReadTask = TASK) -> str:
        import asyncio

        for _ in range(1000):
            found = await self.ask(trial, task)
            if isinstance(found, str):
                return found
            assert found.transient, found
            await asyncio.sleep(1.0)
        raise AssertionError("no end")


@dataclass
class _Volume:
    build_logs: FakeBuildLogs
    access: AccessTokens = field(default_factory=lambda: AccessTokens(b"k" * 32))


@in_virtual_time
async def test_many_trials_share_one_build() -> None:
    env = BuildEnvironment()
    builds = OperatorBuilds(env)
    trials = [trial(f"t{number}") for number in range(60)]
    pending = [await builds.ask(each) for each in trials]
    assert all(isinstance(each, ImageMissing) and each.reason == BUILDING for each in pending)
    assert {await builds.until_image(each) for each in trials} == {IMAGE}
    assert len(env.made) == 1
    assert await builds.until_image(trial("later")) == IMAGE and len(env.made) == 1


@in_virtual_time
async def test_a_status_that_names_the_image_needs_no_registry() -> None:
    env = BuildEnvironment(registry=FakeRegistry(away="away"))
    pinned = [{"name": "environment", "build": ID, "image": "pinned"}]
    shown = TrialStatus.model_validate({"images": pinned}).images
    assert await OperatorBuilds(env).ask(trial("t", images=shown)) == "pinned"
    assert env.registry.asked == 0


@in_virtual_time
async def test_a_registry_that_is_away_loses_nothing() -> None:
    import asyncio

    env = BuildEnvironment(registry=FakeRegistry(away="the registry does not answer"))
    builds = OperatorBuilds(env)
    reasons = set()
    for _ in range(60):
        found = await builds.ask(trial("t"))
        assert isinstance(found, ImageMissing) and found.transient
        reasons.add(found.reason)
        await asyncio.sleep(1.0)
    assert not env.made and {RETRYING} <= reasons <= {RETRYING, BUILDING}
    env.registry.away = ""
    assert await builds.until_image(trial("t")) == IMAGE


@in_virtual_time
async def test_a_broken_dockerfile_is_built_once_for_all_its_trials() -> None:
    import asyncio

    env = BuildEnvironment(build={"exitCode": 1, "tail": "Error: no"})
    builds = OperatorBuilds(env)
    failed = []
    for name in ("a", "b", "c"):
        for _ in range(100):
            found = await builds.ask(trial(name))
            assert isinstance(found, ImageMissing)
            if not found.transient:
                failed.append(found.reason)
                break
            await asyncio.sleep(1.0)
    assert (failed, len(env.made)) == (["ImageBuildFailed"] * 3, 1)


@in_virtual_time
async def test_one_namespace_does_not_get_all_slots() -> None:
    import asyncio

    env = BuildEnvironment(push=lambda _: {"exitCode": 1, "tail": "away"})  # pushes fail, so no build finishes
    builds = OperatorBuilds(env)
    tasks = [cast(ReadTask, type("T", (FakeTask,), {"digest": f"{number:064d}"})()) for number in range(4)]
    asked = [(trial("a0", "greedy"), tasks[0]), (trial("a1", "greedy"), tasks[1]), (trial("b", "modest"), tasks[2])]
    for _ in range(20):
        for each, task in asked:
            await builds.ask(each, task)
        await asyncio.sleep(1.0)
    assert sorted(len(builds.builds.wanted) for _ in [0]) == [3] and len(env.made) == 2
    assert {runner.uploads["context"] for runner in env.made} == {b"environment"}
    about = {
        each["metadata"]["annotations"]["multistep.dev/built-for"] for each in env.cluster.objects.values() if each["kind"] == "Pod"
    }
    assert about == {"greedy/a0", "modest/b"}
    await builds.builds.stop()


@in_virtual_time
async def test_builds_that_are_off_build_nothing() -> None:
    builds = OperatorBuilds(BuildEnvironment(), Settings())
    assert await builds.builds.images(trial("t"), TASK, [BUILD]) == []
