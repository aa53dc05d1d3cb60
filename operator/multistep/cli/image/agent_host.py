"""The image of the agent host, with a chosen version of Harbor, for `multistep agent host build`."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from multistep.cli.image.engines import Engine, execute
from multistep.cli.image.images import check_pushable, choose_engine, deliver_image, source_checkout
from multistep.cli.terminal import working
from multistep.client.kubeconfig import current_cluster
from multistep.errors import UsageError

_DOCKERFILE: Final = Path("agent-host/Dockerfile")
_LOCK: Final = Path("agent-host/requirements/host.lock")
_UNCHOSEN: Final = "ARG HARBOR=\n"  # this line of the Dockerfile chooses the version of the lock
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.\d+[\w.+-]*")
_OLDEST: Final = (0, 26)  # older classes configure an agent while they install it


@dataclass(frozen=True)
class HostBuild:
    """The build of an agent host's image. source: checkout of Multistep; harbor: version of Harbor; locked: whether that is the
    version of the lock, which pins the hashes of all packages; image: name of the image; push: push the image to its registry
    instead of loading it into the cluster."""

    source: Path
    harbor: str
    locked: bool
    image: str
    push: bool

    @classmethod
    def of(cls, source: Path | None, harbor: str | None, tag: str | None, *, push: bool) -> Self:
        """Return the build of the checkout ``source``; None for the one that this code runs from. harbor: None for the version of
        the lock. Raises UsageError if there is no checkout, if the agent host does not work with the version, or if the image
        cannot be pushed."""
        checkout = source or source_checkout()
        if checkout is None or not (checkout / _DOCKERFILE).is_file():
            raise UsageError(f"{checkout or 'this installation'} has no {_DOCKERFILE}: name a checkout of Multistep with --source")
        locked = _locked_version(checkout)
        version = harbor or locked
        _check(version)
        image = tag or f"localhost/multistep/agent-host:harbor-{version}"
        if push:
            check_pushable(image)
        return cls(checkout.absolute(), version, version == locked, image, push)

    def run(self, kubeconfig: str | None, context: str | None, *, verbose: bool) -> dict[str, Any]:
        """Build the image, and push or load it; return the document that -o json prints. Raises UsageError if the build, push or
        load fails."""
        cluster = current_cluster(kubeconfig, context)
        engine = choose_engine(cluster)
        self._build(engine, verbose=verbose)
        loaded = deliver_image(self.image, engine, cluster, push=self.push, verbose=verbose)
        names = {"harbor": self.harbor, "locked": self.locked, "image": self.image}
        return {**names, "pushed": self.push, "loaded": loaded, "engine": engine.name}

    def dockerfile(self) -> str:
        """Return the text of the checkout's Dockerfile with the chosen version of Harbor."""
        text = (self.source / _DOCKERFILE).read_text()
        if self.locked:
            return text
        if _UNCHOSEN not in text:
            raise UsageError(f"{self.source / _DOCKERFILE} takes no other version of Harbor: it has no line ARG HARBOR=")
        return text.replace(_UNCHOSEN, f"ARG HARBOR={self.harbor}\n")

    def _build(self, engine: Engine, *, verbose: bool) -> None:
        with tempfile.TemporaryDirectory(prefix="multistep-") as directory:
            dockerfile = Path(directory) / "Dockerfile"
            dockerfile.write_text(self.dockerfile())
            with working(f"building {self.image} with {engine.name}"):
                execute(engine.build(self.image, self.source, dockerfile), verbose=verbose)


def _locked_version(checkout: Path) -> str:
    """Return Harbor's version in the lock of the agent host."""
    found = re.search(r"^harbor==(\S+)", (checkout / _LOCK).read_text(), re.MULTILINE)
    if found is None:
        raise UsageError(f"{checkout / _LOCK} has no harbor")
    return found[1]


def _check(version: str) -> None:
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UsageError(f"--harbor: must be a version such as 0.26.0, not {version!r}")
    if (int(found[1]), int(found[2])) < _OLDEST:
        raise UsageError(f"--harbor: the agent host needs Harbor 0.26 or newer, not {version}")
