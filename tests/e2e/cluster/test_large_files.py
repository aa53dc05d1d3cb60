"""Test that files of every kind and size pass into a pod and back unchanged, in bounded memory."""

from __future__ import annotations

import gc
import resource
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import pytest

from multistep.client.reconnecting_watch import WatchingClient
from multistep.engine.journal.operations import Source
from tests.e2e.cluster.conftest import Pod
from tests.e2e.cluster.test_real_runner import new_id, session
from tests.support.tar_streams import facts, many_small_files, odd_files, one_large_file

pytestmark = pytest.mark.xdist_group("cluster")  # one pytest-xdist worker runs all tests of the group and creates the pods once

MEBIBYTE = 2**20
GROWTH_BYTES = 64 * MEBIBYTE  # permitted growth of the client's peak memory, whatever the transferred size
ANSWER_SECONDS = 300.0

Stream = Callable[[], Iterable[bytes]]


def write(file: BinaryIO) -> Callable[[bytes], None]:
    def sink(data: bytes) -> None:
        file.write(data)

    return sink


def peak_bytes() -> int:
    """Return this process's peak memory in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


async def round_trip(client: WatchingClient, pod: Pod, stream: Stream, directory: Path) -> tuple[Path, Path]:
    """Upload a tar stream into a new directory and download it again; return the sent and the received tar file."""
    sent, came = directory / "sent.tar", directory / "came.tar"
    with sent.open("wb") as file:
        file.writelines(stream())
    target = f"/tmp/{directory.name}"
    async with session(client, pod, answer_timeout_seconds=ANSWER_SECONDS) as talk:
        with sent.open("rb") as file:
            await talk.upload(new_id("upload"), target, iter(lambda: file.read(MEBIBYTE), b""))
        with came.open("wb") as file:
            result = await talk.download([Source(target)], write(file))
    assert (result.types, result.changed, result.unreadable) == (("directory",), (), ())
    return sent, came


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(lambda: one_large_file("large", 64 * MEBIBYTE), id="one file of 64 MiB", marks=pytest.mark.long),
        pytest.param(lambda: many_small_files(5_000), id="5,000 small files", marks=pytest.mark.long),
        pytest.param(lambda: many_small_files(500), id="500 small files"),
    ],
)
async def test_much_data_round_trips(client: WatchingClient, runner_pod: Pod, stream: Stream, tmp_path: Path) -> None:
    sent, came = await round_trip(client, runner_pod, stream, tmp_path)
    assert facts(came, "0") == facts(sent)


@pytest.mark.measures
@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(lambda: one_large_file("large", 2**30), id="one file of 1 GiB"),
        pytest.param(lambda: many_small_files(50_000), id="50,000 small files"),
    ],
)
async def test_much_data_round_trips_in_bounded_memory(
    client: WatchingClient, runner_pod: Pod, stream: Stream, tmp_path: Path
) -> None:
    gc.collect()
    before = peak_bytes()
    sent, came = await round_trip(client, runner_pod, stream, tmp_path)
    assert peak_bytes() - before < GROWTH_BYTES
    assert facts(came, "0") == facts(sent)


async def test_odd_names_contents_modes_links_and_empty_directories_round_trip(
    client: WatchingClient, runner_pod: Pod, tmp_path: Path
) -> None:
    files = await round_trip(client, runner_pod, lambda: [odd_files()], tmp_path)
    sent, came = facts(files[0]), facts(files[1], "0")
    leading = came.keys() - sent.keys()  # parent directories, for which the sent tar file has no entries
    assert {name: came[name] for name in sent} == sent
    assert all(any(name.startswith(f"{each}/") for name in sent) for each in leading)
