"""Reconciles sweeps, as reconcile.trial does with trials. Errors are reported in the sweep's status.

A reconcile reads the sweep, counts its trials, creates the due trials one after the other, and writes the status. It is idempotent
and may be interrupted anywhere, because the names of the existing trials show which ones were created.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from multistep.api.common import labels
from multistep.api.common.base_model import Metadata
from multistep.api.sweep.sweep import (
    SweepStatus,
    SweepTasksStatus,
    SweepWeights,
    SweepWeightsStatus,
    TrialSweep,
    parse_sweep,
    parse_sweep_status,
)
from multistep.api.trial.status import holds, is_finished
from multistep.api.trial.values import FETCHING, FINISHED_PHASES
from multistep.engine.status.status_size import bounded
from multistep.engine.sweep import sweep_status
from multistep.engine.sweep.next_sweep_action import SweepDecision, is_suspended_before_start, next_sweep_action, reopens
from multistep.engine.sweep.own_trials import SweepMembers
from multistep.engine.sweep.sweep_status import CreationError
from multistep.engine.sweep.trial_manifests import SweepPlan, plan_sweep
from multistep.errors import Conflict, GatewayUnavailable, InvalidSpec, NotFound, SourceError
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SWEEPS, TRIALS
from multistep.kube.shard import Shard
from multistep.logs import also_about
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.error_outcome import ErrorSeries, Waits, is_cancelled, message, outcome
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, SOON_SECONDS, Requeue, earliest
from multistep.reconcile.sweep.create_trials import change_trials, create_trials
from multistep.reconcile.sweep.decide_at_start import SweepTasks, load_branches, regraded_sweep, unfinished_source
from multistep.reconcile.sweep.sweep_run import NEVER_STARTED, SweepRun, SweepWriter, foreign_trials, transitions
from multistep.reconcile.sweep.trial_cache import SweepCache, SweepEntry
from multistep.reconcile.trial.emit_events import Transition
from multistep.reconcile.trial.source_checkpoints import SOURCE_ACTIVE, SOURCE_SECONDS
from multistep.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

REJECTED_RETRY_SECONDS: Final = 30.0  # delay before the creation of a rejected trial is retried
DRAIN_SECONDS: Final = 0.5  # interval at which a paused sweep's requests in flight are counted


class SweepModels(Protocol):
    """The call to the model gateway that a reconcile of a sweep makes."""

    async def set_weights(self, sweep: Metadata, version: str, *, paused: bool) -> int:
        """Set the version of the weights that answer the sweep's agents, and hold or send their requests. Return the number of
        requests in flight. The call is idempotent. Raises GatewayUnavailable."""


@dataclass
class Sweeps:
    """Reconciles one sweep per call."""

    cluster: Cluster
    metrics: Metrics
    tasks: SweepTasks
    shard: Shard = field(default_factory=Shard)
    """Selects the sweeps to reconcile."""
    limited_models: Collection[str] = ()
    """The models whose number of active trials is limited."""
    models: SweepModels | None = None
    """The model gateway, if the chart has one."""
    clock: Callable[[], float] = time.time
    """Returns seconds since the epoch."""
    cache: SweepCache = field(default_factory=SweepCache)
    errors: ErrorSeries = field(default_factory=ErrorSeries)

    async def reconcile(self, key: Key) -> Requeue:
        """Reconcile one sweep, and return when to reconcile it again."""
        async with self.tasks.fetches.reconcile(key):
            return await self._reconcile(key)

    async def _reconcile(self, key: Key) -> Requeue:
        try:
            found = await self.cluster.get(SWEEPS, *key)
        except NotFound as error:
            if error.reason != "NotFound":  # the sweep may exist, because a proxy sent the 404, or the CRD is missing
                raise
            self._forget(key)
            return AT_NEXT_EVENT
        if not self.shard.has(found["metadata"]):  # the sweep's shard label assigns it to another operator
            self._forget(key)
            return AT_NEXT_EVENT
        metadata = Metadata.model_validate(found["metadata"])
        also_about(uid=metadata.uid)
        if metadata.deletion_timestamp is not None:
            return AT_NEXT_EVENT  # Kubernetes garbage collection deletes the sweep's trials
        self.metrics.sweeps.observe(key, (found.get("status") or {}).get("phase"))
        finished = (found.get("status") or {}).get("phase") in FINISHED_PHASES
        entry = self.cache.entry(key, metadata.uid, metadata.resource_version, finished=finished)
        try:
            return await self._until_wait(found, entry)
        except (Conflict, NotFound):  # an object changed or was deleted; requeue, because the watch may have missed the event
            return Requeue(SOON_SECONDS)

    def _forget(self, key: Key) -> None:
        self.metrics.sweeps.forget(key)
        self.cache.drop(key)
        self.errors.end(key)

    async def _until_wait(self, found: Object, entry: SweepEntry) -> Requeue:
        """Take the next action of the sweep, and return when to reconcile it again."""
        unreadable: Exception | None = None
        try:
            sweep = _parsed(found, entry)
        except Exception as error:
            sweep, unreadable = _salvaged(found), error
        run = SweepRun(self.cluster, SweepWriter(self.cluster, self.metrics, found, sweep), entry, self.clock)
        try:
            if unreadable is not None:
                raise unreadable
            requeue = await self._next_action(run)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            requeue = await self._end_in_status(run, error)
        self.errors.end(entry.key)
        return requeue

    async def _next_action(self, run: SweepRun) -> Requeue:
        if is_finished(run.sweep.status):
            return await (_reopen(run) if reopens(run.sweep) else run.clean_up())
        if is_suspended_before_start(run.sweep):
            return await run.wait(sweep_status.suspended_before_start(run.sweep, run.clock()), AT_NEXT_EVENT)
        starts = not run.started
        if starts and (why := await unfinished_source(run.cluster, run.sweep, run.clock())):
            status = sweep_status.waiting_status(run.sweep, SOURCE_ACTIVE, why, run.clock())
            return await run.wait(status, Requeue(SOURCE_SECONDS))
        plan, tasks = await _planned(run, self.tasks)
        if starts:
            await run.write(sweep_status.started_status(run.sweep, plan, run.clock(), tasks))
        return await self._create_and_count(run, plan)

    async def _create_and_count(self, run: SweepRun, plan: SweepPlan) -> Requeue:
        entry, sweep, name = run.entry, run.sweep, run.sweep.metadata.name
        entry.start_reconcile(sweep.spec.scoring)
        entry.since = run.clock() if entry.since is None else entry.since
        if not entry.listed:
            listed = run.cluster.iterate(TRIALS, sweep.metadata.namespace, label_selector=f"{labels.SWEEP}={name}")
            await entry.fill(listed, _members(run, plan))
        if foreign := entry.foreign(_members(run, plan)):
            await run.writer.emit([foreign_trials(foreign)])
        due = _decide(run, plan, None)
        if due.plan_branches:
            await run.write(due.status)  # store the results so far first, because planning may fail
            plan = await _with_branches(run, plan)
            due = _decide(run, plan, None)
        await change_trials(run, plan, due.suspend, {"suspend": True}, name)
        await change_trials(run, plan, due.resume, {"suspend": None}, None)
        await change_trials(run, plan, due.stop, {"stop": True})
        if due.status.phase in ("Running", "Suspended"):  # a sweep that halts does not depend on the gateway
            entry.weights = await self._sent_weights(run)
        failure = await create_trials(run, plan, due.create, due.early, self.limited_models, self.metrics.sweep_trials)
        reached = _decide(run, plan, failure)
        if is_finished(reached.status):
            return await run.end(reached.status)
        if (reached.create or reached.plan_branches) and failure is None:
            await run.write(reached.status)
            return Requeue(0.0)
        waits = await run.write_throttled(reached.status)
        drains = DRAIN_SECONDS if entry.weights is not None and entry.weights.in_flight else None
        return earliest([waits, reached.seconds, REJECTED_RETRY_SECONDS if failure else None, drains])

    async def _sent_weights(self, run: SweepRun) -> SweepWeightsStatus | None:
        """Send spec.weights to the model gateway, unless this process has sent them. Return what the gateway knows."""
        wanted, known = run.sweep.spec.weights, run.entry.weights
        if wanted is None or (known is not None and not known.in_flight and _is_same(wanted, known)):
            return known
        if self.models is None:
            raise GatewayUnavailable("spec.weights: the operator has no model gateway (the chart's value gateway.enabled)")
        found = await self.models.set_weights(run.sweep.metadata, wanted.version, paused=wanted.paused)
        return SweepWeightsStatus(version=wanted.version, paused=wanted.paused, in_flight=found if wanted.paused else 0)

    # -- errors (reconcile.queue.error_outcome)

    async def _end_in_status(self, run: SweepRun, error: BaseException) -> Requeue:
        """Wait for the tasks or fail the sweep, if the error requires it, and return when to reconcile again.

        Report any other error in the status and raise it, so that the work queue retries the reconcile.
        """
        try:
            if isinstance(error, SourceError):
                return await _wait_for_tasks(run, error)
            if isinstance(error, InvalidSpec):
                return await _fail_invalid(run, error)
        except (Exception, asyncio.CancelledError) as second:
            if is_cancelled(second):
                raise
            error = second
        return await self._fail_or_show(run, error)

    async def _fail_or_show(self, run: SweepRun, error: BaseException) -> Requeue:
        """Report an error in the status, and raise it. If it lasts, a sweep that has not started fails.

        A started sweep never fails because of the error, and continues once the error is gone.
        """
        found = outcome(error)
        if not isinstance(found, Waits) or is_finished(run.sweep.status):
            raise error
        now, text = run.clock(), message(error)
        series = self.errors.add(run.entry.key, run.sweep.metadata.uid, now, ends=found.ends)
        if not run.started and (run.sweep.spec.stop or series.ends_object):
            reason, text = ("Stopped", NEVER_STARTED) if run.sweep.spec.stop else (found.reason, text)
            return await run.end(sweep_status.failed_status(run.sweep, reason, text, now))
        if series.seconds >= found.after:
            await _report(run, found.reason, text)
        raise error


def _parsed(found: Object, entry: SweepEntry) -> TrialSweep:
    """Return the parsed sweep. Its spec is parsed once per generation, because it may have a thousand tasks."""
    metadata, kept = Metadata.model_validate(found["metadata"]), entry.plan
    if kept is None or kept[0] != metadata.generation:
        return parse_sweep(found)
    return TrialSweep.model_construct(metadata=metadata, spec=kept[1].spec, status=parse_sweep_status(found))


async def _planned(run: SweepRun, sweep_tasks: SweepTasks) -> tuple[SweepPlan, SweepTasksStatus | None]:
    """Return the plan of the sweep's trials, and the status of spec.tasksFrom."""
    generation, pinned, entry = run.sweep.metadata.generation, run.sweep.status.tasks_from, run.entry
    if not run.started or entry.plan is None or entry.plan[0] != generation:
        tasks, pinned = await sweep_tasks.load(run.sweep)
        new = plan_sweep(run.sweep, tasks)
        entry.plan = generation, replace(new, source=await regraded_sweep(run.cluster, run.sweep, new))
    found = entry.plan[1]
    return await _with_branches(run, found) if run.sweep.status.branches and found.grid.branches is None else found, pinned


async def _with_branches(run: SweepRun, plan: SweepPlan) -> SweepPlan:
    """Return the plan with the sweep's branches. All ordinary trials must have finished."""
    found, planned = await load_branches(run.cluster, run.sweep, plan)
    if run.sweep.status.branches is None:
        await run.write(run.sweep.status.model_copy(update={"branches": planned}))
    run.entry.plan = run.sweep.metadata.generation, found
    return found


def _members(run: SweepRun, plan: SweepPlan) -> SweepMembers:
    return SweepMembers(run.sweep.metadata.uid, plan.names)


def _decide(run: SweepRun, plan: SweepPlan, failure: CreationError | None) -> SweepDecision:
    trials, known = run.entry.of(_members(run, plan)), run.sweep.status.trials
    created = max(run.entry.created, known.created + known.retried)
    since = run.entry.since or 0.0
    weights = run.entry.weights or run.sweep.status.weights
    return next_sweep_action(run.sweep, plan, created, trials, run.clock(), failure, watched_since=since, weights=weights)


def _is_same(wanted: SweepWeights, known: SweepWeightsStatus) -> bool:
    return (wanted.version, wanted.paused) == (known.version, known.paused)


async def _reopen(run: SweepRun) -> Requeue:
    """Continue a finished sweep, to retry some of its trials. The next reconcile gets a new cache entry, and so lists the
    trials."""
    await run.write(sweep_status.reopened_status(run.sweep, run.clock()))
    return Requeue(0.0)


async def _fail_invalid(run: SweepRun, error: InvalidSpec) -> Requeue:
    """Fail a sweep whose spec is invalid. A finished sweep is only cleaned up."""
    run.writer.sweep = _salvaged(run.writer.object)
    if is_finished(run.sweep.status):
        return await run.clean_up()
    return await run.end(sweep_status.failed_status(run.sweep, "InvalidSpec", str(error), run.clock()))


async def _wait_for_tasks(run: SweepRun, error: SourceError) -> Requeue:
    """Wait for the tasks or the record of the branches. If the error is permanent, a sweep that has not started fails.

    A started sweep always waits and reports the reason, because the missing object may become available again.
    """
    if run.started:
        if error.reason != FETCHING:
            await _report(run, error.reason, str(error))
        return Requeue(error.retry_seconds if error.transient else REJECTED_RETRY_SECONDS)
    text = f"spec.tasksFrom: {error}"
    if not error.transient:
        return await run.end(sweep_status.failed_status(run.sweep, error.reason, text, run.clock()))
    return await run.wait(sweep_status.waiting_status(run.sweep, error.reason, text, run.clock()), Requeue(error.retry_seconds))


async def _report(run: SweepRun, reason: str, text: str) -> None:
    """Write to the status why the sweep cannot continue, and emit an Event if the reason is new. Best effort."""
    old, new = run.sweep.status, sweep_status.error_status(run.sweep, reason, text, run.clock())
    before, reported = holds(old, "Reconciling"), any(each.reason == reason for each in transitions(old, new))
    try:
        await run.write(new)
        if not reported and (before is None or before.reason != reason):
            await run.writer.emit([Transition(reason, bounded(text), "Warning")])
    except Exception as second:
        logger.warning("could not report the error in the sweep's status: %s", second)


_NOTHING: Final[Mapping[str, Any]] = {
    "tasks": [{"name": "none", "inline": {"config": {}}}],
    "agents": [{"name": "none", "agent": {"name": "nop"}}],
}


def _salvaged(found: Object) -> TrialSweep:
    """Return a sweep whose spec cannot be parsed, with an empty spec. Its status is kept if it can be parsed."""
    try:
        status = parse_sweep_status(found)
    except Exception:
        status = SweepStatus()
    return parse_sweep({"metadata": found["metadata"], "spec": _NOTHING}).model_copy(update={"status": status})
