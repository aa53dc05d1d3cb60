"""Requests for checkpoints of the environment's files (docs/internals/runner-protocol.md), and the runner's answers to them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from multistep.api.trial.runner_records import Fields, Record
from multistep.errors import StreamLost
from multistep.runner_client import exchange as runner_answers
from multistep.runner_client.exchange import Exchanges, Refusal, parse_answer
from multistep.runner_client.frame_stream import FrameStream
from multistep.runner_client.transfer_bodies import Body, DownloadResult, Sink, receive_body, send_body

CHECKPOINT_PROTOCOL = 4  # first protocol version with checkpoints
PACK_SECONDS: Final = 300.0  # timeout of the runner's work for a checkpoint that no verdict needs
# Timeout for a checkpoint that a step's verdict needs. In this time, a tenth of a CPU core can pack the largest checkpoint that the
# other limits allow. An agent must not be able to cause the timeout, because it counts as an infrastructure failure.
VERDICT_PACK_SECONDS: Final = 1800.0
RESTORE_SECONDS: Final = 3600.0  # timeout of the runner's work for a restore
# The operator has a later deadline of its own, because a hostile runner could send keep-alive frames without end.
_TOTAL_FACTOR: Final = 3  # the runner may work and wait together for this multiple of its timeout for work
_SLACK_SECONDS: Final = 300.0  # time in which the runner's timeout error can arrive
RESTORE_LIMIT_SECONDS: Final = _TOTAL_FACTOR * RESTORE_SECONDS + _SLACK_SECONDS
_DIGEST_CHARACTERS: Final = 64


def pack_limit(max_seconds: float) -> float:
    """Return the timeout in seconds of a request for which the runner may work for ``max_seconds``."""
    return _TOTAL_FACTOR * max_seconds + _SLACK_SECONDS


@dataclass(frozen=True)
class Packed:
    """A checkpoint that the runner has packed and sent."""

    digest: str
    """Digest of the manifest's lines, which identifies the checkpoint."""
    previous: str
    """Digest of the checkpoint on which this one is based, or "" if it is based on the image."""
    entries: int
    """Number of changed and deleted paths."""
    processes: int
    """Number of processes that the step left running."""
    shared_memory: bool
    """Whether /dev/shm has files."""
    layer: DownloadResult
    """The download of the files."""
    manifest: DownloadResult
    """The download of the manifest."""


@dataclass(frozen=True)
class CheckpointRequest:
    """Contents and limits of a checkpoint."""

    exclude: Sequence[str]
    """Paths to leave out."""
    max_bytes: int
    """Maximum total size of the changed files."""
    max_packed_bytes: int
    """Maximum size of the layer."""
    full: bool = False
    """Whether to pack all changes since the image, instead of those since the last commit."""
    max_seconds: float = PACK_SECONDS
    """Timeout of the runner's work."""


class CheckpointRequests:
    """The part of a session that creates and restores checkpoints. It needs CHECKPOINT_PROTOCOL."""

    _frames: FrameStream
    _exchanges: Exchanges

    @property
    def usable(self) -> bool:
        """Whether further requests are possible. False after an interrupted exchange or a protocol violation."""
        return self._exchanges.usable

    async def checkpoint(self, request: CheckpointRequest, layer: Sink, manifest: Sink) -> Packed:
        """Pass the changed files to ``layer``, and the list of the changes to ``manifest``.

        Raises RunnerError if no checkpoint is possible.
        """
        limits = {"maxBytes": request.max_bytes, "maxPackedBytes": request.max_packed_bytes, "maxSeconds": request.max_seconds}
        async with self._exchanges.exchange(), _deadline(pack_limit(request.max_seconds)):
            await self._exchanges.request({"op": "checkpoint", "full": request.full, "exclude": list(request.exclude), **limits})
            try:
                files = await receive_body(self._frames, (), layer, None)
            except Refusal:
                await self._exchanges.answer()  # raises the refusal with the runner's error code
                raise
            lines = await receive_body(self._frames, (), manifest, None)
            return _packed(await self._exchanges.answer(), files, lines)

    async def restore(self, id: str, digests: Sequence[str], files: Iterable[Body], paths: Sequence[str] = ()) -> Record:
        """Restore checkpoints in order, starting with the one that is based on the image.

        ``files`` has the manifest and the layer of each checkpoint, in order. The files are not read if the runner already has a
        record with this id. With ``paths``, only these directories are restored.
        """
        increments = [{"manifest": each} for each in digests]
        limits = {"paths": list(paths), "maxSeconds": RESTORE_SECONDS}
        request = {"op": "restore", "id": id, "increments": increments, **limits}
        async with self._exchanges.exchange(), _deadline(RESTORE_LIMIT_SECONDS):
            answer = await self._exchanges.request(request)
            if answer.get("proceed") is True:
                answer = await self._send_files(files)
        return runner_answers.record(answer, id, "restore")

    async def _send_files(self, files: Iterable[Body]) -> dict[str, Any]:
        """Send the bodies, and return the answer. A runner that works without reading sends keep-alive frames, so that the timeout
        does not end the exchange."""

        async def send() -> None:
            for each in files:
                await send_body(self._frames, each)

        sending, answering = asyncio.create_task(send()), asyncio.create_task(self._exchanges.late_answer())
        try:
            await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_EXCEPTION)
            if sending.done():
                sending.result()
            return parse_answer(await answering)
        finally:
            sending.cancel()
            answering.cancel()
            await asyncio.gather(sending, answering, return_exceptions=True)


@asynccontextmanager
async def _deadline(limit: float) -> AsyncIterator[None]:
    """Return a context that raises StreamLost if it takes longer than ``limit`` seconds."""
    try:
        async with asyncio.timeout(limit) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():  # the sink raised this TimeoutError
            raise
        raise StreamLost(f"the runner did not finish within {limit:g} s") from None


def _packed(answer: Mapping[str, Any], files: DownloadResult, lines: DownloadResult) -> Packed:
    found = Fields(answer.get("checkpoint"), "checkpoint")
    digest, previous = found.text("manifest", _DIGEST_CHARACTERS), found.text("previous", _DIGEST_CHARACTERS)
    processes, shared = found.integer("processCount"), found.boolean("sharedMemory")
    return Packed(digest, previous, found.integer("entries"), processes, shared, files, lines)
