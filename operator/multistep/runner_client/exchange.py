"""Exchanges with a runner. An exchange sends requests, and receives their answers in the same order. Only one runs at a time."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import os
from binascii import Error as Base64Error
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from multistep.api.trial.runner_records import Fields, Record
from multistep.engine.journal.operations import ResetDirectory, Source
from multistep.errors import HostUnreachable, InvalidRequest, PodError, RunnerError, StreamLost
from multistep.runner_client.check_requests import require_valid, unsendable
from multistep.runner_client.frame_stream import CLOSE_TIMEOUT_SECONDS, DATA, MESSAGE, Frame, FrameStream, encode_json

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


@dataclass(frozen=True)
class Request:
    """An encrypted ("sealed") request."""

    message: Mapping[str, Any]
    nonce: bytes
    """Only an answer that was encrypted for this nonce is authentic."""


class Seal:
    """Encrypts requests and decrypts answers with a key in hex digits, which the agent host's container got from the operator."""

    def __init__(self, key: str) -> None:
        self._cipher = AESGCM(bytes.fromhex(key))

    def request(self, request: Mapping[str, Any]) -> Request:
        """Encrypt a request, and return the ``host`` request that contains it. Raises ValueError for NaN or infinity."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, json.dumps(request, allow_nan=False).encode(), b"request")
        return Request({"op": "host", "message": {"sealed": base64.b64encode(sealed).decode()}}, nonce)

    def answer(self, message: Mapping[str, Any], request: Request) -> Frame:
        """Return the frame with the decrypted answer to the request. Raises RunnerError if the answer is not authentic."""
        try:
            sealed = base64.b64decode(message["sealed"], validate=True)
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], b"answer" + request.nonce)
        except (KeyError, TypeError, ValueError, Base64Error, InvalidTag):
            raise RunnerError("the agent host's answer is not authentic", code="Protocol") from None
        return Frame(MESSAGE, plain)


def new_key() -> str:
    """Return a new key in hex digits."""
    return os.urandom(KEY_BYTES).hex()


@dataclass(frozen=True)
class Printed:
    """A part of a phase's output."""

    size: int
    """Bytes of the whole output."""
    start: int
    """Offset of the part."""
    data: bytes
    done: bool
    """Whether the phase has ended."""


def record(answer: Mapping[str, Any], id: str, op: str | None = None) -> Record:
    """Return the record of an answer. Raises RunnerError if the record has another id or operation."""
    record = Record.from_json(answer.get("record"))
    if record.id != id or (op is not None and record.op != op):
        raise RunnerError(f"asked for {id!r}, the runner answered for {record.id[:200]!r}", code="Protocol")
    return record


def printed(answer: Mapping[str, Any], max_bytes: int) -> Printed:
    """Return the output in the answer to an "output" request. Raises RunnerError if the answer is invalid."""
    fields = Fields(answer, "output")
    try:
        data = base64.b64decode(fields.text("base64", 2 * max_bytes + 4), validate=True)
    except binascii.Error:
        raise RunnerError("the runner sent output that is not base64", code="Protocol") from None
    if len(data) > max_bytes:
        raise RunnerError(f"asked for {max_bytes} bytes, the runner sent {len(data)}", code="Protocol")
    return Printed(fields.integer("size"), fields.integer("from"), data, fields.one_of("state", {"running", "done"}) == "done")


def types(answer: Mapping[str, Any], count: int) -> tuple[str, ...]:
    """Return the types of the ``count`` requested sources of a download. Raises RunnerError if the answer is invalid."""
    sources = Fields(answer, "download").sequence("sources", count)
    if len(sources) != count:
        raise RunnerError(f"asked for {count} sources, the runner answered for {len(sources)}", code="Protocol")
    kinds = {"file", "directory", "missing", "other"}
    return tuple(Fields(each, "source").one_of("type", kinds) for each in sources)


def error(answer: Mapping[str, Any]) -> RunnerError:
    """Return the error of an answer that is not ok."""
    if answer.get("ok") is not False:
        return RunnerError("the runner's answer is neither ok nor an error", code="Protocol")
    error = Fields(answer.get("error"), "error")
    return RunnerError(error.text("message")[:1000], code=error.text("code", 64))


def directory(directory: ResetDirectory) -> dict[str, Any]:
    """Return a directory's description in the format that the "reset" request uses."""
    request: dict[str, Any] = {"path": directory.path, "mode": directory.mode, "user": directory.user}
    return {**request, "keep": True} if directory.keep else request


def source(source: Source) -> dict[str, Any]:
    """Return a source's description in the format that the "download" and "survey" requests use."""
    request: dict[str, Any] = {"path": source.path, "exclude": list(source.exclude)}
    return {**request, "sent": list(source.sent)} if source.sent else request


def wait(id: str, timeout_seconds: float) -> dict[str, Any]:
    """Return a request that is answered when the operation with this record id has finished."""
    return {"op": "wait", "id": id, "timeoutSeconds": timeout_seconds}


HOST_PROTOCOL = 5  # first protocol version with sealed requests for the agent host


class Refusal(Exception):
    """The runner refused a request, or a request cannot be sent. The session stays usable."""

    def __init__(self, error: RunnerError | InvalidRequest) -> None:
        super().__init__(str(error))
        self.error = error


class _HostRefusal(Refusal):
    """The environment's runner could not pass a request to the agent host's runner."""


@dataclass(frozen=True)
class _Encoded:
    """An encoded request."""

    data: bytes
    opened: Callable[[Frame], Frame] = lambda frame: frame
    """Decrypts the frame of the answer, if the request was encrypted."""


@dataclass
class _Shared:
    """The state of a stream. The exchanges with the environment's runner and with the agent host's runner share it."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    pending_acks: list[_Encoded] = field(default_factory=list)
    """Acknowledgements to send with the next request."""
    lost: str = ""
    """Why the stream is unusable, or ""."""


class Exchanges:
    """Matches answers to requests. An interrupted exchange makes the session unusable, because its answers would be matched to
    later requests. ``seal`` encrypts the requests to the agent host's runner, and is None for the environment's runner."""

    def __init__(self, frames: FrameStream, shared: _Shared | None = None, seal: Seal | None = None) -> None:
        self._frames = frames
        self._shared = shared or _Shared()
        self._seal = seal

    def with_host(self, key: str) -> Exchanges:
        """Return the exchanges with the agent host's runner, which has this key, through the same stream."""
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
        """Whether further exchanges are possible."""
        return not self._shared.lost

    def give_up(self, reason: str) -> None:
        """Make the session unusable, because the rest of its stream will not be read."""
        self._shared.lost = reason

    def ack(self, id: str) -> None:
        """Acknowledge a result, together with the next request or at close."""
        self._shared.pending_acks.append(self._encoded({"op": "ack", "id": id}))

    async def ask(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send requests in a new exchange, and return the last answer."""
        async with self.exchange():
            return await self.request(*requests, extra_seconds=extra_seconds)

    async def request(self, *requests: Mapping[str, Any], extra_seconds: float = 0.0) -> dict[str, Any]:
        """Send pending acknowledgements and requests in one write, within an exchange. Return the last answer, and drop the others,
        because they may be large. A refusal is raised after all answers have arrived. A refused acknowledgement is a protocol
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
        """Receive an answer. ``extra_seconds`` is added to the usual timeout. Raises Refusal if the answer is not ok."""
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
        """Send pending acknowledgements, if possible, and close the stream. A broken stream raises no error."""
        if self._shared.pending_acks and not self._shared.lost:
            with suppress(PodError, TimeoutError):
                async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
                    await self.ask()
        self._shared.lost = self._shared.lost or "it was closed"
        await self._frames.close()


def _unsealed(seal: Seal, request: Request, frame: Frame) -> Frame:
    try:
        message = parse_answer(frame)
    except Refusal as refusal:  # the answer is not encrypted, so the environment's runner sent it
        raise _HostRefusal(refusal.error) from None
    return seal.answer(message, request)


def parse_answer(frame: Frame) -> dict[str, Any]:
    """Return the answer in a frame. Raises Refusal if the answer is not ok, and RunnerError if the frame contains no answer."""
    if frame.kind != MESSAGE:
        raise RunnerError(f"the runner sent a frame {frame.kind!r} instead of an answer", code="Protocol")
    answer = frame.json()
    if answer.get("ok") is True:
        return answer
    raise Refusal(error(answer))
