"""Reference trials: each runs a task's solutions once, and trials with spec.fromStep start from its checkpoints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.failure_table import REFERENCE_FAILED, REFERENCE_LOST
from multistep.api.trial.trial import KIND, MultiStepTrial, parse_status
from multistep.engine.lifecycle.decisions import Fail, Wait
from multistep.engine.sweep.trial_manifests import pinned
from multistep.errors import AlreadyExists, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import TRIALS
from multistep.pods.kueue import QUEUE
from multistep.sources.load.load_trial import Loaded
from multistep.sources.task.condition_reasons import NOT_FOUND
from multistep.store.harbor.trial_files import task_digest

_SAME: Final = ("environment", "verifier", "timeoutMultiplier", "environmentTimeoutMultiplier", "variables")
_RETRIES: Final = 10  # infrastructure retries of a reference trial: many, because many trials may wait for it
_OF_TASK: Final = frozenset({"Agent", "Verifier", "Task"})  # failure classes that the task's solution or its tests caused
_CHARACTERS: Final = 20


class References:
    """Creates and checks reference trials. A reference trial has no owner, so that it outlives the trials that use it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def find(self, manifest: Mapping[str, Any]) -> Object | None:
        """Return the trial that has the name in the manifest, None if it does not exist."""
        metadata = manifest["metadata"]
        try:
            return await self._cluster.get(TRIALS, metadata["namespace"], metadata["name"])
        except NotFound:
            return None

    async def create(self, manifest: Mapping[str, Any]) -> None:
        """Create the reference trial. Idempotent."""
        with suppress(AlreadyExists):
            await self._cluster.create(manifest)

    async def delete(self, found: Object) -> None:
        """Delete the reference trial. Idempotent."""
        metadata = found["metadata"]
        await self._cluster.delete(TRIALS, metadata["namespace"], metadata["name"], uid=metadata["uid"])


def lacks_task(found: Object, manifest: Mapping[str, Any]) -> bool:
    """Return whether a reference trial waits for deleted ConfigMaps, while the requesting trial names other ConfigMaps."""
    held = [each for each in parse_status(found).conditions if each.type == "Reconciling" and each.status == "True"]
    return any(each.reason == NOT_FOUND for each in held) and found["spec"].get("task") != manifest["spec"]["task"]


def is_reference(found: Object, manifest: Mapping[str, Any]) -> bool:
    """Return whether a found trial is the reference trial of this manifest, not another trial of the same name."""
    of = (found["metadata"].get("labels") or {}).get(labels.REFERENCE)
    return bool(of == manifest["metadata"]["labels"][labels.REFERENCE])


def unusable(why: str) -> Fail:
    """Return the failure of a trial that cannot use the checkpoint of its reference trial, which ran the task's solutions."""
    return Fail(REFERENCE_FAILED, f"the task's own solutions do not lead there: {why}. Correct the task")


def failure(found: Object) -> Fail:
    """Return the failure of a trial whose reference trial finished without creating the needed checkpoint."""
    name, status = found["metadata"]["name"], parse_status(found)
    ended = status.failure
    reasons = [each.message for each in status.conditions if each.type in ("Complete", "Failed") and each.status == "True"]
    why = f"the reference trial {name}, which runs the task's solutions: {'; '.join(reasons)}"
    if status.phase == "Complete" or (ended is not None and ended.class_ in _OF_TASK):
        return Fail(REFERENCE_FAILED, f"{why}. Correct the task")
    return Fail(REFERENCE_LOST, f"{why}. Delete it, so that it runs again, and create a new trial")


def manifest(trial: MultiStepTrial, loaded: Loaded) -> dict[str, Any]:
    """Return the manifest of the reference trial of a trial's task. Its name is a digest of all that its results depend on."""
    written = trial.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    same: dict[str, Any] = {name: written[name] for name in _SAME if name in written}
    labels_of = trial.metadata.labels
    place = {name: labels_of[name] for name in (labels.SHARD, QUEUE) if name in labels_of}
    content: dict[str, Any] = {
        "task": loaded.source.digest if loaded.source else task_digest(trial),
        "image": loaded.plan.image,
        "shard": place.get(labels.SHARD),
        **same,
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:_CHARACTERS]
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": f"reference-{digest}",
            "namespace": trial.metadata.namespace,
            "labels": {**place, labels.REFERENCE: digest},
        },
        "spec": {
            "task": _task(written["task"], loaded),
            "agent": {"name": "oracle"},
            "checkpoints": {"policy": "AfterStep", "keep": "WithResults"},
            "infrastructureRetries": _RETRIES,
            **same,
        },
    }


def _task(task: Mapping[str, Any], loaded: Loaded) -> dict[str, Any]:
    """Return spec.task, pinned to the revision that the requesting trial's task was resolved to."""
    name = {"name": loaded.plan.task_name}
    if loaded.source is None:
        return dict(task) | name
    kind = next(each for each in task if each != "name")
    return {**pinned({kind: task[kind]}, loaded.source.revision), **name}


def waiting(name: str, step: str, found: Object | None, seconds: float) -> Wait:
    """Return the wait for a reference trial's checkpoint. The message contains the state of the reference trial."""
    status = parse_status(found or {})
    reasons = [each.message for each in status.conditions if each.type == "Reconciling" and each.status == "True"]
    state = f" ({reasons[0]})" if reasons and reasons[0] else ""
    return Wait("SourceNotReady", f"the reference trial {name} has not finished step {step} yet{state}", seconds=seconds)
