"""The JSON messages between the operator and the fetching process. Only the request contains credentials."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from multistep.api.task.allowed_names import same_server
from multistep.errors import SourceError
from multistep.sources.task.bundle import BundleLimits

SourceKind = Literal["oci", "git", "url", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class FetchRules:
    """The operator's settings for fetches."""

    allowed_hosts: tuple[str, ...] = ()
    """Patterns of the hosts from which tasks may be fetched. Without patterns, all hosts are allowed."""
    insecure_hosts: tuple[str, ...] = ()
    """Registries to contact without TLS, and hosts to which credentials may be sent without TLS."""
    blocked_networks: tuple[str, ...] = ()
    """Networks to which the process opens no connection, whatever the host name."""
    seconds: float = 120.0
    """Timeout of the whole fetch."""
    compressed_bytes: int = 64 << 20
    uncompressed_bytes: int = 256 << 20
    entries: int = 50_000

    @property
    def limits(self) -> BundleLimits:
        """The limits of one task's bundle."""
        return BundleLimits(self.compressed_bytes, self.uncompressed_bytes, self.entries)


@dataclass(frozen=True)
class FetchRequest:
    """A task to fetch. Only requests with the same ``scope`` share a fetched task."""

    kind: SourceKind
    location: str
    """Image reference or URL. For a dataset, the URL of its registry.json."""
    ref: str = ""
    """Git branch, tag or commit."""
    path: str = ""
    digest: str = ""
    """Expected digest of the file at a URL."""
    revision: str = ""
    """The resolved commit or manifest digest. "" asks the process to resolve it."""
    scope: str = ""
    """UID of the Secret with the credentials, or ""."""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The Secret's data, decoded."""
    many: bool = False
    """Whether each directory with a task.toml directly below the path is a task."""
    dataset: Mapping[str, Any] = field(default_factory=dict)
    """For a dataset, the fields of harbor_registry.Selection."""

    def below(self, name: str) -> FetchRequest:
        """Return the request for one of the many tasks, whose directory is ``name``."""
        return replace(self, path=f"{self.path.strip('/')}/{name}".lstrip("/"), many=False)

    def elsewhere(self, url: str, path: str, ref: str = "") -> FetchRequest:
        """Return the request for a task of this dataset in a git repository. The request has the dataset's credentials only if the
        repository is on the same server as the dataset."""
        trusted = same_server(self.location, url)
        scope, credentials = (self.scope, self.credentials) if trusted else ("", {})
        return FetchRequest("git", url, ref=ref, path=path, scope=scope, credentials=credentials)

    @property
    def id(self) -> str:
        """An id of the request. Requests with equal ids can share one fetch."""
        dataset = json.dumps(dict(self.dataset), sort_keys=True)
        place = self.location, self.ref, self.path, self.digest
        return _hash(self.kind, *place, self.revision, self.scope, str(self.many), dataset)

    def key(self, revision: str) -> str:
        """Return the cache key of the task at a revision."""
        return _hash(self.kind, self.location if self.kind == "git" else "", self.path, revision, self.scope)


@dataclass(frozen=True)
class FetchOrder:
    """A request with the rules for its fetch."""

    request: FetchRequest
    rules: FetchRules
    cache: str
    """Directory of the cache. Cached tasks are not fetched again."""

    def to_json(self) -> bytes:
        """Return the order as JSON for the stdin of the fetching process."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> FetchOrder:
        """Return the order that ``to_json`` encoded."""
        table = json.loads(text)
        rules: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table["rules"].items()}
        return cls(FetchRequest(**table["request"]), FetchRules(**rules), table["cache"])

    def cached(self, revision: str) -> FetchResult | None:
        """Return the cached task of a revision, or None. A request for many tasks gets None, because some of them may be
        evicted."""
        if self.request.many:
            return None
        file = next(Path(self.cache).glob(f"{self.request.key(revision)}-*"), None)
        return None if file is None else FetchResult(revision, f"sha256:{file.name.rpartition('-')[2]}")


@dataclass(frozen=True)
class FetchedTask:
    """One of many fetched tasks."""

    name: str
    """Name of the task's directory, or the task's name in a dataset."""
    digest: str = ""
    """Digest of the bundle's bytes."""
    file: str = ""
    """Name of the bundle in the cache's incoming directory, or "" if the task is already cached."""
    url: str = ""
    """Git repository of a dataset's task. Only such a task has this and the next two fields."""
    revision: str = ""
    path: str = ""

    @property
    def entry(self) -> str:
        """The text that identifies the task in the list of a sweep's tasks."""
        return json.dumps([self.name, self.url, self.revision, self.path]) if self.url else self.name


@dataclass(frozen=True)
class FetchResult:
    """A fetched task, or many of them."""

    revision: str
    """The commit, or the digest of the manifest or file."""
    digest: str
    """Digest of the bundle's bytes."""
    file: str = ""
    """Name of the bundle in the cache's incoming directory, or "" if the task is already cached."""
    tasks: tuple[FetchedTask, ...] = ()
    """The tasks of a request for many tasks. Such a request has no ``file``. A task without a file is already cached, or is fetched
    when a trial needs it."""


def progress_file(incoming: Path, request: FetchRequest) -> Path:
    """Return the path of the file to which the fetching process writes its progress in a dataset, as ``DONE of ALL``."""
    return incoming / f"{request.id}.progress"


def answer(outcome: FetchResult | SourceError) -> bytes:
    """Return the outcome as JSON, which the fetching process writes to stdout."""
    if isinstance(outcome, FetchResult):
        return json.dumps({"fetched": asdict(outcome)}).encode()
    error = {"message": str(outcome), "reason": outcome.reason, "transient": outcome.transient}
    return json.dumps({"error": error}).encode()


def parse_answer(text: bytes) -> FetchResult:
    """Return the fetched task, or raise the answer's SourceError. Raises ValueError, KeyError or TypeError for a malformed
    answer."""
    table = json.loads(text)
    if "error" in table:
        error = table["error"]
        raise SourceError(error["message"], transient=error["transient"], reason=error["reason"])
    fetched = table["fetched"]
    return FetchResult(**{**fetched, "tasks": tuple(FetchedTask(**task) for task in fetched["tasks"])})


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
