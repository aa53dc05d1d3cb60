"""The end of a trial: its results directory is completed before its status says that it is."""

from __future__ import annotations

from ..api.trial import MultiStepTrial, TrialStatus
from ..engine import status as engine_status
from ..engine.journal import Journal
from ..engine.rewards import StepException
from ..settings import Settings
from ..sources.trial import Loaded
from ..store import harbor
from ..store.volume import TrialKey, Volume


class Finisher:
    """Writes result.json and its siblings."""

    def __init__(self, volume: Volume, settings: Settings) -> None:
        self._volume = volume
        self._settings = settings

    async def finish(
        self,
        trial: MultiStepTrial,
        loaded: Loaded,
        journal: Journal,
        now: float,
        *,
        failure: StepException | None = None,
    ) -> str:
        """Complete the results of a trial and return their URI. May be called again. failure: why the trial is Failed."""
        key = TrialKey.of(trial)
        files = harbor.files(loaded.plan, trial, journal, now, failure=failure)
        await self._volume.finish(key, files, harbor.directories(loaded.plan, journal))
        await self._volume.redact(key, harbor.secrets(loaded.env, loaded.task.config))
        return self._volume.uri(self._settings.results_url, key)

    async def finish_failed(self, trial: MultiStepTrial, loaded: Loaded, failed: TrialStatus, now: float) -> str:
        """The same for a trial that could not be run, from what its status has."""
        journal = Journal(steps=[engine_status.step_run(step) for step in failed.steps], finished=True, broken=True)
        reason = next((each for each in failed.conditions if each.type == "Failed"), None)
        kind = failed.exception.type if failed.exception else reason.reason if reason else "Failed"
        failure = StepException(kind, reason.message if reason else "")
        return await self.finish(trial, loaded, journal, now, failure=failure)
