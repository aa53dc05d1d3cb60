"""Sessions with fake runners, for tests of the runner client."""

from __future__ import annotations

import asyncio

from multistep.runner_client.frame_stream import MESSAGE, encode_json
from multistep.runner_client.session import Session
from tests.support.fake_runner import FakeRunner


def session(runner: FakeRunner, **breaks: float) -> Session:
    return Session(runner.stream(**breaks), pod_uid="pod-uid", answer_timeout_seconds=30)


class Scripted:
    """The stream of a hostile runner, which sends scripted answers whatever the client requests."""

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
