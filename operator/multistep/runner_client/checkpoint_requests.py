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
PACK_SECONDS: Final = 300.0  # timeout of the runner's work for a checkpoint that is not required for a verdict
# Timeout for a checkpoint that is required for a step's verdict. A tenth of a CPU core can pack the largest checkpoint that the
# other limits allow in this time. This matters because an agent must not be able to cause a timeout, which counts as an
# infrastructure failure.
VERDICT_PACK_SECONDS: Final = 1800.0
RESTORE_SECONDS: Final = 3600.0  # timeout of the runner's work for a restore
# The operator has a deadline of its own, after the runner's, because a hostile runner can send keep-alive frames without end.
_TOTAL_FACTOR: Final = 3  # the runner's timeout for work and waiting, as a multiple of its timeout for work
_SLACK_SECONDS: Final = 300.0  # time for the runner's timeout error to arrive
RESTORE_LIMIT_SECONDS: Final = _TOTAL_FACTOR * RESTORE_SECONDS + _SLACK_SECONDS
_DIGEST_CHARACTERS: Final = 64


def pack_limit(max_seconds: float) -> float:
    """Return the timeout in seconds of an exchange in which the runner may work for ``max_seconds``."""
    return _TOTAL_FACTOR * max_seconds + _SLACK_SECONDS


@dataclass(frozen=True)
class Packed:
    """A packed checkpoint.

    digest: digest of the manifest's lines, which identifies the checkpoint; previous: digest of the checkpoint that this one builds
    on, "" if it builds on the image; entries: number of changed and deleted paths; processes: number of processes that the step
    left running; shared_memory: whether /dev/shm has files; layer, manifest: the downloads of its files and of its manifest.
    """

    digest: str
    previous: str
    entries: int
    processes: int
    shared_memory: bool
    layer: DownloadResult
    manifest: DownloadResult


@dataclass(frozen=True)
class CheckpointRequest:
    """Contents and limits of a checkpoint. exclude: paths that are left out; max_bytes: limit of the changed files' total size;
    max_packed_bytes: limit of the layer's size; full: whether to contain all changes since the image, not only those since the last
    commit; max_seconds: timeout of the runner's work."""

    exclude: Sequence[str]
    max_bytes: int
    max_packed_bytes: int
    full: bool = False
    max_seconds: float = PACK_SECONDS


class CheckpointRequests:
    """The part of a session that creates and restores checkpoints. Needs CHECKPOINT_PROTOCOL."""

    _frames: FrameStream
    _exchanges: Exchanges

    @property
    def usable(self) -> bool:
        """Return whether further requests are possible. False after an interrupted exchange or a protocol violation."""
        return self._exchanges.usable

    async def checkpoint(self, request: CheckpointRequest, layer: Sink, manifest: Sink) -> Packed:
        """Pass the files that changed since the last commit (full: since the image) to ``layer``, and their list to ``manifest``.

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
        """Restore checkpoints in order, beginning with the one that builds on the image.

        files: manifest and layer of each checkpoint, in order; they are not read if the runner already has a record with this id.
        paths: restore only these directories; (): restore everything.
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
        """Send the bodies and return the answer. A runner that works but reads no bytes sends keep-alive frames, so it is not timed
        out."""

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
    """Raise StreamLost if the exchange takes longer than ``limit`` seconds."""
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
