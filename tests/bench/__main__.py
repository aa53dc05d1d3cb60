"""``make bench``: compare trials with pods that only sleep, in one run on one cluster.

An idle pod has the shape of a trial's pod: the same containers and init containers, image and grace period. A bare pod has one
container and no grace period.

Sections, in order:

- trials: for 1 and for 40 concurrent trials of the example, wall time compared with idle pods and with bare pods, in
  repetitions (rounds): 3 for one trial, 5 for 40 (variable BENCH_ROUNDS), in which trials and idle pods run twice by turns; per
  trial: execs, API requests, status writes, operator CPU; then the same 40 trials by Harbor's own driver, if installed (variable
  HARBOR, or `harbor` on the PATH)
- transfers: time and memory of file transfers to and from a pod
- agents: 40 trials with an agent host (a scripted claude-code with a scripted model; three steps of 18 s, then of 36 s), wall
  time compared with the same agent's processes alone in pods of the same shape and in bare pods; execs, API requests and
  operator CPU per trial; the agent host's memory; and time and memory of the reports on 1,000 trials with usage
- programs: wall time of a trial of one step with the program of claude-code mounted from its image, compared with a task image that
  contains the program
- checkpoints: time and memory of packing and restoring changed files, a checkpoint without changes, and the wall time of 8 trials
  of the example with checkpoints, compared with trials without
- egress: wall time of trials of the example whose networks the sidecar limits, compared with trials without it; time of a switch
  and of a request through the sidecar
- services: for 1 and for 8 trials of the example with two services, wall time compared with pods of the same containers
- store: upload of a large artifact to an object store
- simulated: 5,000 concurrent trials (variable BENCH_TRIALS) on a simulated node, run twice; the size of a trial of
  100 steps

The bench fails if trials take more than one exec per step, 20 API requests or 5 status writes on average, if an agent host exceeds
its memory limit, if the upload exceeds its limits of time or memory, or if a limit of the simulated trials is exceeded.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from localkube.config import load_config
from localkube.targets import Local, choose
from multistep.api.task.task_toml import parse_task
from multistep.api.trial.trial import parse_trial
from multistep.client.reconnecting_watch import WatchingClient
from multistep.pods import pod_manifest as pods
from multistep.settings import Settings
from tests.bench import agents, checkpoints, egress, harbor, programs, reports, services, simulated, store, trials
from tests.bench.example import EXAMPLE, Example
from tests.bench.measure import transfer
from tests.bench.trials import Manifests

SECTIONS = ("trials", "agents", "programs", "transfers", "checkpoints", "egress", "services", "store", "simulated")
COUNT, TURNS = 40, 2  # trials at once, and runs of them in each round
TRANSFERS = (64, 1024)  # MiB; two sizes show whether memory grows with the file

Object = dict[str, Any]


def _rounds() -> int:
    """Return the number of rounds of 40 trials: BENCH_ROUNDS, or 5."""
    return int(os.environ.get("BENCH_ROUNDS") or 5)


def idle_pod(trial: Object, image: str, settings: Settings) -> Object:
    """Return the manifest of a pod that is built like a trial's pod, but stays idle: its runner gets no request."""
    parsed = parse_trial({**trial, "status": {"podName": "idle", "attempt": 1}})
    task = parse_task((EXAMPLE / "task.toml").read_text())
    pod = pods.pod_manifest(pods.PodRequest(parsed, task.environment, image, "bench", settings))
    pod["metadata"] = {"name": "idle", "labels": {"bench": "idle"}}
    return pod


def bare_pod(shape: Object) -> Object:
    """Return the manifest of a minimal pod with the image: no init container, no probe, no grace period."""
    main = shape["spec"]["containers"][0]
    container = {"name": "main", "image": main["image"], "command": ["sleep", "3600"], "resources": main["resources"]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "idle", "labels": {"bench": "idle"}}, "spec": spec}


@dataclass
class Bench:
    """A run of the bench in its own namespace. manifests: the pods and trials to measure; settings: the operator's settings for
    the pods that it measures; sections: names of sections to run."""

    client: WatchingClient
    namespace: str
    manifests: Manifests
    settings: Settings
    sections: Sequence[str]
    example: Example

    async def run(self) -> bool:
        """Run all selected sections. Return whether their measurements are within all limits."""
        passed = True
        if "trials" in self.sections:
            passed = await self._trials()
        if "agents" in self.sections:
            passed = await self._agents() and passed
        if "programs" in self.sections:
            await self._programs()
        if "transfers" in self.sections:
            await self._transfers()
        if "checkpoints" in self.sections:
            await self._checkpoints()
        if "egress" in self.sections:
            await self._egress()
        if "services" in self.sections:
            await self._services()
        if "store" in self.sections:
            passed = await self._store() and passed
        if "simulated" in self.sections:
            passed = await self._simulated() and passed
        return passed

    async def _trials(self) -> bool:
        one = await trials.compare(self.client, self.namespace, self.manifests, 1)
        many = await trials.compare(self.client, self.namespace, self.manifests, COUNT, _rounds(), turns=TURNS)
        found = [one, many]
        passed, words = trials.judgement(found[-1])
        _print(trials.times(found), trials.costs(found), *words)
        await self._harbor(found[-1])
        return passed

    async def _harbor(self, ours: trials.Comparison) -> None:
        program = harbor.program()
        if program is None:
            _print(harbor.HOW_TO)
            return
        found = await harbor.measure(self.client, self.namespace, program, EXAMPLE, self.manifests, ours.count)
        _print(harbor.table(found, ours))

    async def _agents(self) -> bool:
        if not _is_local():
            _print("agents: left out, as their model needs the cluster of localkube (CLUSTER=local)")
            return True
        _log("trials with an agent host")
        found = await agents.measure(self.client, self.namespace, self.settings)
        passed, words = agents.judgement(found)
        for steps, compared in (("short", found.short), ("long", found.long)):
            _print(f"trials of {steps} steps:", trials.times([compared]), trials.costs([compared]))
        _print(agents.table(found), *words)
        _print(reports.table(reports.measure()))
        return passed

    async def _programs(self) -> None:
        if not _is_local():
            _print("programs: left out, as their model needs the cluster of localkube (CLUSTER=local)")
            return
        _log("trials with a mounted program")
        found = await programs.measure(self.client, self.namespace)
        _print(programs.table(found), programs.judgement(found))

    async def _transfers(self) -> None:
        """Measure file transfers through an exec session and the runner, with the operator's client code in this process."""
        _log("files into a pod and back")
        table = Table("file MiB", "upload MB/s", "download MB/s", "client's memory grew by MiB")
        for mebibytes in TRANSFERS:
            cost = await transfer(self.client, self.namespace, self.manifests.shape, mebibytes * 2**20)
            rates = [f"{cost.size / seconds / 1e6:.0f}" for seconds in (cost.upload_seconds, cost.download_seconds)]
            table.add_row(str(mebibytes), *rates, f"{cost.grown_bytes / 2**20:.1f}")
        _print(table)

    async def _checkpoints(self) -> None:
        _log("checkpoints")
        found = await checkpoints.measure(self.client, self.namespace, self.manifests)
        _print(checkpoints.table(found), *checkpoints.judgement(found))

    async def _egress(self) -> None:
        if not isinstance(choose(load_config()), Local):
            _print("egress: left out, as its server needs the cluster of localkube (CLUSTER=local)")
            return
        _log("limited networks")
        found = await egress.measure(self.example, self.settings)
        _print(egress.table(found), *egress.judgement(found))

    async def _services(self) -> None:
        _log("services")
        found = await services.measure(self.example, self.settings)
        _print(trials.times(found), *services.judgement(found))

    async def _store(self) -> bool:
        _log("a large artifact into an object store")
        cost = await store.artifact(self.client, self.namespace)
        table = Table("artifact MiB", "s", "MB/s", "plain copy s (before, after)", "of its speed", "operator's memory rose by MiB")
        plain = f"{cost.plain_seconds:.1f} ({', '.join(f'{each:.1f}' for each in cost.plain)})"
        times = [f"{cost.seconds:.1f}", f"{store.SIZE / cost.seconds / 1e6:.0f}", plain, f"{cost.ratio:.2f}"]
        table.add_row(str(store.SIZE // 2**20), *times, f"{cost.grown_bytes / 2**20:.1f}")
        most = store.MAX_GROWTH_BYTES // 2**20
        wanted = f"at least {store.MIN_RATIO:g} of a plain copy's speed, and less than {most} MiB of memory"
        _print(table, f"{'holds' if cost.holds else 'DOES NOT HOLD'}: {wanted}")
        return cost.holds

    async def _simulated(self) -> bool:
        if not _is_local():
            _print("simulated: left out, as it needs the cluster of localkube (CLUSTER=local)")
            return True
        _log(f"{simulated.count()} simulated trials at once, {simulated.ROUNDS} rounds")
        found, size = await simulated.measure(self.client, self.namespace)
        passed, words = simulated.judgement(found, size)
        _print(simulated.table(found), *words)
        return passed


async def run(image: str, settings: Settings, sections: Sequence[str], *, runner_in_image: bool) -> bool:
    """Run the bench in a new namespace. Return whether the measurements are within all limits.

    image: the example task's image; settings: the operator's settings for the pods that are compared with trials.
    """
    namespace = f"bench-{secrets.token_hex(3)}"
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    async with await WatchingClient.connect() as client:
        await client.create(space)
        try:
            example = Example(client, namespace, image, runner_in_image)
            manifests = _manifests(await example.trial(), image, settings)
            return await Bench(client, namespace, manifests, settings, sections, example).run()
        finally:
            await client.delete(await client.resource_of(space), None, namespace)


def _manifests(trial: Object, image: str, settings: Settings) -> Manifests:
    shape = idle_pod(trial, image, settings)
    steps = parse_task((EXAMPLE / "task.toml").read_text()).steps or []
    return Manifests(trial, shape, bare_pod(shape), len(steps))


def _is_local() -> bool:
    """Return whether the cluster is one of localkube, whose API server reaches this machine and the servers on its node."""
    return isinstance(choose(load_config()), Local)


def _log(what: str) -> None:
    print(f"bench: {what} ...", file=sys.stderr, flush=True)


def _print(*found: Table | str) -> None:
    console = Console(width=160)
    for each in found:
        console.print(each, highlight=False)


def main() -> None:
    """Parse the command line and run the bench."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--image", required=True, help="the example's image, as `multistep build` made it")
    parser.add_argument(
        "--operator-image", required=True, help="the operator's image, which brings the runner where the image has none"
    )
    parser.add_argument("--agent-host-image", required=True, help="the agent host's image")
    parser.add_argument("--runner-in-image", action="store_true", help="the image holds the runner: no init container")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="nothing but this section; may be given several times")
    options = parser.parse_args()
    images = {"operator_image": options.operator_image, "agent_host_image": options.agent_host_image}
    settings = Settings(**images, gateway_url="http://gateway")  # no pod that uses these settings calls the gateway
    work = run(options.image, settings, options.only or SECTIONS, runner_in_image=options.runner_in_image)
    if not uvloop.run(work):
        sys.exit(1)


if __name__ == "__main__":
    main()
