"""Guest sessions, which are connections of the agent host to the environment's runner, to run commands and transfer files there.

The environment's runner listens on an abstract Unix socket, which all containers of the pod can reach. The operator permits the
sessions with an admission, which has a secret token. Both sides prove by HMAC that they know the token, so that a root process in
the environment cannot impersonate the runner.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from multistep_host.frames import DATA, JSON, Connection, GuestError, RefusedError, TransferError, parse_answer
from multistep_host.output import BoundedOutput
from multistep_host.transcript import Send, discard

_HANDSHAKE_SECONDS = 10.0
_CONNECTIONS = 32  # maximum number of simultaneous connections. The runner accepts 64
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True)
class Admission:
    """The right to use the environment's runner."""

    id: str
    token: bytes = field(repr=False)
    """The secret that the operator and the runner share."""
    socket: str
    """Name of the runner's abstract socket, without `@`."""


@dataclass(frozen=True)
class Command:
    """A command to run in the environment."""

    argv: Sequence[str]
    user: str = ""
    """The user's name or ID, or "" for the admission's user."""
    cwd: str = ""
    """The working directory, or "" for that of the container."""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None
    """In seconds, or None for no timeout."""


@dataclass(frozen=True)
class CommandResult:
    """The output and the result of a finished command."""

    stdout: str
    stderr: str
    phase: Mapping[str, Any]
    """The runner's result, with the fields of a phase (`start` in docs/internals/runner-protocol.md)."""


class Guest:
    """Runs commands and transfers files in the environment, with the admission that `admit` sets and `dismiss` removes.

    `show` is called with each block that a command prints to stdout or stderr.
    """

    def __init__(self) -> None:
        self.show: Send = discard
        self._admission: Admission | None = None
        self._connections: set[Connection] = set()
        self._slots = asyncio.Semaphore(_CONNECTIONS)

    def admit(self, admission: Admission) -> None:
        """Use this admission for all further connections."""
        self._admission = admission

    def dismiss(self) -> None:
        """Close all connections, so that the runner kills their commands. No connection can be opened until the next `admit`."""
        self._admission = None
        for connection in tuple(self._connections):
            connection.close()

    async def execute(self, command: Command) -> CommandResult:
        """Run a command and return its result and output.

        Raises:
            RefusedError: the runner does not permit the command, for example as another user.
            GuestError: the connection to the runner failed.
        """
        outputs = {_STDOUT: BoundedOutput(), _STDERR: BoundedOutput()}
        async with self._connect() as connection:
            await connection.request(_exec_request(command))
            while True:
                kind, payload = await connection.frame()
                if kind == JSON:
                    phase = parse_answer(payload)["result"]
                    return CommandResult(outputs[_STDOUT].text(), outputs[_STDERR].text(), phase)
                if kind != DATA or not payload or payload[0] not in outputs:
                    raise GuestError("the environment's runner sent output of an unknown stream")
                outputs[payload[0]].write(payload[1:])
                await self.show(payload[1:])

    async def upload(self, archive: IO[bytes], target: str) -> None:
        """Unpack a tar archive into a directory, whose other files remain. The admission's user owns the new files.

        Raises:
            RefusedError: the environment rejects the upload, for example because its disk is full.
            GuestError: the connection to the runner failed.
        """
        async with self._connect() as connection:
            await connection.request({"op": "upload", "user": "", "target": target})
            await connection.answer()
            await connection.send_body(archive)
            await connection.answer()

    async def download(self, path: str, kind: str, write: Callable[[bytes], object], limit: int) -> None:
        """Pass a tar stream of the path to `write`. The kind is "file" or "directory", and the limit is the stream's maximum number
        of bytes.

        Raises:
            TransferError: the path does not exist, is not of this kind, or is larger than the limit.
            GuestError: the connection to the runner failed, or the stream is damaged.
        """
        async with self._connect() as connection:
            await connection.request({"op": "download", "sources": [{"path": path}]})
            answer = await connection.answer()
            found = answer["sources"][0]["type"]
            if found != kind:
                raise TransferError(f"{path} in the environment is {'missing' if found == 'missing' else f'not a {kind}'}")
            await connection.receive_body(write, limit)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Connection]:
        admission = self._admission
        if admission is None:
            raise GuestError("the environment admits no commands between the agent's steps")
        async with self._slots:
            connection = await _open(admission.socket)
            self._connections.add(connection)
            try:
                await _handshake(connection, admission)
                yield connection
            finally:
                self._connections.discard(connection)
                connection.close()


async def _open(socket: str) -> Connection:
    try:
        return Connection(*await asyncio.open_unix_connection("\0" + socket))
    except OSError as error:
        raise GuestError(f"the environment's runner cannot be reached: {error}") from error


async def _handshake(connection: Connection, admission: Admission) -> None:
    nonce = secrets.token_hex(16)
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await connection.request({"admission": admission.id, "nonce": nonce})
            answer = await connection.answer()
            theirs = str(answer.get("nonce"))
            if not hmac.compare_digest(str(answer.get("proof")), proof(admission.token, "runner", nonce, theirs)):
                raise GuestError("the process at the environment's socket does not know the admission's token")
            await connection.request({"proof": proof(admission.token, "guest", theirs, nonce)})
            await connection.answer()
    except RefusedError as error:
        raise GuestError(f"the environment's runner does not admit the agent host: {error}") from error
    except TimeoutError as error:
        raise GuestError(f"the environment's runner did not answer within {_HANDSHAKE_SECONDS} s") from error


def proof(token: bytes, role: str, theirs: str, ours: str) -> str:
    """Return the HMAC by which `role` proves that it knows the token. `theirs` is the verifying side's nonce, and `ours` is that of
    `role`."""
    return hmac.new(token, f"{role}\0{theirs}\0{ours}\0".encode(), hashlib.sha256).hexdigest()


def _exec_request(command: Command) -> dict[str, Any]:
    return {
        "op": "exec",
        "argv": list(command.argv),
        "user": command.user,
        "cwd": command.cwd,
        "env": dict(command.env),
        "timeoutSeconds": command.timeout,
    }
