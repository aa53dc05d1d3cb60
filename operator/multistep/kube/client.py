"""A thin asynchronous client of the API server. Objects are plain dicts.

Reads are retried with back-off. A write is retried only if it was rejected with 429 or 401. A write without an answer may have
succeeded, so the caller must read the object before it writes again. Every call has a timeout, and every failure is an error of
multistep.errors.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Self

from multistep.errors import NotFound
from multistep.kube.cluster_protocols import Object
from multistep.kube.connection import Connection
from multistep.kube.exec import HANDSHAKE_ATTEMPTS, WebsocketExec, open_exec
from multistep.kube.list_objects import METADATA_ONLY, Query
from multistep.kube.requests import ApiRequests
from multistep.kube.resources import API_RESOURCES, KNOWN, PODS, Resource, api_path, from_discovery

FIELD_MANAGER: Final = "multistep"
_LOG_SILENCE_SECONDS: Final = 3600.0  # timeout of a followed log, because a container may print nothing for a long time


class ClusterClient(AbstractAsyncContextManager["ClusterClient"]):
    """A client of the API server. Leaving its context closes it."""

    def __init__(self, http: ApiRequests, *, field_manager: str = FIELD_MANAGER, strict: bool = False) -> None:
        """Create a client.

        Server-side apply records the fields that this client sets under the name ``field_manager``. With ``strict``, the server
        rejects unknown fields, as with kubectl, instead of dropping them.
        """
        self.connection = http.connection
        self.namespace = http.connection.namespace  # namespace of objects whose manifest has none
        self._http = http
        self._field_manager = field_manager
        self._validation = {"fieldValidation": "Strict"} if strict else {}
        self._kinds: dict[tuple[str, str], Resource] = dict(KNOWN)

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        field_manager: str = FIELD_MANAGER,
        strict: bool = False,
        **options: Any,
    ) -> Self:
        """Create a client from ``kubeconfig``, $KUBECONFIG, the pod's service account or ~/.kube/config. Raises Unavailable if none
        is usable.

        ``options`` are arguments of multistep.kube.requests.ApiRequests.
        """
        connection = await Connection.load(kubeconfig=kubeconfig, context=context)
        return cls(ApiRequests(connection, **options), field_manager=field_manager, strict=strict)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()

    # -- reads

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return await self._http.read("get", resource, resource.path(namespace, name))

    async def list_all(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> list[Object]:
        """Return all objects (of a namespace, if given), each with apiVersion and kind."""
        return (await Query(self._http, resource, namespace, label_selector, field_selector).all())[0]

    async def list_metadata(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        """Return the metadata of all objects (of a namespace, if given) without managedFields, which is much smaller than whole
        objects."""
        query = Query(self._http, resource, namespace, label_selector, accept=METADATA_ONLY)
        return (await query.all(_without_managed_fields))[0]

    async def iterate(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> AsyncGenerator[Object, None]:
        """Yield all objects (of a namespace, if given). Only one page is in memory at a time.

        Raises ClusterError with status 410 if the caller reads too slowly.
        """
        async for page, _ in Query(self._http, resource, namespace, label_selector).pages():
            for item in page:
                yield item

    async def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield the body of a GET (for example of a service's proxy) in chunks. Raises Unavailable if it ends early.

        The request timeout applies to each chunk. Use contextlib.aclosing to stop early.
        """
        limit = self._http.timeout_seconds
        async with self._http.stream("proxy", "", path, {}, silence_seconds=limit) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    # -- writes

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Create an object. With ``dry_run``, the server only validates it. Raises AlreadyExists if the name is taken."""
        resource = await self.resource_of(manifest)
        namespace = manifest["metadata"].get("namespace") or self.namespace
        return await self._http.send("create", resource, resource.path(namespace), self._params(dry_run), manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> Object:
        """Replace an object. Raises Conflict if the object no longer has the manifest's resourceVersion."""
        resource, path = await self._located(manifest)
        return await self._http.send("replace", resource, path, {}, manifest)

    async def apply(
        self, manifest: Mapping[str, Any], *, field_manager: str = "", force: bool = True, dry_run: bool = False
    ) -> Object:
        """Create or update an object by server-side apply. With ``force``, take over fields that other field managers own."""
        resource, path = await self._located(manifest)
        params = self._params(dry_run, field_manager) | {"force": str(force).lower()}
        return await self._http.send("apply", resource, path, params, manifest)

    async def apply_status(
        self, resource: Resource, namespace: str, name: str, *, uid: str, resource_version: str, status: Mapping[str, Any]
    ) -> Object:
        """Write the whole status by server-side apply. Raises Conflict if the object changed or was recreated.

        Without ``resource_version``, the last writer would win. The version also detects another object of the same name, because
        the API server does not compare the UID when a status is applied (measured).
        """
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": resource_version}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        path, params = resource.path(namespace, name, "status"), self._params() | {"force": "true"}
        return await self._http.send("apply", resource, path, params, body)

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object:
        """Update fields of an object by JSON merge patch. Raises Conflict if ``changes`` has the metadata.uid of another object."""
        return await self._http.send("patch", resource, resource.path(namespace, name), self._params(), changes)

    async def delete(
        self, resource: Resource, namespace: str | None, name: str, *, uid: str = "", grace_period_seconds: int | None = None
    ) -> bool:
        """Request an object's deletion. Return False if the object does not exist. Raises Conflict if it has another UID.

        The garbage collector deletes the object's dependents in the background.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        try:
            await self._http.send("delete", resource, resource.path(namespace, name), {}, options)
        except NotFound:
            return False
        return True

    async def open_exec(
        self,
        namespace: str,
        pod: str,
        container: str,
        argv: Sequence[str],
        *,
        tty: bool = False,
        on_stderr: Callable[[bytes], object] | None = None,
        attempts: int = HANDSHAKE_ATTEMPTS,
    ) -> WebsocketExec:
        """Run a command in a container, as multistep.kube.exec describes."""
        http = self._http
        return await open_exec(
            self.connection,
            namespace,
            pod,
            container,
            argv,
            limit=http.limit,
            observe=http.observe,
            check=http.check,
            tty=tty,
            on_stderr=on_stderr,
            attempts=attempts,
        )

    async def logs(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
        follow: bool = False,
    ) -> AsyncGenerator[bytes, None]:
        """Yield a container's log in chunks, or its last lines. With ``follow``, also yield new output until the container ends."""
        path = PODS.path(namespace, pod, "log")
        given = {"tailLines": tail_lines, "limitBytes": limit_bytes, "follow": "true" if follow else None}
        params = {"container": container, **{name: str(value) for name, value in given.items() if value is not None}}
        async with self._http.stream("get", "pods/log", path, params, silence_seconds=_LOG_SILENCE_SECONDS) as response:
            async for chunk in response.content.iter_any():
                yield chunk

    # -- lookup of resources by kind

    async def resource_of(self, manifest: Mapping[str, Any]) -> Resource:
        """Return the resource of a manifest's kind. Unknown kinds are read from the API server's discovery documents, and
        cached."""
        api_version, kind = str(manifest.get("apiVersion", "")), str(manifest.get("kind", ""))
        try:
            if (api_version, kind) not in self._kinds:
                listed = await self._http.read("get", API_RESOURCES, api_path(api_version))
                self._kinds |= from_discovery(api_version, listed)
            return self._kinds[api_version, kind]
        except (KeyError, NotFound):
            text = f"the cluster serves no {kind or 'object without kind'} of {api_version or 'no apiVersion'}"
            raise NotFound(f"{text}: check that its CRD is installed", status=404, reason="NoSuchKind") from None

    async def _located(self, manifest: Mapping[str, Any]) -> tuple[Resource, str]:
        resource, metadata = await self.resource_of(manifest), manifest["metadata"]
        return resource, resource.path(metadata.get("namespace") or self.namespace, metadata["name"])

    def _params(self, dry_run: bool = False, field_manager: str = "") -> dict[str, str]:
        manager = {"fieldManager": field_manager or self._field_manager}
        return {**manager, **self._validation, **({"dryRun": "All"} if dry_run else {})}


async def server_version(client: ClusterClient) -> tuple[dict[str, str], datetime | None]:
    """Return the API server's version (gitVersion, ...) and its time, in whole seconds, if it sends one."""
    http = client._http
    async with http.stream("get", "version", "/version", {}, silence_seconds=http.timeout_seconds) as response:
        version: dict[str, str] = await response.json()
        date = response.headers.get("Date")
    return version, parsedate_to_datetime(date) if date else None


def _without_managed_fields(whole: Object) -> Object:
    return {name: value for name, value in whole["metadata"].items() if name != "managedFields"}
