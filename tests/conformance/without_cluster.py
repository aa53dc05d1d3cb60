"""Run cases without a cluster: the operator runs in this process, and each pod is a process in namespaces. Needs root on Linux."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from hack import image
from localkube.errors import LocalkubeError
from multistep.api.trial.status import TrialStatus, is_finished
from multistep.api.trial.trial import parse_status
from multistep.client.submit.manifests import Manifest
from tests.support.image_trees import ImageTree, image_tree, named_image_tree
from tests.support.process_world import Trials, fresh, process_world

from .case import Case, CaseError
from .images import Images
from .judging import Report, judged, read_cases
from .run import Settings


async def run_without_cluster(directories: Sequence[Path], settings: Settings) -> list[Report]:
    """Run all cases, `settings.jobs` at a time."""
    cases, reports = read_cases(directories)
    for report in reports:
        settings.reported(report)
    runner, images, slots = image.ensure_runner(), Images(cases), asyncio.Semaphore(settings.jobs)

    async def report_of(number: int, case: Case) -> Report:
        async with slots:
            report = await judged(case, ground, number)
        settings.reported(report)
        return report

    with fresh() as directory:
        async with ground_at(directory, runner, images, settings.limit_seconds) as ground:
            reports += await asyncio.gather(*(report_of(number, case) for number, case in enumerate(cases)))
    return sorted(reports, key=lambda report: report.name)


@asynccontextmanager
async def ground_at(directory: Path, runner: Path, images: Images, limit_seconds: float) -> AsyncIterator[ProcessGround]:
    """Run an operator with a node of processes for the cases' trials, with their files in the directory."""
    async with process_world(directory, runner, lambda name: _tree(images, name)) as trials:
        yield ProcessGround(trials, images, limit_seconds)


def _tree(images: Images, name: str) -> ImageTree:
    context = images.context(name)
    return image_tree(context, name.rpartition(":")[2]) if context else named_image_tree(name)


class ProcessGround:
    """The ground of trials whose pods are processes."""

    def __init__(self, trials: Trials, images: Images, limit_seconds: float) -> None:
        self._trials = trials
        self._images = images
        self._limit_seconds = limit_seconds
        self.namespace = trials.namespace

    def image_of(self, case: Case) -> str | None:
        name = self._images.of(case)
        if name is not None:
            try:
                _tree(self._images, name)
            except LocalkubeError as error:
                raise CaseError(f"its image could not be built:\n{error}") from error
        return name

    async def apply(self, wanted: Manifest) -> None:
        await self._trials.applied(wanted)

    async def ended(self, trial: str) -> TrialStatus:
        async with asyncio.timeout(self._limit_seconds):
            return parse_status(await self._trials.until(trial, lambda found: is_finished(parse_status(found))))

    @asynccontextmanager
    async def results(self, trial: str, status: TrialStatus) -> AsyncIterator[Path]:
        yield self._trials.results(await self._trials.get(trial))
