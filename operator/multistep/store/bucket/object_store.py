"""Reads and writes an object store, given by its URL: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX. Names of
objects are relative to the prefix.

Credentials, region and endpoint come from the environment variables of the store's own tools, or from the workload's identity.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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

from multistep.errors import StoreError

SCHEMES = ("s3://", "gs://", "az://")
PART_BYTES = 8 * 1024 * 1024  # size of a part of a multipart upload. Two parts are in memory at once
CHUNK_BYTES = 256 * 1024
_PARTS = 9_000  # maximum number of parts of an upload. S3 accepts 10,000
_AT_ONCE = 2
_LIST_CHUNK = 1000
_SILENCE = timedelta(seconds=60)
_RETRIES, _RETRY_TIMEOUT = 3, timedelta(seconds=20)  # retries of each request. If all fail, the operator retries the reconcile


@dataclass(frozen=True)
class ObjectInfo:
    """Metadata of an object."""

    name: str
    size: int
    version: str
    """The object's ETag."""
    time: float
    """When the object last changed (seconds since the epoch, by the store's clock)."""


class Bucket:
    """The objects below a prefix of an object store. Every method may raise StoreError.

    ``check`` is called before each write, and raises if this process may not write.
    """

    def __init__(self, store: ObjectStore, url: str, check: Callable[[], None] = lambda: None, ca: str = "") -> None:
        self._store = store
        self.ca = ca  # CA certificates (PEM) with which pods verify the certificate of the store
        self._check = check
        self.url = url.rstrip("/")

    @classmethod
    def open(
        cls, url: str, ca_file: Path | None = None, check: Callable[[], None] = lambda: None, *, retries: int = _RETRIES
    ) -> Bucket:
        """Create a Bucket without sending a request. ``ca_file`` has the trusted certificates (PEM). Raises StoreError for invalid
        settings."""
        if not url.startswith(SCHEMES) or not url.partition("://")[2].strip("/"):
            raise StoreError(f"results_store = {url!r}: must be one of {', '.join(f'{scheme}NAME/PREFIX' for scheme in SCHEMES)}")
        # allow_http affects only endpoints with an http:// URL. A large object may take hours, so read_timeout limits each single
        # read.
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
        """Whether the store supports presigned requests."""
        return isinstance(self._store, S3Store | GCSStore | AzureStore)

    async def put(self, name: str, data: bytes) -> str:
        """Store a small object and return its version."""
        self._check()
        with self._errors("writing", name):
            return (await obstore.put_async(self._store, name, data))["e_tag"] or ""

    async def put_if(self, name: str, data: bytes, former: str | None) -> None:
        """Store a small object if its version is ``former``, or if it does not exist and ``former`` is None. Otherwise raise
        StoreError."""
        self._check()
        with self._errors("writing", name):
            await obstore.put_async(self._store, name, data, mode="create" if former is None else {"e_tag": former})

    async def put_stream(self, name: str, chunks: AsyncIterable[bytes], size: int) -> str:
        """Store a large object of ``size`` bytes by a multipart upload, and return its version. Only a few parts are in memory."""
        self._check()
        part = max(PART_BYTES, size // _PARTS)
        with self._errors("writing", name):
            put = await obstore.put_async(
                self._store, name, aiter(chunks), use_multipart=True, chunk_size=part, max_concurrency=_AT_ONCE
            )
            return put["e_tag"] or ""

    async def get(self, name: str, version: str | None = None) -> AsyncGenerator[bytes, None]:
        """Yield an object's contents in chunks. Raises StoreError if the object is missing or its version differs."""
        with self._errors("reading", name):
            result = await obstore.get_async(self._store, name, options={"if_match": version} if version else None)
            async for chunk in result.stream(min_chunk_size=CHUNK_BYTES):
                yield bytes(chunk)

    async def get_part(self, name: str, offset: int, limit: int) -> bytes | None:
        """Return at most ``limit`` bytes of an object, or None if it does not exist. A negative offset counts from the end."""
        if (info := await self.head(name)) is None:
            return None
        start = offset if offset >= 0 else max(0, info.size + offset)
        if start >= info.size:
            return b""
        with self._errors("reading", name):
            return bytes(await obstore.get_range_async(self._store, name, start=start, length=min(limit, info.size - start)))
        raise AssertionError

    async def head(self, name: str) -> ObjectInfo | None:
        """Return an object's metadata, or None if it does not exist."""
        with self._errors("reading metadata of", name):
            try:
                return _stored(await obstore.head_async(self._store, name))
            except (NotFoundError, FileNotFoundError):
                return None
        raise AssertionError

    async def list(self, prefix: str) -> AsyncGenerator[ObjectInfo, None]:
        """Yield the metadata of all objects below a path."""
        with self._errors("listing", prefix):
            async for batch in obstore.list(self._store, prefix, chunk_size=_LIST_CHUNK):
                for metadata in batch:
                    yield _stored(metadata)

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Missing objects are no error."""
        self._check()
        with self._errors("deleting", names[0] if names else ""):
            try:
                await obstore.delete_async(self._store, names)
            except (NotFoundError, FileNotFoundError):
                # GCS and Azure report a missing object, and may then leave the objects after it.
                for name in names:
                    self._check()
                    with suppress(NotFoundError, FileNotFoundError):
                        await obstore.delete_async(self._store, name)

    async def sign_put(self, name: str, seconds: float) -> str:
        """Return a presigned URL with which anyone can upload this object for ``seconds``. The URL is a secret."""
        assert isinstance(self._store, S3Store | GCSStore | AzureStore)
        with self._errors("signing for", name):
            return await obstore.sign_async(self._store, "PUT", name, timedelta(seconds=seconds))

    @contextmanager
    def _errors(self, what: str, name: str) -> Iterator[None]:
        with _as_store_error(f"{self.url}/{name}", what):
            yield


def _stored(metadata: Any) -> ObjectInfo:
    return ObjectInfo(metadata["path"], metadata["size"], metadata["e_tag"] or "", metadata["last_modified"].timestamp())


@contextmanager
def _as_store_error(name: str, what: str) -> Iterator[None]:
    try:
        yield
    except (AlreadyExistsError, PreconditionError) as error:
        raise StoreError(f"{what} {name}: another writer changed it concurrently") from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StoreError(f"{what} {name}: the store denied access; check the credentials: {_short(error)}") from error
    except (BaseError, NotSupportedError, OSError, ValueError) as error:
        raise StoreError(f"{what} {name}: {_short(error)}") from error


def _short(error: Exception) -> str:
    """Return the first line of an error's message. The other lines are debug output of the library."""
    return (str(error).splitlines() or [""])[0][:300]
