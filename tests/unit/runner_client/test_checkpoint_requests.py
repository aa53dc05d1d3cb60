"""Test requests for checkpoints: keep-alive frames extend the timeout of a single answer, but not that of the whole request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator

import pytest

from multistep.errors import RunnerError, StoreError, StreamLost
from multistep.runner_client.checkpoint_requests import CheckpointRequest
from multistep.runner_client.frame_stream import DATA, END, MESSAGE, FrameReader, encode, encode_json
from multistep.runner_client.session import Session
from tests.support.virtual_time import in_virtual_time
from tests.unit.runner_client.session_cases import Scripted, answer

ALIVE = encode(DATA, b"")
DIGEST = "d" * 64
REQUEST = CheckpointRequest((), 1 << 30, 1 << 30)


def body(content: bytes, error: str | None = None) -> bytes:
    end = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()} | ({"error": error} if error else {})
    return ALIVE + encode(DATA, content) + ALIVE + encode_json(END, end)


def refusal(code: str) -> bytes:
    return encode_json(MESSAGE, {"ok": False, "error": {"code": code, "message": "no"}})


RECORD = {"id": "r", "op": "restore", "state": "done", "startedAt": 1, "endedAt": 2, "acknowledged": True, "result": {}}


class Slow:
    """The stream of a runner that reads each message after ``read_delay`` seconds and sends frames every ``interval`` seconds."""

    exit_details = ""

    def __init__(self, *frames: bytes, interval: float, read_delay: float = 0.0) -> None:
        self._frames, self._interval, self._read_delay = list(frames), interval, read_delay
        self.reader = FrameReader()
        self.sent: list[bytes] = []

    async def send(self, data: bytes) -> None:
        if self.sent:  # the first message, the request, is read at once
            await asyncio.sleep(self._read_delay)
        self.reader.feed(data)
        self.sent += [frame.kind for frame in self.reader]

    async def receive(self) -> bytes:
        if len(self._frames) == 0 or self._frames[0] != answer(proceed=True):
            await asyncio.sleep(self._interval)
        return self._frames.pop(0) if self._frames else b""

    async def send_eof(self) -> None: ...

    async def close(self) -> None: ...


def talk(stream: Slow | Scripted, seconds: float = 60) -> Session:
    return Session(stream, pod_uid="pod-uid", answer_timeout_seconds=seconds)


@in_virtual_time
async def test_empty_frames_of_a_checkpoint_are_signs_of_life_and_no_content() -> None:
    about = {"manifest": DIGEST, "previous": "", "entries": 3, "processCount": 0, "sharedMemory": False}
    layer, manifest = list[bytes](), list[bytes]()
    stream = Scripted(answer(), ALIVE + ALIVE, body(b"files"), body(b"lines"), answer(checkpoint=about))
    packed = await talk(stream).checkpoint(REQUEST, layer.append, manifest.append)
    assert (layer, manifest, packed.digest, packed.layer.size) == ([b"files"], [b"lines"], DIGEST, 5)


@in_virtual_time
async def test_a_refusal_after_the_first_body_has_its_code_and_leaves_the_session_usable() -> None:
    stream = Scripted(answer(), ALIVE, body(b"", error="TooLarge: no"), refusal("TooLarge"), answer(record=RECORD))
    session = talk(stream)
    with pytest.raises(RunnerError) as caught:
        await session.checkpoint(REQUEST, lambda _: None, lambda _: None)
    assert caught.value.code == "TooLarge"
    assert (await session.restore("r", [DIGEST], [])).done


@in_virtual_time
async def test_a_restore_takes_longer_than_the_timeout_while_the_runner_shows_signs_of_life() -> None:
    stream = Slow(answer(proceed=True), *[ALIVE] * 8, answer(record=RECORD), interval=10)
    assert (await talk(stream).restore("r", [DIGEST], [b"lines", b"files"])).done
    assert stream.sent == [MESSAGE, DATA, END, DATA, END]


@in_virtual_time
async def test_a_runner_that_takes_no_bytes_for_longer_than_the_timeout_is_not_lost_while_it_shows_signs_of_life() -> None:
    stream = Slow(answer(proceed=True), *[ALIVE] * 20, answer(record=RECORD), interval=10, read_delay=100)
    assert (await talk(stream).restore("r", [DIGEST], [b"lines"])).done


@in_virtual_time
async def test_a_silent_restore_is_lost() -> None:
    stream = Slow(answer(proceed=True), answer(record=RECORD), interval=61)
    with pytest.raises(StreamLost, match=r"silent for 60 s"):
        await talk(stream).restore("r", [DIGEST], [b"lines"])


@in_virtual_time
async def test_a_runner_that_takes_no_bytes_and_is_silent_is_lost() -> None:
    stream = Slow(answer(proceed=True), interval=1000, read_delay=1000)
    with pytest.raises(StreamLost):
        await talk(stream).restore("r", [DIGEST], [b"lines"])


@in_virtual_time
async def test_a_restore_that_is_refused_leaves_the_session_usable() -> None:
    session = talk(Scripted(answer(proceed=True), ALIVE, refusal("Damaged"), answer(record=RECORD)))
    with pytest.raises(RunnerError) as caught:
        await session.restore("r", [DIGEST], [b"lines", b"files"])
    assert caught.value.code == "Damaged"
    assert (await session.restore("r", [DIGEST], [])).done


@in_virtual_time
async def test_a_store_that_fails_ends_the_restore_with_its_error() -> None:
    async def failing() -> AsyncIterator[bytes]:
        yield b"lines"
        raise StoreError("the disk is broken")

    def files() -> Iterator[AsyncIterator[bytes]]:
        yield failing()

    stream = Slow(answer(proceed=True), *[ALIVE] * 100, interval=10)
    session = talk(stream)
    with pytest.raises(StoreError):
        await session.restore("r", [DIGEST], files())
    assert stream.sent == [MESSAGE, DATA, END] or stream.sent == [MESSAGE, END]
    with pytest.raises(StreamLost):
        await session.hello()


@pytest.mark.parametrize(("restores", "limit"), [(False, 1200), (True, 3 * 3600 + 300)])
@in_virtual_time
async def test_signs_of_life_do_not_prolong_a_request_for_ever(restores: bool, limit: int) -> None:
    session = talk(Slow(answer(proceed=True), *[ALIVE] * 10_000, interval=10))
    with pytest.raises(StreamLost, match=f"did not finish within {limit} s"):
        if restores:
            await session.restore("r", [DIGEST] * 4, [b"lines"])
        else:
            await session.checkpoint(REQUEST, lambda _: None, lambda _: None)
