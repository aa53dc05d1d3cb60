"""Exchanges with a runner. An exchange sends requests and receives their answers in order; only one runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from multistep.errors import HostUnreachable, InvalidRequest, PodError, RunnerError, StreamLost
from multistep.runner_client import runner_answers
from multistep.runner_client.check_requests import require_valid, unsendable
from multistep.runner_client.frame_stream import CLOSE_TIMEOUT_SECONDS, FrameStream
from multistep.runner_client.frames import DATA, MESSAGE, Frame, encode_json
from multistep.runner_client.sealed_messages import Request, Seal

HOST_PROTOCOL = 5  # first protocol version with sealed requests for the agent host


class Refusal(Exception):
    """Raised if the runner refuses a request, or if a request cannot be sent. The session stays usable."""

    def __init__(self, error: RunnerError | InvalidRequest) -> None:
        super().__init__(str(error))
        self.error = error


class _HostRefusal(Refusal):
    """The environment's runner could not pass a request to the agent host's runner."""


@dataclass(frozen=True)
class _Encoded:
    """An encoded request. opened: function that decrypts the received frame of the answer, if the request was sealed."""

    data: bytes
    opened: Callable[[Frame], Frame] = lambda frame: frame


@dataclass
class _Shared:
    """The state of a stream, which the exchanges with the environment's runner and with the agent host's runner share.

    pending_acks: acknowledgements to send with the next request; lost: why the stream is unusable, "" while it is usable.
    """

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending_acks: list[_Encoded] = field(default_factory=list)
    lost: str = ""


class Exchanges:
    """Matches answers to requests. An interrupted exchange makes the session unusable, because its answers would be matched to
    later requests. seal: encrypts the requests, for the agent host's runner; None for the environment's runner."""

    def __init__(self, frames: FrameStream, shared: _Shared | None = None, seal: Seal | None = None) -> None:
        self._frames = frames
        self._shared = shared or _Shared()
        self._seal = seal

    def with_host(self, key: str) -> Exchanges:
        """Return the exchanges with the agent host's runner through the same stream. key: key of the agent host's runner."""
        return Exchanges(self._frames, self._shared, Seal(key))

    @asynccontextmanager
    async def exchange(self) -> AsyncIterator[None]:
        """Reserve the session for one exchange. Raises StreamLost if the session is unusable."""
        shared = self._shared
        async with shared.turn:
            if shared.lost:
                raise StreamLost(f"the session cannot be used any more: {shared.lost}")
            shared.lost = "an exchange was interrupted"
            try:
                yield
            except Refusal as refusal:
                shared.lost = ""  # a refusal is a complete answer, so the session stays usable
                if isinstance(refusal, _HostRefusal):
                    raise HostUnreachable(str(refusal)) from None
                raise refusal.error from None
            except (StreamLost, RunnerError) as error:
                shared.lost = str(error)
                raise
            shared.lost = ""

    @property
    def usable(self) -> bool:
        """Return whether further exchanges are possible."""
        return not self._shared.lost

    def give_up(self, reason: str) -> None:
        """Make the session unusable, because the rest of its stream will not be read."""
        self._shared.lost = reason

    def ack(self, id: str) -> None:
        """Acknowledge a result, together with the next request or at close."""
        self._shared.pending_acks.append(self._encoded({"op": "ack", "id": id}))

    async def ask(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send requests as an exchange of their own, and return the last answer."""
        async with self.exchange():
            return await self.request(*requests, extra_seconds=extra_seconds)

    async def request(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send pending acknowledgements and requests in one write, within an exchange. Return the last answer; drop the other
        answers, because they may be large. A refusal is raised after all answers; a refused acknowledgement is a protocol
        violation."""
        encoded, pending = [self._encoded(each) for each in requests], self._shared.pending_acks
        self._shared.pending_acks = []
        await self._frames.send(b"".join(each.data for each in [*pending, *encoded]))
        for each in pending:
            await self._receive_ack_answer(each)
        answer: dict[str, Any] = {}
        refusal: Refusal | None = None
        for each in encoded:
            try:
                answer = parse_answer(each.opened(await self._frames.receive(extra_seconds)))
            except Refusal as refused:
                refusal = refusal or refused
        if refusal is not None:
            raise refusal
        return answer

    async def _receive_ack_answer(self, ack: _Encoded) -> None:
        try:
            parse_answer(ack.opened(await self._frames.receive()))
        except _HostRefusal as refusal:
            raise HostUnreachable(str(refusal)) from None
        except Refusal as refusal:
            raise RunnerError(f"the runner rejected an acknowledgement: {refusal}", code="Protocol") from None

    async def answer(self, extra_seconds: float = 0.0) -> dict[str, Any]:
        """Receive an answer. extra_seconds: added to the usual timeout. Raises Refusal if the answer is not ok."""
        return parse_answer(await self._frames.receive(extra_seconds))

    def _encoded(self, request: Mapping[str, Any]) -> _Encoded:
        """Return the request's frame. Raises Refusal if the runner would refuse it, or if it cannot be encoded."""
        try:
            require_valid(request)
            if self._seal is None:
                return _Encoded(encode_json(MESSAGE, request))
            sealed = self._seal.request(request)
            return _Encoded(encode_json(MESSAGE, sealed.message), partial(_unsealed, self._seal, sealed))
        except InvalidRequest as error:
            raise Refusal(error) from None
        except ValueError as error:
            invalid = unsendable(request, error)
            raise Refusal(invalid or RunnerError(f"{request['op']} cannot be sent: {error}", code="TooLarge")) from None

    async def late_answer(self) -> Frame:
        """Receive an answer after any number of keep-alives (empty D frames). The usual timeout applies to each frame."""
        while (frame := await self._frames.receive()).kind == DATA and not frame.payload:
            pass
        return frame

    async def close(self) -> None:
        """Send pending acknowledgements, if possible, and close the stream; never raises for a broken stream."""
        if self._shared.pending_acks and not self._shared.lost:
            with suppress(PodError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                    await self.ask()
        self._shared.lost = self._shared.lost or "it was closed"
        await self._frames.close()


def _unsealed(seal: Seal, request: Request, frame: Frame) -> Frame:
    try:
        message = parse_answer(frame)
    except Refusal as refusal:  # the answer is not sealed, so the environment's runner sent it
        raise _HostRefusal(refusal.error) from None
    return seal.answer(message, request)


def parse_answer(frame: Frame) -> dict[str, Any]:
    """Return the answer in a frame. Raises Refusal if the answer is not ok, RunnerError if the frame contains no answer."""
    if frame.kind != MESSAGE:
        raise RunnerError(f"the runner sent a frame {frame.kind!r} instead of an answer", code="Protocol")
    answer = frame.json()
    if answer.get("ok") is True:
        return answer
    raise Refusal(runner_answers.error(answer))
