"""Finds the checkpoint from which a trial starts (spec.from, spec.fromStep), and copies it to the trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.failure_table import REFERENCE_FAILED, REFERENCE_LOST, SOURCE_CHECKPOINT_MISSING, SOURCE_UNUSABLE
from multistep.api.trial.status import ANOTHER_TRIAL, ResumeStatus, StartStatus, Tampering
from multistep.api.trial.trial import KIND, MultiStepTrial, parse_status
from multistep.api.trial.values import NOT_FOUND
from multistep.engine.lifecycle.decisions import Fail, Wait
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.choose_checkpoint import unfit_start
from multistep.engine.sweep.trial_manifests import pinned_source
from multistep.errors import AlreadyExists, CheckpointLost, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import TRIALS
from multistep.pods.kueue import QUEUE
from multistep.reconcile.trial.checkpoint_transfers import resume_status
from multistep.reconcile.trial.source_checkpoints import GRACE_SECONDS, SourceTrial, SourceTrials
from multistep.sources.load.load_trial import LoadedTrial
from multistep.store.checkpoints.checkpoint_files import CheckpointCommit
from multistep.store.files.trial_key import TrialKey
from multistep.store.harbor.trial_config import task_digest
from multistep.store.results_volume import ResultsVolume

_SAME: Final = ("environment", "verifier", "timeoutMultiplier", "environmentTimeoutMultiplier", "variables")
_RETRIES: Final = 10  # infrastructure retries of a reference trial, for which many other trials may wait
_OF_TASK: Final = frozenset({"Agent", "Verifier", "Task"})  # failure classes for which the task's solution or tests are to blame
_CHARACTERS: Final = 20


class References:
    """Creates and reads reference trials, which run the task's own solutions for trials with spec.fromStep.

    A reference trial has no owner, so it outlives the trials that use it.
    """

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
    """Return whether a found trial is the reference trial of this manifest, and not another trial of the same name."""
    of = (found["metadata"].get("labels") or {}).get(labels.REFERENCE)
    return bool(of == manifest["metadata"]["labels"][labels.REFERENCE])


def unusable(why: str) -> Fail:
    """Return the failure of a trial that cannot use the checkpoint of its reference trial."""
    return Fail(REFERENCE_FAILED, f"the task's own solutions do not lead there: {why}. Correct the task")


def failure(found: Object) -> Fail:
    """Return the failure of a trial whose reference trial finished without the needed checkpoint."""
    name, status = found["metadata"]["name"], parse_status(found)
    ended = status.failure
    reasons = [each.message for each in status.conditions if each.type in ("Complete", "Failed") and each.status == "True"]
    why = f"the reference trial {name}, which runs the task's solutions: {'; '.join(reasons)}"
    if status.phase == "Complete" or (ended is not None and ended.class_ in _OF_TASK):
        return Fail(REFERENCE_FAILED, f"{why}. Correct the task")
    return Fail(REFERENCE_LOST, f"{why}. Delete it, so that it runs again, and create a new trial")


def manifest(trial: MultiStepTrial, loaded: LoadedTrial) -> dict[str, Any]:
    """Return the manifest of the reference trial of a trial's task.

    Its name contains a digest of everything on which its results depend.
    """
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


def _task(task: Mapping[str, Any], loaded: LoadedTrial) -> dict[str, Any]:
    """Return spec.task, pinned to the revision to which the requesting trial's task was resolved."""
    name = {"name": loaded.plan.task_name}
    if loaded.source is None:
        return dict(task) | name
    kind = next(each for each in task if each != "name")
    return {**pinned_source({kind: task[kind]}, loaded.source.revision), **name}


def waiting(name: str, step: str, found: Object | None, seconds: float) -> Wait:
    """Return the wait for a reference trial's checkpoint. The message contains the state of the reference trial."""
    status = parse_status(found or {})
    reasons = [each.message for each in status.conditions if each.type == "Reconciling" and each.status == "True"]
    state = f" ({reasons[0]})" if reasons and reasons[0] else ""
    return Wait("SourceNotReady", f"the reference trial {name} has not finished step {step} yet{state}", seconds=seconds)


_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 2.0, 30.0
_HINT: Final = "run it with spec.checkpoints: {policy: AfterStep, keep: WithResults}"


@dataclass(frozen=True)
class StartingPoint:
    """The checkpoint from which a trial starts."""

    resumed: ResumeStatus
    """The trial's own copy of the checkpoint."""
    source: StartStatus
    """The checkpoint and the trial that stored it."""
    tampering: Sequence[Tampering]
    """The findings of tampering in the steps that the checkpoint contains."""


class StartingPoints:
    """Finds the checkpoints from which trials start."""

    def __init__(self, cluster: Cluster, volume: ResultsVolume, sources: SourceTrials, clock: Callable[[], float]) -> None:
        """Create the finder. ``clock`` returns seconds since the epoch."""
        self._volume = volume
        self._sources = sources
        self._references = References(cluster)
        self._clock = clock

    async def find(self, trial: MultiStepTrial, loaded: LoadedTrial) -> StartingPoint | Wait | Fail | None:
        """Return the trial's starting point, None if it starts from the image. Idempotent. Raises StoreError.

        Return Wait while the other trial, the source, is active, and Fail if it can never be used. The trial gets a copy of the
        checkpoint, so the source may be deleted afterwards.
        """
        if not loaded.plan.branch.kept:
            return None
        if trial.spec.from_ is None:
            return await self._from_reference(trial, loaded)
        return await self._from_trial(trial, loaded.plan, trial.spec.from_.trial)

    async def _from_trial(self, trial: MultiStepTrial, plan: TrialPlan, name: str) -> StartingPoint | Wait | Fail:
        if name == trial.metadata.name:
            return Fail("InvalidSpec", "spec.from.trial: a trial cannot start from itself")
        source, step = await self._sources.find(trial.metadata.namespace, name), _step(plan)
        if source is None:
            missing = f"spec.from.trial: neither trial {name} nor results of exactly one deleted trial of this name exist"
            if self._age(trial) < GRACE_SECONDS:
                return Wait("SourceNotReady", missing, seconds=self._pause(trial))
            return Fail(SOURCE_CHECKPOINT_MISSING, f"{missing}. To start from a trial, {_HINT}")
        try:
            return await self._start(trial, plan, source)
        except CheckpointLost as error:
            if source.may_make(step):
                return Wait("SourceNotReady", f"trial {name} has not finished step {step} yet", seconds=self._pause(trial))
            return Fail(SOURCE_CHECKPOINT_MISSING, f"spec.from: {error}. To start from a trial, {_HINT}")

    async def _from_reference(self, trial: MultiStepTrial, loaded: LoadedTrial) -> StartingPoint | Wait | Fail:
        """Return the starting point from the task's reference trial, or from its results if it was deleted.

        Create the reference trial if neither exists.
        """
        wanted, step = manifest(trial, loaded), _step(loaded.plan)
        name, found = wanted["metadata"]["name"], await self._references.find(wanted)
        if found is not None and not is_reference(found, wanted):
            return Fail(SOURCE_UNUSABLE, f"trial {name} has the name of the task's reference trial: delete it")
        if found is not None and lacks_task(found, wanted):
            await self._references.delete(found)
            return waiting(name, step, found, self._pause(trial))
        if (source := await self._sources.find(trial.metadata.namespace, name)) is not None:
            try:
                start = await self._start(trial, loaded.plan, source)
                if isinstance(start, StartingPoint):
                    return start
                if found is not None:
                    return unusable(start.message)
            except CheckpointLost:
                if found is not None and not source.may_make(step):
                    return failure(found)
        if found is None:
            await self._references.create(wanted)
        return waiting(name, step, found, self._pause(trial))

    async def _start(self, trial: MultiStepTrial, plan: TrialPlan, source: SourceTrial) -> StartingPoint | Fail:
        """Copy the checkpoint and return the starting point, or Fail if the checkpoint is unusable.

        Raises CheckpointLost if it does not exist.
        """
        chain = await self._sources.chain(source, step := _step(plan))
        if why := unfit_start(plan, [each for layer in chain for each in layer.steps], chain[-1]):
            return Fail(SOURCE_UNUSABLE, f"the checkpoint of trial {source.key.name} after step {step} cannot be used: {why}")
        copies = await self._volume.checkpoints.adopt(TrialKey.of(trial), source.key, chain)
        status = StartStatus(trial=source.key.name, uid=source.key.uid, step=step, digest=chain[-1].digest)
        return StartingPoint(resume_status(copies, plan), status, _tampering(chain))

    def _age(self, trial: MultiStepTrial) -> float:
        created = trial.metadata.creation_timestamp
        return self._clock() - created.timestamp() if created is not None else GRACE_SECONDS

    def _pause(self, trial: MultiStepTrial) -> float:
        """Return the seconds until the source is read again, which are a quarter of the trial's age, within bounds."""
        return min(max(_MIN_POLL_SECONDS, self._age(trial) / 4), _MAX_POLL_SECONDS)


def _step(plan: TrialPlan) -> str:
    """Return the name of the last step that the trial does not run itself."""
    return plan.steps[plan.branch.kept - 1].name


def _tampering(chain: Sequence[CheckpointCommit]) -> list[Tampering]:
    return [each.model_copy(update={"attempt": ANOTHER_TRIAL}) for layer in chain for each in layer.tampering]
