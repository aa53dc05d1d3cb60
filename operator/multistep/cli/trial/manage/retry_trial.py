"""Creates the retry of a trial that no existing sweep owns: a new trial with the same spec. The new trial becomes a second
owner of the objects that the retried trial owns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION
from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.trial import KIND
from multistep.cli.terminal import print_err
from multistep.client.connection import Cluster
from multistep.client.submit.create import create
from multistep.client.submit.manifests import Manifest, optional
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import AlreadyExists, ClusterError, UsageError
from multistep.kube.resources import CONFIG_MAPS, SECRETS
from multistep.report.rows import row

Object = Mapping[str, Any]
_NOT_COPIED: Final = ("stop", "suspend", "prestart")
_NAME_CHARACTERS: Final = 63
_MAX_RETRIES: Final = 100  # maximum number of retries of one trial


async def retry_alone(cluster: Cluster, namespace: str, trial: Object) -> str:
    """Create a retry of the trial; return its name. Raises UsageError if the trial is active or has a score, and ClusterError."""
    name, found = trial["metadata"]["name"], row(trial, Scoring())
    if found.state == "Active":
        raise UsageError(f"trial {name} is active: stop it first, or wait until it has finished")
    if not found.excluded:
        raise UsageError(f"trial {name} has a score: to run its task again, start another trial with `multistep run`")
    created = await _created(cluster, _manifest(trial))
    await _share(cluster, namespace, trial, created)
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


async def _share(cluster: Cluster, namespace: str, trial: Object, created: Object) -> None:
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
            print_err(f"warning: {resource.kind} {name} may be deleted with trial {trial['metadata']['name']}: {error}")


def _parts(spec: Object) -> Iterator[tuple[Any, str]]:
    """Yield resource and name of the ConfigMaps with the task, and of the Secrets that spec.variables and spec.agent.env name."""
    for name in ((spec.get("task") or {}).get("bundle") or {}).get("configMaps") or ():
        yield CONFIG_MAPS, name
    variables = [*(spec.get("variables") or ()), *((spec.get("agent") or {}).get("env") or ())]
    secrets = (((each.get("valueFrom") or {}).get("secretKeyRef") or {}).get("name") for each in variables)
    for name in sorted({each for each in secrets if each}):
        yield SECRETS, name
