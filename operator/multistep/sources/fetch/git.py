"""Fetches a task from a git repository: one commit, without its history."""

from __future__ import annotations

import io
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import urllib3
from dulwich.client import HTTPProxyUnauthorized, HTTPUnauthorized, Urllib3HttpGitClient
from dulwich.config import ConfigDict
from dulwich.errors import GitProtocolError, HangupException, NotGitRepository
from dulwich.objects import Blob, Commit, Tag, Tree
from dulwich.repo import Repo
from urllib3.exceptions import HTTPError

from multistep.errors import SourceError
from multistep.sources.bundle import Entry, Limits
from multistep.sources.fetch.guard import check_named, host_of, listed
from multistep.sources.fetch.http import basic, connection_error, make_pool
from multistep.sources.fetch.oci import kept_in
from multistep.sources.fetch.output import Budget, Output, write_tar
from multistep.sources.fetch.request import COMMIT, Fetched, Order
from multistep.sources.reasons import DENIED, NOT_FOUND, TOO_LARGE

_LFS = b"version https://git-lfs.github.com/spec/"
_PACK_BYTES = 512 << 20
_SUBMODULE = 0o160000


def fetch(order: Order, incoming: Path) -> Fetched:
    """Fetch the task's directory at the requested commit, branch or tag. Raises SourceError."""
    request, rules = order.request, order.rules
    check_named(host_of(request.location), rules.allowed_hosts)
    remote = _Remote(request.location, request.credentials, insecure=listed(host_of(request.location), rules.insecure_hosts))
    revision = request.revision or remote.resolve(request.ref)
    if kept := kept_in(order, revision):
        return kept
    limits = Limits(rules.compressed_bytes, rules.uncompressed_bytes, rules.entries)
    with tempfile.TemporaryDirectory(dir=incoming) as directory, Output(incoming) as output:
        repository = Repo.init_bare(directory)
        try:
            remote.fetch(repository, revision)
            tree = _tree_at(repository, revision, request.path.strip("/"), request.location)
            budget = Budget(limits, f"the task in {request.location}")
            write_tar(output, sorted_entries(repository, tree, budget, request.location))
        finally:
            repository.close()
    return Fetched(revision, output.digest, output.path.name)


class _BrokeOff(SourceError):
    """The server closed the connection instead of answering."""


class _Remote:
    """A client of one git server. Converts the client library's errors to SourceErrors."""

    def __init__(self, url: str, credentials: Mapping[str, str], *, insecure: bool) -> None:
        self._url = url
        password = credentials.get("password", credentials.get("token", ""))
        user = credentials.get("username", "git" if password else "")
        if user and url.startswith("http://") and not insecure:
            text = f"{url}: credentials are not sent without TLS, unless the operator's setting taskInsecureHosts has the host"
            raise SourceError(text, reason=DENIED)
        pool = _OneHost(make_pool(credentials.get("ca.crt", "")), url, basic(user, password) if user else "")
        parts = urlsplit(url)
        self._client = Urllib3HttpGitClient(f"{parts.scheme}://{parts.netloc}/", pool_manager=pool, config=ConfigDict(), quiet=True)  # type: ignore[arg-type]
        self._path = parts.path.encode()

    def resolve(self, ref: str) -> str:
        """Return the current commit of a branch or tag ("" for the default branch). A commit id is returned unchanged."""
        if COMMIT.fullmatch(ref):
            return ref
        refs = self._refs()
        names = [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"] if ref else ["HEAD"]
        found = [name for name in names if name in refs]
        if len(found) > 1:
            raise SourceError(f"{self._url}: {ref!r} is a branch and a tag: write {' or '.join(found)}")
        if not found:
            raise SourceError(f"{self._url} has no branch or tag {ref or 'HEAD'!r}", reason=NOT_FOUND)
        return refs.get(f"{found[0]}^{{}}", refs[found[0]])

    def fetch(self, repository: Repo, revision: str) -> None:
        """Fetch the commit with all its files, but without its history, into the repository."""
        with tempfile.TemporaryFile(dir=repository.path) as stream:
            try:
                self._fetch_pack(repository, revision, stream)
            except _BrokeOff:
                self._check_known(revision)
                stream.truncate(0)
                self._fetch_pack(repository, revision, stream)
            if not stream.seek(0, io.SEEK_END):
                raise SourceError(f"{self._url} has no commit {revision} any more", reason=NOT_FOUND)
            stream.seek(0)
            repository.object_store.add_thin_pack(lambda count: stream.read(count), lambda count: stream.read(count))

    def _fetch_pack(self, repository: Repo, revision: str, stream: IO[bytes]) -> None:
        def take(data: bytes) -> int:
            if stream.tell() + len(data) > _PACK_BYTES:
                text = f"{self._url} has more than {_PACK_BYTES} bytes at {revision}, which is the limit"
                raise SourceError(text, reason=TOO_LARGE)
            return stream.write(data)

        def want(refs: Mapping[bytes, bytes], depth: int | None = None) -> list[bytes]:  # noqa: ARG001 - dulwich's signature
            return [revision.encode()]

        nothing = repository.get_graph_walker([])
        self._call(lambda: self._client.fetch_pack(self._path, want, nothing, take, depth=1), at=revision)  # type: ignore[arg-type]

    def _check_known(self, revision: str) -> None:
        """Raise SourceError if no ref points to the commit. For an unknown commit, git's server may just close the connection."""
        if revision not in self._refs().values():
            raise SourceError(f"{self._url} has no commit {revision}, or does not give it", reason=NOT_FOUND)

    def _refs(self) -> dict[str, str]:
        found: Any = self._call(lambda: self._client.get_refs(self._path))
        refs = getattr(found, "refs", found)
        return {name.decode(errors="replace"): each.decode() for name, each in refs.items() if each}

    def _call(self, ask: Any, at: str = "") -> Any:
        try:
            return ask()
        except (HTTPUnauthorized, HTTPProxyUnauthorized):
            text = f"{self._url}: access denied, or it does not exist; check the URL and the Secret named in secretRef, or name one"
            raise SourceError(text, reason=DENIED) from None
        except NotGitRepository:
            raise SourceError(f"{self._url} does not exist, or is not a git repository", reason=NOT_FOUND) from None
        except (HTTPError, OSError) as error:
            raise connection_error(error, self._url) from None
        except HangupException:
            raise _BrokeOff(f"{self._url}: the server broke off", transient=True) from None
        except GitProtocolError as error:
            raise _refused(str(error), self._url, at) from None


class _OneHost:
    """HTTP connections to one host. Redirects to other hosts are errors, so that these never receive the credentials."""

    def __init__(self, pool: urllib3.PoolManager, url: str, authorization: str) -> None:
        self._pool = pool
        self._host = urlsplit(url).hostname
        self.headers = {"Authorization": authorization} if authorization else {}

    def request(self, method: str, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Send a request. The signature is that of urllib3.PoolManager.request."""
        follow = options.pop("redirect", True)
        for _ in range(4):
            response = self._pool.request(method, url, headers={**(headers or {}), **self.headers}, redirect=False, **options)
            place = response.get_redirect_location() if follow else None
            if not place:
                return response
            response.close()
            new = urllib3.util.parse_url(place) if "://" in place else None
            if new is not None and (new.host != self._host or (new.scheme != "https" and url.startswith("https"))):
                raise SourceError(f"{host_of(url)} redirects to {new.host}: name that in spec.task.git.url, if it is what you want")
            url = place if new is not None else f"{urlsplit(url).scheme}://{urlsplit(url).netloc}{place}"
        raise SourceError(f"{host_of(url)} redirects too often")


def _refused(response: str, url: str, at: str) -> SourceError:
    if "403" in response or "401" in response:
        return SourceError(f"{url}: access denied; check the Secret named in secretRef", reason=DENIED)
    if re.search(r"\b(429|5\d\d)\b", response):
        return SourceError(f"{url}: the server does not serve it now", transient=True)
    if "not our ref" in response or "not found" in response.lower() or "unadvertised" in response:
        return SourceError(f"{url} has no commit {at}, or does not give it", reason=NOT_FOUND)
    return SourceError(f"{url}: the server rejects the request, or does not speak git: {response[:200]!r}", transient=True)


def _tree_at(repository: Repo, revision: str, path: str, url: str) -> Tree:
    """Return the tree of the task's directory."""
    try:
        found = repository[revision.encode()]
        while isinstance(found, Tag):
            found = repository[found.object[1]]
        if not isinstance(found, Commit):
            raise SourceError(f"{url}: {revision} is no commit", reason=NOT_FOUND)
        tree = repository[found.tree]
        for part in path.split("/") if path else ():
            mode, sha = tree[part.encode()] if isinstance(tree, Tree) else (0, b"")
            if not stat.S_ISDIR(mode):
                raise KeyError(part)
            tree = repository[sha]
    except KeyError:
        where = f"directory {path}" if path else "files"
        raise SourceError(f"{url} has no {where} at commit {revision}", reason=NOT_FOUND) from None
    assert isinstance(tree, Tree)
    return tree


def sorted_entries(repository: Repo, tree: Tree, budget: Budget, url: str) -> Iterator[tuple[str, Entry]]:
    """Yield all entries below a directory, sorted by path. A file's contents are read only when its entry is yielded."""
    found = dict(_walk(repository, tree, "", url, budget, depth=0))
    for path in sorted(found):
        mode, sha = found[path]
        yield path, _entry(repository, path, mode, sha, budget, url)


def _walk(
    repository: Repo, tree: Tree, prefix: str, url: str, budget: Budget, depth: int
) -> Iterator[tuple[str, tuple[int, bytes]]]:
    if depth > 100:
        raise SourceError(f"{url}: directories are more than 100 deep")
    for name, mode, sha in tree.iteritems():
        path = prefix + name.decode(errors="surrogateescape")
        budget.take(0)
        if name in (b"", b".", b"..") or b"/" in name:
            raise SourceError(f"{url} has the path {path!r}, which is refused")
        if mode == _SUBMODULE:
            raise SourceError(f"{url}: {path} is a submodule, and those are not fetched: put the files into the repository itself")
        yield path, (mode, sha)
        below = repository[sha] if stat.S_ISDIR(mode) else None
        if isinstance(below, Tree):
            yield from _walk(repository, below, f"{path}/", url, budget, depth + 1)


def _entry(repository: Repo, path: str, mode: int, sha: bytes, budget: Budget, url: str) -> Entry:
    if stat.S_ISDIR(mode):
        return Entry("dir", 0o755)
    blob = repository[sha]
    assert isinstance(blob, Blob)
    data = blob.as_raw_string()
    budget.take(len(data), entries=0)
    if stat.S_ISLNK(mode):
        return Entry("link", 0o777, target=data.decode(errors="surrogateescape"))
    if data.startswith(_LFS):
        text = (
            f"{url}: {path} is a pointer to Git LFS, which is not fetched: publish the task by `multistep package --to oci://...`"
        )
        raise SourceError(text)
    return Entry("file", 0o755 if mode & 0o100 else 0o644, data=data)
