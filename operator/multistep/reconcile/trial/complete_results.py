"""Completes a finished trial's results directory, before its status becomes Complete or Failed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal, StepException
from multistep.engine.status import trial_status as engine_status
from multistep.errors import ClusterError, NotFound, StoreError
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.reconcile.trial.record_history import HistoryWriter
from multistep.settings import Settings
from multistep.sources.load.load_trial import LoadedTrial
from multistep.store.bucket.upload_results import ResultsUploader
from multistep.store.evidence import statement
from multistep.store.evidence.statement import FinishedTrial
from multistep.store.files.trial_key import TrialKey
from multistep.store.harbor import secret_variables, trial_files
from multistep.store.results_volume import ResultsVolume

Sign = Callable[[bytes], bytes]
_LOG_LINES: Final = 20_000
_LOG_BYTES: Final = 2 << 20  # maximum per service, so that the results of many trials stay small


@dataclass(frozen=True)
class ResultsLocation:
    """The location of a finished trial's results."""

    uri: str
    """URL on the operator's results server."""
    store: str | None = None
    """Location in the object store, None without one."""


class Finisher:
    """Writes result.json, the files beside it, the signed statement about all files, and the row of the history."""

    def __init__(
        self,
        cluster: Cluster,
        volume: ResultsVolume,
        settings: Settings,
        shipping: ResultsUploader | None = None,
        sign: Sign | None = None,
        history: HistoryWriter | None = None,
    ) -> None:
        """Create the finisher.

        ``shipping`` moves results to the object store. With None they stay on the results volume. ``sign`` signs the statement
        about the files and returns the signed envelope. With None the statement is not signed. ``history`` gets a row of each
        trial.
        """
        self._cluster = cluster
        self._sign = sign
        self._history = history
        self._volume = volume
        self._shipping = shipping
        self._settings = settings

    async def record(self, trial: Object, ended: TrialStatus, journal: Journal | None = None) -> None:
        """Write the row of the history of a trial that ends with this status. Idempotent."""
        if self._history is not None:
            agent = journal.agent if journal else None
            await self._history.record(trial, ended, agent.version if agent else "")

    async def service_logs(self, trial: MultiStepTrial, loaded: LoadedTrial) -> dict[str, bytes]:
        """Return the last lines of each service's output, by path in the results.

        They help to explain a failure but decide nothing, so the reason replaces an output that cannot be read.
        """
        found: dict[str, bytes] = {}
        services, pod, namespace = loaded.plan.services, trial.status.pod_name, trial.metadata.namespace
        for each in services.order if services and pod and trial.status.pod_uid else ():
            name = trial_files.service_log(each.name)
            try:
                read = self._cluster.logs(namespace, pod or "", each.container, tail_lines=_LOG_LINES, limit_bytes=_LOG_BYTES)
                found[name] = b"".join([chunk async for chunk in read])
            except NotFound:
                break  # the pod was deleted
            except ClusterError as error:
                found[name] = f"the output cannot be read: {error}\n".encode(errors="replace")
        return found

    async def finish(
        self,
        trial: MultiStepTrial,
        loaded: LoadedTrial,
        journal: Journal,
        ended: TrialStatus,
        now: float,
        *,
        logs: Mapping[str, bytes],
        failure: StepException | None = None,
    ) -> ResultsLocation:
        """Complete a trial's results, then move them to the object store, if one is configured. Idempotent.

        ``ended`` is the final status, and ``failure`` is why the trial failed. ``logs`` has the output of services, by path in the
        results.
        """
        key = TrialKey.of(trial)
        files = {**logs, **trial_files.trial_files(loaded.plan, trial, journal, now, failure=failure)}
        await self._volume.finish(key, files, trial_files.step_directories(loaded.plan, journal))
        secrets = secret_variables.secret_values(loaded.env, loaded.task.config, loaded.task.layout)
        await self._volume.redact(key, secrets)
        await self._write_evidence(trial, loaded, journal, ended, failure, secrets)
        if self._shipping is None and await self._volume.collections.pointers(key):
            raise StoreError(f"{key}: some of its files are in an object store that is not configured now: set results_store again")
        if _keeps_checkpoints(trial):  # must precede the final status, because a finished trial may be deleted
            await self._volume.checkpoints.retain(key)
        uri = self._volume.access.uri(self._settings.results_url, key)
        return ResultsLocation(uri, await self._shipping.ship(key) if self._shipping else None)

    async def _write_evidence(
        self,
        trial: MultiStepTrial,
        loaded: LoadedTrial,
        journal: Journal,
        ended: TrialStatus,
        failure: StepException | None,
        secrets: Collection[str],
    ) -> None:
        """Write the list of all files and the statement about them. All other files must already be written."""
        key = TrialKey.of(trial)
        uploads = statement.test_uploads(loaded.plan, journal)
        tests = {each: await loaded.task.sha256(each) for each in uploads}
        files = await self._volume.evidence.list_files(key)
        text = statement.evidence_statement(FinishedTrial(loaded.plan, trial, journal, files, tests, failure, secrets, ended))
        await self._volume.evidence.write(key, text, self._sign(text) if self._sign else None)

    async def clear(self, trial: MultiStepTrial) -> None:
        """Delete the files on the results volume that a finished trial no longer needs. Idempotent.

        These are checkpoints, unless they are kept with the results, and results that are in the object store according to the
        status.
        """
        key, spec = TrialKey.of(trial), trial.spec
        copied = any(each is not None for each in (spec.regrade, spec.from_, spec.from_step))  # the status may not show the copies
        kept = _keeps_checkpoints(trial)
        if not kept and (spec.checkpoints.policy == "AfterStep" or spec.verifier.isolation != "Declared" or copied):
            await self._volume.checkpoints.remove(key)
        if trial.status.results_store and await self._volume.exists(key):
            await self._volume.remove(key, but_checkpoints=kept)

    async def finish_failed(
        self, trial: MultiStepTrial, loaded: LoadedTrial, failed: TrialStatus, now: float, *, logs: Mapping[str, bytes]
    ) -> ResultsLocation:
        """Complete the results of a failed trial that has no journal. ``failed`` is its final status, from which its steps are
        read."""
        journal = Journal(steps=[engine_status.step_run(step) for step in failed.steps], finished=True, broken=True)
        reason = next((each for each in failed.conditions if each.type == "Failed"), None)
        kind = failed.exception.type if failed.exception else reason.reason if reason else "Failed"
        failure = StepException(kind, reason.message if reason else "")
        known = trial.status.model_copy(update={"tampering": failed.tampering})
        before = trial.model_copy(update={"status": known})
        return await self.finish(before, loaded, journal, failed, now, failure=failure, logs=logs)


def _keeps_checkpoints(trial: MultiStepTrial) -> bool:
    """Return whether a trial's checkpoints are kept with its results.

    A regrade's checkpoints are not kept, because they are copies of its source's checkpoints.
    """
    asked = trial.spec.checkpoints
    return asked.policy == "AfterStep" and asked.keep == "WithResults" and trial.spec.regrade is None
