"""An object store, by URL: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX. Names are relative to the prefix.

Credentials, region and endpoint come from the environment as the store's own tools read them, or from the workload's identity.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import certifi
import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store, from_url

from ..errors import StoreError

SCHEMES = ("s3://", "gs://", "az://")
PART_BYTES = 8 * 1024 * 1024  # of an upload in parts, two of which are held at once
CHUNK_BYTES = 256 * 1024
_PARTS = 9_000  # S3 takes 10,000
_AT_ONCE = 2
_LIST_CHUNK = 1000
_SILENCE = timedelta(seconds=60)
_RETRIES, _RETRY_TIMEOUT = 3, timedelta(seconds=20)  # what is away for longer is waited for visibly


@dataclass(frozen=True)
class Stored:
    """An object as the store lists it. version: its ETag; time: of its last change, by the store's clock, since the epoch."""

    name: str
    size: int
    version: str
    time: float


class Bucket:
    """check: called before each change; raises if this process may not make it. Errors of the store are StoreErrors."""

    def __init__(self, store: ObjectStore, url: str, check: Callable[[], None] = lambda: None, ca: str = "") -> None:
        self._store = store
        self.ca = ca  # certificates (PEM) that pods may know the store by
        self._check = check
        self.url = url.rstrip("/")

    @classmethod
    def open(
        cls, url: str, ca_file: Path | None = None, check: Callable[[], None] = lambda: None, *, retries: int = _RETRIES
    ) -> Bucket:
        """Nothing is asked of the store yet. ca_file: PEM certificates to trust. StoreError: the settings make no sense."""
        if not url.startswith(SCHEMES) or not url.partition("://")[2].strip("/"):
            raise StoreError(f"results_store = {url!r}: it has to be one of {', '.join(f'{each}NAME/PREFIX' for each in SCHEMES)}")
        # An endpoint is http only when it was written so. A whole object may take long; silence may not.
        options: dict[str, Any] = {"allow_http": True, "timeout": timedelta(days=1), "read_timeout": _SILENCE}
        try:
            ca = certifi.contents() if ca_file is None else ca_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"results_store_ca_file = {str(ca_file)!r} cannot be read: {error}") from None
        if ca_file is not None:
            options["root_certificate"] = ca
        with _as_store_error(url, "opening"):
            retry: Any = {"max_retries": retries, "retry_timeout": _RETRY_TIMEOUT}
            return cls(from_url(url, client_options=options, retry_config=retry), url, check, ca)  # type: ignore[call-overload]

    @property
    def can_sign(self) -> bool:
        """Whether requests can be signed for others to make."""
        return isinstance(self._store, S3Store | GCSStore | AzureStore)

    async def put(self, name: str, data: bytes) -> str:
        """Store a small object and return its version."""
        self._check()
        with self._errors("writing", name):
            return (await obstore.put_async(self._store, name, data))["e_tag"] or ""

    async def put_if(self, name: str, data: bytes, former: str | None) -> None:
        """The same, only in place of the version that was seen (None: of nothing)."""
        self._check()
        with self._errors("writing", name):
            await obstore.put_async(self._store, name, data, mode="create" if former is None else {"e_tag": former})

    async def put_stream(self, name: str, chunks: AsyncIterable[bytes], size: int) -> str:
        """Store a large object in parts, a few of which are in memory."""
        self._check()
        part = max(PART_BYTES, size // _PARTS)
        with self._errors("writing", name):
            put = await obstore.put_async(
                self._store, name, aiter(chunks), use_multipart=True, chunk_size=part, max_concurrency=_AT_ONCE
            )
            return put["e_tag"] or ""

    async def get(self, name: str, version: str | None = None) -> AsyncGenerator[bytes, None]:
        """The contents in chunks. version: any other one is a StoreError."""
        with self._errors("reading", name):
            found = await obstore.get_async(self._store, name, options={"if_match": version} if version else None)
            async for chunk in found.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    async def get_part(self, name: str, offset: int, limit: int) -> bytes | None:
        """At most limit bytes; None if there is no such object. offset: a negative one counts from its end."""
        if (found := await self.head(name)) is None:
            return None
        begin = offset if offset >= 0 else max(0, found.size + offset)
        if begin >= found.size:
            return b""
        with self._errors("reading", name):
            return bytes(await obstore.get_range_async(self._store, name, start=begin, length=min(limit, found.size - begin)))
        raise AssertionError

    async def head(self, name: str) -> Stored | None:
        """What the store tells of an object, None if it is not there."""
        with self._errors("looking at", name):
            try:
                return _stored(await obstore.head_async(self._store, name))
            except (NotFoundError, FileNotFoundError):
                return None
        raise AssertionError

    async def list(self, prefix: str) -> AsyncGenerator[Stored, None]:
        """All objects whose names begin with a path."""
        with self._errors("listing", prefix):
            async for batch in obstore.list(self._store, prefix, chunk_size=_LIST_CHUNK):
                for found in batch:
                    yield _stored(found)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects; what is not there is fine."""
        self._check()
        with self._errors("deleting", names[0] if names else ""):
            try:
                await obstore.delete_async(self._store, names)
            except (NotFoundError, FileNotFoundError):
                return

    async def sign_put(self, name: str, seconds: float) -> str:
        """An address that whoever knows it may put this one object to, until so many seconds from now. It is a secret."""
        assert isinstance(self._store, S3Store | GCSStore | AzureStore)
        with self._errors("signing for", name):
            return await obstore.sign_async(self._store, "PUT", name, timedelta(seconds=seconds))

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        with _as_store_error(f"{self.url}/{name}", what):
            yield


def _stored(found: Any) -> Stored:
    return Stored(found["path"], found["size"], found["e_tag"] or "", found["last_modified"].timestamp())


@contextmanager
def _as_store_error(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise StoreError(f"{what} {name}: somebody else wrote it meanwhile") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StoreError(f"{what} {name}: the store refused it, are the credentials right? {_short(error)}") from error
    except (BaseError, NotSupportedError, OSError, ValueError) as error:
        raise StoreError(f"{what} {name}: {_short(error)}") from error


def _short(error: Exception) -> str:
    """The first line: what follows is for the library's own developers."""
    return (str(error).splitlines() or [""])[0][:300]
