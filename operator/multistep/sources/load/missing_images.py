"""The error of a trial whose images are not built yet, and the protocol of the image builder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from multistep.api.trial.image_status import ImageStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.plan.image_builds import ImageBuild
from multistep.errors import SourceError
from multistep.sources.reader.read_task import ReadTask

BUILDING: Final = "ImageBuilding"
RETRYING: Final = "ImageBuildRetrying"


class ImageMissing(SourceError):
    """An image of the trial is not built yet, or cannot be built. images: the builds that the trial needs."""

    def __init__(self, message: str, error: SourceError, images: Sequence[ImageStatus]) -> None:
        super().__init__(message, transient=error.transient, reason=error.reason, retry_seconds=error.retry_seconds)
        self.images = list(images)


class Building(Protocol):
    """Builds images of tasks; implemented in reconcile.loading.build_images."""

    async def images(self, trial: MultiStepTrial, task: ReadTask, wanted: Sequence[ImageBuild]) -> Sequence[ImageStatus]:
        """Return the built images. Images in the trial's status are returned unchanged; if builds are disabled, only these
        are returned. Raises ImageMissing."""
