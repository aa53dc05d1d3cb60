"""The trial's daemon, which keeps the agent object between steps and serves one request at a time on a Unix socket.

`multistep-host setup` creates the listening socket and passes it to the daemon. A request is one line of JSON, and its answer is
another. Lines {"output": BASE64} with the output of the agent's commands precede a step's answer. The container's runner kills the
client at the timeout. If the client disconnects, the daemon cancels the client's request.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import socket
import struct
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from multistep_host import litellm_stub
from multistep_host.outcome import Outcome, host_error, outcome
from multistep_host.transcript import Send

MAX_REQUEST_BYTES = 4 << 20
_CANCEL_SECONDS = 10.0
_CREDENTIALS = struct.Struct("3i")
_log = logging.getLogger(__name__)


class Daemon:
    """Serves the requests of a trial, whose Harbor trial directory is `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()
        self._agent: Any = None  # a TrialAgent. Its type is not imported, because Harbor must be imported after the litellm stub

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which carries one request."""
        try:
            if _peer_uid(writer) != os.getuid():
                return
            request = json.loads(await reader.readline())
            answer = await self._while_connected(reader, request, partial(_send_output, writer))
            if answer is not None:
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            _log.exception("a client's connection failed")
        finally:
            writer.close()

    async def _while_connected(self, reader: asyncio.StreamReader, request: dict[str, Any], send: Send) -> Outcome | None:
        """Return the request's outcome, or None if the client disconnected first."""
        work = asyncio.create_task(self._handle(request, send))
        gone = asyncio.create_task(reader.read())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            gone.cancel()
            return work.result()
        _log.warning("the client went away: its request is cancelled")
        work.cancel()
        if self._agent is not None:
            self._agent.dismiss()
        await asyncio.wait({work}, timeout=_CANCEL_SECONDS)
        if not work.done():  # the agent's state is unknown, so the daemon exits
            _log.error("the agent did not stop within %s s: the daemon ends", _CANCEL_SECONDS)
            os._exit(1)
        return None

    async def _handle(self, request: dict[str, Any], send: Send) -> Outcome:
        async with self._turn:
            try:
                return await (self._setup(request) if "agent" in request else self._step(request, send))
            except Exception as error:
                _log.exception("a request failed")
                return outcome(error=host_error(f"{type(error).__name__}: {error}"))

    async def _setup(self, raw: dict[str, Any]) -> Outcome:
        user = raw.get("user")
        if litellm_stub.suffices(raw["agent"]) and (user is None or litellm_stub.suffices(user["agent"])):
            litellm_stub.install()
        from multistep_host.phase_requests import SetupRequest
        from multistep_host.trial import TrialAgent, failed_creation

        request = SetupRequest.model_validate(raw)
        try:
            self._agent = TrialAgent.create(request, self._directory)
        except Exception as error:
            _log.exception("the agent cannot be created")
            return failed_creation(error)
        result: Outcome = await self._agent.setup(request)
        return result

    async def _step(self, raw: dict[str, Any], send: Send) -> Outcome:
        if self._agent is None:
            return outcome(error=host_error("the agent host has no agent: its setup failed"))
        from multistep_host.phase_requests import StepRequest

        result: Outcome = await self._agent.step(StepRequest.model_validate(raw), send)
        return result


async def _send_output(writer: asyncio.StreamWriter, block: bytes) -> None:
    with suppress(ConnectionError):  # if the client disconnected, _while_connected cancels the request
        writer.write(json.dumps({"output": base64.b64encode(block).decode()}).encode() + b"\n")
        await writer.drain()


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    connection = writer.get_extra_info("socket")
    _, uid, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(uid)


async def _run(listener: socket.socket, directory: Path) -> None:
    server = await asyncio.start_unix_server(Daemon(directory).serve, sock=listener, limit=MAX_REQUEST_BYTES)
    await server.serve_forever()


def main(descriptor: int, directory: Path) -> None:
    """Serve on the listening socket with this file descriptor until the container ends."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise the import of litellm downloads a price list
    with socket.socket(fileno=descriptor) as listener:
        listener.setblocking(False)
        asyncio.run(_run(listener, directory))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
