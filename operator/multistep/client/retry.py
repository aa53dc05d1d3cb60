"""Requests retries of trials without a score: in their sweep, or as new trials."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION
from multistep.api.sweep.sweep import MAX_RETRIES, Scoring, parse_sweep_status
from multistep.api.trial.trial import KIND
from multistep.client.connection import Cluster
from multistep.client.objects import existing_trial, find_sweep
from multistep.client.submit.create import create
from multistep.client.submit.manifests import Manifest, optional
from multistep.client.sweep_trials import counted_rows
from multistep.engine.sweep.trial_grid import retries_of
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import AlreadyExists, ClusterError, Conflict, UsageError
from multistep.kube.resources import CONFIG_MAPS, SECRETS, SWEEPS, TRIALS, Resource
from multistep.report.rows import TrialRow, sweep_number, trial_row

Object = Mapping[str, Any]
Warn = Callable[[str], object]
"""Called with each warning about the trials of a sweep, or about objects that the new trial may lose."""
_NOT_COPIED: Final = ("stop", "suspend", "prestart")
_NAME_CHARACTERS: Final = 63
_MAX_RETRIES: Final = 100  # maximum number of retries of one trial


async def retry_trial(cluster: Cluster, namespace: str, name: str, warn: Warn) -> tuple[Resource, str]:
    """Run a trial again: in its sweep, or as a new trial if no existing sweep owns it. Return the kind and name of that sweep or
    of the new trial.

    Raises UsageError if the trial does not exist, is active, has a score or has a pending retry, and ClusterError.
    """
    found = await existing_trial(cluster, namespace, name)
    owner = owner_of(found)
    sweep = await find_sweep(cluster, namespace, owner[0]) if owner else None
    if owner and sweep and sweep["metadata"]["uid"] == owner[1]:
        await _retry_in_sweep(cluster, namespace, sweep, name, warn)
        return SWEEPS, owner[0]
    return TRIALS, await _retry_alone(cluster, namespace, found, warn)


async def retry_excluded(cluster: Cluster, namespace: str, sweep: Object, warn: Warn) -> list[str]:
    """Request a retry of each excluded trial of the sweep, except unverified trials and trials with a pending retry.

    Return the names of the trials that run again. Raises UsageError if the sweep would have too many retries, and ClusterError.
    """
    found = await _counting(cluster, sweep, warn)
    return await _retry(cluster, namespace, sweep, [each for each in found if each.excluded and each.outcome != "Unverified"])


async def _retry_in_sweep(cluster: Cluster, namespace: str, sweep: Object, trial: str, warn: Warn) -> None:
    """Request a retry of one trial of the sweep."""
    found = {each.trial: each for each in await _counting(cluster, sweep, warn)}.get(trial)
    name = sweep["metadata"]["name"]
    if found is None:
        raise UsageError(f"trial {trial} does not count in sweep {name}: a retry of it does")
    if found.state == "Active":
        raise UsageError(f"trial {trial} is active: stop it first, or wait until it has finished")
    if not found.excluded:
        raise UsageError(f"trial {trial} has a score, which a retry does not replace: to run its task again, start another trial")
    if not await _retry(cluster, namespace, sweep, [found]):
        raise UsageError(f"trial {trial} will run again already: spec.retries of sweep {name} has its number")


async def _counting(cluster: Cluster, sweep: Object, warn: Warn) -> list[TrialRow]:
    """Return the rows of the trials that count in the sweep: for each number of a trial, the first scored one, else the newest."""
    return [each for each in await counted_rows(cluster, dict(sweep), warn) if each.number >= 0]


async def _retry(cluster: Cluster, namespace: str, sweep: Object, rows: Collection[TrialRow]) -> list[str]:
    """Append the trials' numbers to spec.retries; for a retry, the number of the trial that it repeats. Omit numbers that already
    have a pending retry.

    Return the names of the trials whose numbers were appended.
    """
    metadata, known, trials = sweep["metadata"], list(sweep["spec"].get("retries") or ()), parse_sweep_status(sweep).trials
    due = {each.number for each in retries_of(known, trials.total)[trials.retried :]}
    added = sorted((each for each in rows if sweep_number(each) not in due), key=sweep_number)
    if not added:
        return []
    if len(known) + len(added) > MAX_RETRIES:
        raise UsageError(f"sweep {metadata['name']} would have {len(known) + len(added)} retries; it may have {MAX_RETRIES}")
    same = {name: metadata[name] for name in ("uid", "resourceVersion") if name in metadata}
    changes = {"retries": [*known, *map(sweep_number, added)], "stop": None}  # without spec.stop, a stopped sweep continues
    try:
        await cluster.patch(SWEEPS, namespace, metadata["name"], {"metadata": same, "spec": changes})
    except Conflict as error:
        raise Conflict(f"sweep {metadata['name']} changed meanwhile; try again: {error}", status=409) from error
    return [each.trial for each in added]


async def _retry_alone(cluster: Cluster, namespace: str, trial: Object, warn: Warn) -> str:
    """Create a trial with the same spec, which becomes a second owner of the objects that the trial owns; return its name."""
    name, found = trial["metadata"]["name"], trial_row(trial, Scoring())
    if found.state == "Active":
        raise UsageError(f"trial {name} is active: stop it first, or wait until it has finished")
    if not found.excluded:
        raise UsageError(f"trial {name} has a score: to run its task again, start another trial with `multistep run`")
    created = await _created(cluster, _manifest(trial))
    await _share(cluster, namespace, trial, created, warn)
    new: str = created["metadata"]["name"]
    return new


def _manifest(trial: Object) -> Manifest:
    """Return the retry's manifest, with the trial's labels except those that mark it as a trial of a sweep. _created replaces the
    name in the manifest, which is the trial's name."""
    metadata = trial["metadata"]
    given, first = metadata.get("annotations") or {}, metadata["name"]
    kept = {name: text for name, text in given.items() if name in (labels.TASK, labels.AGENT)} if owner_of(trial) else {}
    ours = {labels.SWEEP, labels.NUMBER, labels.RETRY_OF, labels.BRANCH}
    tags = {name: text for name, text in (metadata.get("labels") or {}).items() if name not in ours}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": first,
            "namespace": metadata["namespace"],
            "annotations": {**kept, labels.RETRY_OF: given.get(labels.RETRY_OF, first)},
            **optional(labels=tags or None),
        },
        "spec": {name: value for name, value in trial["spec"].items() if name not in _NOT_COPIED},
    }


async def _created(cluster: Cluster, manifest: Manifest) -> Object:
    """Create the retry under the first free name of NAME-r1, NAME-r2, ..., where NAME is the name of the original trial."""
    metadata = manifest["metadata"]
    first = metadata["annotations"][labels.RETRY_OF]
    for number in range(1, _MAX_RETRIES + 1):
        ending = f"-r{number}"
        name = first[: _NAME_CHARACTERS - len(ending)].rstrip("-.") + ending
        try:
            return await create(cluster, {**manifest, "metadata": {**metadata, "name": name}})
        except AlreadyExists:
            continue
    raise UsageError(f"trial {first} has {_MAX_RETRIES} retries already")


async def _share(cluster: Cluster, namespace: str, trial: Object, created: Object, warn: Warn) -> None:
    """Add the new trial as an owner of the objects that ``trial`` owns, so that they are not deleted with ``trial``."""
    owner, uid = created["metadata"], trial["metadata"]["uid"]
    for resource, name in _parts(trial["spec"]):
        try:
            part = await cluster.get(resource, namespace, name)
            if any(each["uid"] == uid for each in part["metadata"].get("ownerReferences") or ()):
                reference = {"apiVersion": API_VERSION, "kind": KIND, "name": owner["name"], "uid": owner["uid"]}
                await cluster.apply(
                    {
                        "apiVersion": resource.api_version,
                        "kind": resource.kind,
                        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [reference]},
                    },
                    field_manager=f"multistep-cli-{owner['uid']}",
                )
        except ClusterError as error:
            warn(f"{resource.kind} {name} may be deleted with trial {trial['metadata']['name']}: {error}")


def _parts(spec: Object) -> Iterator[tuple[Any, str]]:
    """Yield resource and name of the ConfigMaps with the task, and of the Secrets that spec.variables and spec.agent.env name."""
    for name in ((spec.get("task") or {}).get("bundle") or {}).get("configMaps") or ():
        yield CONFIG_MAPS, name
    variables = [*(spec.get("variables") or ()), *((spec.get("agent") or {}).get("env") or ())]
    secrets = (((each.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name") for each in variables)
    for name in sorted({each for each in secrets if each}):
        yield SECRETS, name
