"""Creates a trial or a sweep, and the objects that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from multistep.api.common import labels
from multistep.client.connection import Cluster
from multistep.client.objects import find_object
from multistep.client.submit.manifests import Submission, owned_by
from multistep.errors import AlreadyExists, ClusterError, NotFound, Unavailable, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS, Resource


async def check_accepted(cluster: Cluster, submission: Submission) -> None:
    """Send a dry run of the main object and of one owned object of each kind, so that the server checks namespace, RBAC, schema and
    quota but creates nothing.

    Raises UsageError if the name is taken or the namespace does not exist, ClusterError if the server rejects an object.
    """
    submission = submission.placed(cluster.namespace)
    main = submission.main
    resource, namespace, name = _resource(main), main["metadata"]["namespace"], main["metadata"]["name"]
    if await find_object(cluster, resource, namespace, name):
        raise UsageError(_taken(resource, name))
    try:
        await cluster.create(main, dry_run=True)
        for each in {each["kind"]: each for each in submission.owned}.values():
            await cluster.apply(each, dry_run=True)
    except NotFound as error:
        if f'namespaces "{namespace}" not found' not in str(error):
            raise
        hint = f"create it with `kubectl create namespace {namespace}`, or name another one with --namespace"
        raise UsageError(f"namespace {namespace!r} does not exist: {hint}") from error


async def submit(cluster: Cluster, submission: Submission) -> Object:
    """Create a trial or a sweep with the objects that it needs: first those that it does not own, then itself, then those that it
    owns. Objects without a namespace get the cluster's namespace. Return the trial or sweep.

    No owned object exists without its owner, even after an interruption; until they exist, the operator waits for them. If one
    cannot be created, the owner is deleted. Raises AlreadyExists if the name is taken, ClusterError if a request fails.
    """
    submission = submission.placed(cluster.namespace)
    for manifest in submission.others:
        await cluster.apply(manifest)
    main = await create(cluster, submission.main)
    try:
        for manifest in submission.owned:
            await cluster.apply(owned_by(manifest, main))
    except (ClusterError, asyncio.CancelledError):
        metadata = main["metadata"]
        with suppress(ClusterError):
            await cluster.delete(_resource(submission.main), metadata["namespace"], metadata["name"], uid=metadata["uid"])
        raise
    return main


async def create(cluster: Cluster, manifest: Mapping[str, Any]) -> Object:
    """Create a trial or a sweep. Raises AlreadyExists if another one has its name (a server-side apply would change that one).

    If the answer is lost, an annotation with a random value shows whether this call created the object of this name.
    """
    resource, metadata, mark = _resource(manifest), manifest["metadata"], uuid4().hex
    namespace, name = metadata["namespace"], metadata["name"]
    annotations = {**metadata.get("annotations", {}), labels.SUBMISSION: mark}
    try:
        return await cluster.create({**manifest, "metadata": {**metadata, "annotations": annotations}})
    except AlreadyExists as error:
        raise AlreadyExists(_taken(resource, name), status=error.status, reason=error.reason) from error
    except Unavailable as error:
        found = await find_object(cluster, resource, namespace, name)
        if found is None:
            raise
        if (found["metadata"].get("annotations") or {}).get(labels.SUBMISSION) != mark:
            raise AlreadyExists(_taken(resource, name), status=409, reason="AlreadyExists") from error
        return found


def _resource(manifest: Mapping[str, Any]) -> Resource:
    return TRIALS if manifest["kind"] == TRIALS.kind else SWEEPS


def _taken(resource: Resource, name: str) -> str:
    return f"{'trial' if resource == TRIALS else 'sweep'} {name!r} already exists: delete it, or choose another --name"
