"""A minimal client of the registry API: pulls and pushes manifests and blobs."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from multistep.api.trial.values import DENIED, DIGEST
from multistep.errors import SourceError
from multistep.sources.fetch.http_client import HttpClient, Response, basic_authorization, check_status, read_body
from multistep.sources.task.bundle import digest_of

_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST_FORM = re.compile(r"sha256:[0-9a-f]{64}")
_HUB = "registry-1.docker.io"


@dataclass(frozen=True)
class ImageReference:
    """An image reference, split into its parts."""

    registry: str
    """The registry's host and port."""
    repository: str
    tag: str = ""
    digest: str = ""
    """If the digest and the tag are "", the registry's tag ``latest`` is used."""

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Parse ``[HOST[:PORT]/]REPOSITORY[:TAG][@sha256:DIGEST]``. Raises SourceError."""
        name, at, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
        registry, path = (first, rest) if has_host else ("docker.io", name)
        repository, colon, tag = path.partition(":")
        if registry in ("docker.io", "index.docker.io"):
            registry, repository = "docker.io", repository if "/" in repository else f"library/{repository}"
        fits = _HOST.fullmatch(registry) and _REPOSITORY.fullmatch(repository)
        if not fits or (colon and not _TAG.fullmatch(tag)) or (at and not DIGEST_FORM.fullmatch(digest)):
            raise SourceError(f"{text!r} is not an image reference: must be HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST")
        return cls(registry, repository, tag, digest)

    @property
    def host(self) -> str:
        """The host of the registry's API."""
        return _HUB if self.registry == "docker.io" else self.registry

    @property
    def name(self) -> str:
        """The reference without tag and digest."""
        return f"{self.registry}/{self.repository}"

    @property
    def manifest(self) -> str:
        """The digest or tag with which to request the manifest."""
        return self.digest or self.tag or "latest"

    def __str__(self) -> str:
        tag, digest = self.tag or ("" if self.digest else "latest"), self.digest
        return self.name + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")


def registry_login(docker_config: str, reference: ImageReference) -> tuple[str, str] | None:
    """Return the user name and the password for an image from a docker config.json, or None without a matching entry. Raises
    SourceError."""
    try:
        entries = json.loads(docker_config).get("auths") or {}
        fitting = sorted((entry for entry in entries if _covers(entry, reference)), key=len)
        if not fitting:
            return None
        entry = entries[fitting[-1]]
        if "username" in entry:
            return str(entry["username"]), str(entry.get("password", ""))
        user, _, password = base64.b64decode(entry.get("auth", ""), validate=True).decode().partition(":")
        return (user, password) if user else None
    except (ValueError, AttributeError, TypeError, binascii.Error):
        raise SourceError("the credentials for the registry are not a docker config.json with auths") from None


def _covers(entry: str, reference: ImageReference) -> bool:
    place = re.sub(r"^https?://", "", entry).rstrip("/")
    place = re.sub(r"/v[12]$", "", place)
    place = re.sub(r"^(index\.docker\.io|registry-1\.docker\.io)", "docker.io", place)
    return f"{reference.name}/".startswith(f"{place}/")


OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
_ACCEPT = ", ".join((OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_LIST))
_PARAMETER = re.compile(r'([a-zA-Z]+)="([^"]*)"')


class RegistryClient:
    """A client of one repository in a registry."""

    def __init__(
        self, http: HttpClient, reference: ImageReference, login: tuple[str, str] | None, *, plain_http: bool = False
    ) -> None:
        """Create a client with a user name and a password, if there are any. With ``plain_http``, connect without TLS."""
        self._http = http
        self._reference = reference
        self._login = login
        self._scheme = "http" if plain_http else "https"
        self._authorization = ""

    def manifest(self, wanted: str) -> tuple[str, Mapping[str, Any]]:
        """Return digest and content of the manifest (or index) with a tag or digest. Raises SourceError if the digest differs."""
        what = f"{self._reference.name}{'@' if ':' in wanted else ':'}{wanted}"
        response = check_status(self._send("GET", f"manifests/{wanted}", {"Accept": _ACCEPT}), what)
        sent = response.headers.get("Docker-Content-Digest", "")
        data = read_body(response, what)
        digest = digest_of(data)
        expected = wanted if ":" in wanted else sent
        if expected.startswith("sha256:") and expected != digest:
            raise SourceError(f"{what}: the registry sent a manifest with digest {digest}", reason=DIGEST)
        try:
            content = json.loads(data)
        except ValueError as error:
            raise SourceError(f"{what}: the manifest is not JSON") from error
        if not isinstance(content, dict):
            raise SourceError(f"{what}: the manifest is not a JSON object")
        return digest, content

    def digest(self, tag: str) -> str:
        """Return the digest of the manifest (or index) with a tag, or "" if it does not exist. Raises SourceError."""
        response = self._send("HEAD", f"manifests/{tag}", {"Accept": _ACCEPT})
        response.close()
        if response.status == 404:
            return ""
        check_status(response, f"{self._reference.name}:{tag}")
        return response.headers.get("Docker-Content-Digest") or self.manifest(tag)[0]

    def blob(self, digest: str) -> Response:
        """Return the response with a blob. The caller reads it and checks its digest."""
        return check_status(self._send("GET", f"blobs/{digest}"), f"{self._reference.name}: blob {digest}")

    def push_blob(self, data: bytes) -> str:
        """Upload a blob unless the repository has it, and return its digest."""
        digest = digest_of(data)
        what = f"{self._reference.name}: upload of {digest}"
        present = self._send("HEAD", f"blobs/{digest}", actions="pull,push")
        present.close()
        if present.status == 200:
            return digest
        response = check_status(self._send("POST", "blobs/uploads/", {"Content-Length": "0"}, actions="pull,push", body=b""), what)
        response.close()
        target = urljoin(self._url("blobs/uploads/"), response.headers.get("Location", ""))
        target += ("&" if "?" in target else "?") + urlencode({"digest": digest})
        headers = {"Content-Type": "application/octet-stream"}
        check_status(self._ask("PUT", target, headers, body=data, actions="pull,push"), what).close()
        return digest

    def push_manifest(self, tag: str, manifest: bytes) -> tuple[str, bool]:
        """Upload a manifest under a tag, or under its digest if ``tag`` is "", unless the repository has it there. Return its
        digest and whether it was uploaded."""
        digest = digest_of(manifest)
        name = tag or digest
        present = self._send("HEAD", f"manifests/{name}", {"Accept": _ACCEPT}, actions="pull,push")
        present.close()
        if present.status == 200 and present.headers.get("Docker-Content-Digest") == digest:
            return digest, False
        headers = {"Content-Type": OCI_MANIFEST}
        sent = self._send("PUT", f"manifests/{name}", headers, body=manifest, actions="pull,push")
        check_status(sent, f"{self._reference.name}:{name}").close()
        return digest, True

    def _url(self, path: str) -> str:
        return f"{self._scheme}://{self._reference.host}/v2/{self._reference.repository}/{path}"

    def _send(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, *, actions: str = "pull", body: bytes | None = None
    ) -> Response:
        return self._ask(method, self._url(path), headers, actions=actions, body=body)

    def _ask(self, method: str, url: str, headers: Mapping[str, str] | None, *, actions: str, body: bytes | None) -> Response:
        follow = method in ("GET", "HEAD")
        given = self._authorization if urlsplit(url).netloc == self._reference.host else ""
        response = self._http.send(method, url, headers, authorization=given, body=body, follow=follow)
        challenge = response.headers.get("WWW-Authenticate", "")
        if response.status != 401 or not challenge:
            return response
        response.close()
        self._authorization = self._answer_to(challenge, actions)
        return self._http.send(method, url, headers, authorization=self._authorization, body=body, follow=follow)

    def _answer_to(self, challenge: str, actions: str) -> str:
        scheme, _, rest = challenge.partition(" ")
        if scheme.lower() == "bearer":
            return f"Bearer {self._token(dict(_PARAMETER.findall(rest)), actions)}"
        if scheme.lower() == "basic" and self._login:
            return basic_authorization(*self._login)
        given = "it does not accept the credentials" if self._login else "it requires credentials"
        raise SourceError(f"{self._reference.name}: access denied: {given}", reason=DENIED)

    def _token(self, parameters: Mapping[str, str], actions: str) -> str:
        realm = parameters.get("realm", "")
        if urlsplit(realm).scheme not in ("https", self._scheme):
            raise SourceError(f"{self._reference.name}: the registry asks for a token from {realm[:80]!r}, which is refused")
        query = {"scope": parameters.get("scope") or f"repository:{self._reference.repository}:{actions}"}
        if "service" in parameters:
            query["service"] = parameters["service"]
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        what = f"{self._reference.name}: the token"
        response = check_status(
            self._http.send("GET", url, authorization=basic_authorization(*self._login) if self._login else ""), what
        )
        try:
            table = json.loads(read_body(response, what))
            return str(table.get("token") or table["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise SourceError(f"{what} cannot be read") from error
