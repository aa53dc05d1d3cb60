"""Runs commands in containers. Their stdin and stdout pass over a websocket of the API server.

If the connection ends without a status frame, it is unknown whether the command succeeded. aiohttp buffers about 128 KiB. Beyond
that, a slow reader slows down the writer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
from aiohttp import ClientWebSocketResponse, ClientWSTimeout, WSMsgType
from yarl import URL

from multistep.errors import ClusterError, StreamLost, Unavailable
from multistep.kube.cluster_protocols import ExitStatus
from multistep.kube.connection import Connection
from multistep.kube.request_limit import RequestLimit
from multistep.kube.requests import Check, RequestObserver, no_answer_error, pause_seconds, response_error
from multistep.kube.resources import PODS

V5: Final = "v5.channel.k8s.io"  # available since Kubernetes 1.30. It allows to close stdin while stdout stays open
V4: Final = "v4.channel.k8s.io"
PROTOCOLS = (V5, V4)

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255

MAX_CHUNK_BYTES: Final = 1024 * 1024
MAX_STDERR_BYTES: Final = 4096
HANDSHAKE_TIMEOUT_SECONDS: Final = 15.0
HANDSHAKE_ATTEMPTS: Final = 3
END_TIMEOUT_SECONDS: Final = 5.0  # maximum seconds from the status frame to the end of the connection
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
    limit: RequestLimit | None = None,
    observe: RequestObserver | None = None,
    check: Check = lambda: None,
    tty: bool = False,
    on_stderr: Callable[[bytes], object] | None = None,
) -> WebsocketExec:
    """Run a command in a container. Raises ClusterError as a request does, e.g. NotFound if the pod does not exist.

    A handshake without an answer is repeated, up to ``attempts`` times in total. So the command may start more than once, and all
    but one of these processes get an empty stdin. The command must therefore do nothing without input. RBAC must allow get and
    create on pods/exec, because the version of Kubernetes decides which of these verbs is checked.

    Args:
        check: Called before each handshake and each sent frame. It raises an error to prevent them.
        tty: Whether to give the command a terminal, so that all its output is on stdout.
        on_stderr: Called with each piece of the command's stderr.
    """
    url = _url(connection, PODS.path(namespace, pod, "exec"), container, argv, tty=tty)
    what = f"exec in pod {namespace}/{pod}"
    limit = limit or RequestLimit()
    now = asyncio.get_running_loop().time
    for attempt in range(1, attempts + 1):
        await limit.opened()
        check()
        started = now()
        try:
            socket = await _handshake(connection, url, what, handshake_timeout_seconds, observe)
            return WebsocketExec(socket, what, check, on_stderr)
        except ClusterError as error:
            if isinstance(error, Unavailable) and error.status == 429:  # other errors may concern a single node
                limit.slow_down(started, error.retry_after)
            if attempt >= attempts or not _is_transient(error):
                raise
            await asyncio.sleep(pause_seconds(attempt, getattr(error, "retry_after", None)))
    raise AssertionError("attempts must be at least 1")


def _url(connection: Connection, path: str, container: str, argv: Sequence[str], *, tty: bool) -> URL:
    streams = {"stdin": "true", "stdout": "true", **({"tty": "true"} if tty else {"stderr": "true"})}
    query = {"container": container, **streams, "command": argv}
    return URL(f"{connection.base_url}{path}?{urlencode(query, doseq=True)}", encoded=True)  # yarl must not change the command


def _is_transient(error: ClusterError) -> bool:
    return isinstance(error, Unavailable) or error.status == 401  # after a 401, the failed handshake has renewed the credentials


class WebsocketExec:
    """An ExecStream (multistep.kube.cluster_protocols) over a websocket."""

    def __init__(
        self,
        socket: ClientWebSocketResponse[bool],
        what: str,
        check: Check = lambda: None,
        on_stderr: Callable[[bytes], object] | None = None,
    ) -> None:
        self._check = check
        self._on_stderr = on_stderr
        self._socket = socket
        self._what = what
        self._stderr = bytearray()
        self._status: ExitStatus | None = None
        self._lost = ""

    @property
    def status(self) -> ExitStatus | None:
        return self._status

    @property
    def exit_details(self) -> str:
        message = self._status.message if self._status else ""
        return " ".join(filter(None, [self._stderr.decode(errors="replace").strip(), message]))

    @property
    def half_close(self) -> bool:
        """Whether stdin can be closed while stdout stays open."""
        return self._socket.protocol == V5

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_CHUNK_BYTES):
            self._check()  # reading and closing start nothing, so they need no leader lease
            await self._send(b"\0" + data[start : start + MAX_CHUNK_BYTES])

    async def send_eof(self) -> None:
        """Close stdin. This does nothing with protocol v4, in which only ``close`` closes stdin."""
        if self.half_close:
            await self._send(bytes((CLOSE, STDIN)))

    async def resize(self, columns: int, rows: int) -> None:
        """Set the size of the command's terminal."""
        await self._send(bytes((RESIZE,)) + json.dumps({"Width": columns, "Height": rows}).encode())

    async def receive(self) -> bytes:
        while True:
            message = await self._message()
            if message is None:
                return b""
            channel = message[0]
            data = message[1:]
            if channel == STDOUT:
                return data
            self._note(channel, data)

    async def close(self) -> None:
        with suppress(aiohttp.ClientError, OSError):
            await self._socket.close()

    async def _send(self, message: bytes) -> None:
        try:
            await self._socket.send_bytes(message)
        except (aiohttp.ClientError, OSError) as error:
            raise self._loss(str(error)) from error

    async def _message(self) -> bytes | None:
        """Return the next message of a channel, or None when the connection has ended after the status frame."""
        if self._lost:
            raise self._loss(self._lost)
        try:
            while True:
                if self._status is None:  # there is no timeout here, because the caller has one
                    message = await self._socket.receive()
                else:
                    async with asyncio.timeout(END_TIMEOUT_SECONDS):
                        message = await self._socket.receive()
                if message.type is not WSMsgType.BINARY:
                    break
                if len(message.data) > 1:  # skips the empty message with which the server opens each channel
                    return bytes(message.data)
        except (aiohttp.ClientError, OSError) as error:
            if self._status is None:
                raise self._loss(str(error)) from error
            return None  # the exit status has arrived, so a failed close handshake does not matter
        if self._status is None:
            raise self._loss(f"closed without a status ({message.type.name} {message.data} {message.extra or ''})")
        return None

    def _note(self, channel: int, data: bytes) -> None:
        if channel == STDERR:
            if self._on_stderr is not None:
                self._on_stderr(data)
            self._stderr += data
            del self._stderr[:-MAX_STDERR_BYTES]
        elif channel == STATUS and self._status is None:
            self._status = exit_status(data)

    def _loss(self, why: str) -> StreamLost:
        self._lost = self._lost or why.strip() or "connection lost"
        details = self.exit_details
        return StreamLost(f"{self._what}: {self._lost}{f': {details}' if details else ''}"[:1000])


def exit_status(data: bytes) -> ExitStatus:
    """Return how the command ended, from a message of exec's status channel (a metav1.Status)."""
    try:
        status = json.loads(data)
        if status.get("status") == "Success":
            return ExitStatus(0)
        return ExitStatus(_exit_code(status), str(status.get("message") or "")[:1000])
    except (ValueError, RecursionError, AttributeError, TypeError):
        return ExitStatus(None, f"invalid exec status: {data[:200]!r}")


def _exit_code(status: Mapping[str, Any]) -> int | None:
    causes = (status.get("details") or {}).get("causes") or []
    return next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), None)


async def _handshake(
    connection: Connection,
    url: URL,
    what: str,
    timeout_seconds: float,
    observe: RequestObserver | None,
) -> ClientWebSocketResponse[bool]:
    loop = asyncio.get_running_loop()
    started = loop.time()
    code = 0
    _rejected_body.set(b"")
    try:
        async with asyncio.timeout(timeout_seconds):
            socket = await connection.session("exec", trace=_keep_rejections()).ws_connect(
                url,
                protocols=PROTOCOLS,
                timeout=ClientWSTimeout(ws_close=CLOSE_TIMEOUT_SECONDS),
                autoping=True,
                max_msg_size=2 * MAX_CHUNK_BYTES,
                **await connection.request_options(),
            )
        code = 101
        return await _with_protocol(socket, what)
    except aiohttp.WSServerHandshakeError as error:
        code = error.status
        if code == 401:
            await connection.refresh(rejected=True)
        raise response_error(what, code, _rejected_body.get(), error.headers or {}) from None
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise no_answer_error(what, error) from error
    finally:
        if observe is not None:
            observe("exec", "pods", code, loop.time() - started)


async def _with_protocol(socket: ClientWebSocketResponse[bool], what: str) -> ClientWebSocketResponse[bool]:
    if socket.protocol in PROTOCOLS:
        return socket
    await socket.close()
    raise ClusterError(f"{what}: the API server (or a proxy before it) supports neither {V5} nor {V4}")


_rejected_body: ContextVar[bytes] = ContextVar("rejected_body", default=b"")


def _keep_rejections() -> aiohttp.TraceConfig:
    """Return an aiohttp trace that stores the body of a rejected handshake, which has the reason, but which aiohttp discards."""

    async def keep(_session: object, _context: SimpleNamespace, params: aiohttp.TraceRequestEndParams) -> None:
        if params.response.status != 101:
            with suppress(aiohttp.ClientError):
                _rejected_body.set(await params.response.content.read(16 * 1024))

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(keep)
    return trace
