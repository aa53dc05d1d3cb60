"""Test the exec channel through a real API server, kubelet and containerd."""

from __future__ import annotations

import asyncio
import resource
import time

import pytest

from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, NotFound, StreamLost
from multistep.kube.cluster_protocols import ExecStream, ExitStatus
from multistep.kube.exec import V4
from multistep.kube.resources import PODS
from tests.e2e.cluster.conftest import Pod
from tests.e2e.given import DEADLINE_SECONDS
from tests.support.cutter import cutter
from tests.support.exec_server import read_all

pytestmark = pytest.mark.xdist_group("cluster")  # one pytest-xdist worker runs all tests of the group and creates the pods once

MEBIBYTE = 2**20

# On a busy node the container runtime may close a command's stdin before the command has read it all. Tests therefore send EOF
# only after they have received the command's output.


async def open_exec(client: WatchingClient, pod: Pod, *argv: str) -> ExecStream:
    return await client.open_exec(pod.namespace, pod.name, pod.container, argv)


async def test_stdin_ends_by_the_half_close_and_the_answer_still_comes(client: WatchingClient, pod: Pod) -> None:
    stream = await open_exec(client, pod, "sh", "-c", "cat; echo over")
    for word in (b"multi", b"step"):
        await stream.send(word)
        assert await stream.receive() == word
    await stream.send_eof()
    assert await read_all(stream) == b"over\n"
    assert stream.status == ExitStatus(0)
    await stream.close()


async def test_binary_data_passes_whole_both_ways_at_once(client: WatchingClient, pod: Pod) -> None:
    data = bytes(range(256)) * 4096 * 16
    stream = await open_exec(client, pod, "cat")

    sending, got = asyncio.create_task(stream.send(data)), bytearray()
    while len(got) < len(data) and (chunk := await stream.receive()):
        got += chunk
    await sending
    assert got == data
    await stream.send_eof()
    assert await read_all(stream) == b""
    await stream.close()


async def test_arguments_arrive_word_by_word(client: WatchingClient, pod: Pod) -> None:
    words = ["a b", "", "&c=d", "é%2F+", "*", "$HOME"]
    stream = await open_exec(client, pod, "printf", r"%s\n", *words)
    assert (await read_all(stream)).decode().split("\n")[:-1] == words
    await stream.close()


async def test_exit_code_and_stderr_are_reported(client: WatchingClient, pod: Pod) -> None:
    stream = await open_exec(client, pod, "sh", "-c", "echo told you >&2; exit 7")
    assert await read_all(stream) == b""
    assert stream.status is not None
    assert stream.status.code == 7
    assert stream.exit_details.startswith("told you")
    await stream.close()


async def test_a_command_that_is_not_there_has_no_exit_code(client: WatchingClient, pod: Pod) -> None:
    stream = await open_exec(client, pod, "/nope")
    assert await read_all(stream) == b""
    assert stream.status is not None
    assert stream.status.code is None
    assert "/nope" in stream.exit_details
    await stream.close()


async def test_a_pod_that_is_not_there_is_not_found(client: WatchingClient, pod: Pod) -> None:
    with pytest.raises(NotFound, match='pods "nope" not found'):
        await client.open_exec(pod.namespace, "nope", "main", ["true"])


async def test_a_container_that_is_not_there_is_refused(client: WatchingClient, pod: Pod) -> None:
    with pytest.raises(ClusterError, match="container nope is not valid"):
        await client.open_exec(pod.namespace, pod.name, "nope", ["true"])


async def test_v4_works_too(client: WatchingClient, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.exec.PROTOCOLS", (V4,))
    stream = await open_exec(client, pod, "head", "-c", "5")
    await stream.send(b"12345")
    assert await read_all(stream) == b"12345"
    assert stream.status == ExitStatus(0)
    await stream.close()


@pytest.mark.parametrize("protocol", ["v5", "v4"])
async def test_closing_ends_the_commands_stdin(
    client: WatchingClient, pod: Pod, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if protocol == "v4":
        monkeypatch.setattr("multistep.kube.exec.PROTOCOLS", (V4,))
    mark = f"/tmp/{protocol}-ended"
    stream = await open_exec(client, pod, "sh", "-c", f"rm -f {mark}; echo here; cat >/dev/null; touch {mark}")
    assert await stream.receive() == b"here\n"
    await stream.close()
    look = await open_exec(client, pod, "sh", "-c", f"while ! [ -e {mark} ]; do sleep 0.05; done")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await read_all(look)
    await look.close()


async def test_a_cut_connection_is_a_lost_stream_both_ways(client: WatchingClient, pod: Pod) -> None:
    async with cutter(client.connection) as line:
        stream = await open_exec(client, pod, "cat")
        await stream.send(b"x")
        assert await stream.receive() == b"x"
        line.cut()
        async with asyncio.timeout(DEADLINE_SECONDS):
            with pytest.raises(StreamLost):
                await stream.receive()
            with pytest.raises(StreamLost):
                for _ in range(100):
                    await stream.send(bytes(65536))
        assert stream.status is None
        await stream.close()


async def test_fifty_streams_are_open_at_once(client: WatchingClient, pod: Pod) -> None:
    streams = await asyncio.gather(*(open_exec(client, pod, "cat") for _ in range(50)))
    pod_names = await client.list_all(PODS, pod.namespace)  # succeeds: requests do not share a connection pool with exec sessions
    assert pod_names
    for number, stream in enumerate(streams):
        await stream.send(str(number).encode())
    answers = await asyncio.gather(*(stream.receive() for stream in streams))
    assert answers == [str(number).encode() for number in range(50)]
    for stream in streams:
        await stream.send_eof()
    assert await asyncio.gather(*map(read_all, streams)) == [b""] * 50
    await asyncio.gather(*(stream.close() for stream in streams))


@pytest.mark.measures
async def test_a_slow_reader_holds_the_command_back(client: WatchingClient, pod: Pod) -> None:
    stream = await open_exec(client, pod, "sh", "-c", "head -c 200M /dev/zero; echo done >&2")
    await stream.receive()
    before = _peak_mebibytes()
    await asyncio.sleep(2)  # fixed wait: time in which a sender that ignores back-pressure would fill the memory
    assert _peak_mebibytes() - before < 20
    await stream.close()


@pytest.mark.measures
@pytest.mark.parametrize("way", ["in", "out"])
async def test_throughput(client: WatchingClient, pod: Pod, way: str) -> None:
    size, before = 256 * MEBIBYTE, _peak_mebibytes()
    started, worked = time.monotonic(), time.process_time()
    if way == "out":
        stream = await open_exec(client, pod, "head", "-c", str(size), "/dev/zero")
        got = 0
        while chunk := await stream.receive():
            got += len(chunk)
    else:
        stream = await open_exec(client, pod, "sh", "-c", f"head -c {size} | wc -c")
        for _ in range(size // MEBIBYTE):
            await stream.send(bytes(MEBIBYTE))
        got = int(await read_all(stream))
    seconds, work = time.monotonic() - started, time.process_time() - worked
    assert (got, stream.status) == (size, ExitStatus(0)), stream.exit_details
    await stream.close()
    print(f"{way}: {size / 1e6 / seconds:.0f} MB/s, {work:.1f} s of our own, {_peak_mebibytes() - before} MiB more at the peak")
    assert work < 30  # CPU seconds of this process: 2 s as measured, 280 s if chunks are joined in quadratic time
    assert _peak_mebibytes() - before < 50


def _peak_mebibytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
