"""Stops trials or sweeps, and waits for their end: for `multistep stop` and `multistep sweep stop`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from multistep.api.trial.status import is_finished
from multistep.cli.terminal import print_err
from multistep.client.connection import Cluster
from multistep.client.objects import existing_sweep, existing_trial, stop
from multistep.client.outcome import outcome_of
from multistep.client.watch import status_of, until_finished
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS, Resource


async def stop_all(cluster: Cluster, resource: Resource, names: Sequence[str]) -> list[Object]:
    """Stop those that have not finished, and return all. Raises UsageError if one does not exist, before any is stopped."""
    namespace, existing = cluster.namespace, existing_trial if resource == TRIALS else existing_sweep
    found = [await existing(cluster, namespace, name) for name in names]
    for name, each in zip(names, found, strict=True):
        if is_finished(status_of(resource, each)):
            print_err(f"{name}: is {outcome_of(resource, each).phase} already")
        else:
            await stop(cluster, resource, namespace, name, uid=each["metadata"]["uid"])
            print_err(f"{name}: stopping")
    return found


async def all_finished(cluster: Cluster, resource: Resource, found: Sequence[Object]) -> list[Object]:
    """Wait until all have finished, and return them."""

    async def finished(each: Object) -> Object:
        if is_finished(status_of(resource, each)):
            return each
        name = each["metadata"]["name"]
        ended = await until_finished(cluster, resource, cluster.namespace, name, print_err)
        end = outcome_of(resource, ended)
        print_err(f"{name}: {end.phase}: {end.why}")
        return ended

    return await asyncio.gather(*map(finished, found))
