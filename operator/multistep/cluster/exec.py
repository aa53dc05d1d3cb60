"""The exec channel: stdin and stdout of a command in a container, over a websocket of the API server.

Without a status frame the connection was lost, and nothing is known: never success, never failure. Nothing is read
ahead but what aiohttp buffers (about 128 KiB), so a slow reader slows the writer down.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType
from yarl import URL

from multistep.cluster.connection import Connection
from multistep.cluster.edge import ExitStatus
from multistep.cluster.errors import no_answer, refusal
from multistep.cluster.gate import Gate
from multistep.cluster.http import RequestObserver, pause_seconds
from multistep.errors import ClusterError, StreamLost, Unavailable

V5: Final = "v5.channel.k8s.io"  # Kubernetes 1.30: stdin can be ended while stdout goes on
V4: Final = "v4.channel.k8s.io"
PROTOCOLS = (V5, V4)

STDIN, STDOUT, STDERR, STATUS, CLOSE = 0, 1, 2, 3, 255

MAX_CHUNK_BYTES: Final = 1024 * 1024
MAX_STDERR_BYTES: Final = 4096
HANDSHAKE_TIMEOUT_SECONDS: Final = 15.0
HANDSHAKE_ATTEMPTS: Final = 3
END_TIMEOUT_SECONDS: Final = 5.0  # from the status frame to the end of the connection
CLOSE_TIMEOUT_SECONDS: Final = 2.0


async def open_exec(
    connection: Connection,
    namespace: str,
    pod: str,
    container: str,
    argv: Sequence[str],
    *,
    handshake_timeout_seconds: float = HANDSHAKE_TIMEOUT_SECONDS,
    attempts: int = HANDSHAKE_ATTEMPTS,
    heartbeat_seconds: float | None = None,
    gate: Gate | None = None,
    observe: RequestObserver | None = None,
) -> WebsocketExec:
    """Run argv in a container. Raises ClusterError as a request does (NotFound: no such pod).

    A handshake without an answer is tried again (attempts in all), so the command may be started more than once with
    an empty stdin: right for a relay, wrong for anything that acts without being asked. Needs get and create on
    pods/exec: Kubernetes checks one or the other, by version.
    """
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/exec"
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    asked = urlencode([*query, *(("command", each) for each in argv)])
    url = URL(f"{connection.base_url}{path}?{asked}", encoded=True)  # argv word by word: nothing to be normalised
    what = f"exec in pod {namespace}/{pod}"
    gate, loop = gate or Gate(), asyncio.get_running_loop()
    for attempt in range(1, attempts + 1):
        await gate.opened()
        began = loop.time()
        try:
            socket = await _handshake(connection, url, what, handshake_timeout_seconds, heartbeat_seconds, observe)
            return WebsocketExec(socket, what)
        except ClusterError as error:
            if isinstance(error, Unavailable) and error.status == 429:  # anything else may be the fault of one node
                gate.slow_down(began, error.retry_after)
            if attempt >= attempts or not _may_pass(error):
                raise
            await asyncio.sleep(pause_seconds(attempt, getattr(error, "retry_after", None)))
    raise AssertionError("attempts must be at least 1")


def _may_pass(error: ClusterError) -> bool:
    return isinstance(error, Unavailable) or error.status == 401  # credentials were renewed since


class WebsocketExec:
    """An ExecStream (multistep.cluster.edge) over a websocket."""

    def __init__(self, socket: ClientWebSocketResponse[bool], what: str) -> None:
        self._socket = socket
        self._what = what
        self._stderr = bytearray()
        self._status: ExitStatus | None = None
        self._lost = ""

    @property
    def status(self) -> ExitStatus | None:
        return self._status

    @property
    def last_words(self) -> str:
        told = self._status.message if self._status else ""
        return " ".join(filter(None, [self._stderr.decode(errors="replace").strip(), told]))

    @property
    def half_close(self) -> bool:
        """Whether stdin can be ended by itself."""
        return self._socket.protocol == V5

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_CHUNK_BYTES):
            await self._send(b"\0" + data[start : start + MAX_CHUNK_BYTES])

    async def send_eof(self) -> None:
        """End stdin. Protocol v4 has no such thing: there, only close ends it."""
        if self.half_close:
            await self._send(bytes((CLOSE, STDIN)))

    async def receive(self) -> bytes:
        while True:
            message = await self._message()
            if message is None:
                return b""
            channel, data = message[0], message[1:]
            if channel == STDOUT:
                return data
            self._take_aside(channel, data)

    async def close(self) -> None:
        with suppress(aiohttp.ClientError, OSError):
            await self._socket.close()

    async def _send(self, message: bytes) -> None:
        try:
            await self._socket.send_bytes(message)
        except (aiohttp.ClientError, OSError) as error:
            raise self._loss(str(error)) from error

    async def _message(self) -> bytes | None:
        """The next channel message, None at the orderly end."""
        if self._lost:
            raise self._loss(self._lost)
        try:
            while True:
                async with asyncio.timeout(END_TIMEOUT_SECONDS if self._status else None):
                    message = await self._socket.receive()
                if message.type is not WSMsgType.BINARY:
                    break
                if len(message.data) > 1:  # the server opens each channel with an empty message
                    return bytes(message.data)
        except (aiohttp.ClientError, OSError) as error:
            if self._status is None:
                raise self._loss(str(error)) from error
            return None  # all was said, but nobody hung up in an orderly way
        if self._status is None:
            raise self._loss(f"closed without a status ({message.type.name} {message.data} {message.extra or ''})")
        return None

    def _take_aside(self, channel: int, data: bytes) -> None:
        if channel == STDERR:
            self._stderr += data
            del self._stderr[:-MAX_STDERR_BYTES]
        elif channel == STATUS and self._status is None:
            self._status = exit_status(data)

    def _loss(self, why: str) -> StreamLost:
        self._lost = self._lost or why.strip() or "connection lost"
        words = self.last_words
        return StreamLost(f"{self._what}: {self._lost}{f': {words}' if words else ''}"[:1000])


def exit_status(data: bytes) -> ExitStatus:
    """Read a message of the status channel (a metav1.Status)."""
    try:
        told = json.loads(data)
        if told.get("status") == "Success":
            return ExitStatus(0)
        return ExitStatus(_exit_code(told), str(told.get("message") or "")[:1000])
    except (ValueError, RecursionError, AttributeError, TypeError):
        return ExitStatus(None, f"a status that makes no sense: {data[:200]!r}")


def _exit_code(told: Mapping[str, Any]) -> int | None:
    causes = (told.get("details") or {}).get("causes") or []
    return next((int(each["message"]) for each in causes if each.get("reason") == "ExitCode"), None)


async def _handshake(
    connection: Connection,
    url: URL,
    what: str,
    timeout_seconds: float,
    heartbeat_seconds: float | None,
    observe: RequestObserver | None,
) -> ClientWebSocketResponse[bool]:
    loop = asyncio.get_running_loop()
    started, code = loop.time(), 0
    _refused_body.set(b"")
    try:
        async with asyncio.timeout(timeout_seconds):
            socket = await connection.session("exec", trace=_keep_refusals()).ws_connect(
                url,
                protocols=PROTOCOLS,
                timeout=ClientWSTimeout(ws_close=CLOSE_TIMEOUT_SECONDS),
                autoping=True,
                heartbeat=heartbeat_seconds,
                max_msg_size=2 * MAX_CHUNK_BYTES,
                **await connection.request_options(),
            )
        code = 101
        return await _with_protocol(socket, what)
    except aiohttp.WSServerHandshakeError as error:
        code = error.status
        if code == 401:
            await connection.refresh(rejected=True)
        raise refusal(what, code, _refused_body.get(), error.headers or {}) from None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise no_answer(what, error) from error
    finally:
        if observe is not None:
            observe("exec", "pods", code, loop.time() - started)


async def _with_protocol(socket: ClientWebSocketResponse[bool], what: str) -> ClientWebSocketResponse[bool]:
    if socket.protocol in PROTOCOLS:
        return socket
    await socket.close()
    raise ClusterError(f"{what}: the API server (or a proxy before it) speaks neither {V5} nor {V4}")


_refused_body: ContextVar[bytes] = ContextVar("refused_body", default=b"")


def _keep_refusals() -> aiohttp.TraceConfig:
    """aiohttp drops the body of a refused handshake, which says why; a trace sees the response in time."""

    async def keep(_session: object, _context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        if params.response.status != 101:
            with suppress(aiohttp.ClientError):
                _refused_body.set(await params.response.content.read(16 * 1024))

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(keep)
    return trace
