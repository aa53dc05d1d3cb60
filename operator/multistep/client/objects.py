"""Finds trials and sweeps by name; stops them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from multistep.client.connection import Cluster
from multistep.errors import NotFound, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS, Resource


async def find_object(cluster: Cluster, resource: Resource, namespace: str, name: str) -> Object | None:
    """Return the trial or sweep, or None if it does not exist. Raises UsageError if the CRD is not installed."""
    if not name:  # the API server would return the list of all objects
        return None
    try:
        with crd_required(resource):
            return await cluster.get(resource, namespace, name)
    except NotFound:
        return None


async def find_trial(cluster: Cluster, namespace: str, name: str) -> Object | None:
    """Return the trial, as ``find_object`` does."""
    return await find_object(cluster, TRIALS, namespace, name)


async def find_sweep(cluster: Cluster, namespace: str, name: str) -> Object | None:
    """Return the sweep, as ``find_object`` does."""
    return await find_object(cluster, SWEEPS, namespace, name)


@contextmanager
def crd_required(resource: Resource) -> Iterator[None]:
    """Raise UsageError for a 404 without reason NotFound, which means that the API server does not serve the kind."""
    try:
        yield
    except NotFound as error:
        if error.reason != "NotFound":
            raise UsageError(f"the cluster has no CRD for {resource.kind}: install Multistep in it (README, Install)") from error
        raise


async def existing_object(cluster: Cluster, resource: Resource, namespace: str, name: str) -> Object:
    """Return the trial or sweep. Raises UsageError if it does not exist."""
    found = await find_object(cluster, resource, namespace, name)
    if found is None:
        what, command = ("trial", "list") if resource == TRIALS else ("sweep", "sweep list")
        raise UsageError(f"{what} {name!r} does not exist in namespace {namespace!r}: `multistep {command} -A` lists all")
    return found


async def existing_trial(cluster: Cluster, namespace: str, name: str) -> Object:
    """Return the trial, as ``existing_object`` does."""
    return await existing_object(cluster, TRIALS, namespace, name)


async def existing_sweep(cluster: Cluster, namespace: str, name: str) -> Object:
    """Return the sweep, as ``existing_object`` does."""
    return await existing_object(cluster, SWEEPS, namespace, name)


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


async def stop(cluster: Cluster, resource: Resource, namespace: str, name: str, *, uid: str) -> None:
    """Set spec.stop of a trial or sweep. Raises Conflict if another object has its name now, and ClusterError."""
    await cluster.patch(resource, namespace, name, {"metadata": {"uid": uid}, "spec": {"stop": True}})
