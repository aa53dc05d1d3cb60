"""The cluster client of the commands: a protocol, and the connection to a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol
from uuid import uuid4

import aiohttp

from multistep.api.common import labels
from multistep.cli.image.kubeconfig import current_cluster, fault
from multistep.cli.options import Target
from multistep.cli.terminal import print_err
from multistep.errors import AlreadyExists, NotFound, Unavailable, UsageError
from multistep.kube.client import Client
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS, Resource
from multistep.kube.watch import WatchEvent

FIELD_MANAGER = "multistep-cli"
SILENCE_SECONDS = 2.0


class Cluster(Protocol):
    """The methods of kube.client.Client that commands use; each may raise ClusterError."""

    @property
    def namespace(self) -> str: ...

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object: ...

    def each(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = ""
    ) -> AsyncGenerator[Object, None]: ...

    async def apply(self, manifest: Mapping[str, Any], *, field_manager: str = ..., dry_run: bool = ...) -> Object: ...

    async def create(self, manifest: Mapping[str, Any], *, dry_run: bool = ...) -> Object: ...

    async def delete(self, resource: Resource, namespace: str | None, name: str, *, uid: str = "") -> bool: ...

    async def patch(self, resource: Resource, namespace: str | None, name: str, changes: Mapping[str, Any]) -> Object: ...

    def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]: ...

    def logs(
        self, namespace: str, pod: str, container: str, *, tail_lines: int | None = None, follow: bool = False
    ) -> AsyncGenerator[bytes, None]: ...

    def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]: ...

    async def open_exec(self, namespace: str, pod: str, container: str, argv: Sequence[str], **options: Any) -> Any: ...


@asynccontextmanager
async def connect(target: Target) -> AsyncIterator[Cluster]:
    """Connect to the cluster that the options or the kubeconfig select. Raises Unavailable if the kubeconfig is not usable."""
    async with connect_client(target) as client:
        yield client


@asynccontextmanager
async def connect_client(target: Target) -> AsyncIterator[Client]:
    """Connect as ``connect`` does, but return the Client, for commands that call methods that ``Cluster`` lacks."""
    async with await open_client(target, FIELD_MANAGER) as client, _silence_reported(client):
        yield client


async def open_client(target: Target, field_manager: str) -> Client:
    """Return a client whose writes the API server rejects if they have unknown fields. Raises Unavailable, with the reason, if the
    kubeconfig is not usable."""
    try:
        return await Client.connect(kubeconfig=target.kubeconfig, context=target.context, field_manager=field_manager, strict=True)
    except Unavailable as error:
        reason = fault(target.kubeconfig, target.context)
        if not reason and current_cluster(target.kubeconfig, target.context):
            raise
        reason = reason or "no kubeconfig names a cluster"
        raise Unavailable(f"{reason}: set $KUBECONFIG, or use --kubeconfig and --context") from error


@asynccontextmanager
async def _silence_reported(client: Client) -> AsyncIterator[None]:
    """Print once which server the command waits for, if the first request gets no answer for a while: its retries take up to two
    minutes."""
    timers: list[asyncio.TimerHandle] = []

    async def start(*_: object) -> None:
        if not timers:
            text = f"waiting for the API server {client.connection.base_url}"
            timers.append(asyncio.get_running_loop().call_later(SILENCE_SECONDS, print_err, text))

    async def stop(*_: object) -> None:
        for timer in timers:
            timer.cancel()

    trace = aiohttp.TraceConfig()
    trace.on_request_start.append(start)
    trace.on_request_end.append(stop)
    client.connection.session("api", trace=trace)
    try:
        yield
    finally:
        await stop()


async def check_accepted(cluster: Cluster, main: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
    """Send a dry run of one object of each kind, so that the server checks namespace, RBAC, schema and quota but creates nothing.

    main: object that the caller then creates; others: objects that the caller then applies. Raises UsageError if the namespace does
    not exist, ClusterError if the server rejects an object.
    """
    namespace = main["metadata"]["namespace"]
    try:
        await cluster.create(main, dry_run=True)
        for each in {each["kind"]: each for each in others}.values():
            await cluster.apply(each, dry_run=True)
    except NotFound as error:
        if f'namespaces "{namespace}" not found' not in str(error):
            raise
        hint = f"create it with `kubectl create namespace {namespace}`, or name another one with --namespace"
        raise UsageError(f"namespace {namespace!r} does not exist: {hint}") from error


async def create(cluster: Cluster, resource: Resource, manifest: Mapping[str, Any]) -> Object:
    """Create a trial or a sweep. Raises AlreadyExists if another one has its name (a server-side apply would change that one).

    If the answer is lost, an annotation with a random value shows whether this call created the object of this name.
    """
    metadata, mark = manifest["metadata"], uuid4().hex
    namespace, name = metadata["namespace"], metadata["name"]
    annotations = {**metadata.get("annotations", {}), labels.SUBMISSION: mark}
    try:
        return await cluster.create({**manifest, "metadata": {**metadata, "annotations": annotations}})
    except AlreadyExists as error:
        raise AlreadyExists(taken(resource, name), status=error.status, reason=error.reason) from error
    except Unavailable as error:
        found = await _find(cluster, resource, namespace, name)
        if found is None:
            raise
        if (found["metadata"].get("annotations") or {}).get(labels.SUBMISSION) != mark:
            raise AlreadyExists(taken(resource, name), status=409, reason="AlreadyExists") from error
        return found


def taken(resource: Resource, name: str) -> str:
    """Return the message that another trial or sweep has this name."""
    return f"{'trial' if resource == TRIALS else 'sweep'} {name!r} already exists: delete it, or choose another --name"


async def find_trial(cluster: Cluster, namespace: str, name: str) -> Object | None:
    """Return the trial, or None if it does not exist. Raises UsageError if the CRD is not installed."""
    return await _find(cluster, TRIALS, namespace, name)


async def find_sweep(cluster: Cluster, namespace: str, name: str) -> Object | None:
    """Return the sweep, or None if it does not exist. Raises UsageError if the CRD is not installed."""
    return await _find(cluster, SWEEPS, namespace, name)


async def _find(cluster: Cluster, resource: Resource, namespace: str, name: str) -> Object | None:
    if not name:  # the API server would return the list of all objects
        return None
    try:
        with crd_required(resource):
            return await cluster.get(resource, namespace, name)
    except NotFound:
        return None


@contextmanager
def crd_required(resource: Resource) -> Iterator[None]:
    """Raise UsageError for a 404 without reason NotFound, which means that the API server does not serve the kind."""
    try:
        yield
    except NotFound as error:
        if error.reason != "NotFound":
            raise UsageError(f"the cluster has no CRD for {resource.kind}: install Multistep in it (README, Install)") from error
        raise


async def existing_sweep(cluster: Cluster, namespace: str, name: str) -> Object:
    """Return the sweep. Raises UsageError if it does not exist."""
    found = await find_sweep(cluster, namespace, name)
    if found is None:
        raise UsageError(f"sweep {name!r} does not exist in namespace {namespace!r}: `multistep sweep list -A` lists all")
    return found


async def find_either(cluster: Cluster, namespace: str, text: str) -> tuple[str, Object | None, Object | None]:
    """Parse ``NAME``, ``trial/NAME`` or ``sweep/NAME``. Return the name, and the trial and the sweep of this name, each None if it
    does not exist. Raises UsageError if both exist, or if the text has another form."""
    kind, _, name = text.rpartition("/")
    if kind not in ("", "trial", "sweep"):
        raise UsageError(f"{text} is neither NAME nor trial/NAME nor sweep/NAME")
    trial = await find_trial(cluster, namespace, name) if kind != "sweep" else None
    sweep = await find_sweep(cluster, namespace, name) if kind != "trial" else None
    if trial is not None and sweep is not None:
        raise UsageError(f"there are a trial and a sweep of this name: write trial/{name} or sweep/{name}")
    return name, trial, sweep


async def existing_either(cluster: Cluster, namespace: str, text: str) -> tuple[Resource, Object]:
    """Return the object that find_either finds, and its resource. Raises UsageError also if no object exists."""
    name, trial, sweep = await find_either(cluster, namespace, text)
    if trial is not None:
        return TRIALS, trial
    if sweep is not None:
        return SWEEPS, sweep
    what = f"neither a trial nor a sweep {name!r} exists" if name == text else f"{text} does not exist"
    raise UsageError(f"{what} in namespace {namespace!r}: `multistep list -A` and `multistep sweep list -A` list all")


async def existing_trial(cluster: Cluster, namespace: str, name: str) -> Object:
    """Return the trial. Raises UsageError if it does not exist."""
    found = await find_trial(cluster, namespace, name)
    if found is None:
        raise UsageError(f"trial {name!r} does not exist in namespace {namespace!r}: `multistep list -A` lists all")
    return found
