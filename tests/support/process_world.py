"""The real operator on a cluster in memory whose pods are processes of this machine (tests.support.process_node).

The API server, the kubelet and the network between them are replaced. The operator's own code loads tasks, reconciles trials and
stores results, and the real runner runs the phases.
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch
from uuid import uuid4

from click.testing import CliRunner

from multistep.api.trial.trial import KIND
from multistep.app.operator import App
from multistep.cli.main import cli
from multistep.client.options import Target
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import PODS, SWEEPS, TRIALS, Resource
from multistep.pods import pod_identity
from multistep.settings import Settings
from tests.support.fake_cluster import FakeCluster
from tests.support.process_node import Images, Node, ProcessStream
from tests.support.waiting import DEADLINE_SECONDS
from tests.support.whole_status import whole

NAMESPACE = "default"


class ProcessCluster(FakeCluster):
    """A cluster whose pods run on a process node, and which an App can use as its API client."""

    namespace = "multistep-system"

    def __init__(self, directory: Path, runner: Path, images: Images, on_change: Callable[[str, Object], None]) -> None:
        super().__init__(pods_run=False, on_change=self._changed)
        self.node = Node(self, directory, runner, images)
        self._told = on_change

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        created = {"creationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), "uid": str(uuid4()), "generation": 1}
        return await super().create({**manifest, "metadata": {**manifest["metadata"], **created}}, dry_run=dry_run)

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> ProcessStream:
        return await self.node.open_exec(self._find("Pod", namespace, pod), argv)

    def _changed(self, type: str, object: Object) -> None:
        if object["kind"] == "Pod":
            self.node.pod_event(object, type)
        asyncio.get_running_loop().call_soon(self._told, type, object)  # as a watch does: not before the write has returned

    def _with_readiness(self, pod: Object) -> Object:
        return pod  # the node sets the pod's status


class Trials:
    """A test's actions on trials. The methods are those of tests.e2e.given.Given, for a cluster of the test's own."""

    def __init__(self, app: App, cluster: ProcessCluster) -> None:
        self.app = app
        self.cluster = cluster
        self.namespace = NAMESPACE
        self._changed = asyncio.Event()

    def observe(self, type: str, object: Object) -> None:
        """Report a change of an object to the operator, as a watch does, and to the waits of the test."""
        events = self.app.events
        route = {"Pod": events.pod_event, KIND: events.trial_event, SWEEPS.kind: events.sweep_event}.get(object["kind"])
        if route is not None:
            route(object, type)
        self._changed.set()
        self._changed = asyncio.Event()

    async def applied(self, manifest: Mapping[str, Any]) -> Object:
        """Create the object in the test's namespace."""
        return await self.cluster.create({**manifest, "metadata": {**manifest["metadata"], "namespace": NAMESPACE}})

    async def get(self, name: str, resource: Resource = TRIALS) -> Object:
        return whole(await self.cluster.get(resource, NAMESPACE, name))

    async def until(self, name: str, done: Callable[[Object], bool], resource: Resource = TRIALS) -> Object:
        """Wait until the trial or sweep satisfies `done`, and return it."""
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                while not done(found := await self.get(name, resource)):
                    await self._changed.wait()
                return found
        except TimeoutError as error:
            raise TimeoutError(f"{name} did not get there in {DEADLINE_SECONDS:.0f} s: {found.get('status')}") from error

    async def ended(self, manifest: Mapping[str, Any]) -> Object:
        """Apply the trial, wait until it is finished and return it."""
        await self.applied(manifest)
        return await self.until(manifest["metadata"]["name"], _finished)

    async def go(self, name: str) -> None:
        """Let the trial's waiting agent (tests.support.inline_trials.WAITS) finish."""
        await self.in_pod(name, "touch", "/tmp/go")

    async def in_pod(self, name: str, *command: str) -> None:
        """Run a command in the trial's pod and wait until it exits."""
        stream = await self.cluster.open_exec(
            NAMESPACE, (await self.get(name))["status"]["podName"], pod_identity.CONTAINER, command
        )
        while await stream.receive():
            pass
        await stream.close()

    async def pods(self, name: str) -> list[Object]:
        """Return the trial's existing pods."""
        return await self.cluster.list_all(
            PODS, NAMESPACE, label_selector=f"{pod_identity.LABEL_TRIAL}={pod_identity.label_value(name)}"
        )

    async def without_pods(self, name: str) -> None:
        """Wait until the trial's pods are deleted."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while await self.pods(name):
                await self._changed.wait()

    async def changed(self, name: str, **spec: object) -> None:
        """Patch fields of the trial's spec."""
        await self.cluster.patch(TRIALS, NAMESPACE, name, {"spec": spec})

    async def deleted(self, name: str) -> None:
        await self.cluster.delete(TRIALS, NAMESPACE, name)

    async def sweep_ended(self, name: str) -> Object:
        """Wait until the sweep is finished and return it."""
        return await self.until(name, _finished, SWEEPS)

    async def command(self, *arguments: str) -> tuple[int, str, str]:
        """Run a command of the command line that only reads objects; return its exit code, stdout and stderr."""
        with patch("multistep.cli.cluster.connect", self._connect):
            done = await asyncio.to_thread(CliRunner().invoke, cli, [*arguments])
        return done.exit_code, done.stdout, done.stderr

    @asynccontextmanager
    async def _connect(self, target: Target) -> AsyncIterator[ProcessCluster]:
        connected = copy.copy(self.cluster)  # with the same objects; the operator's own has the operator's namespace
        connected.namespace = target.namespace or NAMESPACE
        yield connected

    def results(self, trial: Object) -> Path:
        """Return the directory with the trial's results."""
        return self.app.volume.root.joinpath(*(trial["metadata"][name] for name in ("namespace", "name", "uid")))


def _finished(trial: Object) -> bool:
    return any(
        each["type"] in ("Complete", "Failed") and each["status"] == "True"
        for each in (trial.get("status") or {}).get("conditions") or []
    )


@contextmanager
def fresh() -> Iterator[Path]:
    """Create a directory for a process world, and delete it at the end, with the results and the containers' files."""
    with tempfile.TemporaryDirectory(prefix="multistep-world-") as directory:
        yield Path(directory)


@asynccontextmanager
async def process_world(directory: Path, runner: Path, images: Images, **settings: Any) -> AsyncIterator[Trials]:
    """Run an operator with a node of processes, whose files are in the directory."""
    app = App(
        Settings(
            results_dir=directory / "results",
            task_cache_dir=directory / "cache",
            listen_host="127.0.0.1",
            results_port=0,
            metrics_port=0,
            lease_seconds=600,
            stop_seconds=0,
            pod_name="operator",
            **settings,
        ),
        end=_fail,
    )
    told: list[Trials] = []
    cluster = ProcessCluster(
        directory / "node", runner, images, lambda type, object: told[0].observe(type, object) if told else None
    )

    async def connect(**_: Any) -> ProcessCluster:
        return cluster

    try:
        await cluster.node.start()
        with patch("multistep.app.operator.ClusterClient.connect", connect):
            await app.start()
        told.append(Trials(app, cluster))
        await app.lease.acquired.wait()
        yield told[0]
    finally:
        await app.stop()
        await cluster.node.stop()
        app.volume.close()


def _fail(code: int) -> None:
    raise AssertionError(f"the operator ended with exit code {code}")
