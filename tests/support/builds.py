"""Fakes for builds of images: a registry whose tags appear when a push succeeds, and the logs of builds, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from multistep.api.trial.status import ImageStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.plan.image_builds import ImageBuild
from multistep.errors import SourceError
from multistep.sources.reader.read_task import ReadTask

SECRET = '{"auths":{"registry.example":{"auth":"c2VjcmV0"}}}'
DIGEST = "sha256:" + "d" * 64


@dataclass
class FakeRegistry:
    """A registry of built images. tags: the digests of images by tag; away: the error of each request, "" if the registry
    answers."""

    tags: dict[str, str] = field(default_factory=dict)
    away: str = ""
    asked: int = 0
    host: str = "registry.example"

    def insecure(self, host: str) -> bool:
        return host == "plain.example"

    def tagged(self, build: str) -> str:
        return f"registry.example/builds:{build}"

    def pinned(self, digest: str) -> str:
        return f"registry.example/builds@{digest}"

    async def digest(self, build: str) -> str:
        self.asked += 1
        if self.away:
            raise SourceError(self.away, transient=True)
        return self.tags.get(build, "")

    def credentials(self) -> str:
        return SECRET


@dataclass
class FakeBuildLogs:
    """The logs of builds, in memory."""

    logs: dict[str, bytes] = field(default_factory=dict)

    async def write(self, build: str, offset: int, data: bytes) -> None:
        self.logs[build] = self.logs.get(build, b"")[:offset] + data

    async def exists(self, build: str) -> bool:
        return build in self.logs


class NoBuilding:
    """A builder for a cluster in which builds are off: it builds no image."""

    async def images(self, trial: MultiStepTrial, task: ReadTask, wanted: Sequence[ImageBuild]) -> Sequence[ImageStatus]:
        return ()
