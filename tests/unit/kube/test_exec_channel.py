"""The exec channel against a small server that acts as API server and kubelet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import ClientWSTimeout, web

from multistep.errors import ClusterError, NotFound, StreamLost, Unavailable
from multistep.kube import exec as exec_module
from multistep.kube.cluster_protocols import ExitStatus
from multistep.kube.exec import MAX_CHUNK_BYTES, V4, V5, WebsocketExec, exit_status, open_exec
from multistep.runner_client.frame_stream import Stream
from multistep.runner_client.session import Session
from tests.support.api_server import serve
from tests.support.exec_server import SUCCESS, Kubelet, exec_server, read_all, relay_to
from tests.support.fake_runner import FakeRunner


def failure(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    reported = {"status": "Failure", "reason": "NonZeroExitCode", "message": f"exit {code}", "details": {"causes": causes}}
    return b"\x03" + json.dumps(reported).encode()


@asynccontextmanager
async def exec_to(kubelet: Kubelet, *protocols: str) -> AsyncIterator[WebsocketExec]:
    async with exec_server(kubelet, *protocols) as server:
        connection = server.connection()
        stream = await open_exec(connection, "ns", "pod", "main", ["/multistep/runner", "call"], attempts=1)
        try:
            yield stream
        finally:
            await stream.close()
            await connection.close()


async def cat(socket: web.WebSocketResponse) -> None:
    """Echo stdin to stdout until stdin is closed."""
    async for message in socket:
        if message.data == bytes((255, 0)):
            break
        assert message.data[0] == 0
        await socket.send_bytes(b"\x01" + message.data[1:])
    await socket.send_bytes(SUCCESS)
    await socket.close()


async def test_stdin_comes_back_and_the_half_close_ends_it() -> None:
    async with exec_to(cat) as stream:
        await stream.send(b"hello ")
        await stream.send(b"world")
        await stream.send_eof()
        assert await read_all(stream) == b"hello world"
        assert stream.status == ExitStatus(0)
        assert await stream.receive() == b""  # each read after the end of the stream returns the end again


async def test_a_session_runs_over_it() -> None:
    runner = FakeRunner("uid")

    async with exec_to(relay_to(runner)) as stream:
        as_seen_by_the_session: Stream = stream
        session = Session(as_seen_by_the_session, pod_uid="uid")
        assert (await session.hello()).version == "fake"
        await session.upload("1/a/upload", "/app", b"x" * 3_000_000)
        await session.close()
    assert len(runner.uploads["1/a/upload"]) == 3_000_000


async def test_large_sends_are_cut_into_chunks() -> None:
    sizes: list[int] = []

    async def measure(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            if message.data[0] == 255:
                break
            sizes.append(len(message.data) - 1)
        await socket.send_bytes(SUCCESS)

    async with exec_to(measure) as stream:
        await stream.send(bytes(2 * MAX_CHUNK_BYTES + 1))
        await stream.send_eof()
        await read_all(stream)
    assert sizes == [MAX_CHUNK_BYTES, MAX_CHUNK_BYTES, 1]


async def test_an_exit_code_is_reported() -> None:
    async def fail(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x02not PID 1's friend\n")
        await socket.send_bytes(failure(3))

    async with exec_to(fail) as stream:
        assert await read_all(stream) == b""
        assert stream.status == ExitStatus(3, "exit 3")
        assert stream.exit_details == "not PID 1's friend exit 3"


async def test_only_the_end_of_a_long_stderr_is_kept() -> None:
    async def shout(socket: web.WebSocketResponse) -> None:
        for _ in range(50):
            await socket.send_bytes(b"\x02" + b"a" * 10_000)
        await socket.send_bytes(b"\x02 the end")
        await socket.send_bytes(SUCCESS)

    async with exec_to(shout) as stream:
        await read_all(stream)
        assert len(stream.exit_details) <= 4096
        assert stream.exit_details.endswith("a the end")


async def no_status(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\x01half an ans")
    await socket.close()


async def cut(socket: web.WebSocketResponse) -> None:
    await socket.send_bytes(b"\x01half an ans")
    assert socket._req is not None
    assert socket._req.transport is not None
    socket._req.transport.abort()


@pytest.mark.parametrize("end", [no_status, cut])
async def test_without_a_status_nothing_is_known(end: Kubelet) -> None:
    async with exec_to(end) as stream:
        assert await stream.receive() == b"half an ans"
        for _ in range(2):
            with pytest.raises(StreamLost, match="exec in pod ns/pod"):
                await stream.receive()
        assert stream.status is None


async def test_sending_into_a_lost_connection_is_a_lost_stream() -> None:
    async with exec_to(cut) as stream:
        with pytest.raises(StreamLost):
            for _ in range(1000):
                await stream.send(bytes(100_000))


async def test_a_status_counts_even_if_the_connection_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.exec.END_TIMEOUT_SECONDS", 0.02)
    gone = asyncio.Event()

    async def linger(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(SUCCESS)
        await gone.wait()

    async with exec_to(linger) as stream:
        assert await read_all(stream) == b""
        assert stream.status == ExitStatus(0)
        gone.set()


async def test_output_after_the_status_is_not_lost() -> None:
    async def late(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(SUCCESS)
        await socket.send_bytes(b"\x01late")

    async with exec_to(late) as stream:
        assert await read_all(stream) == b"late"


async def test_v4_is_spoken_where_there_is_no_v5_and_ends_stdin_by_closing() -> None:
    got: list[object] = []

    async def old(socket: web.WebSocketResponse) -> None:
        got.extend([message.data async for message in socket])

    async with exec_to(old, V4) as stream:
        assert not stream.half_close
        await stream.send(b"x")
        await stream.send_eof()
        await stream.close()
    assert got == [b"\0x"]


async def test_a_server_of_neither_protocol_is_refused() -> None:
    async with exec_server(cat, "base64.channel.k8s.io") as server:
        connection = server.connection()
        with pytest.raises(ClusterError, match="supports neither"):
            await open_exec(connection, "ns", "pod", "main", ["x"], attempts=1)
        await connection.close()


async def test_the_command_is_asked_for_word_by_word() -> None:
    async with exec_server(cat) as server:
        connection = server.connection()
        stream = await open_exec(connection, "ns", "pod", "main", ["sh", "-c", "a && b=1/2 +é"], attempts=1)
        await stream.close()
        await connection.close()
    method, path, *_ = server.seen[0]
    assert method == "GET"
    assert path == (
        "/api/v1/namespaces/ns/pods/pod/exec?container=main&stdin=true&stdout=true&stderr=true"
        "&command=sh&command=-c&command=a+%26%26+b%3D1%2F2+%2B%C3%A9"
    )


async def test_a_refused_handshake_reports_why() -> None:
    async def refuse(_request: web.Request) -> web.StreamResponse:
        reported = {"kind": "Status", "reason": "NotFound", "message": 'pods "pod" not found'}
        return web.json_response(reported, status=404)

    async with serve(refuse) as server:
        connection = server.connection()
        with pytest.raises(NotFound, match='pods "pod" not found'):
            await open_exec(connection, "ns", "pod", "main", ["x"])
        await connection.close()
    assert len(server.seen) == 1  # the client does not retry a handshake that was rejected with 404


async def test_a_handshake_is_tried_again_while_the_server_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.exec.pause_seconds", lambda *_: 0.0)
    codes: list[tuple[str, str, int]] = []
    over, handshake = asyncio.Event(), exec_module._handshake

    async def limited(connection: Any, url: Any, what: str, seconds: float, observe: Any) -> Any:
        return await handshake(connection, url, what, 0.2 if len(codes) == 1 else seconds, observe)

    monkeypatch.setattr(exec_module, "_handshake", limited)

    async def flaky(request: web.Request) -> web.StreamResponse:
        if not codes:
            raise web.HTTPServiceUnavailable
        if len(codes) == 1:
            await over.wait()  # delays the response until the client's handshake has timed out
        socket = web.WebSocketResponse(protocols=(V5,))
        await socket.prepare(request)
        await socket.send_bytes(SUCCESS)
        return socket

    async with serve(flaky) as server:
        connection = server.connection()
        stream = await open_exec(
            connection,
            "ns",
            "pod",
            "main",
            ["x"],
            handshake_timeout_seconds=60.0,  # of the two handshakes that the server answers
            observe=lambda verb, plural, code, _seconds: codes.append((verb, plural, code)),
        )
        assert await read_all(stream) == b""
        await stream.close()
        await connection.close()
        over.set()
    assert codes == [("exec", "pods", 503), ("exec", "pods", 0), ("exec", "pods", 101)]


async def test_nobody_listening_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.kube.exec.pause_seconds", lambda *_: 0.0)
    async with exec_server(cat) as server:
        pass
    connection = server.connection()
    with pytest.raises(Unavailable, match="no answer"):
        await open_exec(connection, "ns", "pod", "main", ["x"])
    await connection.close()


async def test_a_slow_reader_slows_the_writer_down() -> None:
    sent = 0

    async def flood(socket: web.WebSocketResponse) -> None:
        nonlocal sent
        for _ in range(2000):
            await socket.send_bytes(b"\x01" + bytes(32_768))
            sent += 32_768
        await socket.send_bytes(SUCCESS)

    async with exec_to(flood) as stream:
        await stream.receive()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 16_000_000  # not all 65 MB: the server is blocked once kernel and transport buffers are full
        assert len(await read_all(stream)) == 2000 * 32_768 - 32_768


async def test_a_slow_taker_slows_send_down() -> None:
    go = asyncio.Event()

    async def slow(socket: web.WebSocketResponse) -> None:
        await go.wait()
        async for message in socket:
            if message.data[0] == 255:
                break
        await socket.send_bytes(SUCCESS)

    async with exec_to(slow) as stream:
        sent = 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                while True:
                    await stream.send(bytes(65_536))
                    sent += 65_536
        assert sent < 32_000_000
        go.set()
        await stream.send_eof()
        assert await read_all(stream) == b""


async def test_closing_does_not_wait_for_a_dead_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = asyncio.Event()
    monkeypatch.setattr("multistep.kube.exec.CLOSE_TIMEOUT_SECONDS", 0.05)
    monkeypatch.setattr("aiohttp.client.DEFAULT_WS_CLIENT_TIMEOUT", ClientWSTimeout(ws_close=3600.0))  # it cannot end the wait

    async def dead(_socket: web.WebSocketResponse) -> None:
        await gone.wait()

    async with exec_to(dead) as stream:
        async with asyncio.timeout(60):
            await stream.close()
            await stream.close()
        gone.set()


async def test_many_streams_are_open_at_once() -> None:
    async with exec_server(cat) as server:
        connection = server.connection()
        streams = await asyncio.gather(*(open_exec(connection, "ns", f"pod-{n}", "main", ["x"], attempts=1) for n in range(150)))
        await asyncio.gather(*(stream.send_eof() for stream in streams))
        assert {await stream.receive() for stream in streams} == {b""}
        await asyncio.gather(*(stream.close() for stream in streams))
        await connection.close()


@pytest.mark.parametrize(
    ("reported", "status"),
    [
        (b'{"status":"Success"}', ExitStatus(0)),
        (failure(137)[1:], ExitStatus(137, "exit 137")),
        (b'{"status":"Failure","message":"container not found"}', ExitStatus(None, "container not found")),
        (b'{"status":"Failure","details":null}', ExitStatus(None)),
    ],
)
def test_a_status_is_read(reported: bytes, status: ExitStatus) -> None:
    assert exit_status(reported) == status


@pytest.mark.parametrize("reported", [b"", b"[]", b"null", b'{"details":5}', b'{"details":{"causes":[7]}}', b"[" * 100_000])
def test_a_status_without_sense_is_neither_success_nor_failure(reported: bytes) -> None:
    assert exit_status(reported).code is None
