"""Reconciles sweeps, as ``Reconciler`` does trials.

A reconcile reads the sweep, counts its trials, creates the due trials one after the other, and writes the status. It is idempotent
and may be interrupted anywhere: the names of the existing trials show which were created.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import Metadata
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus, SweepTasksStatus, TrialSweep, parse_sweep, parse_sweep_status
from multistep.api.trial.status import holds, is_finished
from multistep.api.trial.values import FETCHING, FINISHED_PHASES
from multistep.engine.status.status_size import bounded
from multistep.engine.sweep import sweep_status
from multistep.engine.sweep.own_trials import Members
from multistep.engine.sweep.sweep_status import CreationError
from multistep.engine.sweep.trial_manifests import Plan, manifest, owner_of, owner_reference, plan
from multistep.errors import AlreadyExists, ClusterError, Conflict, InvalidSpec, NotFound, SourceError, Unavailable
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SWEEPS, TRIALS
from multistep.kube.shard import Shard
from multistep.logs import also_about
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.queue.error_outcome import ErrorSeries, Waits, is_cancelled, message, outcome
from multistep.reconcile.queue.work_queue import AT_NEXT_EVENT, SOON_SECONDS, Requeue, earliest
from multistep.reconcile.sweep.decide_at_start import SweepTasks, load_branches, regraded_sweep, unfinished_source
from multistep.reconcile.sweep.trial_cache import SweepCache, SweepEntry
from multistep.reconcile.trial.source_checkpoints import SOURCE_ACTIVE, SOURCE_SECONDS
from multistep.reconcile.trial.write_status import Transition, emit_events
from multistep.telemetry.metrics import Metrics

_SHOWN: Final = 3


def transitions(old: SweepStatus, new: SweepStatus) -> list[Transition]:
    """Return the transitions between two statuses of a sweep, in order."""
    found = []
    if new.start_time and not old.start_time:
        found.append(Transition("SweepStarted", _message(new)))
    if old.phase == "Suspended" and new.phase in ("Pending", "Running"):
        found.append(Transition("Resumed", _message(new)))
    changed = _why(new) != _why(old)
    if new.phase in ("Suspended", "Complete") and changed:
        found.append(Transition(_why(new)[1], _message(new)))
    if changed and (new.phase in ("Halting", "Failed") or holds(new, "Stalled")):
        found.append(Transition(_why(new)[1], _message(new), "Warning"))
    return found


def _why(status: SweepStatus) -> tuple[str | None, str]:
    return status.phase, status.conditions[0].reason if status.conditions else ""


def _message(status: SweepStatus) -> str:
    return status.conditions[0].message


def foreign_trials(names: Sequence[str]) -> Transition:
    """Return a warning about trials that claim to be the sweep's, but were not created by the operator."""
    shown = f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
    text = (
        f"{plural(len(names), 'trial claims', 'trials claim')} to be of this sweep, which did not create it ({shown}); not counted"
    )
    return Transition("ForeignTrials", bounded(text), "Warning")


logger = logging.getLogger(__name__)

STATUS_SECONDS: Final = 5.0  # minimum time between two status writes in which only counts changed
REJECTED_RETRY_SECONDS: Final = 30.0  # delay before the creation of a rejected trial is retried
CHANGES_AT_ONCE: Final = 16  # maximum of concurrent patches of trials' specs

_NEVER_STARTED: Final = "spec.stop is true; no trial was created"
NAME_TAKEN: Final = "NameTaken"
REFUSED: Final = "TrialRefused"


@dataclass
class Sweeps:
    """Reconciles one sweep per call. clock: seconds since the epoch; shard: selects the sweeps to reconcile; limited_models: models
    with a limit of active trials."""

    cluster: Cluster
    metrics: Metrics
    tasks: SweepTasks
    shard: Shard = field(default_factory=Shard)
    limited_models: Collection[str] = ()
    clock: Callable[[], float] = time.time
    cache: SweepCache = field(default_factory=SweepCache)
    errors: ErrorSeries = field(default_factory=ErrorSeries)

    async def reconcile(self, key: Key) -> Requeue:
        """Reconcile one sweep."""
        try:
            return await self._reconcile(key)
        finally:
            self.tasks.settle(key)  # also for a deleted sweep, which may have got its slot after its deletion

    async def _reconcile(self, key: Key) -> Requeue:
        try:
            found = await self.cluster.get(SWEEPS, *key)
        except NotFound as error:
            if error.reason != "NotFound":  # a 404 of a proxy, or of a server that does not serve sweeps now: this one may exist
                raise
            self._forget(key)
            return AT_NEXT_EVENT
        if not self.shard.has(found["metadata"]):  # its shard label assigns the sweep to another operator
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
            return await _SweepReconcile(self, found, entry).run()
        except (Conflict, NotFound):  # an object changed or was deleted; requeue, because its watch event may be missed
            return Requeue(SOON_SECONDS)

    def _forget(self, key: Key) -> None:
        self.metrics.sweeps.forget(key)
        self.cache.drop(key)
        self.errors.end(key)


class _SweepReconcile:
    """One reconcile of one sweep."""

    def __init__(self, sweeps: Sweeps, found: Object, entry: SweepEntry) -> None:
        self._s = sweeps
        self._cluster = sweeps.cluster
        self._object = found
        self._entry = entry
        self._sweep: TrialSweep

    async def run(self) -> Requeue:
        try:
            requeue = await self._run()
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            return await self._end_in_status(error)
        self._s.errors.end(self._entry.key)
        return requeue

    async def _run(self) -> Requeue:
        try:
            self._sweep = self._parsed()
            if is_finished(self._sweep.status):
                return await (self._reopen() if sweep_status.reopens(self._sweep) else self._clean_up())
            if sweep_status.is_suspended_before_start(self._sweep):
                return await self._wait(sweep_status.suspended_before_start(self._sweep, self._s.clock()), AT_NEXT_EVENT)
            starts = self._sweep.status.start_time is None
            if starts and (why := await unfinished_source(self._cluster, self._sweep, self._s.clock())):
                status = sweep_status.waiting(self._sweep, SOURCE_ACTIVE, why, self._s.clock())
                return await self._wait(status, Requeue(SOURCE_SECONDS))
            plan, tasks = await self._planned()
            if starts:
                await self._write(sweep_status.started(self._sweep, plan, self._s.clock(), tasks))
            return await self._create_and_count(plan)
        except SourceError as error:
            return await self._wait_for_tasks(error)
        except InvalidSpec as error:
            self._sweep = _salvaged(self._object)
            if is_finished(self._sweep.status):
                return await self._clean_up()
            return await self._end(sweep_status.failed(self._sweep, "InvalidSpec", str(error), self._s.clock()))

    async def _end_in_status(self, error: BaseException) -> Requeue:
        """Show an error in the sweep's status (error_outcome), and raise it: the work queue retries the reconcile. If the
        error lasts, a sweep that has not started fails; a started one goes on when the error is gone."""
        found = outcome(error)
        if not isinstance(found, Waits):
            raise error
        if not hasattr(self, "_sweep"):  # the sweep could not be parsed
            self._sweep = _salvaged(self._object)
        if is_finished(self._sweep.status):
            raise error
        now, text, started = self._s.clock(), message(error), self._sweep.status.start_time is not None
        series = self._s.errors.add(self._entry.key, self._sweep.metadata.uid, now, ends=found.ends)
        if not started and (self._sweep.spec.stop or series.ends_object):
            reason, text = ("Stopped", _NEVER_STARTED) if self._sweep.spec.stop else (found.reason, text)
            return await self._end(sweep_status.failed(self._sweep, reason, text, now))
        if series.seconds >= found.after:
            await self._report(found.reason, text)
        raise error

    async def _report(self, reason: str, text: str) -> None:
        """Write why the sweep cannot go on to its status, and emit an Event if it is new. Best effort."""
        old, new = self._sweep.status, sweep_status.troubled(self._sweep, reason, text, self._s.clock())
        before, reported = holds(old, "Reconciling"), any(each.reason == reason for each in transitions(old, new))
        try:
            await self._write(new)
            if not reported and (before is None or before.reason != reason):
                await emit_events(self._cluster, self._object, [Transition(reason, bounded(text), "Warning")])
        except Exception as second:
            logger.warning("could not report the error in the sweep's status: %s", second)

    async def _reopen(self) -> Requeue:
        """Reopen a finished sweep for retries of its trials. The next reconcile gets a new cache entry, and so lists the trials."""
        await self._write(sweep_status.reopened(self._sweep, self._s.clock()))
        return Requeue(0.0)

    def _parsed(self) -> TrialSweep:
        """Return the parsed sweep. Its spec is parsed once per generation, because it may have a thousand tasks."""
        metadata, kept = Metadata.model_validate(self._object["metadata"]), self._entry.plan
        if kept is None or kept[0] != metadata.generation:
            return parse_sweep(self._object)
        return TrialSweep.model_construct(metadata=metadata, spec=kept[1].spec, status=parse_sweep_status(self._object))

    async def _planned(self) -> tuple[Plan, SweepTasksStatus | None]:
        generation, pinned = self._sweep.metadata.generation, self._sweep.status.tasks_from
        started = self._sweep.status.start_time is not None
        if not started or self._entry.plan is None or self._entry.plan[0] != generation:
            tasks, pinned = await self._s.tasks.load(self._sweep)
            new = plan(self._sweep, tasks)
            self._entry.plan = generation, replace(new, source=await regraded_sweep(self._cluster, self._sweep, new))
        assert self._entry.plan is not None
        found = self._entry.plan[1]
        return await self._with_branches(found) if self._sweep.status.branches and found.grid.branches is None else found, pinned

    async def _with_branches(self, plan: Plan) -> Plan:
        """Return the plan with the sweep's branches. All ordinary trials must have finished."""
        found, planned = await load_branches(self._cluster, self._sweep, plan)
        if self._sweep.status.branches is None:
            await self._write(self._sweep.status.model_copy(update={"branches": planned}))
        self._entry.plan = self._sweep.metadata.generation, found
        return found

    async def _wait_for_tasks(self, error: SourceError) -> Requeue:
        """Wait for the tasks or the record of the branches. If the error is permanent, a sweep that has not started fails. A
        started one waits and says for what: what is missing may become available."""
        if self._sweep.status.start_time is not None:
            if error.reason != FETCHING:
                await self._report(error.reason, str(error))
            return Requeue(error.retry_seconds if error.transient else REJECTED_RETRY_SECONDS)
        text = f"spec.tasksFrom: {error}"
        if not error.transient:
            return await self._end(sweep_status.failed(self._sweep, error.reason, text, self._s.clock()))
        return await self._wait(
            sweep_status.waiting(self._sweep, error.reason, text, self._s.clock()), Requeue(error.retry_seconds)
        )

    async def _wait(self, status: SweepStatus, requeue: Requeue) -> Requeue:
        """Write the status of a sweep that cannot start yet. A sweep that is stopped meanwhile never starts."""
        if self._sweep.spec.stop:
            return await self._end(sweep_status.failed(self._sweep, "Stopped", _NEVER_STARTED, self._s.clock()))
        await self._write(status)
        return requeue

    async def _create_and_count(self, plan: Plan) -> Requeue:
        metadata = self._sweep.metadata
        self._entry.start_reconcile(self._sweep.spec.scoring)
        self._entry.since = self._s.clock() if self._entry.since is None else self._entry.since
        if not self._entry.listed:
            selector = f"{labels.SWEEP}={metadata.name}"
            await self._entry.fill(self._cluster.each(TRIALS, metadata.namespace, label_selector=selector), self._members(plan))
        if foreign := self._entry.foreign(self._members(plan)):
            await emit_events(self._cluster, self._object, [foreign_trials(foreign)])
        due = self._decide(plan, None)
        if due.plan_branches:
            await self._write(due.status)  # store the results so far first, because planning may fail
            plan = await self._with_branches(plan)
            due = self._decide(plan, None)
        await self._change(plan, due.suspend, {"suspend": True}, metadata.name)
        await self._change(plan, due.resume, {"suspend": None}, None)
        await self._change(plan, due.stop, {"stop": True})
        failure = await self._create(plan, due.create, due.early)
        reached = self._decide(plan, failure)
        if is_finished(reached.status):
            return await self._end(reached.status)
        if (reached.create or reached.plan_branches) and failure is None:
            await self._write(reached.status)
            return Requeue(0.0)
        waits = await self._write_throttled(reached.status)
        return earliest([waits, reached.seconds, REJECTED_RETRY_SECONDS if failure else None])

    def _members(self, plan: Plan) -> Members:
        return Members(self._sweep.metadata.uid, plan.names)

    def _decide(self, plan: Plan, failure: CreationError | None) -> sweep_status.Next:
        trials = self._entry.of(self._members(plan))
        known = self._sweep.status.trials
        created = max(self._entry.created, known.created + known.retried)
        since = self._entry.since or 0.0
        return sweep_status.decide(self._sweep, plan, created, trials, self._s.clock(), failure, watched_since=since)

    # -- methods that create and change trials

    async def _create(self, plan: Plan, numbers: Iterable[int], early: int) -> CreationError | None:
        """Create trials one after the other. Stop at the first trial that cannot be created, and return its error.

        early: trials from this number on are created before their turn, suspended with spec.prestart.
        """
        for number in numbers:
            try:
                made = manifest(self._sweep, plan, number, early=number >= early, limited_models=self._s.limited_models)
                trial = await self._cluster.create(made)
                self._s.metrics.sweep_trials.inc()
            except AlreadyExists:
                found = await self._cluster.get(TRIALS, self._sweep.metadata.namespace, plan.names[number])
                if (adopted := await self._adopted(found)) is None:
                    return CreationError(NAME_TAKEN, _name_taken(found, self._sweep))
                trial = adopted
            except (NotFound, Conflict, Unavailable):
                raise
            except ClusterError as error:  # rejected by a quota or policy, or because its spec is invalid
                return CreationError(REFUSED, str(error))
            self._entry.read(trial)
            self._entry.created = max(self._entry.created, number + 1)
        return None

    async def _adopted(self, trial: Object) -> Object | None:
        """Return an existing trial of a planned name if it is this sweep's; None if it is not. If only its owner reference does not
        say that this sweep controls it, for example after a restore, correct that."""
        sweep, owner, metadata = self._sweep.metadata, owner_of(trial), trial["metadata"]
        if owner is not None:
            return trial if owner[1] == sweep.uid else None
        references = metadata.get("ownerReferences") or []
        if any(each.get("controller") for each in references) or all(each.get("uid") != sweep.uid for each in references):
            return None
        others = [each for each in references if each.get("uid") != sweep.uid]
        same = {"resourceVersion": metadata["resourceVersion"], "ownerReferences": [*others, owner_reference(self._sweep)]}
        return await self._cluster.patch(TRIALS, sweep.namespace, metadata["name"], {"metadata": same})

    async def _change(self, plan: Plan, numbers: Collection[int], spec: Mapping[str, Any], by: str | None = "") -> None:
        """Patch the specs of the trials with these numbers. by: value of the annotation suspended-by; None: delete the annotation;
        "": do not change it."""
        metadata = {} if by == "" else {"annotations": {labels.SUSPENDED_BY: by}}
        gate = asyncio.Semaphore(CHANGES_AT_ONCE)

        async def change(name: str) -> None:
            async with gate:
                namespace = self._sweep.metadata.namespace
                self._entry.read(await self._cluster.patch(TRIALS, namespace, name, {"metadata": metadata, "spec": spec}))

        results = await asyncio.gather(*(change(plan.names[number]) for number in numbers), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, NotFound):
                raise error

    # -- methods that write and delete the sweep

    async def _clean_up(self) -> Requeue:
        """Update a finished sweep's observed generation, and delete the sweep after its TTL."""
        sweep, now = self._sweep, self._s.clock()
        self._entry.close()
        ttl, ended = sweep.spec.ttl_seconds_after_finished, sweep.status.completion_time
        left = None if ttl is None or ended is None else ended.timestamp() + ttl - now
        if left is not None and left <= 0:
            await self._cluster.delete(SWEEPS, sweep.metadata.namespace, sweep.metadata.name, uid=sweep.metadata.uid)
            return AT_NEXT_EVENT
        if sweep.status.observed_generation != sweep.metadata.generation:
            await self._write(sweep_status.observed(sweep))
        return Requeue(left)

    async def _end(self, status: SweepStatus) -> Requeue:
        await self._write(status)
        return await self._clean_up()

    async def _write_throttled(self, status: SweepStatus) -> float | None:
        """Write the status; if only counts changed, at most every STATUS_SECONDS. Return the seconds until changed counts may be
        written; None if nothing is left to write."""
        last, now = self._entry.written, self._s.clock()
        wait = 0.0 if last is None or last > now else last + STATUS_SECONDS - now  # last > now: the clock was set back
        if wait > 0 and sweep_status.headline(status) == sweep_status.headline(self._sweep.status):
            return wait if status != self._sweep.status else None
        await self._write(status)
        return None

    async def _write(self, new: SweepStatus) -> None:
        """Write the status if it changed; then emit Events. Raises Conflict if the sweep was changed since it was read."""
        old, content, metadata = self._sweep.status, sweep_status.to_json(new), self._sweep.metadata
        if content == (self._object.get("status") or {}):
            return
        self._object = await self._cluster.apply_status(
            SWEEPS,
            metadata.namespace,
            metadata.name,
            uid=metadata.uid,
            resource_version=metadata.resource_version,
            status=content,
        )
        self._entry.written, self._entry.version = self._s.clock(), self._object["metadata"]["resourceVersion"]
        fresh = metadata.model_copy(update={"resource_version": self._object["metadata"]["resourceVersion"]})
        self._sweep = self._sweep.model_copy(update={"status": new, "metadata": fresh})
        self._s.metrics.sweeps.observe((metadata.namespace, metadata.name), new.phase)
        await emit_events(self._cluster, self._object, transitions(old, new))


def _name_taken(trial: Object, sweep: TrialSweep) -> str:
    """Return what a user can do about a trial that has the name of a trial to create, such as one that was left by ``kubectl delete
    --cascade=orphan``."""
    name, namespace, controlled = trial["metadata"]["name"], sweep.metadata.namespace, trial["metadata"].get("ownerReferences")
    text = f"trial {name} exists, but this sweep did not create it. Delete it, so that the sweep can create its own: "
    text += f"kubectl -n {namespace} delete multisteptrials -l {labels.SWEEP}={sweep.metadata.name}"
    if controlled:
        return text
    patch = json.dumps({"metadata": {"ownerReferences": [owner_reference(sweep)]}}, separators=(",", ":"))
    return f"{text}; or adopt it with its result: kubectl -n {namespace} patch multisteptrial {name} --type=merge -p '{patch}'"


_NOTHING: Final[Mapping[str, Any]] = {
    "tasks": [{"name": "none", "inline": {"config": {}}}],
    "agents": [{"name": "none", "agent": {"name": "nop"}}],
}


def _salvaged(found: Object) -> TrialSweep:
    """Return a sweep whose spec cannot be parsed: with an empty spec, and with its status, if the status can be parsed."""
    try:
        status = parse_sweep_status(found)
    except Exception:
        status = SweepStatus()
    return parse_sweep({"metadata": found["metadata"], "spec": _NOTHING}).model_copy(update={"status": status})
