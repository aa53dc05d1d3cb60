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
from multistep.sources.task.bundle import Limits

Kind = Literal["oci", "git", "url", "dataset"]
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Rules:
    """The operator's settings for fetches. allowed_hosts: patterns of allowed hosts; empty for all hosts.

    insecure_hosts: registries without TLS, and hosts to which credentials may be sent without TLS. blocked_networks: networks to
    which no connection is opened, whatever the host name. seconds: timeout of one fetch.
    """

    allowed_hosts: tuple[str, ...] = ()
    insecure_hosts: tuple[str, ...] = ()
    blocked_networks: tuple[str, ...] = ()
    seconds: float = 120.0
    compressed_bytes: int = 64 << 20
    uncompressed_bytes: int = 256 << 20
    entries: int = 50_000

    @property
    def limits(self) -> Limits:
        """Return the limits of one task's bundle."""
        return Limits(self.compressed_bytes, self.uncompressed_bytes, self.entries)


@dataclass(frozen=True)
class Request:
    """A task to fetch. location: image reference or URL; ref: git branch, tag or commit; digest: expected digest (kind url).

    revision: the resolved commit or manifest digest; "" to resolve it now. scope: UID of the Secret with the credentials, ""
    without credentials; only requests with the same scope share a fetched task. credentials: the Secret's data. many: whether each
    directory with a task.toml directly below the path is a task. dataset: the fields of a Selection, for the kind dataset,
    whose location is a registry.json.
    """

    kind: Kind
    location: str
    ref: str = ""
    path: str = ""
    digest: str = ""
    revision: str = ""
    scope: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)
    many: bool = False
    dataset: Mapping[str, Any] = field(default_factory=dict)

    def below(self, name: str) -> Request:
        """Return the request for only one of the many tasks. name: the task's directory."""
        return replace(self, path=f"{self.path.strip('/')}/{name}".lstrip("/"), many=False)

    def elsewhere(self, url: str, path: str, ref: str = "") -> Request:
        """Return the request for a task of this dataset in a git repository. It has the dataset's credentials only if the
        repository is on the same server as the dataset."""
        trusted = same_server(self.location, url)
        scope, credentials = (self.scope, self.credentials) if trusted else ("", {})
        return Request("git", url, ref=ref, path=path, scope=scope, credentials=credentials)

    @property
    def id(self) -> str:
        """Return an id. Requests with equal ids can share one fetch."""
        dataset = json.dumps(dict(self.dataset), sort_keys=True)
        place = self.location, self.ref, self.path, self.digest
        return _hash(self.kind, *place, self.revision, self.scope, str(self.many), dataset)

    def key(self, revision: str) -> str:
        """Return the cache key of the task at a revision."""
        return _hash(self.kind, self.location if self.kind == "git" else "", self.path, revision, self.scope)


@dataclass(frozen=True)
class Order:
    """A request with the rules for its fetch. cache: the cache's directory; cached tasks are not fetched again."""

    request: Request
    rules: Rules
    cache: str

    def to_json(self) -> bytes:
        """Return the order as JSON, which the fetching process reads from stdin."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Order:
        """Parse an order; the inverse of to_json."""
        table = json.loads(text)
        rules: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table["rules"].items()}
        return cls(Request(**table["request"]), Rules(**rules), table["cache"])


@dataclass(frozen=True)
class FetchedTask:
    """One of many fetched tasks. name: name of its directory, or its name in a dataset; digest, file: see Fetched.

    url, revision, path: git repository, commit and directory of a task of a dataset.
    """

    name: str
    digest: str = ""
    file: str = ""
    url: str = ""
    revision: str = ""
    path: str = ""

    @property
    def entry(self) -> str:
        """Return the text that identifies the task in the list of a sweep's tasks."""
        return json.dumps([self.name, self.url, self.revision, self.path]) if self.url else self.name


@dataclass(frozen=True)
class Fetched:
    """A fetched task. revision: the commit, or the digest of the manifest or file; digest: digest of the bundle's bytes.

    file: name in the cache's incoming directory, "" if the task is cached already; tasks: the tasks of a request for
    many, instead of file. A dataset's task without a file is cached already, or is fetched when a trial needs it.
    """

    revision: str
    digest: str
    file: str = ""
    tasks: tuple[FetchedTask, ...] = ()


def progress_file(incoming: Path, request: Request) -> Path:
    """Return the file in which the fetching process writes how many tasks of a dataset it has fetched: ``DONE of ALL``."""
    return incoming / f"{request.id}.progress"


def answer(outcome: Fetched | SourceError) -> bytes:
    """Return the answer as JSON, which the fetching process writes to stdout."""
    if isinstance(outcome, Fetched):
        return json.dumps({"fetched": asdict(outcome)}).encode()
    error = {"message": str(outcome), "reason": outcome.reason, "transient": outcome.transient}
    return json.dumps({"error": error}).encode()


def parse_answer(text: bytes) -> Fetched:
    """Return the fetched task, or raise the answer's SourceError. Raises ValueError, KeyError or TypeError if it is malformed."""
    table = json.loads(text)
    if "error" in table:
        error = table["error"]
        raise SourceError(error["message"], transient=error["transient"], reason=error["reason"])
    fetched = table["fetched"]
    return Fetched(**{**fetched, "tasks": tuple(FetchedTask(**each) for each in fetched["tasks"])})


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
