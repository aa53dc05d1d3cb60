"""A proxy between the operator and the API server that cuts connections at chosen points.

It terminates TLS on both sides in order to read the traffic. A point is a kind of request (to the API server, or to a runner in an
exec connection) and a moment in its handling. When a connection reaches a point, the proxy breaks it at random. The probability
falls with the number of connections already broken at this point.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from localkube.config import Config
from localkube.pki import Pki
from multistep.kube.exec import STDIN, STDOUT
from multistep.runner_client.frame_stream import DATA, END, FrameReader
from tests.chaos.websocket import Passing, next_frame

Place = tuple[str, str]  # the kind of request, and the moment in its handling at which to cut
HALF, LOST, LATE = "request cut in half", "response lost", "response late"
ANSWER_HALF, BODY_HALF = "response cut in half", "body cut in half"
LATE_SECONDS = 4.0
FIRST_CHANCE = 0.2
CHUNK_BYTES = 1 << 16

_REQUEST = re.compile(rb"(GET|POST|PUT|PATCH|DELETE) (\S+) HTTP/1.1\r\n")


class Cut(Exception):
    """Raised to end a proxied connection."""


class Chance:
    """Decides at random whether to break a connection at a point. active: False to break none;
    hits: number of broken connections by point."""

    def __init__(self, chance: random.Random) -> None:
        self._random = chance
        self.active = False
        self.hits: Counter[Place] = Counter()

    def breaks(self, what: str, moment: str) -> bool:
        place = (what, moment)
        if not self.active or self._random.random() >= FIRST_CHANCE / (1 + self.hits[place]):
            return False
        self.hits[place] += 1
        return True

    def may_cut(self, what: str, moment: str) -> None:
        if self.breaks(what, moment):
            raise Cut


@dataclass(eq=False)
class Wire:
    """One proxied connection: the client's and the server's streams."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    there_reader: asyncio.StreamReader
    there_writer: asyncio.StreamWriter

    def end(self) -> None:
        """Abort both sides, like a load balancer's reset, without a close handshake."""
        self.writer.transport.abort()
        self.there_writer.transport.abort()


async def _pass_on(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()


async def _cut_in_half(writer: asyncio.StreamWriter, data: bytes) -> None:
    await _pass_on(writer, data[: len(data) // 2])
    raise Cut


@dataclass
class Proxy:
    """The proxy. target: address and port of the API server; inward, outward: TLS contexts towards operator and API server."""

    target: tuple[str, int]
    inward: ssl.SSLContext | None
    outward: ssl.SSLContext | None
    chance: Chance
    execs: int = 0
    _wires: set[Wire] = field(default_factory=set)

    def cut_all(self) -> int:
        """Cut all open connections. Return their number."""
        wires = list(self._wires)
        for wire in wires:
            wire.end()
        return len(wires)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side closes it."""
        try:
            wire = Wire(reader, writer, *await asyncio.open_connection(*self.target, ssl=self.outward))
        except OSError:  # the API server is unavailable
            writer.transport.abort()
            return
        self._wires.add(wire)
        try:
            await self._relay(wire)
        except* (Cut, OSError, EOFError, asyncio.LimitOverrunError):
            pass
        finally:
            self._wires.discard(wire)
            wire.end()

    async def _relay(self, wire: Wire) -> None:
        head = await wire.reader.readuntil(b"\r\n\r\n")
        asked = _REQUEST.match(head)
        if asked and b"/exec?" in asked[2]:
            self.execs += 1
            await Exec(wire, self.chance).relay(head)
        else:
            await Requests(wire, self.chance).relay(head)


@dataclass
class Requests:
    """A connection with ordinary requests and watches. asked: method of the unanswered request, or "watch" during a watch."""

    wire: Wire
    chance: Chance
    asked: str = ""

    async def relay(self, head: bytes) -> None:
        await self._ask(head)
        async with asyncio.TaskGroup() as both:
            both.create_task(self._requests())
            both.create_task(self._answers())

    async def _requests(self) -> None:
        while data := await self.wire.reader.read(CHUNK_BYTES):
            await self._ask(data)
        raise EOFError

    async def _ask(self, data: bytes) -> None:
        if found := _REQUEST.match(data):
            self.asked = "watch" if b"watch=true" in found[2] else found[1].decode()
        await _pass_on(self.wire.there_writer, data)

    async def _answers(self) -> None:
        while data := await self.wire.there_reader.read(CHUNK_BYTES):
            if self.asked:
                self.chance.may_cut(self.asked, LOST)
            if self.asked != "watch":
                self.asked = ""
            await _pass_on(self.wire.writer, data)
        raise EOFError


@dataclass
class Exec:
    """An exec connection. asked: name of the unanswered request to the runner."""

    wire: Wire
    chance: Chance
    asked: str = ""
    _there: FrameReader = field(default_factory=FrameReader)
    _back: FrameReader = field(default_factory=FrameReader)
    _answering: str = ""

    async def relay(self, head: bytes) -> None:
        await _pass_on(self.wire.there_writer, head)
        answer = await self.wire.there_reader.readuntil(b"\r\n\r\n")
        self.chance.may_cut("exec", LOST)
        await _pass_on(self.wire.writer, answer)
        self.chance.may_cut("exec", "just opened")
        async with asyncio.TaskGroup() as both:
            both.create_task(self._requests())
            both.create_task(self._answers())

    async def _requests(self) -> None:
        while True:
            passing = await next_frame(self.wire.reader)
            if passing.payload[:1] == bytes((STDIN,)):
                await self._request(passing)
            await _pass_on(self.wire.there_writer, passing.raw)

    async def _request(self, passing: Passing) -> None:
        self._there.feed(passing.payload[1:])
        for frame in self._there:
            if frame.kind == DATA:
                if self.chance.breaks("upload", BODY_HALF):
                    await _cut_in_half(self.wire.there_writer, passing.raw)
                continue
            self.asked = "end of upload" if frame.kind == END else str(frame.json()["op"])
            if self.chance.breaks(self.asked, HALF):
                await _cut_in_half(self.wire.there_writer, passing.raw)

    async def _answers(self) -> None:
        while True:
            passing = await next_frame(self.wire.there_reader)
            if passing.payload[:1] == bytes((STDOUT,)) and len(passing.payload) > 1:
                await self._answer(passing)
            await _pass_on(self.wire.writer, passing.raw)

    async def _answer(self, passing: Passing) -> None:
        if self.asked:
            self._answering, self.asked = self.asked, ""
            self.chance.may_cut(self._answering, LOST)
            if self.chance.breaks(self._answering, LATE):
                await asyncio.sleep(LATE_SECONDS)
            if self.chance.breaks(self._answering, ANSWER_HALF):
                await _cut_in_half(self.wire.writer, passing.raw)
        self._back.feed(passing.payload[1:])
        if any(frame.kind == DATA for frame in self._back) and self.chance.breaks("download", BODY_HALF):
            await _cut_in_half(self.wire.writer, passing.raw)


@asynccontextmanager
async def proxy(config: Config, listening: socket.socket, chance: Chance) -> AsyncIterator[Proxy]:
    """Run a proxy that presents the API server's own certificate."""
    pki = Pki(config.paths.pki)
    inward = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    inward.load_cert_chain(pki.certificate("apiserver"), pki.key("apiserver"))
    outward = ssl.create_default_context(cafile=str(pki.certificate(pki.ca)))
    found = Proxy((config.network.api_address, config.network.api_port), inward, outward, chance)
    async with serving(found, listening):
        yield found


@asynccontextmanager
async def serving(proxy: Proxy, listening: socket.socket) -> AsyncIterator[None]:
    """Accept connections for the duration; cut all of them at the end."""
    server = await asyncio.start_server(proxy.serve, sock=listening, ssl=proxy.inward)
    try:
        yield
    finally:
        server.close()
        proxy.cut_all()
