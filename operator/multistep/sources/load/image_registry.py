"""The registry of the images that the cluster builds. It finds images by tag, and returns the credentials with which builds
push."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Protocol

from multistep.errors import SourceError
from multistep.settings import Settings
from multistep.sources.fetch.http_client import HttpClient, make_pool, matches_host
from multistep.sources.fetch.registry_client import DIGEST_FORM, ImageReference, RegistryClient, registry_login


class BuiltImages(Protocol):
    """The repository of built images. An image's tag is the digest of its build's inputs."""

    @property
    def host(self) -> str:
        """The registry's host."""

    def insecure(self, host: str) -> bool:
        """Return whether the registry on this host is contacted without TLS."""

    def tagged(self, build: str) -> str:
        """Return the reference (with a tag) under which a build pushes its image."""

    def pinned(self, digest: str) -> str:
        """Return the reference (with a digest) by which pods use an image."""

    async def digest(self, build: str) -> str:
        """Return the digest of a build's image, or "" if it does not exist. Raises SourceError."""

    def credentials(self) -> str:
        """Return the content of the docker config.json for the push. Raises SourceError."""


class ImageRegistry:
    """The repository of the setting builds.registry."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @property
    def host(self) -> str:
        return ImageReference.parse(self._settings.builds.registry).registry

    def insecure(self, host: str) -> bool:
        return matches_host(host, self._settings.task_insecure_hosts)

    def tagged(self, build: str) -> str:
        return f"{self._settings.builds.registry}:{build}"

    def pinned(self, digest: str) -> str:
        return f"{self._settings.builds.registry}@{digest}"

    async def digest(self, build: str) -> str:
        return await asyncio.to_thread(self._digest, build)

    def credentials(self) -> str:
        # Skopeo gets only the credentials of this registry. The Secret may also have those of other registries.
        user_and_password = self._login(ImageReference.parse(self._settings.builds.registry))
        auth = base64.b64encode(":".join(user_and_password).encode()).decode() if user_and_password else ""
        return json.dumps({"auths": {self.host: {"auth": auth}} if user_and_password else {}})

    def _login(self, reference: ImageReference) -> tuple[str, str] | None:
        """Return the user name and the password for an image. The file is read each time, because the Secret may change."""
        file = self._settings.builds.push_secret_file
        try:
            return registry_login(file.read_text(), reference) if file is not None else None
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(f"the Secret builds.pushSecret cannot be read: {error}", transient=True) from error

    def _digest(self, build: str) -> str:
        reference = ImageReference.parse(self.tagged(build))
        http, insecure = HttpClient(make_pool()), self.insecure(reference.host)
        digest = RegistryClient(http, reference, self._login(reference), plain_http=insecure).digest(build)
        if digest and not DIGEST_FORM.fullmatch(digest):
            raise SourceError(f"{reference}: the registry answers with the digest {digest[:80]!r}, not with sha256:...")
        return digest
