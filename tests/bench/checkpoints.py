"""Measure checkpoints: packing and restoring changed files, an environment without changes, and trials with and without them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO, Final

from rich.table import Table

from multistep.api.trial.runner_records import PhaseResult
from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import PODS
from multistep.pods.pod_identity import CONTAINER
from multistep.pods.pod_manifest import RUNNER_CALL
from multistep.runner_client.checkpoint_requests import CheckpointRequest, Packed
from multistep.runner_client.session import Session
from tests.bench.measure import DEADLINE_SECONDS, start_pod, time_ratio, until_without_pods
from tests.bench.trials import ROUNDS, Manifests, line, spread

SIZES: Final = (1, 100, 1000)  # MiB of random data, which does not compress
FILES: Final = 50_000
TRIALS: Final = 8
MAX_RATIO: Final = 1.2  # maximum wall time of trials with checkpoints, relative to trials without
MAX_UNCHANGED_SECONDS: Final = 0.5
_MAX_BYTES: Final = 4 << 30
_WRITE: Final = "mkdir -p /data && for i in $(seq {0}); do head -c 1048576 /dev/urandom > /data/$i; done"
_MANY: Final = "for each in $(seq 100); do mkdir -p /many/$each && cd /many/$each && seq {0} | split -l 1 -a 3 - f; done"
_PEAK: Final = "grep VmHWM /proc/1/status"  # PID 1's peak of resident memory

Object = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """Cost of one checkpoint. mebibytes: size of the changes; packed: bytes of the layer; peak_bytes: PID 1's peak memory in the
    pod whose changes were packed, and in the pod in which they were restored."""

    mebibytes: int
    packed: int
    pack_seconds: float
    restore_seconds: float
    peak_bytes: tuple[int, int]


@dataclass(frozen=True)
class Found:
    """All measurements. unchanged: seconds of each checkpoint of an unchanged environment with ``files`` files; ratios: per
    round, the wall time of trials with checkpoints relative to that of trials without."""

    costs: Sequence[Cost]
    files: int
    unchanged: Sequence[float]
    ratios: Sequence[float]


async def measure(client: WatchingClient, namespace: str, manifests: Manifests) -> Found:
    """Run all measurements."""
    pod = _with_checkpoints(manifests.shape)
    costs = [await _changed(client, namespace, pod, each) for each in SIZES]
    files, unchanged = await _unchanged(client, namespace, pod)
    with_them = {**manifests.trial, "spec": {**manifests.trial["spec"], "checkpoints": {"policy": "AfterStep"}}}
    ratios = [await time_ratio(client, namespace, manifests.trial, with_them, TRIALS) for _ in range(ROUNDS)]
    return Found(costs, files, unchanged, ratios)


def _with_checkpoints(shape: Mapping[str, Any]) -> Object:
    main, *others = shape["spec"]["containers"]
    main = {**main, "command": [*main["command"], "--checkpoints"]}
    return {**shape, "spec": {**shape["spec"], "containers": [main, *others]}}


@asynccontextmanager
async def _session(client: WatchingClient, namespace: str, pod: Object, name: str) -> AsyncIterator[Session]:
    """Create a pod and open a session with its runner; delete the pod at the end."""
    uid = await start_pod(client, namespace, pod, name)
    stream = await client.open_exec(namespace, name, CONTAINER, RUNNER_CALL)
    async with Session(stream, pod_uid=uid, answer_timeout_seconds=DEADLINE_SECONDS) as session:
        await session.hello()
        yield session
    await client.delete(PODS, namespace, name)
    await until_without_pods(client, namespace, "bench=idle")


async def _run(session: Session, id: str, command: str) -> str:
    """Run a shell command in the pod; return the end of its output."""
    record = await session.start(
        {"id": id, "argv": ["sh", "-c", command], "tailBytes": 2048, "timeoutSeconds": 600}, wait_seconds=600
    )
    result = PhaseResult.from_record(session.seen(record))
    if result.exit_code != 0:
        raise RuntimeError(f"{command}: exit code {result.exit_code}: {result.tail}")
    return result.tail


async def _peak(session: Session, id: str) -> int:
    return int((await _run(session, id, _PEAK)).split()[1]) * 1024


async def _pack(session: Session, layer: BinaryIO, manifest: BinaryIO) -> tuple[float, Packed]:
    def write(file: BinaryIO, data: bytes) -> None:
        file.write(data)

    request = CheckpointRequest((), _MAX_BYTES, _MAX_BYTES)
    start = time.monotonic()
    packed = await session.checkpoint(request, lambda data: write(layer, data), lambda data: write(manifest, data))
    seconds = time.monotonic() - start
    await session.operate("commit", {"id": f"commit-{packed.digest}", "manifest": packed.digest})
    return seconds, packed


async def _changed(client: WatchingClient, namespace: str, pod: Object, mebibytes: int) -> Cost:
    """Change files in a pod, pack them, and restore them in another pod."""
    with tempfile.TemporaryDirectory() as directory:
        places = [Path(directory) / name for name in ("manifest", "layer")]
        async with _session(client, namespace, pod, f"packed-{mebibytes}") as session:
            await _run(session, "write", _WRITE.format(mebibytes))
            with places[0].open("wb") as manifest, places[1].open("wb") as layer:
                seconds, packed = await _pack(session, layer, manifest)
            peak = await _peak(session, "peak")
        async with _session(client, namespace, pod, f"restored-{mebibytes}") as session:
            start = time.monotonic()
            await session.restore("restore", [packed.digest], [_chunks(each) for each in places])
            restored = time.monotonic() - start
            return Cost(mebibytes, packed.layer.size, seconds, restored, (peak, await _peak(session, "peak")))


def _chunks(path: Path) -> Any:
    def read() -> Any:
        with path.open("rb") as file:
            while chunk := file.read(1 << 18):
                yield chunk

    return read()


async def _unchanged(client: WatchingClient, namespace: str, pod: Object) -> tuple[int, list[float]]:
    """Create many files, then make checkpoints without changes. Return the container's number of files, and each checkpoint's
    seconds."""
    async with _session(client, namespace, pod, "unchanged") as session:
        await _run(session, "many", _MANY.format(FILES // 100))
        count = int(await _run(session, "count", "find / -xdev | wc -l"))
        with tempfile.TemporaryFile() as layer, tempfile.TemporaryFile() as manifest:
            await _pack(session, layer, manifest)
            return count, [(await _pack(session, layer, manifest))[0] for _ in range(5)]


def table(found: Found) -> Table:
    """Return a table of packing and restoring."""
    titles = ("changed MiB", "packed MiB", "pack s", "MB/s", "restore s", "MB/s", "runner's peak MiB (packed, restored)")
    made = Table(*titles)
    for each in found.costs:
        rates = [f"{each.mebibytes * 2**20 / seconds / 1e6:.0f}" for seconds in (each.pack_seconds, each.restore_seconds)]
        peaks = ", ".join(f"{peak / 2**20:.0f}" for peak in each.peak_bytes)
        made.add_row(
            str(each.mebibytes), f"{each.packed / 2**20:.1f}", f"{each.pack_seconds:.2f}", rates[0],
            f"{each.restore_seconds:.2f}", rates[1], peaks,
        )  # fmt: skip
    return made


def judgement(found: Found) -> Sequence[str]:
    """Return one line per limit. A slow run does not fail the bench, because times depend on the machine."""
    unchanged = f"a checkpoint without changes of {found.files} files takes {spread(found.unchanged, 2)} s"
    ratio = f"{TRIALS} trials take {spread(found.ratios, 2)} times as long with checkpoints"
    return [
        line(median(found.unchanged) <= MAX_UNCHANGED_SECONDS, f"{unchanged}, at most {MAX_UNCHANGED_SECONDS:g}"),
        line(median(found.ratios) <= MAX_RATIO, f"{ratio}, at most {MAX_RATIO:g}"),
    ]
