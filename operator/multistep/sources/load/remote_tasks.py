"""Loads remote tasks, which are in registries, git repositories and at URLs. It builds the request with credentials, and returns
the bundle's file."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from multistep.api.common.base_model import Metadata
from multistep.api.sweep.sweep import TrialSweep
from multistep.api.sweep.tasks_source import DatasetSource
from multistep.api.trial.task_source import SecretReference, TaskSource, TaskSourceStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.api.trial.values import DIGEST, NOT_ALLOWED
from multistep.errors import NotFound, SourceError
from multistep.sources.fetch.fetch_messages import COMMIT, FetchRequest, FetchResult
from multistep.sources.fetch.oci import DOCKER_CONFIG
from multistep.sources.load.task_cache import CachedFile, TaskCache

GetSecret = Callable[[str, str], Awaitable[Mapping[str, Any]]]


class TaskFetches(Protocol):
    """Limits concurrent fetches. The implementation is in ``reconcile.loading.load_tasks``."""

    @property
    def cache(self) -> TaskCache: ...

    def ask(self, asker: Metadata, request: FetchRequest, *, started: bool) -> FetchResult:
        """Return the cached task of a trial or sweep, after a fetch. Raises SourceError, which is transient while the fetch runs.

        If the trial or sweep has ``started``, its task was fetched before, so a denied request is retried.
        """


class RemoteTasks:
    """Loads bundles of remote tasks."""

    def __init__(self, fetching: TaskFetches, get_secret: GetSecret, kinds: Sequence[str]) -> None:
        """Create a loader. ``kinds`` are the types of sources (oci, git, url) that the operator's settings allow."""
        self._fetching = fetching
        self._get_secret = get_secret
        self._kinds = kinds

    async def load(self, trial: MultiStepTrial) -> tuple[CachedFile, TaskSourceStatus]:
        """Return the bundle's file and the resolved source. The source is pinned when the trial starts. Raises SourceError."""
        pinned = trial.status.task_source
        revision = pinned.revision if pinned else ""
        request = await self._request(trial.metadata.namespace, trial.spec.task, revision, "spec.task")
        cached = self._cached(request, request.revision) if request.revision else None
        if cached is not None:
            return self._checked(cached, request.revision, pinned)
        fetched = self._fetching.ask(trial.metadata, request, started=pinned is not None)
        cached = self._cached(request, fetched.revision)
        if cached is None:
            raise SourceError("the fetched task was evicted from the cache before it was read", transient=True, retry_seconds=1.0)
        return self._checked(cached, fetched.revision, pinned)

    async def tasks(self, sweep: TrialSweep) -> tuple[str, list[str]]:
        """Return the revision of spec.tasksFrom (pinned when the sweep starts) and the list of its tasks. Raises SourceError."""
        place, pinned = sweep.spec.tasks_from, sweep.status.tasks_from
        assert place is not None
        namespace, revision = sweep.metadata.namespace, pinned.revision if pinned else ""
        if place.dataset is not None:
            request = await self._dataset(namespace, place.dataset, revision)
        else:
            source = TaskSource(oci=place.oci, git=place.git, url=place.url)
            request = replace(await self._request(namespace, source, revision, "spec.tasksFrom"), many=True)
        fetched = self._fetching.ask(sweep.metadata, request, started=pinned is not None)
        return fetched.revision, [task.entry for task in fetched.tasks]

    async def _dataset(self, namespace: str, source: DatasetSource, revision: str) -> FetchRequest:
        """Return the request for a dataset, which is a registry.json at a URL with tasks in git repositories."""
        field = "spec.tasksFrom.dataset"
        self._check_kinds(field, "git", "url")
        scope, credentials = await self._credentials(namespace, field, "git", source.secret_ref)
        selection = source.model_dump(include=set(_SELECTION), exclude_none=True)
        return FetchRequest("dataset", source.registry, revision=revision, scope=scope, credentials=credentials, dataset=selection)

    def _check_kinds(self, field: str, *kinds: str) -> None:
        if not set(kinds) <= set(self._kinds):
            text = f"{field}: the operator's setting taskSources must have {' and '.join(kinds)}"
            raise SourceError(f"{text}; it has {', '.join(self._kinds) or 'no source'}", reason=NOT_ALLOWED)

    async def _request(self, namespace: str, source: TaskSource, revision: str, field: str) -> FetchRequest:
        self._check_kinds(f"{field}.{source.kind}", source.kind)
        scope, credentials = await self._credentials(namespace, f"{field}.{source.kind}", source.kind, source.secret_ref)
        return request_for(source, revision, scope, credentials)

    async def _credentials(
        self, namespace: str, field: str, kind: str, ref: SecretReference | None
    ) -> tuple[str, Mapping[str, str]]:
        """Return UID and values of the Secret to which a source refers, or empty ones without a Secret. A missing Secret is a
        transient error, because it may still be created."""
        if ref is None:
            return "", {}
        name = ref.name
        try:
            secret = await self._get_secret(namespace, name)
        except NotFound as error:
            raise SourceError(f"{field}.secretRef: Secret {name!r} does not exist yet", transient=True) from error
        try:
            values = {key: base64.b64decode(value).decode() for key, value in (secret.get("data") or {}).items()}
        except (ValueError, TypeError):  # not base64, or not UTF-8
            raise SourceError(f"{field}.secretRef: Secret {name!r} has a value that is not UTF-8 text") from None
        _check_keys(field, kind, name, values)
        return str(secret["metadata"].get("uid", "")) or f"{namespace}/{name}", values

    def forget(self, file: CachedFile) -> None:
        """Delete a corrupt file from the cache, so that the task is fetched again."""
        self._fetching.cache.discard(file)

    def _cached(self, request: FetchRequest, revision: str) -> CachedFile | None:
        return self._fetching.cache.find(request.key(revision))

    def _checked(self, file: CachedFile, revision: str, pinned: TaskSourceStatus | None) -> tuple[CachedFile, TaskSourceStatus]:
        resolved = TaskSourceStatus(revision=revision, digest=file.digest)
        if pinned is not None and pinned != resolved:
            text = f"revision {revision} has digest {file.digest}, but had {pinned.digest} when the trial started"
            raise SourceError(text, reason=DIGEST)
        return file, resolved


def request_for(source: TaskSource, revision: str, scope: str, credentials: Mapping[str, str]) -> FetchRequest:
    """Return the request for the fetching process. ``revision`` is the one that was pinned when the trial started, or ""."""
    if source.oci is not None:
        pinned = revision or source.oci.image.partition("@")[2]
        return FetchRequest("oci", source.oci.image, path=source.oci.path, revision=pinned, scope=scope, credentials=credentials)
    if source.git is not None:
        git = source.git
        pinned = revision or (git.ref if git.ref and COMMIT.fullmatch(git.ref) else "")
        return FetchRequest("git", git.url, ref=git.ref or "", path=git.path, revision=pinned, scope=scope, credentials=credentials)
    assert source.url is not None
    url = source.url
    return FetchRequest("url", url.url, path=url.path, digest=url.digest, revision=url.digest, scope=scope, credentials=credentials)


_SELECTION = ("name", "version", "include", "exclude", "limit")
_KEYS = {
    "oci": ({DOCKER_CONFIG}, "type kubernetes.io/dockerconfigjson"),
    "git": ({"username", "password", "token", "ca.crt"}, "username and password (kubernetes.io/basic-auth), token, ca.crt"),
    "url": (
        {"username", "token", "ca.crt", "AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL", "GOOGLE_SERVICE_ACCOUNT_KEY"},
        "username and password (kubernetes.io/basic-auth), token, ca.crt, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "AWS_ENDPOINT_URL, or GOOGLE_SERVICE_ACCOUNT_KEY",
    ),
}


def _check_keys(field: str, kind: str, name: str, values: Mapping[str, str]) -> None:
    known, keys = _KEYS[kind]
    if not known & values.keys():
        names = ", ".join(sorted(values)) or "nothing"
        raise SourceError(f"{field}.secretRef: Secret {name!r} must have {keys}; it has {names}")
    if "AWS_ACCESS_KEY_ID" in values and "AWS_SECRET_ACCESS_KEY" not in values:
        raise SourceError(f"{field}.secretRef: Secret {name!r} has AWS_ACCESS_KEY_ID, but no AWS_SECRET_ACCESS_KEY")
