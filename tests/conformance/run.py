"""Run cases on a real cluster, several concurrently, in a separate namespace."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import aiohttp

from multistep.api.trial.status import TrialStatus, holds, is_finished
from multistep.api.trial.trial import parse_status
from multistep.client.reconnecting_watch import WatchingClient
from multistep.client.results.fetch import ServicePath, locate
from multistep.client.results.unpack import unpack
from multistep.client.submit.manifests import Manifest
from multistep.errors import NotFound, Unavailable
from multistep.kube.resources import NAMESPACES, TRIALS

from .case import Case, CaseError
from .images import Images
from .judging import Report, judged, read_cases
from .outcome import Unexplained

DEFAULT_JOBS: Final = 8
DEFAULT_LIMIT_SECONDS: Final = 180.0
UNNOTICED_SECONDS: Final = 60.0  # if a trial has no condition after this time, no operator reconciles it
_POLL_SECONDS: Final = 0.4
_WRITE_ATTEMPTS: Final = 4
_IN_MEMORY_BYTES: Final = 8 << 20
_SILENCE_SECONDS: Final = 60


@dataclass(frozen=True)
class Settings:
    """How to run the cases.

    Args:
        jobs: Number of concurrent cases.
        limit_seconds: Timeout of each case.
        namespace: Name of the namespace to create; "" generates one.
        keep: Do not delete the namespace.
    """

    jobs: int = DEFAULT_JOBS
    limit_seconds: float = DEFAULT_LIMIT_SECONDS
    namespace: str = ""
    keep: bool = False
    say: Callable[[str], None] = field(default=print)
    reported: Callable[[Report], None] = field(default=lambda _: None)  # called when a case is finished


async def run(directories: Sequence[Path], settings: Settings) -> list[Report]:
    """Run all cases. Raise MultistepError if the cluster cannot be used."""
    cases, reports = read_cases(directories)
    for report in reports:
        settings.reported(report)
    images = Images(cases)
    for name in images.names:
        settings.say(f"image {name}")
        await asyncio.to_thread(images.build, name)
    async with await WatchingClient.connect() as client, _namespace(client, settings) as namespace:
        await _require_trials(client, namespace)
        runner = _Runner(client, namespace, images, settings)
        reports += await asyncio.gather(*(runner.report(number, case) for number, case in enumerate(cases)))
    return sorted(reports, key=lambda report: report.name)


@asynccontextmanager
async def _namespace(client: WatchingClient, settings: Settings) -> AsyncIterator[str]:
    name = settings.namespace or f"conformance-{secrets.token_hex(4)}"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    settings.say(f"namespace {name}")
    try:
        yield name
    finally:
        if not settings.keep:
            await client.delete(NAMESPACES, None, name)


async def _require_trials(client: WatchingClient, namespace: str) -> None:
    try:
        await client.list_all(TRIALS, namespace)
    except NotFound as error:
        raise NotFound("the cluster knows no MultiStepTrial: install Multistep in it, by `make deploy` for one") from error


class _Runner:
    """Runs cases concurrently, at most `settings.jobs` at a time. It is the ground of their trials."""

    def __init__(self, client: WatchingClient, namespace: str, images: Images, settings: Settings) -> None:
        self._client = client
        self.namespace = namespace
        self.image_of = images.of
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.jobs)
        self._operator_seen = False
        self._operator_away = False

    async def report(self, number: int, case: Case) -> Report:
        """Run one case when a slot is free, and return its report."""
        async with self._slots:
            report = await judged(case, self, number)
        self._settings.reported(report)
        return report

    async def apply(self, wanted: Manifest) -> None:
        """Apply the object. Applying is idempotent, so retry if the API server is unavailable or its response is lost."""
        if self._operator_away:
            raise CaseError("not begun: no operator took notice of earlier cases")
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                await self._client.apply(wanted, field_manager="conformance")
                return
            except Unavailable:
                if attempt == _WRITE_ATTEMPTS:
                    raise
                await asyncio.sleep(attempt)

    async def ended(self, trial: str) -> TrialStatus:
        start = time.monotonic()
        while not is_finished(status := parse_status(await self._client.get(TRIALS, self.namespace, trial))):
            waited = time.monotonic() - start
            self._operator_seen = self._operator_seen or bool(status.conditions)
            if waited > UNNOTICED_SECONDS and not status.conditions:
                self._operator_away = not self._operator_seen
                raise TimeoutError(f"nobody took notice of the trial within {waited:.0f} s: does the operator run?")
            if waited > self._settings.limit_seconds:
                raise TimeoutError(f"not over after {waited:.0f} s: {_whereabouts(status)}")
            await asyncio.sleep(_POLL_SECONDS)
        return status

    @asynccontextmanager
    async def results(self, trial: str, status: TrialStatus) -> AsyncIterator[Path]:
        with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
            await self._fetch(str(status.results), Path(directory))
            yield Path(directory)

    async def _fetch(self, uri: str, directory: Path) -> None:
        with tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES) as file:
            async with aclosing(self._stream(uri)) as chunks:
                async for chunk in chunks:
                    file.write(chunk)
            file.seek(0)
            unpacked = await asyncio.to_thread(unpack, file, directory)
        if unpacked.left_out:
            raise Unexplained(f"results could not be unpacked: {unpacked.left_out}")

    async def _stream(self, uri: str) -> AsyncGenerator[bytes, None]:
        place = locate(uri)
        if isinstance(place, ServicePath):
            async with aclosing(self._client.raw_stream(place.path)) as chunks:
                async for chunk in chunks:
                    yield chunk
            return
        limits = aiohttp.ClientTimeout(total=None, sock_connect=_SILENCE_SECONDS, sock_read=_SILENCE_SECONDS)
        try:
            async with aiohttp.ClientSession(timeout=limits) as session, session.get(place.url) as response:
                response.raise_for_status()
                async for chunk in response.content.iter_any():
                    yield chunk
        except aiohttp.ClientError as error:
            raise Unexplained(f"the results at {uri} cannot be read: {error or type(error).__name__}") from error


def _whereabouts(status: TrialStatus) -> str:
    reported = holds(status, "Reconciling")
    where = f" in step {status.current_step!r}" if status.current_step else ""
    return f"{status.phase}{where}" + (f", {reported.reason}: {reported.message}" if reported else "")
