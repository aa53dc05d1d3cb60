"""Run cases on a real cluster, several concurrently, in a separate namespace."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import aiohttp

from multistep.api.conditions import holds, is_finished
from multistep.api.trial import parse_status
from multistep.api.trial_status import TrialStatus
from multistep.cli.trial.fetch import ServicePath, locate
from multistep.cli.trial.manifests import Manifest, bundle_config_maps, dns_label
from multistep.cli.trial.unpack import unpack
from multistep.errors import MultistepError, NotFound, Unavailable
from multistep.kube.client import Client
from multistep.kube.resources import NAMESPACES, TRIALS
from multistep.sources.bundle import digest_of

from .case import Case, CaseError, read_case
from .compare import differences
from .images import Images
from .mapping import manifest
from .outcome import Unexplained, outcome, refusal

DEFAULT_JOBS: Final = 8
DEFAULT_LIMIT_SECONDS: Final = 180.0
UNNOTICED_SECONDS: Final = 60.0  # if a trial has no condition after this time, no operator reconciles it
_POLL_SECONDS: Final = 0.4
_WRITE_ATTEMPTS: Final = 4
_NAME_LENGTH: Final = 40
_IN_MEMORY_BYTES: Final = 8 << 20
_SILENCE_SECONDS: Final = 60


class Verdict(StrEnum):
    """The result of a case. ERROR: the case could not run, or its trial ended unexpectedly."""

    AGREE = "agree"
    DIFFER = "differ"
    ERROR = "error"


@dataclass(frozen=True)
class Report:
    """The result of one case. lines: differences or errors; remark: additional information."""

    name: str
    verdict: Verdict
    seconds: float = 0.0
    lines: Sequence[str] = ()
    remark: str = ""
    is_refusal: bool = False
    outcome: Mapping[str, Any] | None = None


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
    cases, reports = _read(directories, settings.reported)
    images = Images(cases)
    for name in images.names:
        settings.say(f"image {name}")
        await asyncio.to_thread(images.build, name)
    async with await Client.connect() as client, _namespace(client, settings) as namespace:
        await _require_trials(client, namespace)
        runner = _Runner(client, namespace, images, settings)
        reports += await asyncio.gather(*(runner.report(number, case) for number, case in enumerate(cases)))
    return sorted(reports, key=lambda report: report.name)


def _read(directories: Sequence[Path], reported: Callable[[Report], None]) -> tuple[list[Case], list[Report]]:
    cases, reports = [], []
    for directory in directories:
        try:
            cases.append(read_case(directory))
        except CaseError as error:
            reports.append(Report(directory.name, Verdict.ERROR, lines=str(error).splitlines()))
            reported(reports[-1])
    return cases, reports


@asynccontextmanager
async def _namespace(client: Client, settings: Settings) -> AsyncIterator[str]:
    name = settings.namespace or f"conformance-{secrets.token_hex(4)}"
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    settings.say(f"namespace {name}")
    try:
        yield name
    finally:
        if not settings.keep:
            await client.delete(NAMESPACES, None, name)


async def _require_trials(client: Client, namespace: str) -> None:
    try:
        await client.list_all(TRIALS, namespace)
    except NotFound as error:
        raise NotFound("the cluster knows no MultiStepTrial: install Multistep in it, by `make deploy` for one") from error


class _Runner:
    """Runs cases concurrently, at most `settings.jobs` at a time."""

    def __init__(self, client: Client, namespace: str, images: Images, settings: Settings) -> None:
        self._client = client
        self._namespace = namespace
        self._images = images
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.jobs)
        self._operator_seen = False
        self._operator_away = False

    async def report(self, number: int, case: Case) -> Report:
        """Run one case when a slot is free, and return its report, also for an error of any kind."""
        async with self._slots:
            start = time.monotonic()
            trial = f"c{number:03}-{dns_label(case.name, _NAME_LENGTH)}"
            try:
                report = await self._attempt(case, trial)
            except (CaseError, Unexplained, MultistepError, TimeoutError) as error:
                report = Report(case.name, Verdict.ERROR, lines=str(error).splitlines())
            except Exception as error:  # a bug of this program in one case must not hide the other cases
                report = Report(case.name, Verdict.ERROR, lines=[f"this program failed: {error!r}"])
        report = Report(**{**vars(report), "seconds": time.monotonic() - start, "is_refusal": case.is_refusal})
        self._settings.reported(report)
        return report

    async def _attempt(self, case: Case, trial: str) -> Report:
        if self._operator_away:
            raise CaseError("not begun: no operator took notice of earlier cases")
        packed = case.packed()
        await self._submit(case, trial, packed.data)
        status = await self._ended(trial)
        found = refusal(status) or await self._outcome(case, status)
        lines = differences(case.expected, found)
        verdict = Verdict.DIFFER if lines else Verdict.AGREE
        return Report(case.name, verdict, lines=lines, remark=_remark(found, packed.restored), outcome=found)

    async def _submit(self, case: Case, trial: str, packed: bytes) -> None:
        digest = digest_of(packed)
        parts = bundle_config_maps(packed, trial, digest, self._namespace)
        bundle = {"configMaps": [part["metadata"]["name"] for part in parts], "digest": digest}
        image = self._images.of(case)
        for each in (*parts, manifest(case, name=trial, namespace=self._namespace, bundle=bundle, image=image)):
            await self._apply(each)

    async def _apply(self, wanted: Manifest) -> None:
        """Apply the object. Applying is idempotent, so retry if the API server is unavailable or its response is lost."""
        for attempt in range(1, _WRITE_ATTEMPTS + 1):
            try:
                await self._client.apply(wanted, field_manager="conformance")
                return
            except Unavailable:
                if attempt == _WRITE_ATTEMPTS:
                    raise
                await asyncio.sleep(attempt)

    async def _ended(self, trial: str) -> TrialStatus:
        """Wait until the trial is finished and return its status. Raise TimeoutError with the trial's progress."""
        start = time.monotonic()
        while not is_finished(status := parse_status(await self._client.get(TRIALS, self._namespace, trial))):
            waited = time.monotonic() - start
            self._operator_seen = self._operator_seen or bool(status.conditions)
            if waited > UNNOTICED_SECONDS and not status.conditions:
                self._operator_away = not self._operator_seen
                raise TimeoutError(f"nobody took notice of the trial within {waited:.0f} s: does the operator run?")
            if waited > self._settings.limit_seconds:
                raise TimeoutError(f"not over after {waited:.0f} s: {_whereabouts(status)}")
            await asyncio.sleep(_POLL_SECONDS)
        return status

    async def _outcome(self, case: Case, status: TrialStatus) -> dict[str, Any]:
        failed = holds(status, "Failed")
        if failed and not _expects_trial_exception(case):
            raise Unexplained(f"the trial is Failed, {failed.reason}: {failed.message}")
        if status.results is None:
            raise Unexplained(f"the trial is finished, but has no results: {failed.message if failed else 'no reason given'}")
        with tempfile.TemporaryDirectory(prefix="conformance-") as directory:
            await self._fetch(status.results, Path(directory))
            return await asyncio.to_thread(outcome, status, Path(directory), case.declared)

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


def _expects_trial_exception(case: Case) -> bool:
    return not case.is_refusal and case.expected["trial"]["exception_type"] is not None


def _remark(found: Mapping[str, Any], restored: Sequence[str]) -> str:
    refused = found["load_error"]
    reported = [f"this copy of the case had lost {', '.join(restored)}: made again"] if restored else []
    reported += [f"refused: {refused['type']}: {refused['message']}"] if refused else []
    return "; ".join(reported)


def _whereabouts(status: TrialStatus) -> str:
    reported = holds(status, "Reconciling")
    where = f" in step {status.current_step!r}" if status.current_step else ""
    return f"{status.phase}{where}" + (f", {reported.reason}: {reported.message}" if reported else "")
