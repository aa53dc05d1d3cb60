"""``make bench``: what trials cost against pods that do nothing, in one run on one cluster.

Prints, for 1 and for 30 trials of the example: wall time, that of idle pods of the same shape (image, init container,
grace period) and of bare pods, the ratios, and per trial execs, API requests, status writes and operator CPU. Then what
files into a pod and back cost in time and in memory, and a large artifact on its way into an object store: the bench fails
where that is slower or takes more of the operator's memory than was promised.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from multistep.api.task import parse_task
from multistep.api.trial import parse_trial
from multistep.cli.manifests import TrialImage, TrialRequest, bundle_config_maps, trial_manifest
from multistep.cluster import pods
from multistep.cluster.client import Client
from multistep.settings import Settings
from multistep.sources.bundle import digest_of, pack
from tests.bench import store
from tests.bench.measure import Counters, counters, remove_trials, time_pods, time_trials, transfer

EXAMPLE = Path(__file__).parents[2] / "examples" / "hello-multi-step-advanced"
COUNTS = (1, 30)
TRANSFERS = (64, 1024)  # MiB; memory that grows with them would not be flat

Object = dict[str, Any]


def idle_pod(trial: Object, image: str, operator_image: str) -> Object:
    """A pod of the shape that a trial's has, which does nothing: the runner waits and is never asked."""
    parsed = parse_trial({**trial, "status": {"podName": "idle", "attempt": 1}})
    task = parse_task((EXAMPLE / "task.toml").read_text())
    settings = Settings(operator_image=operator_image)
    pod = pods.manifest(pods.PodRequest(parsed, task.environment, image, "bench", settings))
    pod["metadata"] = {"name": "idle", "labels": {"bench": "idle"}}
    return pod


def bare_pod(shape: Object) -> Object:
    """The least pod with the same image: no init container, no probe; it ends at once when told to."""
    main = shape["spec"]["containers"][0]
    container = {"name": "main", "image": main["image"], "command": ["sleep", "3600"], "resources": main["resources"]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "idle", "labels": {"bench": "idle"}}, "spec": spec}


async def run(image: str, operator_image: str, runner_in_image: bool, *, store_only: bool) -> bool:
    """All measurements, in a namespace of their own. Whether what was promised holds."""
    namespace = f"bench-{secrets.token_hex(3)}"
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    packed = pack(EXAMPLE)
    maps = bundle_config_maps(packed, "bench", digest_of(packed), namespace)
    request = TrialRequest(
        name="bench",
        task_name="bench",
        digest=digest_of(packed),
        config_maps=[each["metadata"]["name"] for each in maps],
        agent="oracle",
        image=TrialImage(image, runner=runner_in_image),
    )
    trial = trial_manifest(request)
    async with await Client.connect() as client:
        await client.create(space)
        try:
            for config_map in maps:
                await client.create(config_map)
            shape = idle_pod(trial, image, operator_image)
            if not store_only:
                await _measure(client, namespace, trial, shape)
                await _measure_transfers(client, namespace, shape)
            return await _measure_store(client, namespace)
        finally:
            await client.delete(await client.resource_of(space), None, namespace)


async def _measure(client: Client, namespace: str, trial: Object, shape: Object) -> None:
    titles = ("trials", "trials s", "same shape s", "bare s", "ratio to shape", "ratio to bare")
    costs = ("execs", "API requests", "status writes", "operator CPU ms")
    table = Table(*titles, *(f"{each} / trial" for each in costs), "peak MiB")
    for count in COUNTS:
        print(f"bench: {count} pods, then {count} trials ...", file=sys.stderr, flush=True)
        bare = await time_pods(client, namespace, bare_pod(shape), count)
        same = await time_pods(client, namespace, shape, count)
        before = await counters(client)
        wall = await time_trials(client, namespace, trial, count)
        after = await counters(client)
        await remove_trials(client, namespace)
        times = [f"{wall:.1f}", f"{same:.1f}", f"{bare:.1f}", f"{wall / same:.2f}", f"{wall / bare:.2f}"]
        table.add_row(str(count), *times, *_costs(before, after, count))
    Console(width=160).print(table)


async def _measure_transfers(client: Client, namespace: str, shape: Object) -> None:
    """Bytes through the exec channel and the runner, by the client that the operator uses, in a process of its own."""
    print("bench: files into a pod and back ...", file=sys.stderr, flush=True)
    table = Table("file MiB", "upload MB/s", "download MB/s", "client's memory grew by MiB")
    for mebibytes in TRANSFERS:
        cost = await transfer(client, namespace, shape, mebibytes * 2**20)
        rates = [f"{cost.size / seconds / 1e6:.0f}" for seconds in (cost.upload_seconds, cost.download_seconds)]
        table.add_row(str(mebibytes), *rates, f"{cost.grown_bytes / 2**20:.1f}")
    Console(width=160).print(table)


async def _measure_store(client: Client, namespace: str) -> bool:
    print("bench: a large artifact into an object store ...", file=sys.stderr, flush=True)
    cost = await store.artifact(client, namespace)
    table = Table("artifact MiB", "s", "MB/s", "plain copy s (before, after)", "of its speed", "operator's memory rose by MiB")
    plain = f"{cost.plain_seconds:.1f} ({', '.join(f'{each:.1f}' for each in cost.plain)})"
    times = [f"{cost.seconds:.1f}", f"{store.SIZE / cost.seconds / 1e6:.0f}", plain, f"{cost.ratio:.2f}"]
    table.add_row(str(store.SIZE // 2**20), *times, f"{cost.grown_bytes / 2**20:.1f}")
    console = Console(width=160)
    console.print(table)
    wanted = (
        f"at least {store.LEAST_RATIO:g} of a plain copy's speed, and less than {store.MOST_GROWN_BYTES // 2**20} MiB of memory"
    )
    console.print(f"{'holds' if cost.holds else 'DOES NOT HOLD'}: {wanted}")
    return cost.holds


def _costs(before: Counters, after: Counters, count: int) -> list[str]:
    return [
        f"{(after.execs - before.execs) / count:.1f}",
        f"{(after.requests - before.requests) / count:.1f}",
        f"{(after.status_writes - before.status_writes) / count:.1f}",
        f"{1000 * (after.cpu_seconds - before.cpu_seconds) / count:.0f}",
        f"{after.peak_bytes / 2**20:.0f}",
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--image", required=True, help="the example's image, as `multistep build` made it")
    parser.add_argument(
        "--operator-image", required=True, help="the operator's image, which brings the runner where the image has none"
    )
    parser.add_argument("--runner-in-image", action="store_true", help="the image holds the runner: no init container")
    parser.add_argument("--store-only", action="store_true", help="nothing but the artifact into the object store")
    options = parser.parse_args()
    work = run(options.image, options.operator_image, options.runner_in_image, store_only=options.store_only)
    if not asyncio.run(work):
        sys.exit(1)


if __name__ == "__main__":
    main()
