"""Loads the task of a trial, and reads its pods."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from multistep.api.trial.status import is_finished
from multistep.engine.lifecycle import stop_and_suspend as deadlines
from multistep.engine.lifecycle import stop_and_suspend as suspensions
from multistep.reconcile.admission.admission import Admission
from multistep.reconcile.queue.error_outcome import message
from multistep.reconcile.trial.decide_action import is_unread
from multistep.reconcile.trial.owned_pods import TrialPods
from multistep.reconcile.trial.trial_run import STOP_SECONDS, Observed, ObservedPods, TrialRun
from multistep.sources.load.load_trial import LoadedTrial, TrialLoader
from multistep.store.harbor import secret_variables

logger = logging.getLogger(__name__)


async def load_task(run: TrialRun, known: Observed, loader: TrialLoader, admission: Admission) -> Observed:
    """Return ``known``, with the trial's task if the next decision may need it.

    A trial that was stopped or missed its deadline needs its task only to store its results, so it waits for the task at most
    STOP_SECONDS. But if its pod must be read first, it waits as long as an active trial.
    """
    trial = run.trial
    if is_finished(trial.status) or suspensions.must_have_no_pod(trial):
        return known
    end = deadlines.stop_or_deadline(trial, run.clock())
    if end is None or is_unread(trial, end, run.hint):
        loaded = await loader.load(trial)
        admission.loaded(run.key)
        return _with_task(run, known, loaded)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            return _with_task(run, known, await loader.load(trial))
    except Exception as error:
        logger.warning("%s; its results are not stored: %s", end.message, message(error))
        return known


def _with_task(run: TrialRun, known: Observed, loaded: LoadedTrial) -> Observed:
    run.writer.secrets = secret_variables.secret_values(loaded.env, loaded.task.config, loaded.task.layout)
    return replace(known, loaded=loaded)


async def read_pods(run: TrialRun, pods: TrialPods) -> ObservedPods:
    """Read the trial's pods from the API server, and return their state."""
    status = run.trial.status
    name, named = status.pod_name, status.verifier
    if status.attempt is None and is_finished(status):
        name = run.first_pod_name  # the trial was stopped after a reconcile had created its pod but not yet written the attempt
    agent = await pods.get(run.trial, name)
    return ObservedPods(agent, await pods.get(run.trial, named.pod_name if named else None))
