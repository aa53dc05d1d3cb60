"""Finds the checkpoint from which a trial starts (spec.from, spec.fromStep), and copies it to the trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.failure_table import SOURCE_CHECKPOINT_MISSING, SOURCE_UNUSABLE
from multistep.api.trial.status import ResumeStatus, StartStatus, Tampering
from multistep.api.trial.step_runs import ANOTHER_TRIAL
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.lifecycle.decisions import Fail, Wait
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.script.choose_checkpoint import unfit_start
from multistep.errors import CheckpointLost
from multistep.kube.cluster_protocols import Cluster
from multistep.reconcile.trial import reference_trials
from multistep.reconcile.trial.checkpoint_transfers import resume_status
from multistep.reconcile.trial.reference_trials import References
from multistep.reconcile.trial.source_checkpoints import GRACE_SECONDS, SourceTrial, SourceTrials
from multistep.sources.load.load_trial import Loaded
from multistep.store.checkpoints.checkpoint_files import Commit
from multistep.store.volume.results_volume import TrialKey, Volume

_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 2.0, 30.0
_HINT: Final = "run it with spec.checkpoints: {policy: AfterStep, keep: WithResults}"


@dataclass(frozen=True)
class Start:
    """The starting point of a trial. resumed: the trial's copy of the checkpoint; source: the checkpoint, and the trial that
    created it; tampering: the findings in the kept steps."""

    resumed: ResumeStatus
    source: StartStatus
    tampering: Sequence[Tampering]


class StartingPoints:
    """Finds the starting points of trials. clock: seconds since the epoch."""

    def __init__(self, cluster: Cluster, volume: Volume, sources: SourceTrials, clock: Callable[[], float]) -> None:
        self._volume = volume
        self._sources = sources
        self._references = References(cluster)
        self._clock = clock

    async def find(self, trial: MultiStepTrial, loaded: Loaded) -> Start | Wait | Fail | None:
        """Return the trial's starting point, None if it starts from the image; Wait while the source is active; Fail if the source
        can never be used.

        The trial gets copies of the checkpoint, so the source may be deleted afterwards. Idempotent. Raises StoreError.
        """
        if not loaded.plan.branch.kept:
            return None
        if trial.spec.from_ is None:
            return await self._from_reference(trial, loaded)
        return await self._from_trial(trial, loaded.plan, trial.spec.from_.trial)

    async def _from_trial(self, trial: MultiStepTrial, plan: TrialPlan, name: str) -> Start | Wait | Fail:
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

    async def _from_reference(self, trial: MultiStepTrial, loaded: Loaded) -> Start | Wait | Fail:
        """Return the starting point from the task's reference trial, or from its results if it was deleted. Create the reference
        trial if neither exists."""
        wanted, step = reference_trials.manifest(trial, loaded), _step(loaded.plan)
        name, found = wanted["metadata"]["name"], await self._references.find(wanted)
        if found is not None and not reference_trials.is_reference(found, wanted):
            return Fail(SOURCE_UNUSABLE, f"trial {name} has the name of the task's reference trial: delete it")
        if found is not None and reference_trials.lacks_task(found, wanted):
            await self._references.delete(found)
            return reference_trials.waiting(name, step, found, self._pause(trial))
        if (source := await self._sources.find(trial.metadata.namespace, name)) is not None:
            try:
                start = await self._start(trial, loaded.plan, source)
                if isinstance(start, Start):
                    return start
                if found is not None:
                    return reference_trials.unusable(start.message)
            except CheckpointLost:
                if found is not None and not source.may_make(step):
                    return reference_trials.failure(found)
        if found is None:
            await self._references.create(wanted)
        return reference_trials.waiting(name, step, found, self._pause(trial))

    async def _start(self, trial: MultiStepTrial, plan: TrialPlan, source: SourceTrial) -> Start | Fail:
        """Copy the checkpoint, and return the starting point; Fail if it is unusable. Raises CheckpointLost if it is missing."""
        chain = await self._sources.chain(source, step := _step(plan))
        if why := unfit_start(plan, [each for layer in chain for each in layer.steps], chain[-1]):
            return Fail(SOURCE_UNUSABLE, f"the checkpoint of trial {source.key.name} after step {step} cannot be used: {why}")
        copies = await self._volume.checkpoints.adopt(TrialKey.of(trial), source.key, chain)
        status = StartStatus(trial=source.key.name, uid=source.key.uid, step=step, digest=chain[-1].digest)
        return Start(resume_status(copies, plan), status, _tampering(chain))

    def _age(self, trial: MultiStepTrial) -> float:
        created = trial.metadata.creation_timestamp
        return self._clock() - created.timestamp() if created is not None else GRACE_SECONDS

    def _pause(self, trial: MultiStepTrial) -> float:
        """Return the seconds until the source is read again: a quarter of the trial's age, within bounds."""
        return min(max(_MIN_POLL_SECONDS, self._age(trial) / 4), _MAX_POLL_SECONDS)


def _step(plan: TrialPlan) -> str:
    """Return the name of the last step that the trial keeps."""
    return plan.steps[plan.branch.kept - 1].name


def _tampering(chain: Sequence[Commit]) -> list[Tampering]:
    return [each.model_copy(update={"attempt": ANOTHER_TRIAL}) for layer in chain for each in layer.tampering]
