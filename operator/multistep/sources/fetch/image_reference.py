"""Parses image references as docker and Kubernetes do."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass

from multistep.errors import SourceError

_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HUB = "registry-1.docker.io"


@dataclass(frozen=True)
class Reference:
    """An image reference. registry: host and port; tag, digest: "" if unset (without both, the tag is latest)."""

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse ``[HOST[:PORT]/]REPOSITORY[:TAG][@sha256:DIGEST]``. Raises SourceError."""
        name, at, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
        registry, path = (first, rest) if has_host else ("docker.io", name)
        repository, colon, tag = path.partition(":")
        if registry in ("docker.io", "index.docker.io"):
            registry, repository = "docker.io", repository if "/" in repository else f"library/{repository}"
        fits = _HOST.fullmatch(registry) and _REPOSITORY.fullmatch(repository)
        if not fits or (colon and not _TAG.fullmatch(tag)) or (at and not DIGEST.fullmatch(digest)):
            raise SourceError(f"{text!r} is not an image reference: must be HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST")
        return cls(registry, repository, tag, digest)

    @property
    def host(self) -> str:
        """Return the host of the registry's API."""
        return _HUB if self.registry == "docker.io" else self.registry

    @property
    def name(self) -> str:
        """Return the reference without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def manifest(self) -> str:
        """Return the digest or tag with which to request the manifest."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag, digest = self.tag or ("" if self.digest else "latest"), self.digest
        return self.name + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


def login(docker_config: str, reference: Reference) -> tuple[str, str] | None:
    """Return user name and password for an image from a docker config.json; None without a matching entry. Raises SourceError."""
    try:
        entries = json.loads(docker_config).get("auths") or {}
        fitting = sorted((each for each in entries if _covers(each, reference)), key=len)
        if not fitting:
            return None
        entry = entries[fitting[-1]]
        if "username" in entry:
            return str(entry["username"]), str(entry.get("password", ""))
        user, _, password = base64.b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
        return (user, password) if user else None
    except (ValueError, AttributeError, TypeError, binascii.Error):
        raise SourceError("the credentials for the registry are not a docker config.json with auths") from None


def _covers(entry: str, reference: Reference) -> bool:
    place = re.sub(r"^https?://", "", entry).rstrip("/")
    place = re.sub(r"/v[12]$", "", place)
    place = re.sub(r"^(index\.docker\.io|registry-1\.docker\.io)", "docker.io", place)
    return f"{reference.name}/".startswith(f"{place}/")
