"""Requests to a runner over one exec session."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import tracemalloc
from collections.abc import AsyncIterator

import pytest

from multistep.engine.journal.operations import ResetDirectory, Source
from multistep.errors import CollectionCut, NoCommonProtocol, PodError, RunnerError, StoreError, StreamLost
from multistep.runner_client.frame_stream import MESSAGE, encode_json
from multistep.runner_client.session import Session
from tests.support.fake_runner import FakeRunner
from tests.support.virtual_time import in_virtual_time
from tests.unit.runner_client.session_cases import OTHER, Scripted, answer, session


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
        with pytest.raises(NoCommonProtocol, match=r"speaks protocols \[7, 8\], this operator 5, 4, 3, 2, 1"):
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
        await talk.reset("1/a/reset", [ResetDirectory("/logs/agent", 0o777, "bob"), ResetDirectory("/app", keep=True)])
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


@in_virtual_time
async def test_a_trickled_download_is_cut_off_at_its_timeout_and_what_came_is_kept() -> None:
    got: list[bytes] = []

    async def slow(data: bytes) -> None:
        got.append(data)
        await asyncio.sleep(0.04)

    async with session(FakeRunner(files={"/a": b"1" * 2_000_000})) as talk:
        result = await talk.download([Source("/a")], slow, timeout_seconds=0.05)
    assert result.cut == "it took longer than 0.05 s" and result.types == ("file",) and got
