"""Requests for checkpoints of the environment's files (docs/runner-protocol.md), and the runner's answers to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from multistep.api.records import Fields, Record
from multistep.runner_client import answers
from multistep.runner_client.bodies import Body, DownloadResult, Sink, receive_body, send_body
from multistep.runner_client.exchange import Exchanges, Refusal
from multistep.runner_client.frame_stream import FrameStream

CHECKPOINT_PROTOCOL = 4  # first version with checkpoints
_DIGEST_CHARACTERS: Final = 64


@dataclass(frozen=True)
class Packed:
    """A packed checkpoint.

    digest: of its manifest's lines, which identifies it; previous: digest of the checkpoint below it, "" for the image; entries:
    number of changed and deleted paths; layer, manifest: the received files.
    """

    digest: str
    previous: str
    entries: int
    layer: DownloadResult
    manifest: DownloadResult


class CheckpointRequests:
    """The part of a session that makes and restores checkpoints. Needs CHECKPOINT_PROTOCOL."""

    _frames: FrameStream
    _exchanges: Exchanges

    async def checkpoint(self, exclude: Sequence[str], max_bytes: int, layer: Sink, manifest: Sink) -> Packed:
        """Pass what changed since the last commit to ``layer``, and the list of it to ``manifest``.

        max_bytes: limit of the changed files' total size, and of the layer's. Raises RunnerError if no checkpoint is possible.
        """
        limits = {"maxBytes": max_bytes, "maxPackedBytes": max_bytes}
        async with self._exchanges.exchange():
            await self._exchanges.request({"op": "checkpoint", "exclude": list(exclude), **limits})
            try:
                files = await receive_body(self._frames, (), layer, None)
            except Refusal:
                await self._exchanges.answer()  # the refusal with its code
                raise
            lines = await receive_body(self._frames, (), manifest, None)
            return _packed(await self._exchanges.answer(), files, lines)

    async def restore(self, id: str, digests: Sequence[str], files: Iterable[Body]) -> Record:
        """Restore checkpoints, lowest first.

        files: manifest and layer of each, in order; they are not read if the runner already has a record with this id.
        """
        request = {"op": "restore", "id": id, "increments": [{"manifest": each} for each in digests]}
        async with self._exchanges.exchange():
            answer = await self._exchanges.request(request)
            if answer.get("proceed") is True:
                for each in files:
                    await send_body(self._frames, each)
                answer = await self._exchanges.answer()
        return answers.record(answer, id, "restore")


def _packed(answer: Mapping[str, Any], files: DownloadResult, lines: DownloadResult) -> Packed:
    found = Fields(answer.get("checkpoint"), "checkpoint")
    digest, previous = found.text("manifest", _DIGEST_CHARACTERS), found.text("previous", _DIGEST_CHARACTERS)
    return Packed(digest, previous, found.integer("entries"), files, lines)
