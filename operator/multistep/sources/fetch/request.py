"""What the operator and the process that fetches tell each other, as JSON. Credentials are in the request only."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from ...errors import SourceError

Kind = Literal["oci", "git", "url"]
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Rules:
    """What the operator's settings allow. allowed_hosts: patterns, of what a trial may name; empty: all.

    insecure_hosts: registries that speak HTTP, and hosts that may be sent credentials by it. blocked_networks: no connection is
    made to an address in them, whatever name led there. seconds: for one fetch.
    """

    allowed_hosts: tuple[str, ...] = ()
    insecure_hosts: tuple[str, ...] = ()
    blocked_networks: tuple[str, ...] = ()
    seconds: float = 120.0
    compressed_bytes: int = 64 << 20
    uncompressed_bytes: int = 256 << 20
    entries: int = 50_000


@dataclass(frozen=True)
class Request:
    """A task to fetch. location: an image's reference, or a URL; ref: of git; digest: of a URL.

    revision: the commit or manifest digest that it was resolved to before; "" resolves it now. scope: who may share what is
    fetched with the credentials (a Secret's UID); "" for what needs none. credentials: as in the Secret. many: each directory right
    below the path that has a task.toml is a task.
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

    def below(self, name: str) -> Request:
        """One of the many tasks."""
        return replace(self, path=f"{self.path.strip('/')}/{name}".lstrip("/"), many=False)

    @property
    def id(self) -> str:
        """The same for requests that can have the same answer."""
        return _hash(self.kind, self.location, self.ref, self.path, self.digest, self.revision, self.scope, str(self.many))

    def key(self, revision: str) -> str:
        """The name in the cache of what is there at a revision."""
        return _hash(self.kind, self.location if self.kind == "git" else "", self.path, revision, self.scope)


@dataclass(frozen=True)
class Order:
    """A request, and where and under which rules to fulfil it. cache: the directory; what it has is not fetched again."""

    request: Request
    rules: Rules
    cache: str

    def to_json(self) -> bytes:
        """What goes to the process's stdin."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Order:
        """The way back."""
        table = json.loads(text)
        rules: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in table["rules"].items()}
        return cls(Request(**table["request"]), Rules(**rules), table["cache"])


@dataclass(frozen=True)
class FetchedTask:
    """One of many. name: of its directory; digest, file: as of Fetched."""

    name: str
    digest: str
    file: str


@dataclass(frozen=True)
class Fetched:
    """revision: the commit, or the digest of manifest or file; digest: of the bundle's bytes. file: its name below the cache's
    incoming directory; "" when the cache has it already. tasks: where many were asked for; then there is no other file."""

    revision: str
    digest: str
    file: str = ""
    tasks: tuple[FetchedTask, ...] = ()


def answer(outcome: Fetched | SourceError) -> bytes:
    """What the process writes on stdout."""
    if isinstance(outcome, Fetched):
        return json.dumps({"fetched": asdict(outcome)}).encode()
    error = {"message": str(outcome), "reason": outcome.reason, "transient": outcome.transient}
    return json.dumps({"error": error}).encode()


def parse_answer(text: bytes) -> Fetched:
    """The way back: what was fetched, or the SourceError. ValueError, KeyError, TypeError: it is no answer."""
    table = json.loads(text)
    if "error" in table:
        told = table["error"]
        raise SourceError(told["message"], transient=told["transient"], reason=told["reason"])
    fetched = table["fetched"]
    return Fetched(**{**fetched, "tasks": tuple(FetchedTask(**each) for each in fetched["tasks"])})


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]
