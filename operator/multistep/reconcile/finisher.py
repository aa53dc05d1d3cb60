"""The end of a trial: its results directory is completed before its status says that it is."""

from __future__ import annotations

from dataclasses import dataclass

from ..api.trial import MultiStepTrial
from ..api.trial_status import TrialStatus
from ..engine import status as engine_status
from ..engine.journal import Journal
from ..engine.rewards import StepException
from ..errors import StoreError
from ..settings import Settings
from ..sources.trial import Loaded
from ..store import harbor
from ..store.shipping import Shipping
from ..store.volume import TrialKey, Volume


@dataclass(frozen=True)
class Kept:
    """Where the results of a trial that is over are. uri: of the operator, for whoever may read the trial's status;
    store: of the object store, None without one."""

    uri: str
    store: str | None = None


class Finisher:
    """Writes result.json and its siblings. shipping: where finished trials go, None if they stay on the volume."""

    def __init__(self, volume: Volume, settings: Settings, shipping: Shipping | None = None) -> None:
        self._volume = volume
        self._shipping = shipping
        self._settings = settings

    async def finish(
        self,
        trial: MultiStepTrial,
        loaded: Loaded,
        journal: Journal,
        now: float,
        *,
        failure: StepException | None = None,
    ) -> Kept:
        """Complete the results of a trial where they are to stay. May be called again. failure: why the trial is Failed."""
        key = TrialKey.of(trial)
        files = harbor.files(loaded.plan, trial, journal, now, failure=failure)
        await self._volume.finish(key, files, harbor.directories(loaded.plan, journal))
        await self._volume.redact(key, harbor.secrets(loaded.env, loaded.task.config))
        if self._shipping is None and await self._volume.pointers(key):
            raise StoreError(f"{key}: files of it went to an object store, which is not set any more: set results_store again")
        uri = self._volume.uri(self._settings.results_url, key)
        return Kept(uri, await self._shipping.ship(key) if self._shipping else None)

    async def clear(self, trial: MultiStepTrial) -> None:
        """What the store has need not be on the volume, once the status says so. May be called again."""
        key = TrialKey.of(trial)
        if trial.status.results_store and await self._volume.exists(key):
            await self._volume.remove(key)

    async def finish_failed(self, trial: MultiStepTrial, loaded: Loaded, failed: TrialStatus, now: float) -> Kept:
        """The same for a trial that could not be run, from what its status has."""
        journal = Journal(steps=[engine_status.step_run(step) for step in failed.steps], finished=True, broken=True)
        reason = next((each for each in failed.conditions if each.type == "Failed"), None)
        kind = failed.exception.type if failed.exception else reason.reason if reason else "Failed"
        failure = StepException(kind, reason.message if reason else "")
        return await self.finish(trial, loaded, journal, now, failure=failure)
