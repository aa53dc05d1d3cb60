"""Finds another trial, the source, and its checkpoints, from which a trial starts or which a regrade verifies again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.status import CheckpointStatus, StepStatus, is_finished
from multistep.api.trial.trial import parse_status
from multistep.engine.script.choose_checkpoint import chain_of
from multistep.errors import CheckpointLost, NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import TRIALS
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.checkpoints.checkpoint_files import CheckpointCommit
from multistep.store.checkpoints.checkpoint_files import StoredCheckpoints as StoredCheckpoints
from multistep.store.evidence import file_list as file_names
from multistep.store.evidence.statement import MAX_BYTES, Predicate, parse_predicate
from multistep.store.files.trial_key import ResultsStore, TrialKey
from multistep.store.results_volume import ResultsVolume

GRACE_SECONDS: Final = 30.0  # wait for a missing source, as one manifest may create the trial before its source
SOURCE_ACTIVE: Final = "SourceActive"
SOURCE_SECONDS: Final = 10.0  # interval at which a source that has not finished is read


@dataclass(frozen=True)
class StartedStep:
    """A step that the source trial started."""

    name: str
    digest: str | None
    """Digest of the step's checkpoint, None without one."""
    missing: str = ""
    """Why the step has no checkpoint, "" if unknown."""


@dataclass(frozen=True)
class SourceTrial:
    """A trial from which another one starts, or which a regrade verifies again."""

    key: TrialKey
    steps: Sequence[StartedStep]
    finished: bool
    """Whether the trial has finished, so that it stores no further checkpoints."""
    checkpoints: bool = True
    """Whether the trial's spec requests checkpoints."""
    found: Object | None = None
    """The trial's object, None if it was deleted."""
    evidence: Predicate | None = None
    """The statement about the trial's results (store.evidence), None if it is missing or another program wrote it."""

    def may_make(self, step: str) -> bool:
        """Return whether the trial may still store a checkpoint after a step that has none now."""
        reported = any(each.name == step and each.missing for each in self.steps)
        return self.checkpoints and not self.finished and not reported


class SourceTrials:
    """Reads source trials. For a deleted trial with results it reads the evidence in place of the object."""

    def __init__(self, cluster: Cluster, volume: ResultsVolume, shipping: ResultsUploader | None = None) -> None:
        self._cluster = cluster
        self._volume = volume
        self._stores: Sequence[ResultsStore] = [volume] if shipping is None else [volume, shipping.results]

    async def find(self, namespace: str, name: str) -> SourceTrial | None:
        """Return the trial of this name, None if it is not known.

        A deleted trial is described by its evidence. It is not known if it has no evidence, or if several deleted trials of this
        name have results.
        """
        try:
            found = await self._cluster.get(TRIALS, namespace, name)
        except NotFound:
            return await self._find_results(namespace, name)
        status = parse_status(found)
        key, steps, finished = TrialKey(namespace, name, found["metadata"]["uid"]), [*map(_step, status.steps)], is_finished(status)
        checkpoints = (found["spec"].get("checkpoints") or {}).get("policy") == "AfterStep"
        return SourceTrial(key, steps, finished, checkpoints, found, await self._evidence(key) if finished else None)

    async def chain(self, source: SourceTrial, step: str) -> Sequence[CheckpointCommit]:
        """Return the layers of the checkpoint after a step, lowest first. Raises CheckpointLost if it does not exist."""
        return (await self.chains(source, [step]))[0]

    async def chains(self, source: SourceTrial, steps: Iterable[str]) -> Sequence[Sequence[CheckpointCommit]]:
        """Return the layers of the checkpoint after each of these steps. Raises CheckpointLost if one does not exist."""
        stored = await self._volume.checkpoints.stored(source.key)
        return [self._chain(source, each, stored) for each in steps]

    def _chain(self, source: SourceTrial, step: str, stored: StoredCheckpoints) -> Sequence[CheckpointCommit]:
        made = next((each for each in source.steps if each.name == step), None)
        if made is None or made.digest is None:
            why = f": {made.missing}" if made is not None and made.missing else ""
            raise CheckpointLost(f"trial {source.key.name} has no checkpoint after step {step}{why}")
        id = next((id for id, each in stored.commits.items() if each.digest == made.digest), None)
        if id is None:
            raise CheckpointLost(f"the checkpoint of trial {source.key.name} after step {step} was deleted or changed")
        return [stored.commits[each] for each in chain_of(id, made.digest, stored.commits, stored.damaged)]

    async def _find_results(self, namespace: str, name: str) -> SourceTrial | None:
        keys = list(await self._volume.trials(namespace, name))
        if len(keys) != 1 or (evidence := await self._evidence(keys[0])) is None:
            return None
        steps = [StartedStep(each.name, each.checkpoint.digest.sha256 if each.checkpoint else None) for each in evidence.steps]
        return SourceTrial(keys[0], steps, finished=True, evidence=evidence)

    async def _evidence(self, key: TrialKey) -> Predicate | None:
        """Return the evidence of a trial's results, None if it is missing or another program wrote it."""
        for store in self._stores:
            if (data := await store.part(key, file_names.STATEMENT, offset=0, limit=MAX_BYTES)) is not None:
                return await asyncio.to_thread(parse_predicate, data)
        return None


def _step(step: StepStatus) -> StartedStep:
    made = step.checkpoint or CheckpointStatus()
    return StartedStep(step.name, made.digest, made.missing or "")
