"""Fetches a task from a git repository. It fetches one commit without history, and only the files in the task's directory.

A server that does not support partial clones sends all files of the commit.
"""

from __future__ import annotations

import io
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from dulwich.client import HTTPProxyUnauthorized, HTTPUnauthorized, Urllib3HttpGitClient
from dulwich.config import ConfigDict
from dulwich.errors import GitProtocolError, HangupException, NotGitRepository
from dulwich.objects import Blob, Commit, ObjectID, Tag, Tree
from dulwich.repo import Repo
from urllib3.exceptions import HTTPError

from multistep.api.common.safe_paths import is_canonical
from multistep.api.trial.values import DENIED, NOT_FOUND, TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.fetch.fetch_messages import COMMIT, FetchOrder, FetchResult
from multistep.sources.fetch.http_client import (
    basic_authorization,
    check_allowed_host,
    connection_error,
    host_of,
    make_pool,
    matches_host,
)
from multistep.sources.fetch.output_file import OutputFile, SizeBudget, name_prefix, write_tar
from multistep.sources.task.bundle import BundleEntry

_LFS = b"version https://git-lfs.github.com/spec/"
_PACK_BYTES = 512 << 20
_SUBMODULE = 0o160000

Files = Mapping[str, tuple[int, ObjectID]]  # mode and object id by path


def fetch(order: FetchOrder, incoming: Path) -> FetchResult:
    """Fetch the task's directory at the requested commit, branch or tag. Raises SourceError."""
    request, rules = order.request, order.rules
    check_allowed_host(host_of(request.location), rules.allowed_hosts)
    remote = GitRemote(
        request.location, request.credentials, insecure=matches_host(host_of(request.location), rules.insecure_hosts)
    )
    revision = request.revision or remote.resolve(request.ref)
    kept = order.cached(revision)
    if kept is not None:
        return kept
    with temporary_repository(incoming) as repository, OutputFile(incoming) as output:
        remote.fetch(repository, revision)
        budget = SizeBudget(rules.limits, f"the task in {request.location}")
        files = files_at(repository, revision, request.path, budget, request.location)
        remote.fetch_files(repository, files)
        write_tar(output, file_entries(repository, files, budget, request.location))
    return FetchResult(revision, output.digest, output.path.name)


@contextmanager
def temporary_repository(incoming: Path) -> Iterator[Repo]:
    """Return a context with an empty repository."""
    with tempfile.TemporaryDirectory(dir=incoming, prefix=name_prefix(os.getpid())) as directory:
        repository = Repo.init_bare(directory)
        try:
            yield repository
        finally:
            repository.close()


class _ConnectionClosed(SourceError):
    """The server closed the connection instead of answering."""


class DownloadBudget:
    """Counts the downloaded bytes, and limits them."""

    def __init__(self) -> None:
        self._bytes = 0

    def count(self, size: int, url: str) -> None:
        """Count bytes that were downloaded from a repository. Raises SourceError beyond the limit."""
        self._bytes += size
        if self._bytes > _PACK_BYTES:
            raise SourceError(f"{url} has more than {_PACK_BYTES} bytes in one commit, which is the limit", reason=TOO_LARGE)


class GitRemote:
    """A client of one git repository. It raises the client library's errors as SourceError."""

    def __init__(self, url: str, credentials: Mapping[str, str], *, insecure: bool, budget: DownloadBudget | None = None) -> None:
        """Create a client. With ``insecure``, credentials may be sent without TLS. ``budget`` counts the downloaded bytes."""
        self._url = url
        self._budget = budget or DownloadBudget()
        password = credentials.get("password", credentials.get("token", ""))
        user = credentials.get("username", "git" if password else "")
        if user and url.startswith("http://") and not insecure:
            text = f"{url}: credentials are not sent without TLS, unless the operator's setting taskInsecureHosts has the host"
            raise SourceError(text, reason=DENIED)
        self._pool = make_pool(credentials.get("ca.crt", ""))
        pool = _OneHost(self._pool, url, basic_authorization(user, password) if user else "")
        parts = urlsplit(url)
        self._client = Urllib3HttpGitClient(f"{parts.scheme}://{parts.netloc}/", pool_manager=pool, config=ConfigDict(), quiet=True)  # type: ignore[arg-type]
        self._path = parts.path.encode()

    def close(self) -> None:
        """Close the idle connections to the git server."""
        self._pool.clear()

    def resolve(self, ref: str) -> str:
        """Return the current commit of a branch or tag ("" for the default branch). A commit id is returned unchanged."""
        if COMMIT.fullmatch(ref):
            return ref
        refs = self._refs()
        names = [ref] if ref.startswith("refs/") else [f"refs/heads/{ref}", f"refs/tags/{ref}"] if ref else ["HEAD"]
        matches = [name for name in names if name in refs]
        if len(matches) > 1:
            raise SourceError(f"{self._url}: {ref!r} is a branch and a tag: write {' or '.join(matches)}")
        if not matches:
            raise SourceError(f"{self._url} has no branch or tag {ref or 'HEAD'!r}", reason=NOT_FOUND)
        return refs.get(f"{matches[0]}^{{}}", refs[matches[0]])

    def fetch(self, repository: Repo, revision: str) -> None:
        """Fetch the commit and its directories without history. Files are fetched only if the server cannot leave them out."""
        try:
            fetched = self._fetch(repository, [revision.encode()], at=revision, depth=1, filter_spec=b"blob:none")
        except _ConnectionClosed:
            self._check_known(revision)
            fetched = self._fetch(repository, [revision.encode()], at=revision, depth=1)
        if not fetched:
            raise SourceError(f"{self._url} has no commit {revision} any more", reason=NOT_FOUND)

    def fetch_files(self, repository: Repo, *directories: Files) -> None:
        """Fetch those files of the directories that the repository does not have."""
        wanted = {sha for files in directories for mode, sha in files.values() if not stat.S_ISDIR(mode)}
        if missing := sorted(sha for sha in wanted if sha not in repository.object_store):
            self._fetch(repository, missing)

    def _fetch(self, repository: Repo, wanted: Sequence[bytes], at: str = "", **options: Any) -> bool:
        """Fetch objects into the repository. Return whether the server sent any."""
        with tempfile.TemporaryFile(dir=repository.path) as stream:

            def write(data: bytes) -> int:
                self._budget.count(len(data), self._url)
                return stream.write(data)

            def want(refs: Mapping[bytes, bytes], depth: int | None = None) -> Sequence[bytes]:  # noqa: ARG001 - dulwich's signature
                return wanted

            nothing = repository.get_graph_walker([])
            self._call(lambda: self._client.fetch_pack(self._path, want, nothing, write, **options), at=at)  # type: ignore[arg-type]
            if not stream.seek(0, io.SEEK_END):
                return False
            stream.seek(0)
            repository.object_store.add_thin_pack(lambda count: stream.read(count), lambda count: stream.read(count))
            return True

    def _check_known(self, revision: str) -> None:
        """Raise SourceError if no ref points to the commit. Call this when the server has closed the connection, because some
        servers do so if they do not have a commit."""
        if revision not in self._refs().values():
            raise SourceError(f"{self._url} has no commit {revision}, or does not serve it", reason=NOT_FOUND)

    def _refs(self) -> dict[str, str]:
        answer: Any = self._call(lambda: self._client.get_refs(self._path))
        refs = getattr(answer, "refs", answer)
        return {name.decode(errors="replace"): sha.decode() for name, sha in refs.items() if sha}

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
            raise _ConnectionClosed(f"{self._url}: the server closed the connection", transient=True) from None
        except GitProtocolError as error:
            raise _refused(str(error), self._url, at) from None


class _OneHost:
    """Sends HTTP requests to one host. A redirect to another host is an error, so that no other host receives the credentials."""

    def __init__(self, pool: urllib3.PoolManager, url: str, authorization: str) -> None:
        self._pool = pool
        self._host = urlsplit(url).hostname
        self.headers = {"Authorization": authorization} if authorization else {}

    def request(self, method: str, url: str, headers: Mapping[str, str] | None = None, **options: Any) -> Any:
        """Send a request. The method has the signature of urllib3.PoolManager.request."""
        follow = options.pop("redirect", True)
        for _ in range(4):
            response = self._pool.request(method, url, headers={**(headers or {}), **self.headers}, redirect=False, **options)
            place = response.get_redirect_location() if follow else None
            if not place:
                return response
            response.close()
            new = urllib3.util.parse_url(place) if "://" in place else None
            if new is not None and (new.host != self._host or (new.scheme != "https" and url.startswith("https"))):
                raise SourceError(f"{host_of(url)} redirects to {new.host}: use that host in the URL if you trust it")
            url = place if new is not None else f"{urlsplit(url).scheme}://{urlsplit(url).netloc}{place}"
        raise SourceError(f"{host_of(url)} redirects too often")


def _refused(response: str, url: str, at: str) -> SourceError:
    if "403" in response or "401" in response:
        return SourceError(f"{url}: access denied; check the Secret named in secretRef", reason=DENIED)
    if re.search(r"\b(429|5\d\d)\b", response):
        return SourceError(f"{url} is temporarily unavailable", transient=True)
    if "not our ref" in response or "not found" in response.lower() or "unadvertised" in response:
        return SourceError(f"{url} has no commit {at}, or does not serve it", reason=NOT_FOUND)
    return SourceError(f"{url}: the server rejects the request, or is not a git server: {response[:200]!r}", transient=True)


def files_at(repository: Repo, revision: str, path: str, budget: SizeBudget, url: str) -> Files:
    """Return the files and directories below a directory at a commit. Raises SourceError if the directory does not exist."""
    return dict(_walk(repository, _tree_at(repository, revision, path.strip("/"), url), "", url, budget, depth=0))


def _tree_at(repository: Repo, revision: str, path: str, url: str) -> Tree:
    """Return the git tree of a directory at a commit."""
    try:
        item = repository[revision.encode()]
        while isinstance(item, Tag):
            item = repository[item.object[1]]
        if not isinstance(item, Commit):
            raise SourceError(f"{url}: {revision} is not a commit", reason=NOT_FOUND)
        tree = repository[item.tree]
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


def file_entries(repository: Repo, files: Files, budget: SizeBudget, url: str) -> Iterator[tuple[str, BundleEntry]]:
    """Yield the files as bundle entries, sorted by path. Contents are read one file at a time."""
    for path in sorted(files):
        mode, sha = files[path]
        yield path, _entry(repository, path, mode, sha, budget, url)


def _walk(
    repository: Repo, tree: Tree, prefix: str, url: str, budget: SizeBudget, depth: int
) -> Iterator[tuple[str, tuple[int, ObjectID]]]:
    if depth > 100:
        raise SourceError(f"{url}: directories are more than 100 deep")
    for name, mode, sha in tree.iteritems():
        path = prefix + name.decode(errors="surrogateescape")
        budget.add(0)
        if b"/" in name or not is_canonical(path):
            raise SourceError(f"{url} has the path {path!r}, which is refused")
        if mode == _SUBMODULE:
            raise SourceError(f"{url}: {path} is a submodule, and those are not fetched: put the files into the repository itself")
        yield path, (mode, sha)
        below = repository[sha] if stat.S_ISDIR(mode) else None
        if isinstance(below, Tree):
            yield from _walk(repository, below, f"{path}/", url, budget, depth + 1)


def _entry(repository: Repo, path: str, mode: int, sha: ObjectID, budget: SizeBudget, url: str) -> BundleEntry:
    if stat.S_ISDIR(mode):
        return BundleEntry("dir", 0o755)
    blob = repository[sha]
    assert isinstance(blob, Blob)
    data = blob.as_raw_string()
    budget.add(len(data), entries=0)
    if stat.S_ISLNK(mode):
        return BundleEntry("link", 0o777, target=data.decode(errors="surrogateescape"))
    if data.startswith(_LFS):
        text = (
            f"{url}: {path} is a pointer to Git LFS, which is not fetched: publish the task by `multistep package --to oci://...`"
        )
        raise SourceError(text)
    return BundleEntry("file", 0o755 if mode & 0o100 else 0o644, data=data)
