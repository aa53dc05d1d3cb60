"""Exchanges with a runner. An exchange sends requests and receives their answers in order; only one runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from multistep.errors import PodError, RunnerError, StreamLost
from multistep.runner_client import answers
from multistep.runner_client.frame_stream import CLOSE_TIMEOUT_SECONDS, FrameStream
from multistep.runner_client.frames import DATA, MESSAGE, Frame, encode_json


class Refusal(Exception):
    """The error of a request that was refused, usually by an answer with ok: false; the session stays usable."""

    def __init__(self, error: RunnerError) -> None:
        super().__init__(str(error))
        self.error = error


class Exchanges:
    """Matches answers to requests. An interrupted exchange makes the session unusable, because its answers would be matched to
    later requests."""

    def __init__(self, frames: FrameStream) -> None:
        self._frames = frames
        self._turn = asyncio.Lock()
        self._pending_acks: list[bytes] = []  # encoded acknowledgements, sent with the next request
        self._lost = ""  # why the session is unusable; "" while it is usable

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[None]:
        """Reserve the session for one exchange. Raises StreamLost if the session is unusable."""
        async with self._turn:
            if self._lost:
                raise StreamLost(f"the session cannot be used any more: {self._lost}")
            self._lost = "an exchange was interrupted"
            try:
                yield
            except Refusal as refusal:
                self._lost = ""  # a refusal is a complete answer, so the session stays usable
                raise refusal.error from None
            except (StreamLost, RunnerError) as error:
                self._lost = str(error)
                raise
            self._lost = ""

    @property
    def usable(self) -> bool:
        """Return whether further exchanges are possible."""
        return not self._lost

    def give_up(self, reason: str) -> None:
        """Make the session unusable, because the rest of its stream will not be read."""
        self._lost = reason

    def ack(self, id: str) -> None:
        """Acknowledge a result, together with the next request or at close."""
        self._pending_acks.append(encode_json(MESSAGE, {"op": "ack", "id": id}))

    async def ask(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send requests as an exchange of their own, and return the last answer."""
        async with self.exchange():
            return await self.request(*requests, extra_seconds=extra_seconds)

    async def request(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send pending acknowledgements and requests in one write, within an exchange. Return the last answer; drop the others,
        as they may be large. A refusal is raised after all answers; a refused acknowledgement is a protocol violation."""
        frames, pending = [_frame(each) for each in requests], self._pending_acks
        self._pending_acks = []
        await self._frames.send(b"".join([*pending, *frames]))
        for _ in pending:
            await self._receive_ack_answer()
        answer: dict[str, Any] = {}
        refusal: Refusal | None = None
        for _ in frames:
            try:
                answer = await self.answer(extra_seconds)
            except Refusal as refused:
                refusal = refusal or refused
        if refusal is not None:
            raise refusal
        return answer

    async def _receive_ack_answer(self) -> None:
        try:
            await self.answer()
        except Refusal as refusal:
            raise RunnerError(f"the runner rejected an acknowledgement: {refusal}", code="Protocol") from None

    async def answer(self, extra_seconds: float = 0.0) -> dict[str, Any]:
        """Receive an answer. extra_seconds: added to the usual timeout. Raises Refusal if the answer is not ok."""
        return parse_answer(await self._frames.receive(extra_seconds))

    async def late_answer(self) -> Frame:
        """Receive an answer that signs of life (empty D frames) may precede, each within the usual timeout."""
        while (frame := await self._frames.receive()).kind == DATA and not frame.payload:
            pass
        return frame

    async def close(self) -> None:
        """Send pending acknowledgements, if possible, and close the stream; never raises for a broken stream."""
        if self._pending_acks and not self._lost:
            with suppress(PodError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                    await self.ask()
        self._lost = self._lost or "it was closed"
        await self._frames.close()


def parse_answer(frame: Frame) -> dict[str, Any]:
    """Return the answer in a frame. Raises Refusal if it is not ok, RunnerError if it is none."""
    if frame.kind != MESSAGE:
        raise RunnerError(f"the runner sent a frame {frame.kind!r} instead of an answer", code="Protocol")
    answer = frame.json()
    if answer.get("ok") is True:
        return answer
    raise Refusal(answers.error(answer))


def _frame(request: Mapping[str, Any]) -> bytes:
    try:
        return encode_json(MESSAGE, request)
    except ValueError as error:  # nothing was sent: the session stays usable
        raise Refusal(RunnerError(f"{request['op']} cannot be sent: {error}", code="TooLarge")) from None
