"""A small server that acts as API server and kubelet for exec sessions, a relay to a fake runner, and a reader of streams."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from aiohttp import web

from multistep.kube.cluster_protocols import ExecStream
from multistep.kube.exec import V5
from tests.support.api_server import ApiServer, serve
from tests.support.fake_runner import FakeRunner

Kubelet = Callable[[web.WebSocketResponse], Awaitable[None]]
SUCCESS = b'\x03{"status":"Success"}'


def exec_server(kubelet: Kubelet, *protocols: str) -> AbstractAsyncContextManager[ApiServer]:
    """Serve every request as an exec session, whose remote end is the function `kubelet`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=protocols or (V5,), max_msg_size=2**24)
        await socket.prepare(request)
        for channel in (0, 1, 2, 3):  # the API server first sends an empty message on each channel
            await socket.send_bytes(bytes([channel]))
        await kubelet(socket)
        return socket

    return serve(handle)


def relay_to(runner: FakeRunner) -> Kubelet:
    """Return a kubelet that relays frames to a runner in memory, as `runner call` does."""

    async def relay(socket: web.WebSocketResponse) -> None:
        inner = runner.stream()
        async for message in socket:
            if message.data[0] == 255:
                break
            await inner.send(message.data[1:])
            while not inner._answers.empty():
                await socket.send_bytes(b"\x01" + await inner.receive())
        await socket.send_bytes(SUCCESS)

    return relay


async def read_all(stream: ExecStream) -> bytes:
    """Return everything that the remote end sends until it closes the stream."""
    chunks = []
    while chunk := await stream.receive():
        chunks.append(chunk)
    return b"".join(chunks)
