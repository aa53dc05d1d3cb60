"""Run the trial of one case, wherever trials run, and compare its outcome with the expected one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Protocol

from multistep.api.trial.status import TrialStatus, holds
from multistep.client.submit.manifests import Manifest, bundle_config_maps, bundle_source, dns_label, placed
from multistep.errors import MultistepError
from multistep.sources.task.bundle import digest_of

from .case import Case, CaseError, read_case
from .compare import differences
from .mapping import manifest
from .outcome import Unexplained, outcome, refusal

_NAME_LENGTH: Final = 40


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


class Ground(Protocol):
    """Where trials run."""

    @property
    def namespace(self) -> str: ...

    def image_of(self, case: Case) -> str | None:
        """Return the image of a case; None if its task has none. Raises CaseError if its build failed."""

    async def apply(self, wanted: Manifest) -> None:
        """Create an object."""

    async def ended(self, trial: str) -> TrialStatus:
        """Wait until the trial is finished and return its status. Raises TimeoutError with the trial's progress."""

    def results(self, trial: str, status: TrialStatus) -> AbstractAsyncContextManager[Path]:
        """Return the directory with the results of a finished trial, for the duration."""


def read_cases(directories: Sequence[Path]) -> tuple[list[Case], list[Report]]:
    """Return the cases, and a report for each that is invalid."""
    cases, reports = [], []
    for directory in directories:
        try:
            cases.append(read_case(directory))
        except CaseError as error:
            reports.append(Report(directory.name, Verdict.ERROR, lines=str(error).splitlines()))
    return cases, reports


async def judged(case: Case, ground: Ground, number: int = 0) -> Report:
    """Run one case and return its report, also for an error of any kind. number: distinguishes the names of the cases' trials."""
    start = time.monotonic()
    try:
        report = await _attempt(case, ground, f"c{number:03}-{dns_label(case.name, _NAME_LENGTH)}")
    except (CaseError, Unexplained, MultistepError, TimeoutError) as error:
        report = Report(case.name, Verdict.ERROR, lines=str(error).splitlines())
    except Exception as error:  # a bug of this program in one case must not hide the other cases
        report = Report(case.name, Verdict.ERROR, lines=[f"this program failed: {error!r}"])
    return Report(**{**vars(report), "seconds": time.monotonic() - start, "is_refusal": case.is_refusal})


async def _attempt(case: Case, ground: Ground, trial: str) -> Report:
    packed = case.packed()
    for each in _manifests(case, ground, trial, packed.data):
        await ground.apply(each)
    status = await ground.ended(trial)
    found = refusal(status) or await _outcome(case, ground, trial, status)
    lines = differences(case.expected, found)
    verdict = Verdict.DIFFER if lines else Verdict.AGREE
    return Report(case.name, verdict, lines=lines, remark=_remark(found, packed.restored), outcome=found)


def _manifests(case: Case, ground: Ground, trial: str, packed: bytes) -> Iterator[Manifest]:
    digest = digest_of(packed)
    parts = bundle_config_maps(packed, trial, digest)
    yield from (placed(part, ground.namespace) for part in parts)
    bundle = bundle_source(parts, digest)["bundle"]
    yield manifest(case, name=trial, namespace=ground.namespace, bundle=bundle, image=ground.image_of(case))


async def _outcome(case: Case, ground: Ground, trial: str, status: TrialStatus) -> dict[str, Any]:
    failed = holds(status, "Failed")
    if failed and not _expects_trial_exception(case):
        raise Unexplained(f"the trial is Failed, {failed.reason}: {failed.message}")
    if status.results is None:
        raise Unexplained(f"the trial is finished, but has no results: {failed.message if failed else 'no reason given'}")
    async with ground.results(trial, status) as directory:
        return await asyncio.to_thread(outcome, status, directory, case.declared)


def _expects_trial_exception(case: Case) -> bool:
    return not case.is_refusal and case.expected["trial"]["exception_type"] is not None


def _remark(found: Mapping[str, Any], restored: Sequence[str]) -> str:
    refused = found["load_error"]
    reported = [f"this copy of the case had lost {', '.join(restored)}: made again"] if restored else []
    reported += [f"refused: {refused['type']}: {refused['message']}"] if refused else []
    return "; ".join(reported)
