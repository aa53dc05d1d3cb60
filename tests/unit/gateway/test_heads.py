"""An agent cannot fill the gateway's memory with heads of requests that it does not finish, or occupy all its connections."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.gateway.http import limit_connections
from multistep.gateway.http.limit_connections import ConnectionLimits
from multistep.gateway.http.servers import running_gateway
from multistep.gateway.settings import GatewaySettings
from tests.unit.gateway.world import World, request_of, token_for, world, write_secrets

START = b"POST /openai/v1/chat/completions HTTP/1.1\r\nHost: gateway\r\n"


class Client:
    """A connection to the gateway."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, *pieces: bytes) -> None:
        with suppress(ConnectionError):
            for each in pieces:
                self.writer.write(each)
                await self.writer.drain()
                await asyncio.sleep(0.02)

    async def closed(self) -> None:
        """Wait until the gateway has closed the connection."""
        with suppress(ConnectionError):
            async with asyncio.timeout(60):
                assert await self.reader.read(1) == b""

    async def answer(self) -> tuple[int, bytes]:
        """Return the status and the body of the next answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        (length,) = [int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        return int(head.split()[1]), await self.reader.readexactly(length)


@asynccontextmanager
async def clients(it: World, number: int = 1) -> AsyncIterator[list[Client]]:
    """Open connections to the gateway."""
    found = [Client(*await asyncio.open_connection("127.0.0.1", it.port)) for _ in range(number)]
    try:
        yield found
    finally:
        for each in found:
            each.writer.close()
            with suppress(ConnectionError):
                await each.writer.wait_closed()


def chat(headers: Mapping[str, str], *, stream: bool = False) -> tuple[bytes, bytes]:
    """Return the head and the body of a chat request."""
    _, own, document = request_of("chat", "gpt-5-mini", token_for("chat"), stream=stream)
    body = json.dumps(document).encode()
    lines = {**own, **headers, "Content-Type": "application/json", "Content-Length": str(len(body))}
    return START + "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode() + b"\r\n", body


async def test_a_connection_serves_a_request_that_follows_a_stream_at_once(tmp_path: Path) -> None:
    head, body = chat({}, stream=True)

    def converse(port: int) -> list[bytes]:
        """Send each request as soon as the answer to the previous one has ended. Return the answers."""
        answers = []
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            for _ in range(20):
                connection.sendall(head + body)
                answer = b""
                while not answer.endswith(b"0\r\n\r\n") and (piece := connection.recv(65536)):
                    answer += piece
                answers.append(answer)
        return answers

    async with world(tmp_path) as it:
        answers = await asyncio.to_thread(converse, it.port)
    assert [each[:15] for each in answers] == [b"HTTP/1.1 200 OK"] * 20


async def test_a_head_that_does_not_end_is_cut_off(tmp_path: Path) -> None:
    async with world(tmp_path) as it, clients(it) as (client,):
        await client.send(START, *(b"x-%d: %s\r\n" % (number, b"a" * 4000) for number in range(10)))
        await client.closed()


async def test_an_address_may_have_so_many_unfinished_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_connections, "MAX_UNFINISHED", 3)
    async with world(tmp_path) as it, clients(it, 5) as found:
        for each in found[:4]:
            await each.send(START)
        await found[3].closed()
        assert not any(each.reader.at_eof() for each in found[:3])
        await found[4].send(*chat({}))  # a head that arrives in one piece does not count as unfinished
        assert (await found[4].answer())[0] == 200
        found[0].writer.close()
        await found[0].writer.wait_closed()
        await found[4].send(START)
        for each in (found[1], found[2], found[4]):  # the gateway did not close them, so it answers when their heads end
            await each.send(b"\r\n")
            assert (await each.answer())[0] == 401


async def test_an_address_may_have_so_many_connections_and_a_further_one_replaces_its_oldest_idle_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit_connections, "MAX_CONNECTIONS", 3, raising=False)
    async with world(tmp_path) as it, clients(it, 5) as found:
        for each in found[:2]:
            await each.closed()
        for each in found[2:]:
            await each.send(*chat({}))
            assert (await each.answer())[0] == 200


class Peer(asyncio.Transport):
    """A connection from an address, which the gateway may break."""

    def __init__(self, address: str, connections: ConnectionLimits) -> None:
        super().__init__({"peername": (address, 1)})
        self.broken, self.protocol = False, connections.connection()
        self.protocol.connection_made(self)

    def abort(self) -> None:
        self.broken = True

    def lose(self) -> None:
        self.protocol.connection_lost(None)


async def test_at_the_bound_the_address_with_the_most_connections_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_connections, "MAX_CONNECTIONS", 8)
    connections = ConnectionLimits(asyncio.Protocol, 20)
    crowd = [Peer(f"10.0.0.{each % 3}", connections) for each in range(30)]
    assert [each.broken for each in crowd] == [False] * 20 + [True] * 10  # an attacker's own connections are refused
    busy = crowd[:18]
    for each in busy:
        each.protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
    victims = [Peer(f"10.1.0.{each}", connections) for each in range(3)]
    assert [each.broken for each in victims] == [False, False, True], "only idle connections make room"
    assert [each.broken for each in crowd[:20]] == [False] * 18 + [True] * 2
    for each in (*crowd, *victims):
        each.lose()
    assert not connections._connections and connections._total == 0
    again = [Peer("10.0.0.1", connections) for _ in range(8)]
    assert not any(each.broken for each in again)
    for each in again:
        each.lose()


async def test_a_process_cannot_keep_others_of_its_address_from_connecting_with_idle_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a process that the agent left could keep the tests from asking their judge, and the gateway would not know."""
    monkeypatch.setattr(limit_connections, "MAX_CONNECTIONS", 8)
    connections = ConnectionLimits(asyncio.Protocol, 20)
    held = [Peer("10.0.0.1", connections) for _ in range(8)]
    tests = Peer("10.0.0.1", connections)
    assert [each.broken for each in (*held, tests)] == [True] + [False] * 8
    for each in (*held[1:], tests):
        each.protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
    assert Peer("10.0.0.1", connections).broken, "only idle connections make room"
    for each in (*held, tests):
        each.lose()
    assert not connections._connections and connections._total == 0


async def test_a_connection_that_sends_no_request_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limit_connections, "HEAD_SECONDS", 0.05)
    async with world(tmp_path) as it, clients(it, 2) as (silent, slow):
        await slow.send(START)
        await silent.closed()
        await slow.closed()


async def test_probes_have_a_port_of_their_own(tmp_path: Path) -> None:
    settings = GatewaySettings(**write_secrets(tmp_path))
    async with running_gateway(settings) as ports, aiohttp.ClientSession() as http:
        async with http.get(f"http://127.0.0.1:{ports.probe_port}/healthz") as answer:
            assert (answer.status, await answer.text()) == (200, "ok")
        async with http.get(f"http://127.0.0.1:{ports.admin_port}/healthz") as answer:
            assert answer.status == 401


async def test_the_gateway_uses_all_file_descriptors_that_it_may_have(tmp_path: Path) -> None:
    """Many container runtimes give a process 1024 descriptors at first. One agent could occupy them, and all trials would fail."""
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, most - 1), most))
    try:
        async with world(tmp_path):
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))


async def test_each_head_of_a_connection_is_limited_and_no_body_is(tmp_path: Path) -> None:
    async with world(tmp_path) as it, clients(it) as (client,):
        for _ in range(2):
            head, body = chat({"X-Large": "a" * 7000})
            padded = body[:-1] + b" " * 100_000 + b"}"
            head = head.replace(f"Content-Length: {len(body)}".encode(), f"Content-Length: {len(padded)}".encode())
            await client.send(b"\r\n" + head[:100], head[100:5000], head[5000:] + padded[:10], padded[10:50_000], padded[50_000:])
            assert (await client.answer())[0] == 200
        await client.send(START + b"x: " + b"a" * 8000 + b"\r\n", *[b"y: " + b"a" * 8000 + b"\r\n"] * 4)
        await client.closed()


async def test_the_head_after_an_expectation_that_fails_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp answers a failed expectation before it calls any handler."""
    monkeypatch.setattr("multistep.gateway.http.servers._KEEPALIVE_SECONDS", 3600.0)  # only the limit can end the connection
    async with world(tmp_path) as it, clients(it) as (client,):
        await client.send(START + b"Expect: nothing\r\n\r\n")
        assert (await client.answer())[0] == 417
        await client.send(START, *(b"x-%d: %s\r\n" % (number, b"a" * 4000) for number in range(10)))
        await client.closed()


@pytest.mark.parametrize("body", [b"", b"Content-Length: 5\r\n\r\nabcde"])
async def test_no_head_may_begin_before_the_answer_to_the_request_before(tmp_path: Path, body: bytes) -> None:
    """The gateway would not count the bytes of such a head."""
    async with world(tmp_path) as it, clients(it) as (client,):
        await client.send(START + (body or b"\r\n") + START + b"x: " + b"a" * 8000)
        assert (await client.answer())[0] == 401
        await client.closed()


async def test_an_answer_before_the_end_of_the_body_reaches_the_agent(tmp_path: Path) -> None:
    async with world(tmp_path) as it, clients(it) as (client,):
        await client.send(START + b"Content-Length: 200000\r\n\r\n", b"a" * 100_000)
        assert (await client.answer())[0] == 401
        await client.send(b"a" * 100_000)
        await client.closed()


class Recorder(asyncio.Protocol):
    """Records what it receives."""

    def __init__(self) -> None:
        self.received = b""

    def data_received(self, data: bytes) -> None:
        self.received += data


@given(data=st.data(), after=st.binary(max_size=20))
async def test_a_head_is_passed_on_unchanged_in_whatever_pieces_it_arrives(data: st.DataObject, after: bytes) -> None:
    made = Recorder()
    found = ConnectionLimits(lambda: made)
    connection = found.connection()
    connection.connection_made(asyncio.Transport({"peername": ("10.0.0.1", 1)}))
    stream = b"\r\nGET / HTTP/1.1\r\nA: b\r\n\r\n" + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        connection.data_received(stream[start:end])
        assert sum(found.unfinished.values()) <= 1
    assert made.received == stream and not found.unfinished
    connection.connection_lost(None)
