"""Streams that break, and runners that violate the protocol."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from contextlib import suppress
from typing import Any

import pytest

from multistep.engine.journal.operations import ResetDirectory, Source
from multistep.errors import InvalidRequest, PodError, RunnerError, StreamLost
from multistep.runner_client.exchange import Printed
from multistep.runner_client.frame_stream import DATA, END, MESSAGE, encode, encode_json
from multistep.runner_client.session import Session
from tests.support.fake_runner import FakeRunner, FakeStream
from tests.support.virtual_time import in_virtual_time
from tests.unit.runner_client.session_cases import OTHER, Scripted, answer, session


async def test_a_request_too_large_to_send_leaves_the_session_usable() -> None:
    async with session(FakeRunner()) as talk:
        with pytest.raises(InvalidRequest, match="exceeds the limit"):
            await talk.start({"id": "1/a/agent", "argv": ["x" * 17_000_000]})
        await talk.hello()


async def everything(talk: Session) -> None:
    await talk.hello()
    await talk.reset("1/a/reset", [ResetDirectory("/logs")])
    await talk.upload("1/a/upload", "/app", b"x" * 600_000)
    await talk.start({"id": "1/a/agent", "argv": ["true"]}, 1)
    await talk.healthcheck({"id": "1/a/healthcheck", "argv": ["true"]})
    await talk.wait("1/a/healthcheck", 1)
    talk.ack("1/a/agent")
    await talk.note("1/a/end", {})
    await talk.download([Source("/a")], lambda _: None)
    await talk.hello()


async def until_done(runner: FakeRunner, **breaks: int) -> int:
    """Run ``everything`` in a session that breaks, then in new ones until it completes; return the number of broken sessions."""
    lost = 0
    while True:
        try:
            async with session(runner, **({} if lost else breaks)) as talk:
                await everything(talk)
                return lost
        except StreamLost:
            lost += 1


@pytest.mark.parametrize("side", ["break_after_sent", "break_after_received"])
async def test_a_stream_lost_at_any_frame_is_lost_and_nothing_is_done_twice(side: str) -> None:
    frames = 0
    while True:
        runner = FakeRunner(files={"/a": b"1" * 200_000})
        lost = await until_done(runner, **{side: frames})
        assert set(runner.starts.values()) == {1}, f"{side}={frames}: {runner.starts}"
        assert len(runner.starts) == 5
        assert len(runner.uploads["1/a/upload"]) == 600_000
        if not lost:
            break
        frames += 1
    assert frames > 12


class Cut:
    """A stream that breaks after a number of sent or received bytes. traffic: the chunks of bytes in each direction."""

    exit_details = ""

    def __init__(self, stream: FakeStream, *, sent: int | None = None, received: int | None = None) -> None:
        self._stream, self._left = stream, {"sent": sent, "received": received}
        self.traffic: dict[str, list[bytes]] = {"sent": [], "received": []}

    async def send(self, data: bytes) -> None:
        await self._stream.send(self._let("sent", data))
        self._check("sent")

    async def receive(self) -> bytes:
        self._check("received")
        data = self._let("received", await self._stream.receive())
        if not data:
            self._check("received")
        return data

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def close(self) -> None:
        await self._stream.close()

    def _let(self, way: str, data: bytes) -> bytes:
        self.traffic[way].append(data)
        left = self._left[way]
        if left is None:
            return data
        self._left[way] = left - len(data)
        return data[: max(0, left)]

    def _check(self, way: str) -> None:
        left = self._left[way]
        if left is not None and left <= 0:
            raise StreamLost("cut")


def inside(chunks: list[bytes]) -> list[int]:
    """Return byte offsets at which a test breaks a stream of these chunks: in the first bytes and in the middle of each chunk."""
    ends = [0, *itertools.accumulate(map(len, chunks))]
    near = {end + offset for end in ends for offset in (1, 3, 5, 6)} | {(a + b) // 2 for a, b in itertools.pairwise(ends)}
    return sorted(each for each in near if 0 < each <= ends[-1])


async def once(stream: FakeStream | Cut, runner: FakeRunner) -> None:
    async with Session(stream, pod_uid="pod-uid", answer_timeout_seconds=30) as talk:
        await everything(talk)


async def test_a_stream_cut_at_any_byte_near_a_frame_is_lost_and_nothing_is_done_twice() -> None:
    calm = FakeRunner(files={"/a": b"1" * 200})
    whole = Cut(calm.stream())
    await once(whole, calm)
    for way in ("sent", "received"):
        places = inside(whole.traffic[way])
        assert len(places) > 50
        for at in places:
            runner = FakeRunner(files={"/a": b"1" * 200})
            with suppress(StreamLost):
                await once(Cut(runner.stream(), **{way: at}), runner)
            await once(runner.stream(), runner)
            assert set(runner.starts.values()) == {1}, f"{way} {at}: {runner.starts}"
            assert len(runner.uploads["1/a/upload"]) == 600_000


HOSTILE = {
    "no frame": b"HTTP/1.1 400 Bad Request",
    "a body": encode(DATA, b"x"),
    "no object": encode(MESSAGE, b"[]"),
    "neither yes nor no": encode_json(MESSAGE, {}),
    "a no without a reason": encode_json(MESSAGE, {"ok": False}),
    "a truthy yes": encode_json(MESSAGE, {"ok": 1}),
    "no record": answer(),
    "another record": answer(record=OTHER),
    "another operation": answer(record={**OTHER, "id": "1/a/agent", "op": "reset", "state": "done", "result": {}}),
}


@pytest.mark.parametrize("reply_text", HOSTILE.values(), ids=HOSTILE)
async def test_a_senseless_answer_is_a_protocol_error(reply_text: bytes) -> None:
    talk = Session(Scripted(reply_text), pod_uid="u")
    with pytest.raises(RunnerError) as caught:
        await talk.start({"id": "1/a/agent", "argv": ["true"]})
    assert caught.value.code == "Protocol"


END_OF_1 = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
BODIES: dict[str, tuple[list[bytes], type[PodError]]] = {
    "wrong digest": ([encode(DATA, b"y"), encode_json(END, END_OF_1)], StreamLost),
    "wrong size": ([encode(DATA, b"xx"), encode_json(END, END_OF_1)], StreamLost),
    "cut": ([encode(DATA, b"x")], StreamLost),
    "an answer inside": ([encode(DATA, b"x"), answer()], RunnerError),
    "gave up": ([encode_json(END, {"error": "EIO", "size": 0, "sha256": ""})], RunnerError),
    "no end": ([encode(END, b"{}")], RunnerError),
}


@pytest.mark.parametrize(("frames", "error"), BODIES.values(), ids=BODIES)
async def test_a_body_that_is_not_what_was_sent_is_never_taken(frames: list[bytes], error: type[PodError]) -> None:
    talk = Session(Scripted(answer(sources=[{"type": "file"}]), *frames), pod_uid="u")
    with pytest.raises(PodError) as caught:
        await talk.download([Source("/a")], lambda _: None)
    assert type(caught.value) is error


@pytest.mark.parametrize("types", [[], [{"type": "file"}, {"type": "file"}], [{"type": "socket"}], None, [5]], ids=str)
async def test_types_must_match_the_sources(types: object) -> None:
    talk = Session(Scripted(answer(sources=types)), pod_uid="u")
    with pytest.raises(RunnerError):
        await talk.download([Source("/a")], lambda _: None)


async def test_silence_ends_at_the_time_limit_and_so_does_the_session() -> None:
    talk = Session(Scripted(silent=True), pod_uid="u", answer_timeout_seconds=0.01)
    with pytest.raises(StreamLost, match=r"silent for 0\.01 s"):
        await talk.hello()
    with pytest.raises(StreamLost, match="cannot be used any more"):
        await talk.hello()


@in_virtual_time
async def test_wait_adds_its_own_time_to_the_limit() -> None:
    runner = FakeRunner()
    talk = Session(runner.stream(delay_seconds=0.05), pod_uid="u", answer_timeout_seconds=0.03)
    runner.answer({"op": "start", "id": "1/a/agent", "argv": []})
    assert (await talk.wait("1/a/agent", 1)).done


async def test_a_request_left_in_the_middle_ends_the_session() -> None:
    talk = Session(Scripted(silent=True), pod_uid="u")
    request = asyncio.create_task(talk.hello())
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    with pytest.raises(StreamLost, match="was interrupted"):
        await talk.hello()


async def test_requests_of_several_tasks_take_turns() -> None:
    runner = FakeRunner()
    async with session(runner, chunk_bytes=7) as talk:
        ids = [f"1/a/{n}" for n in range(20)]
        records = await asyncio.gather(*(talk.note(id, {"id": id}) for id in ids))
    assert [record.id for record in records] == ids


async def test_an_early_end_shows_what_the_relay_printed() -> None:
    stream = Scripted()
    stream.exit_details = "PID 1 is away"
    with pytest.raises(StreamLost, match="ended early: PID 1 is away"):
        await Session(stream, pod_uid="u").hello()


async def test_closing_never_raises() -> None:
    stream = FakeRunner().stream()
    stream.broken = True
    talk = Session(stream, pod_uid="u")
    await talk.close()
    assert isinstance(stream, FakeStream)
    assert stream.closed


async def test_what_a_phase_printed_is_read_in_parts_and_changes_nothing() -> None:
    runner = FakeRunner(finish="manual")
    async with session(runner) as talk:
        await talk.hello(records=False)
        with pytest.raises(RunnerError) as refused:
            await talk.output("1/a/agent", 0, 10)
        assert refused.value.code == "NotFound"
        await talk.start({"id": "1/a/agent", "argv": ["x"]})
        runner.printed["1/a/agent"] = b"\xff" * 15
        assert await talk.output("1/a/agent", 10, 10) == Printed(15, 10, b"\xff" * 5, done=False)
        runner.end("1/a/agent")
        assert (await talk.output("1/a/agent", 15, 10)).done and not runner.ready


@pytest.mark.parametrize("shown", [{"base64": "?"}, {"base64": "eA" * 40}, {"base64": 1}, {"state": "x"}, {"size": "1"}])
async def test_a_hostile_output_is_refused(monkeypatch: pytest.MonkeyPatch, shown: dict[str, Any]) -> None:
    runner = FakeRunner()
    monkeypatch.setattr(
        runner, "_output", lambda *_: {"ok": True, "state": "done", "size": 1, "from": 0, "base64": "eA==", **shown}
    )
    async with session(runner) as talk:
        await talk.hello()
        with pytest.raises(RunnerError):
            await talk.output("1/a/agent", 0, 10)
