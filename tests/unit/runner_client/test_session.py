from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import tarfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from multistep.engine.operations import Directory, Source
from multistep.errors import CollectionCut, NoCommonProtocol, PodError, RunnerError, StoreError, StreamLost
from multistep.runner_client.answers import Printed
from multistep.runner_client.frames import DATA, END, MESSAGE, encode, encode_json
from multistep.runner_client.session import Session
from tests.support.fake_runner import FakeRunner, FakeStream

Talk = Callable[[Session], Awaitable[object]]


def session(runner: FakeRunner, **breaks: float) -> Session:
    return Session(runner.stream(**breaks), pod_uid="pod-uid", answer_timeout_seconds=30)


async def test_hello_reports_who_the_runner_is_and_what_it_did() -> None:
    runner = FakeRunner()
    async with session(runner) as talk:
        await talk.note("1/a/begin", {"x": 1})
        hello = await talk.hello()
    assert (hello.pod_uid, hello.user.name, hello.workdir) == ("pod-uid", "root", "/app")
    assert [record.id for record in hello.records] == ["1/a/begin"]
    assert runner.streams[0].closed


async def test_hello_reports_the_whole_result_of_phases_that_were_acknowledged_long_ago() -> None:
    shown = {"tail": "bye", "captures": {"/r": {"base64": "MQ==", "size": 1, "truncated": False}}}
    ids = [f"1/a/{number}" for number in range(100)]
    runner = FakeRunner(results=dict.fromkeys(ids, shown), finish="at_once")
    async with session(runner) as talk:
        for id in ids:
            await talk.start({"id": id, "argv": ["true"]})
            talk.ack(id)
    async with session(runner) as talk:
        hello = await talk.hello()
        talk.ack(ids[0])
    assert [record.id for record in hello.records] == ids
    assert all(record.result is not None and shown.items() <= record.result.items() for record in hello.records)


async def test_a_runner_of_another_pod_is_refused() -> None:
    async with session(FakeRunner("another")) as talk:
        with pytest.raises(PodError, match="'another'"):
            await talk.hello()


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"),
    [((2, 1), {1}, 1), ((1,), {1, 2}, 1), ((2, 1), {2, 1}, 2)],
    ids=["after an upgrade", "after a rollback", "in one release"],
)
async def test_the_highest_protocol_that_both_speak_is_agreed_on(
    monkeypatch: pytest.MonkeyPatch, ours: tuple[int, ...], theirs: set[int], agreed: int
) -> None:
    monkeypatch.setattr("multistep.runner_client.session.PROTOCOLS", ours)
    runner = FakeRunner()
    runner.protocols = theirs
    async with session(runner) as talk:
        assert (await talk.hello()).protocol == agreed


async def test_a_runner_of_a_release_too_far_away_is_distinguished_from_a_broken_one() -> None:
    runner = FakeRunner()
    runner.protocols = {7, 8}
    async with session(runner) as talk:
        with pytest.raises(NoCommonProtocol, match=r"speaks protocols \[7, 8\], this operator 2, 1"):
            await talk.hello()


async def test_a_phase_is_started_awaited_and_acknowledged() -> None:
    runner = FakeRunner(results={"1/a/agent": {"exitCode": 3}})
    async with session(runner) as talk:
        assert not (await talk.start({"id": "1/a/agent", "argv": ["true"]})).done
        record = await talk.wait("1/a/agent", 5)
        assert record.result is not None
        assert record.result["exitCode"] == 3
        assert not runner.ready
        talk.ack("1/a/agent")
    assert runner.ready


async def test_a_phase_is_started_and_awaited_by_one_write_and_its_acknowledgement_goes_with_the_next_request() -> None:
    runner = FakeRunner()
    writes: list[str] = []
    async with Session(runner.stream(), pod_uid="pod-uid", moved=lambda direction, _: writes.append(direction)) as talk:
        assert (await talk.start({"id": "1/a/agent", "argv": ["true"]}, 5)).done
        talk.ack("1/a/agent")
        assert (await talk.healthcheck({"id": "1/a/healthcheck", "argv": ["true"]}, 5)).done
    assert [each["op"] for each in runner.requests] == ["start", "wait", "ack", "healthcheck", "wait"]
    assert writes.count("up") == 2


async def test_a_refusal_to_start_is_reported_when_the_wait_was_answered_too_and_the_session_continues() -> None:
    async with session(FakeRunner()) as talk:
        await talk.note("1/a/begin", {})
        with pytest.raises(RunnerError) as caught:
            await talk.start({"id": "1/a/begin", "argv": ["true"]}, 5)
        assert caught.value.code == "Conflict"
        await talk.hello()


@pytest.mark.parametrize("ask", ["note", "upload", "download"])
async def test_a_runner_that_takes_no_acknowledgement_is_not_talked_to_any_more(ask: str) -> None:
    async with session(FakeRunner()) as talk:
        talk.ack("1/a/gone")
        with pytest.raises(RunnerError, match="rejected an acknowledgement") as caught:
            match ask:
                case "note":
                    await talk.note("1/a/end", {})
                case "upload":
                    await talk.upload("1/a/upload", "/app", b"x")
                case _:
                    await talk.download([Source("/a")], lambda _: None)
        assert caught.value.code == "Protocol"
        with pytest.raises(StreamLost, match="cannot be used any more"):
            await talk.hello()


async def test_large_answers_to_acknowledgements_and_refusals_are_not_kept() -> None:
    large = "x" * 1_000_000
    refusal = encode_json(MESSAGE, {"ok": False, "error": {"code": "Busy", "message": large}})
    answers = [answer(record={**OTHER, "tail": large}) for _ in range(50)] + [refusal, refusal]
    talk = Session(Scripted(*answers), pod_uid="u")
    for number in range(50):
        talk.ack(f"1/{number}/agent")
    tracemalloc.start()
    with pytest.raises(RunnerError):
        await talk.start({"id": "1/a/agent", "argv": ["true"]}, 5)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20_000_000


async def test_a_session_that_was_lost_acknowledges_nothing() -> None:
    runner = FakeRunner(finish="at_once")
    async with session(runner, break_after_received=1) as talk:
        await talk.start({"id": "1/a/agent", "argv": ["true"]})
        with pytest.raises(StreamLost):
            await talk.hello()
        talk.ack("1/a/agent")
    assert not runner.ready and [each["op"] for each in runner.requests] == ["start", "hello"]


async def test_asking_twice_starts_once() -> None:
    runner = FakeRunner()
    async with session(runner) as talk:
        first = await talk.start({"id": "1/a/agent", "argv": ["true"]})
        again = await talk.start({"id": "1/a/agent", "argv": ["true"]})
    assert first == again
    assert runner.starts == {"1/a/agent": 1}


async def test_the_runners_no_is_an_error_with_its_code_and_the_session_continues() -> None:
    async with session(FakeRunner()) as talk:
        with pytest.raises(RunnerError) as caught:
            await talk.wait("1/none", 1)
        assert caught.value.code == "NotFound"
        assert (await talk.hello()).records == ()


async def test_directories_are_reset_as_asked() -> None:
    runner = FakeRunner()
    async with session(runner) as talk:
        await talk.reset("1/a/reset", [Directory("/logs/agent", 0o777, "bob"), Directory("/app", keep=True)])
    assert runner.requests[0]["directories"] == [
        {"path": "/logs/agent", "mode": 511, "user": "bob"},
        {"path": "/app", "mode": 511, "user": "", "keep": True},
    ]


async def pieces() -> AsyncIterator[bytes]:
    for _ in range(5):
        yield b"x" * 300_000


@pytest.mark.parametrize(
    ("body", "size"),
    [(b"", 0), (b"abc", 3), ([b"a", b"", b"bc"], 3), (b"x" * 3_000_000, 3_000_000), ([b"y" * 512] * 5000, 2_560_000)],
    ids=["nothing", "bytes", "pieces", "one large", "many small"],
)
async def test_a_body_arrives_whole_however_it_was_cut(body: bytes | list[bytes], size: int) -> None:
    runner = FakeRunner()
    async with session(runner) as talk:
        assert (await talk.upload("1/a/upload", "/app", body)).done
    assert runner.uploads["1/a/upload"] == (body if isinstance(body, bytes) else b"".join(body))
    assert len(runner.uploads["1/a/upload"]) == size


async def test_a_body_may_come_asynchronously() -> None:
    runner = FakeRunner()
    async with session(runner) as talk:
        await talk.upload("1/a/upload", "/app", pieces())
    assert len(runner.uploads["1/a/upload"]) == 1_500_000


async def test_an_upload_that_was_done_is_not_sent_again() -> None:
    runner = FakeRunner()
    async with session(runner) as talk:
        await talk.upload("1/a/upload", "/app", b"first")
        await talk.upload("1/a/upload", "/app", b"second")
    assert runner.uploads["1/a/upload"] == b"first"


async def test_a_source_that_fails_leaves_no_upload_behind() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"some"
        raise StoreError("disk on fire")

    runner = FakeRunner()
    async with session(runner) as talk:
        with pytest.raises(StoreError, match="on fire"):
            await talk.upload("1/a/upload", "/app", failing())
    assert runner.uploads == {}
    async with session(runner) as talk:
        await talk.upload("1/a/upload", "/app", b"whole")
    assert runner.uploads == {"1/a/upload": b"whole"}


async def test_a_download_brings_every_file_and_its_digest() -> None:
    runner = FakeRunner(files={"/app/a": b"A" * 100_000, "/logs": {"x/y": b"1", "z": b"2"}})
    got: list[bytes] = []
    async with session(runner) as talk:
        sources = [Source("/app/a"), Source("/none"), Source("/logs", ("*.tmp",))]
        result = await talk.download(sources, got.append)
        await talk.hello()
    data = b"".join(got)
    assert result.types == ("file", "missing", "directory")
    assert (result.size, result.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["0", "2/x/y", "2/z"]
    assert runner.requests[0]["sources"][2] == {"path": "/logs", "exclude": ["*.tmp"]}


async def test_a_sink_may_be_asynchronous_and_its_error_is_the_callers() -> None:
    async def full(_data: bytes) -> None:
        raise StoreError("no space left")

    async with session(FakeRunner(files={"/a": b"1"})) as talk:
        with pytest.raises(StoreError, match="no space"):
            await talk.download([Source("/a")], full)
        with pytest.raises(StreamLost, match="was interrupted"):  # the rest of the body is still in transit
            await talk.hello()


async def test_a_download_has_a_limit() -> None:
    async with session(FakeRunner(files={"/a": b"1" * 100_000})) as talk:
        with pytest.raises(RunnerError) as caught:
            await talk.download([Source("/a")], lambda _: None, max_bytes=50_000)
    assert caught.value.code == "TooLarge"


async def test_a_download_is_cut_off_when_its_sink_takes_no_more() -> None:
    def full(_: bytes) -> None:
        raise CollectionCut("no room")

    async with session(FakeRunner(files={"/a": b"1" * 100_000})) as talk:
        result = await talk.download([Source("/a"), Source("/none")], full)
        assert (result.types, result.cut) == (("file", "missing"), "no room")
        with pytest.raises(StreamLost, match="cut off"):
            await talk.hello()


async def test_a_trickled_download_is_cut_off_at_its_timeout_and_what_came_is_kept() -> None:
    got: list[bytes] = []

    async def slow(data: bytes) -> None:
        got.append(data)
        await asyncio.sleep(0.04)

    async with session(FakeRunner(files={"/a": b"1" * 2_000_000})) as talk:
        result = await talk.download([Source("/a")], slow, timeout_seconds=0.05)
    assert result.cut == "it took longer than 0.05 s" and result.types == ("file",) and got


async def test_a_request_too_large_to_send_leaves_the_session_usable() -> None:
    async with session(FakeRunner()) as talk:
        with pytest.raises(RunnerError) as caught:
            await talk.start({"id": "1/a/agent", "argv": ["x" * 17_000_000]})
        assert caught.value.code == "TooLarge"
        await talk.hello()


async def everything(talk: Session) -> None:
    await talk.hello()
    await talk.reset("1/a/reset", [Directory("/logs")])
    await talk.upload("1/a/upload", "/app", b"x" * 600_000)
    await talk.start({"id": "1/a/agent", "argv": ["true"]}, 1)
    await talk.healthcheck({"id": "1/a/healthcheck", "argv": ["true"]})
    await talk.wait("1/a/healthcheck", 1)
    talk.ack("1/a/agent")
    await talk.note("1/a/end", {})
    await talk.download([Source("/a")], lambda _: None)
    await talk.hello()


async def until_done(runner: FakeRunner, **breaks: int) -> int:
    """Break the first session, and open new ones until all operations are done. Return the number of lost sessions."""
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
    """A stream that breaks after a number of bytes, anywhere in a frame. traffic: bytes transferred, by direction."""

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
    """Return offsets at which to break a stream: around the ends of frames, in their headers, and in the middle."""
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


class Scripted:
    """A hostile runner: it sends its scripted answers, whatever the request."""

    exit_details = ""

    def __init__(self, *answers: bytes, silent: bool = False) -> None:
        self._answers, self._silent = list(answers), silent

    async def send(self, data: bytes) -> None: ...

    async def send_eof(self) -> None: ...

    async def close(self) -> None: ...

    async def receive(self) -> bytes:
        if not self._answers and self._silent:
            await asyncio.sleep(60)
        return self._answers.pop(0) if self._answers else b""


def answer(**fields: object) -> bytes:
    return encode_json(MESSAGE, {"ok": True, **fields})


OTHER = {"id": "other", "op": "start", "state": "running", "startedAt": 1, "acknowledged": False}
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
