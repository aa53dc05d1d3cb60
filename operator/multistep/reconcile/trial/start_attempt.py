"""Starts the first attempt of a trial, and suspends and resumes the trial."""

from __future__ import annotations

from multistep.engine.lifecycle import decisions
from multistep.engine.status import trial_status
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, Requeue
from multistep.reconcile.trial.emit_events import task_warnings
from multistep.reconcile.trial.owned_pods import TrialPods, earlier_pods
from multistep.reconcile.trial.prepare_regrade import prepare_regrade
from multistep.reconcile.trial.source_checkpoints import SourceTrials
from multistep.reconcile.trial.start_from_checkpoint import StartingPoint, StartingPoints
from multistep.reconcile.trial.trial_run import Continue, Observed, Result, TrialRun
from multistep.store.results_volume import ResultsVolume


async def start_first_attempt(
    run: TrialRun,
    observed: Observed,
    first: decisions.StartAttempt,
    starts: StartingPoints,
    sources: SourceTrials,
    volume: ResultsVolume,
) -> Result:
    """Start the first attempt from the image, from another trial's checkpoint, or with the checkpoints that a regrade verifies."""
    if (prepared := await prepare_regrade(run, observed.plan, sources, volume.checkpoints)) is not None:
        return prepared
    start = await starts.find(run.trial, observed.task)
    if isinstance(start, decisions.Wait | decisions.Fail):
        return start
    result = await start_attempt(run, observed, first.attempt, first.pod_name, image_user=None, start=start)
    await run.writer.emit(task_warnings(observed.task.task, run.trial.spec))
    return result


async def start_attempt(
    run: TrialRun, observed: Observed, attempt: int, pod_name: str, *, image_user: str | None, start: StartingPoint | None = None
) -> Continue:
    """Write the start of an attempt. ``start`` is the starting point of the first attempt, None for the image.

    The start of the first attempt is written together with its pod's UID, which saves a write, or when the trial has to wait for
    the pod. After a crash before that write, the trial starts again and adopts the pod. This works because the pod's name depends
    only on the trial's name, and the spec is immutable. But a start that could be resolved differently the next time is written
    before the pod is created, for example the revision of a remote task, a built image or another trial.
    """
    trial, loaded, plan = run.trial, observed.task, observed.plan
    new = trial_status.attempt_started(
        trial, attempt, pod_name, plan.task_name, image_user, run.clock(),
        source=loaded.source, steps=[each.name for each in plan.steps],
        resumed=start.resumed if start else trial.status.resumed, images=loaded.images,
    )  # fmt: skip
    if start is not None:
        new = new.model_copy(update={"started_from": start.source, "tampering": [*start.tampering]})
    first = attempt == 1 and image_user is None
    resolved = loaded.source or loaded.images or start or trial.status.regraded
    if first and not resolved and new.phase == "Pending":
        run.prepare(new)
    else:
        await run.write(new)
    return Continue(observed.pods if first else None)  # the first pod's name is new, so there is no pod


async def suspend(run: TrialRun, pods: TrialPods) -> Requeue:
    """Write the suspension to the status. If the trial keeps no pod, delete its pods.

    An earlier reconcile may have crashed before it deleted them.
    """
    await run.write(trial_status.suspended(run.trial, run.clock()))
    if run.trial.status.pod_uid is None:
        await pods.remove(run.trial, earlier_pods(run.trial))
    return AT_NEXT_EVENT


async def resume(run: TrialRun, observed: Observed) -> Continue:
    """Write the start of the current attempt again, after a suspension without a pod."""
    now = run.trial.status
    assert now.attempt is not None and now.pod_name is not None
    return await start_attempt(run, observed, now.attempt, now.pod_name, image_user=now.image_user)
