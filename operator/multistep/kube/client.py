"""A thin asynchronous client of the API server. Objects are plain dicts.

Reads are retried with back-off. A write is retried only if it was rejected with 429: a write without an answer may have
succeeded, so the caller must read again. Every call has a timeout, and every failure is an error of multistep.errors.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

import aiohttp

from multistep.errors import NotFound
from multistep.kube.connection import Connection
from multistep.kube.exec import WebsocketExec, open_exec
from multistep.kube.gate import Gate
from multistep.kube.protocols import FIELD_MANAGER, Object, Propagation
from multistep.kube.refusals import no_answer
from multistep.kube.requests import REQUEST_TIMEOUT_SECONDS, Http, RequestObserver
from multistep.kube.resources import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    EVENTS,
    KNOWN,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SWEEPS,
    TRIALS,
    Resource,
    api_path,
    from_discovery,
)
from multistep.kube.watch import WatchEvent, each_object, list_metadata, list_objects, watch_objects

MAX_EVENT_NOTE_BYTES: Final = 1024  # the API server rejects longer notes
APPLY: Final = "application/apply-patch+yaml"  # JSON is YAML
MERGE: Final = "application/merge-patch+json"


class Client:
    """A client of the API server. Create it with ``connect``, or from a Connection; close it (or use it as a context manager).

    timeout_seconds: of each request. gate: limits concurrent requests. observe: called after each request.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        gate: Gate | None = None,
        observe: RequestObserver | None = None,
        component: str = "multistep",
        instance: str = "",
    ) -> None:
        self.connection = connection
        self._http = Http(connection, timeout_seconds=timeout_seconds, gate=gate, observe=observe)
        self._component = component  # reporting controller of Events
        self._instance = instance or component
        self._kinds: dict[tuple[str, str], Resource] = dict(KNOWN)

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        gate: Gate | None = None,
        observe: RequestObserver | None = None,
    ) -> Self:
        """Create a client from kubeconfig, $KUBECONFIG, the pod's service account or ~/.kube/config. Raises Unavailable."""
        connection = await Connection.load(kubeconfig=kubeconfig, context=context)
        return cls(connection, timeout_seconds=timeout_seconds, gate=gate, observe=observe)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.connection.close()

    @property
    def namespace(self) -> str:
        """The namespace of objects whose manifest names none."""
        return self.connection.namespace

    # -- trials

    async def get_trial(self, namespace: str, name: str) -> Object:
        return await self.get(TRIALS, namespace, name)

    async def list_trials(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return await self.list_all(TRIALS, namespace, label_selector=label_selector)

    def each_trial(self, namespace: str, label_selector: str) -> AsyncIterator[Object]:
        """Yield all trials with these labels, reading a page at a time."""
        return self.each(TRIALS, namespace, label_selector=label_selector)

    async def delete_trial(self, namespace: str, name: str, *, uid: str = "", propagation: Propagation = "Background") -> bool:
        return await self.delete(TRIALS, namespace, name, uid=uid, propagation=propagation)

    async def apply_status(
        self,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str,
        status: Mapping[str, Any],
        field_manager: str = FIELD_MANAGER,
        resource: Resource = TRIALS,
    ) -> Object:
        """Write the whole status by server-side apply. Raises Conflict if the object changed or was recreated.

        resource_version rejects a stale writer: without it the last writer wins. It also detects another object of the same
        name: the API server does not compare the uid when a status is applied (measured).
        """
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": resource_version}
        body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status}
        path = resource.path(namespace, name, "status")
        params = {"fieldManager": field_manager, "force": "true"}
        return await self._apply(resource, path, params, body)

    async def patch_trial(self, namespace: str, name: str, changes: Mapping[str, Any]) -> Object:
        """Merge changes into a trial. Raises Conflict if they contain a metadata.uid that is not the trial's."""
        return await self.patch(TRIALS, namespace, name, changes, field_manager=FIELD_MANAGER)

    # -- sweeps

    async def get_sweep(self, namespace: str, name: str) -> Object:
        return await self.get(SWEEPS, namespace, name)

    async def delete_sweep(self, namespace: str, name: str, *, uid: str) -> bool:
        return await self.delete(SWEEPS, namespace, name, uid=uid, propagation="Background")

    # -- objects of a trial

    async def get_pod(self, namespace: str, name: str) -> Object:
        return await self.get(PODS, namespace, name)

    async def list_pods(self, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        return await self.list_all(PODS, namespace, label_selector=label_selector)

    async def create_pod(self, pod: Mapping[str, Any]) -> Object:
        return await self.create(pod)

    async def delete_pod(self, namespace: str, name: str, *, uid: str = "", grace_period_seconds: int | None = None) -> bool:
        return await self.delete(PODS, namespace, name, uid=uid, grace_period_seconds=grace_period_seconds)

    async def get_config_map(self, namespace: str, name: str) -> Object:
        return await self.get(CONFIG_MAPS, namespace, name)

    async def get_secret(self, namespace: str, name: str) -> Object:
        return await self.get(SECRETS, namespace, name)

    async def get_network_policy(self, namespace: str, name: str) -> Object:
        return await self.get(NETWORK_POLICIES, namespace, name)

    async def delete_disruption_budget(self, namespace: str, name: str) -> bool:
        return await self.delete(DISRUPTION_BUDGETS, namespace, name)

    async def create_event(
        self,
        regarding: Mapping[str, Any],
        *,
        reason: str,
        message: str,
        type: Literal["Normal", "Warning"] = "Normal",
        action: str = "Reconcile",
    ) -> None:
        """Create an events.k8s.io/v1 Event about an object (whole, or a reference to it); long messages are cut.

        Never retried: an overloaded API server should not get more requests for Events.
        """
        reference = _reference(regarding)
        namespace = reference.get("namespace") or "default"
        event = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{reference['name'][:200].rstrip('.-')}.{secrets.token_hex(8)}",
                "namespace": namespace,
            },
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "reportingController": f"multistep.dev/{self._component}",
            "reportingInstance": self._instance[:128],
            "type": type,
            "reason": reason[:128],
            "action": action[:128],
            "note": cut_bytes(message, MAX_EVENT_NOTE_BYTES),
            "regarding": reference,
        }
        path = EVENTS.path(namespace)
        await self._http.send("create", EVENTS.plural, "POST", path, params={"fieldManager": FIELD_MANAGER}, body=event, attempts=1)

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str]) -> WebsocketExec:
        """Run argv in a container (multistep.kube.exec)."""
        return await open_exec(self.connection, namespace, pod, container, argv, gate=self._http.gate, observe=self._http.observe)

    # -- any kind

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        return await self._http.read("get", resource.plural, resource.path(namespace, name))

    async def list_all(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> list[Object]:
        """Return all objects (of a namespace, if given), each with apiVersion and kind."""
        selectors = _selectors(label_selector, field_selector)
        objects, _ = await list_objects(self._http, resource, namespace, selectors)
        return objects

    async def each(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> AsyncGenerator[Object, None]:
        """Yield all objects (of a namespace, if given), reading a page at a time: for lists too large for memory."""
        async with aclosing(each_object(self._http, resource, namespace, _selectors(label_selector, ""))) as objects:
            async for each in objects:
                yield each

    async def list_metadata(self, resource: Resource, namespace: str | None = None, *, label_selector: str = "") -> list[Object]:
        """Return the metadata of all objects (of a namespace, if given)."""
        return await list_metadata(self._http, resource, namespace, _selectors(label_selector, ""))

    async def create(self, manifest: Mapping[str, Any], *, field_manager: str = FIELD_MANAGER, dry_run: bool = False) -> Object:
        """Create an object of any kind; with dry_run the server only checks it. Raises Conflict if its name is taken."""
        resource = await self.resource_of(manifest)
        path = resource.path(self._namespace_of(resource, manifest))
        params = {"fieldManager": field_manager, **({"dryRun": "All"} if dry_run else {})}
        return await self._http.send("create", resource.plural, "POST", path, params=params, body=manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> Object:
        """Write an object anew, if it is still as it was at the manifest's resourceVersion. Raises Conflict."""
        resource = await self.resource_of(manifest)
        path = resource.path(self._namespace_of(resource, manifest), manifest["metadata"]["name"])
        return await self._http.send("replace", resource.plural, "PUT", path, body=manifest)

    async def apply(
        self,
        manifest: Mapping[str, Any],
        *,
        field_manager: str = "multistep-cli",
        force: bool = True,
        dry_run: bool = False,
    ) -> Object:
        """Server-side apply of an object of any kind. force: take over fields that others own."""
        resource = await self.resource_of(manifest)
        path = resource.path(self._namespace_of(resource, manifest), manifest["metadata"]["name"])
        params = {"fieldManager": field_manager, "force": str(force).lower(), **({"dryRun": "All"} if dry_run else {})}
        return await self._apply(resource, path, params, manifest)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        changes: Mapping[str, Any],
        *,
        field_manager: str = "multistep-cli",
    ) -> Object:
        """Merge changes into an object. Raises Conflict if they contain a metadata.uid that is not the object's."""
        path, params = resource.path(namespace, name), {"fieldManager": field_manager}
        return await self._http.send("patch", resource.plural, "PATCH", path, params=params, body=changes, content_type=MERGE)

    async def _apply(self, resource: Resource, path: str, params: Mapping[str, str], body: Mapping[str, Any]) -> Object:
        return await self._http.send("apply", resource.plural, "PATCH", path, params=params, body=body, content_type=APPLY)

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        grace_period_seconds: int | None = None,
        propagation: Propagation | None = None,
    ) -> bool:
        """Request an object's deletion; return False if it does not exist. Raises Conflict if the object has another uid."""
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace_period_seconds is not None:
            options["gracePeriodSeconds"] = grace_period_seconds
        if propagation is not None:
            options["propagationPolicy"] = propagation
        try:
            path = resource.path(namespace, name)
            await self._http.send("delete", resource.plural, "DELETE", path, body=options)
        except NotFound:
            return False
        return True

    async def resource_of(self, manifest: Mapping[str, Any]) -> Resource:
        """Return the resource of a manifest's kind. Unknown kinds are discovered from the API server and cached."""
        api_version, kind = str(manifest.get("apiVersion", "")), str(manifest.get("kind", ""))
        if (api_version, kind) not in self._kinds:
            self._kinds |= await self._discover(api_version)
        try:
            return self._kinds[api_version, kind]
        except KeyError:
            text = f"the cluster serves no {kind or 'object without kind'} of {api_version or 'no apiVersion'}"
            raise NotFound(f"{text}: is its CRD installed?", status=404, reason="NoSuchKind") from None

    async def _discover(self, api_version: str) -> dict[tuple[str, str], Resource]:
        try:
            listed = await self._http.read("get", "apiresources", api_path(api_version))
            return from_discovery(api_version, listed)
        except NotFound:
            return {}

    def _namespace_of(self, resource: Resource, manifest: Mapping[str, Any]) -> str | None:
        return (manifest["metadata"].get("namespace") or self.namespace) if resource.namespaced else None

    # -- watches and streams

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield all objects as ADDED, then every change, without end. Raises Unavailable if retries keep failing.

        After a gap it lists again: objects changed in between are yielded as MODIFIED, deleted ones as DELETED (names only).
        """
        selectors = _selectors(label_selector, field_selector)
        async with aclosing(watch_objects(self._http, resource, namespace, selectors)) as events:
            async for event in events:
                yield event

    async def raw_stream(self, path: str, *, params: Mapping[str, str] | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the body of a GET (for example of a service's proxy) in chunks. Raises Unavailable if it ends early.

        The request timeout applies to each chunk. Use contextlib.aclosing to stop early.
        """
        limit = self._http.timeout_seconds
        async with self._http.stream("proxy", "", path, params or {}, silence_seconds=limit) as response:
            try:
                async for chunk in response.content.iter_any():
                    yield chunk
            except (aiohttp.ClientError, OSError) as error:
                raise no_answer(f"GET {path}", error) from error


def cut_bytes(text: str, limit: int) -> str:
    """Return text, cut to at most limit bytes of UTF-8, with an ellipsis at the cut."""
    data = text.encode()
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    named = {"labelSelector": label_selector, "fieldSelector": field_selector}
    return {name: value for name, value in named.items() if value}


def _reference(regarding: Mapping[str, Any]) -> dict[str, str]:
    """Return an ObjectReference, without resourceVersion: with it, equal Events would not be merged."""
    names = regarding.get("metadata") or regarding
    reference = {
        "apiVersion": regarding.get("apiVersion"),
        "kind": regarding.get("kind"),
        "name": names.get("name"),
        "namespace": names.get("namespace"),
        "uid": names.get("uid"),
    }
    return {key: str(value) for key, value in reference.items() if value}
