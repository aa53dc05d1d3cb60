"""Builds images in the background, each once for all trials that need it, with a limit that is fair between namespaces.

The registry decides whether an image exists. The state in memory only saves work. After a restart the operator queries the registry
again, and continues the builds in the pods that exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from multistep.api.trial.status import ImageStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.builds.next_build_action import BUILD_FAILED, BUILD_LIMIT, BuildPause
from multistep.engine.plan.image_builds import ImageBuild, build_id
from multistep.errors import SourceError
from multistep.kube.cluster_protocols import Cluster
from multistep.reconcile.admission.concurrency_limit import ConcurrencyLimit, Key, Wake
from multistep.reconcile.loading.background_jobs import RECHECK_SECONDS, BackgroundJobs, forget_oldest
from multistep.reconcile.loading.build_one_image import BuildJob, Tools
from multistep.settings import Settings
from multistep.sources.load.image_registry import BuiltImages
from multistep.sources.load.load_trial import BUILDING, RETRYING, ImageMissing
from multistep.sources.reader.read_task import ReadTask
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume

logger = logging.getLogger(__name__)

_LOOKUPS: Final = 8
_KNOWN_SECONDS: Final = 60.0  # a found image is not looked up again for this time
_BROKEN_SECONDS: Final = 600.0  # a build that failed because of its Dockerfile is not repeated for this time
_REPORT_SECONDS: Final = 10.0
_REGISTRY_SECONDS: Final = 15.0


@dataclass(frozen=True)
class _Outcome:
    """The remembered outcome of a build."""

    outcome: str | SourceError
    """The image, or the error."""
    until: float
    """When the outcome is forgotten, in the event loop's time."""


class Builds:
    """The builds of all trials."""

    def __init__(
        self,
        cluster: Cluster,
        volume: ResultsVolume,
        settings: Settings,
        registry: BuiltImages,
        wake: Wake,
        clock: Callable[[], float],
    ) -> None:
        """Create the builds. ``wake`` requeues a trial. ``clock`` returns seconds since the epoch."""
        self._settings = settings
        self._access = volume.access
        self._logs = volume.build_logs
        self._registry = registry
        self._tools = Tools(cluster, self._registry, self._logs, settings, clock)
        self._lookups: BackgroundJobs[str, str] = BackgroundJobs(_LOOKUPS, wake)
        self._jobs: BackgroundJobs[str, str] = BackgroundJobs(settings.builds.parallelism, wake)
        self._outcomes: OrderedDict[str, _Outcome] = OrderedDict()  # outcomes of finished builds, by the build's id
        self._reports: dict[str, BuildPause] = {}  # last report of each running build, by the build's id
        self._absent: OrderedDict[str, str] = OrderedDict()  # id of the build without an image, by the trial's UID

    @property
    def wanted(self) -> Collection[str]:
        """Ids of the builds that run or are queued."""
        return {*self._reports, *self._absent.values()}

    async def images(self, trial: MultiStepTrial, task: ReadTask, wanted: Sequence[ImageBuild]) -> Sequence[ImageStatus]:
        """Return a trial's images, as load_trial.ImageBuilder specifies. Missing images are built one after the other."""
        pinned = {each.name: each for each in trial.status.images if each.image}
        if not self._settings.builds.registry:
            return list(pinned.values())
        found, missing, path = list[ImageStatus](), None, ""
        for each in wanted:
            if each.name in pinned:
                found.append(pinned[each.name])
                continue
            id = build_id(each, await task.sha256(each.content), self._settings.builds.platform)
            image = None
            if missing is None:
                try:
                    image = self._image(trial, task, each, id)
                except SourceError as error:
                    missing, path = error, each.path
            log = self._access.build_uri(self._settings.results_url, TrialKey.of(trial), id)
            found.append(ImageStatus(name=each.name, build=id, image=image, log=log if await self._has_log(id) else None))
        if missing is not None:
            raise ImageMissing(f"{path}: {missing}", missing, found)
        return found

    @property
    def limits(self) -> Sequence[ConcurrencyLimit]:
        """The limits of concurrent lookups and builds."""
        return self._lookups.limit, self._jobs.limit

    async def stop(self) -> None:
        """Cancel all running jobs. The builds in the pods continue."""
        await self._lookups.stop()
        await self._jobs.stop()

    async def _has_log(self, id: str) -> bool:
        return id in self._reports or await self._logs.exists(id)

    def _image(self, trial: MultiStepTrial, task: ReadTask, build: ImageBuild, id: str) -> str:
        """Return the image of a build. Raises SourceError while the image is being built, and if it cannot be built."""
        uid, key = trial.metadata.uid, (trial.metadata.namespace, trial.metadata.name)
        if (image := self._outcome(id)) is not None or (image := self._jobs.outcome(uid, id)) is not None:
            self._absent.pop(uid, None)
            return image
        if id not in self._jobs and self._absent.get(uid) != id and (image := self._looked_up(uid, key, id)):
            return image
        self._absent[uid] = id
        forget_oldest(self._absent)
        about = f"{trial.metadata.namespace}/{trial.metadata.name}"
        job = self._jobs.start(id, key, uid, partial(self._build, build, id, task, about))
        if job is None:
            text = f"is queued: builds.parallelism = {self._settings.builds.parallelism} images are being built"
            raise SourceError(text, transient=True, reason=BUILDING, retry_seconds=RECHECK_SECONDS)
        job.waiting[uid] = key
        report = self._reports.get(id) or BuildPause("is being built")
        reason = RETRYING if report.failing else BUILDING
        raise SourceError(report.message, transient=True, reason=reason, retry_seconds=_REPORT_SECONDS)

    def _outcome(self, id: str) -> str | None:
        known = self._outcomes.get(id)
        if known is None or known.until < _now():
            return None
        if isinstance(known.outcome, SourceError):
            raise known.outcome
        return known.outcome

    def _looked_up(self, uid: str, key: Key, id: str) -> str:
        """Return the image if the registry has it, else "". Raises SourceError while the lookup is running, and if it failed."""
        if (found := self._lookups.outcome(uid, id)) is not None:
            return found
        if (job := self._lookups.start(id, key, uid, partial(self._look_up, id))) is not None:
            job.waiting[uid] = key
        text = "checking whether the registry has the image"
        raise SourceError(text, transient=True, reason=BUILDING, retry_seconds=RECHECK_SECONDS)

    async def _look_up(self, id: str) -> str:
        try:
            digest = await self._registry.digest(id)
        except SourceError as error:
            text = f"the registry of built images cannot be used: {error}"
            raise SourceError(text, transient=True, reason=RETRYING, retry_seconds=_REGISTRY_SECONDS) from error
        if digest:
            self._remember(id, self._registry.pinned(digest), _KNOWN_SECONDS)
        return self._registry.pinned(digest) if digest else ""

    async def _build(self, build: ImageBuild, id: str, task: ReadTask, about: str) -> str:
        self._reports[id] = BuildPause("is being built")
        try:
            image = await BuildJob(self._tools, build, id, task, about, partial(self._reports.__setitem__, id)).run()
        except SourceError as error:
            if error.reason in (BUILD_FAILED, BUILD_LIMIT):
                self._remember(id, error, _BROKEN_SECONDS)
            raise
        except Exception as error:
            logger.exception("building an image")
            text = f"the build was interrupted: {type(error).__name__}"
            raise SourceError(text, transient=True, reason=RETRYING) from error
        finally:
            del self._reports[id]
        self._remember(id, image, _KNOWN_SECONDS)
        return image

    def _remember(self, id: str, outcome: str | SourceError, seconds: float) -> None:
        self._outcomes.pop(id, None)
        self._outcomes[id] = _Outcome(outcome, _now() + seconds)
        forget_oldest(self._outcomes)


def _now() -> float:
    return asyncio.get_running_loop().time()
