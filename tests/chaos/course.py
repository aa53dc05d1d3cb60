"""One chaos run: start trials, inject faults, and check the results."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit

from localkube.config import Config, load_config
from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, UsageError
from multistep.kube.resources import PODS, TRIALS
from multistep.pods.pod_identity import LABEL_TRIAL
from tests.chaos.injector import COMPONENTS, FaultInjector
from tests.chaos.netns import api_server_redirected, listen
from tests.chaos.outside import OutsideLog, outside_log
from tests.chaos.proxy import Chance, Proxy, proxy
from tests.chaos.report import Outcome, describe, last_log_lines
from tests.chaos.trials import FIRST_TARGET, RunConfig, manifest
from tests.chaos.verdict import Evidence, problems_of
from tests.chaos.victim import QUICK_TO_FOLLOW, Victim
from tests.e2e.given import Given, Object, finished
from tests.e2e.operators import with_variables
from tests.support.whole_status import whole

POLL_SECONDS = 1.0
CALM_SECONDS = 900.0  # timeout for trials that are unfinished after the last fault
ORPHANS_SECONDS = 240.0  # the search for orphans, every 120 s plus a jitter of 25 %, passes over pods younger than 60 s
MAX_DESCRIBED = 5


@dataclass(frozen=True)
class Options:
    """Options of a run. trials: how many; seconds: maximum duration of the faults; out: directory for the operator's log."""

    trials: int
    seconds: float
    seed: int
    out: Path


@dataclass
class Scene:
    """The test setup of a run. trials: the trial objects in the API server's most recent response."""

    options: Options
    run_config: RunConfig
    given: Given
    victim: Victim
    log: OutsideLog
    proxy: Proxy
    started: float
    trials: list[Object] = field(default_factory=list)

    def report(self, what: str) -> None:
        """Print a line of progress."""
        ended = sum(map(finished, self.trials))
        print(f"{time.monotonic() - self.started:6.1f} s  {ended:3} of {self.options.trials} ended  {what}", flush=True)

    @property
    def unfinished(self) -> list[str]:
        ended = {each["metadata"]["name"] for each in self.trials if finished(each)}
        return [name for name in self.run_config.names if name not in ended]


async def run(options: Options) -> Outcome:
    """Perform one chaos run, then wait until the operator is ready again. Raise if the cluster cannot be restored."""
    async with _cluster() as (config, client), _scene(options, config, client) as scene:
        for name in scene.run_config.names:
            await scene.given.applied(manifest(scene.run_config, name))
        scene.report("all trials are created; fault injection starts")
        try:
            injector = await _inject_faults(scene)
            return await _judged(scene, injector)
        finally:
            await scene.victim.ready()


@asynccontextmanager
async def _cluster() -> AsyncIterator[tuple[Config, WatchingClient]]:
    """Yield the cluster's configuration and a client. Raise UsageError unless the cluster is localkube's."""
    config = load_config()
    async with await WatchingClient.connect() as client:
        if urlsplit(client.connection.base_url).hostname != config.network.api_address:
            raise UsageError(f"chaos runs only on the cluster of localkube; KUBECONFIG is for {client.connection.base_url}")
        yield config, client


@asynccontextmanager
async def _scene(options: Options, config: Config, client: WatchingClient) -> AsyncIterator[Scene]:
    """Set up a namespace, the log outside of the pods, and the proxy between the operator and the API server."""
    options.out.mkdir(parents=True, exist_ok=True)
    for_log, for_proxy = listen(config.network), listen(config.network)
    run_config = RunConfig(options.trials, for_log.getsockname(), options.seed)
    victim = Victim(client, options.out / "operator.log")
    port = for_proxy.getsockname()[1]
    async with AsyncExitStack() as stack:
        stack.enter_context(with_variables(QUICK_TO_FOLLOW))
        log = await stack.enter_async_context(outside_log(for_log))
        between = await stack.enter_async_context(proxy(config, for_proxy, Chance(random.Random(options.seed + 1))))
        await stack.enter_async_context(api_server_redirected(config.network, port))
        given = await stack.enter_async_context(_namespace(client))
        yield Scene(options, run_config, given, victim, log, between, time.monotonic())


@asynccontextmanager
async def _namespace(client: WatchingClient) -> AsyncIterator[Given]:
    given = Given(client, f"chaos-{secrets.token_hex(3)}")
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": given.namespace}}
    await client.create(space)
    try:
        yield given
    finally:
        await client.delete(await client.resource_of(space), None, given.namespace)


async def _inject_faults(scene: Scene) -> FaultInjector:
    """Inject faults while trials run, then wait without faults for the unfinished trials."""
    options = scene.options
    injector = FaultInjector(
        scene.given, scene.victim, scene.proxy, random.Random(options.seed), options.trials // 2, FIRST_TARGET, scene.report
    )
    scene.proxy.chance.active = True
    injecting = asyncio.create_task(injector.run())
    await _all_ended(scene, options.seconds, injecting)
    with suppress(TimeoutError):  # on a slow machine, a required fault may not occur even in this time
        async with asyncio.timeout(options.seconds):
            while _missing(injector.count) and not injecting.done():
                await asyncio.sleep(POLL_SECONDS)
    scene.proxy.chance.active = False
    injector.stopped.set()
    await injecting
    scene.report("no more faults")
    await scene.victim.ready()
    await _all_ended(scene, CALM_SECONDS)
    return injector


async def _all_ended(scene: Scene, seconds: float, injecting: asyncio.Task[None] | None = None) -> None:
    """Wait until all trials are finished, the timeout expires, or the injector fails."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while scene.unfinished and not (injecting and injecting.done()):
                with suppress(ClusterError):  # the API server may be unavailable
                    scene.trials = [whole(each) for each in await scene.given.client.list_all(TRIALS, scene.given.namespace)]
                await asyncio.sleep(POLL_SECONDS)


async def _judged(scene: Scene, injector: FaultInjector) -> Outcome:
    outcome = Outcome(
        seconds=time.monotonic() - scene.started,
        faults=injector.count,
        cuts=scene.proxy.chance.hits,
        execs=scene.proxy.execs,
        lines=len(scene.log.lines),
        ended=[each for each in scene.trials if finished(each)],
    )
    evidence = Evidence(scene.log, frozenset(injector.deleted), await _killed(scene))
    found = {each["metadata"]["name"]: problems_of(each, evidence) for each in outcome.ended}
    found |= {name: [f"{name} has not ended"] for name in scene.unfinished}
    outcome.wrong += [*chain.from_iterable(found.values()), *_missing_faults(outcome), *await _orphans(scene)]
    await _show(scene, [name for name, problems in found.items() if problems])
    return outcome


async def _killed(scene: Scene) -> set[str]:
    """Return the names of the pods that the kubelet killed, including pods whose sandbox broke when containerd restarted."""
    resource = await scene.given.client.resource_of({"apiVersion": "events.k8s.io/v1", "kind": "Event"})
    events = await scene.given.client.list_all(resource, scene.given.namespace)
    return {each["regarding"]["name"] for each in events if each["reason"] == "Killing"}


def _missing_faults(outcome: Outcome) -> list[str]:
    """Return a problem for each required kind of fault that did not occur; a run without these faults proves nothing."""
    missing = _missing(outcome.faults)
    missing += [] if sum(outcome.cuts.values()) > len(outcome.ended) else ["connections cut more often than there are trials"]
    missing += [] if outcome.resumed else ["attempt that continued after a checkpoint"]
    return [f"fault did not occur: no {kind}" for kind in missing]


def _missing(faults: Iterable[str]) -> list[str]:
    """Return the required kinds of faults that did not occur."""
    deleted = ("trial pod deleted", "trial pod deleted after a checkpoint")
    kinds = ("operator killed", *deleted, *(f"{component} restarted" for component in COMPONENTS))
    return [kind for kind in kinds if not any(fault.startswith(kind) for fault in faults)]


async def _orphans(scene: Scene) -> list[str]:
    """Wait until the trials' pods are deleted; after the deadline, return a problem for each that is left."""
    deadline = time.monotonic() + ORPHANS_SECONDS
    while left := await scene.given.client.list_all(PODS, scene.given.namespace, label_selector=LABEL_TRIAL):
        if time.monotonic() > deadline:
            return [f"pod {pod['metadata']['name']} is left over" for pod in left]
        await asyncio.sleep(POLL_SECONDS)
    return []


async def _show(scene: Scene, names: list[str]) -> None:
    """Print all details of the first trials with problems."""
    if not names:
        return
    if (pod := await scene.victim.running()) is not None:
        await scene.victim.keep_log(pod)
    for name in names[:MAX_DESCRIBED]:
        print(await describe(scene.given, await scene.given.get(name), scene.log))
        print(last_log_lines(scene.victim.log, name), flush=True)
