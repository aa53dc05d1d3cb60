"""Runs groups of rollouts: as many trials of one task as a group has. The groups' tasks are appended to one open sweep, which is
closed and followed by another one before its list of tasks is too long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from multistep.api.sweep.sweep import Scoring, SweepWeights, parse_scoring
from multistep.api.trial.status import is_finished
from multistep.api.trial.trial import parse_status
from multistep.client.rollouts.open_sweep import OpenSweep
from multistep.client.run import Rollout, rollout
from multistep.client.submit.manifests import Submission
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import MultistepError, UsageError
from multistep.kube.cluster_protocols import Object

_T = TypeVar("_T")


@dataclass(frozen=True)
class Group(Generic[_T]):
    """The finished trials of one task."""

    task: _T
    """The task as it was given."""
    name: str
    """Name of the group's task in the sweep."""
    sweep: str
    """Name of the sweep, which has several groups."""
    rollouts: tuple[Rollout, ...]
    """The trials in the order in which they finished. Trials that were not created, or that were deleted, are missing."""


@dataclass(eq=False)
class ActiveGroup(Generic[_T]):
    """A group that was submitted and not yet taken."""

    task: _T
    """The task as it was given."""
    name: str
    """Name of the group's task in the sweep."""
    sweep: str
    """Name of the sweep."""
    trials: tuple[str, ...]
    """Names of the group's trials."""
    updates: int = 0
    """How often the version of the weights changed since the group was submitted."""
    _finished: dict[str, Rollout] = field(default_factory=dict, repr=False)
    _gone: set[str] = field(default_factory=set, repr=False)  # deleted trials
    _uids: dict[str, str] = field(default_factory=dict, repr=False)  # of the trials that exist
    _ended: bool = field(default=False, repr=False)  # whether the sweep ended

    @property
    def finished(self) -> bool:
        """Return whether all trials have finished."""
        return self._ended or len(self._finished) + len(self._gone) == len(self.trials)


@dataclass(frozen=True)
class Submitter(Generic[_T]):
    """Submits groups."""

    plan: Callable[[_T, str, str | None, SweepWeights | None], Submission]
    """Returns the sweep of a task. Arguments: the task, an ending of its name in the sweep, name of the sweep to which it is
    appended (None: a new one), weights of a new sweep. Raises as ``submit`` of the client."""
    start: Callable[[Submission], Awaitable[OpenSweep]]
    """Creates a sweep."""


class AsyncRollouts(Generic[_T]):
    """Groups of rollouts. ``async for group in rollouts`` yields the groups as they finish, and stops active ones when it ends."""

    def __init__(self, tasks: Iterable[_T], submit: Submitter[_T], ahead: int, max_staleness: int | None = None) -> None:
        """ahead, max_staleness: as for ``AsyncClient.rollouts``."""
        self._tasks = iter(tasks)
        self._submit, self._ahead, self._max_staleness = submit, ahead, max_staleness
        self._groups: list[ActiveGroup[_T]] = []
        self._sweep: OpenSweep | None = None  # the one to which tasks are appended
        self._followed: dict[str, tuple[OpenSweep, asyncio.Task[None]]] = {}  # by UID: the sweeps that have not finished
        self._weights: SweepWeights | None = None
        self._cancelled: set[str] = set()  # names of trials to stop that were not seen yet
        self._submitted = 0
        self._filling = asyncio.Lock()
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self.dropped = 0
        """Number of groups that ``max_staleness`` dropped."""

    @property
    def active(self) -> Sequence[ActiveGroup[_T]]:
        """Return the groups that were submitted and not yet taken, in the order of their submission."""
        return tuple(self._groups)

    async def __aiter__(self) -> AsyncGenerator[Group[_T], None]:
        """Yield the groups as they finish. The next task is taken from ``tasks`` when its group is submitted. Raises the errors of
        ``AsyncClient.submit``, NotFound if a sweep is deleted, MultistepError if a sweep ends before its groups."""
        try:
            await self._fill()
            while self._groups:
                if (group := next((each for each in self._groups if each.finished), None)) is None:
                    await self._change()
                    continue
                self._groups.remove(group)
                await self._fill()  # before the caller computes with the group
                yield Group(group.task, group.name, group.sweep, tuple(group._finished.values()))
            if self._error is not None:
                raise self._error
        finally:
            await self._end()

    async def cancel(self, what: ActiveGroup[_T] | str) -> None:
        """Stop a group, which is then not yielded, or a trial, given by its name, which is then not valid in its group.

        The operator closes a stopped trial's access to the model gateway, which ends its requests. Raises UsageError if the group
        is not active, and ClusterError.
        """
        group = next((each for each in self._groups if each is what or what in each.trials), None)
        if group is None:
            raise UsageError(f"no active group is or has {what.name if isinstance(what, ActiveGroup) else what}")
        if isinstance(what, ActiveGroup):
            self._groups.remove(group)
        await self._stop(group, [what] if isinstance(what, str) else group.trials)
        await self._fill()

    async def pause(self, *, drain: bool = True) -> None:
        """Hold the agents' model requests that the model gateway has not sent yet. No trial fails by that.

        drain: whether to wait until no request is in flight. Raises ClusterError.
        """
        await self._set_weights(replace_weights(self._weights, paused=True), drain=drain)

    async def resume(self, version: int | str | None = None) -> None:
        """Send held requests. version: of the weights that answer from now on; None if it did not change.

        A new version first drops the groups that exceed ``max_staleness``. Raises ClusterError.
        """
        await self._update(version, paused=False)

    async def set_version(self, version: int | str) -> None:
        """Set the version of the weights without a pause. Raises ClusterError."""
        await self._update(version)

    async def _update(self, version: int | str | None, paused: bool | None = None) -> None:
        weights = replace_weights(self._weights, version=None if version is None else str(version), paused=paused)
        if weights.version != (self._weights or SweepWeights()).version:
            await self._drop_stale()
        await self._set_weights(weights)
        await self._fill()

    async def _drop_stale(self) -> None:
        for group in list(self._groups):
            group.updates += 1
            if self._max_staleness is not None and group.updates > self._max_staleness:
                self._groups.remove(group)
                self.dropped += 1
                await self._stop(group, group.trials)

    async def _set_weights(self, weights: SweepWeights, *, drain: bool = False) -> None:
        async with self._filling:  # a sweep that is being created may have the former weights
            self._weights = weights
            sweeps = [sweep for sweep, _ in self._followed.values()]
        await asyncio.gather(*(each.set_weights(weights, drain=drain) for each in sweeps))

    async def _stop(self, group: ActiveGroup[_T], trials: Iterable[str]) -> None:
        """Stop trials of a group; those that do not exist yet, when they are created."""
        active = [name for name in trials if name not in group._finished and name not in group._gone]
        self._cancelled.update(name for name in active if name not in group._uids)
        for sweep in [sweep for sweep, _ in self._followed.values() if sweep.name == group.sweep]:
            await asyncio.gather(*(sweep.stop_trial(name, group._uids[name]) for name in active if name in group._uids))

    # -- submitting

    async def _fill(self) -> None:
        """Submit groups until ``ahead`` are active, or finished and not taken."""
        async with self._filling:
            while self._error is None and len(self._groups) < self._ahead:
                for task in self._tasks:
                    await self._add(task)
                    break
                else:
                    if self._sweep is not None:
                        await self._sweep.close()
                    return

    async def _add(self, task: _T) -> None:
        """Submit the group of a task."""
        self._submitted += 1
        ending, sweep = f"-{self._submitted}", self._sweep
        planned = self._submit.plan(task, ending, None if sweep is None else sweep.name, self._weights)
        if sweep is not None and sweep.has_room(planned.main["spec"]["tasks"]):
            self._group(task, planned, sweep)
            await sweep.append(planned)
            return
        if sweep is not None:
            await sweep.close()
            planned = self._submit.plan(task, ending, None, self._weights)
        self._sweep = sweep = await self._submit.start(planned)
        self._group(task, planned, sweep)
        self._followed[sweep.uid] = sweep, asyncio.create_task(self._follow(sweep, parse_scoring(planned.main)))

    def _group(self, task: _T, planned: Submission, sweep: OpenSweep) -> None:
        entries = planned.main["spec"]["tasks"]
        self._groups.append(ActiveGroup(task, entries[0]["name"], sweep.name, sweep.trials_of(entries)))

    # -- observing

    async def _follow(self, sweep: OpenSweep, scoring: Scoring) -> None:
        """Observe the trials of a sweep until it has finished."""
        watching = asyncio.create_task(self._watch(sweep, scoring))
        try:
            ended = await sweep.until_finished()
            for trial in await sweep.trials():
                await self._observe(sweep, trial, scoring)
            for group in self._groups:
                group._ended = group._ended or group.sweep == sweep.name
            if not sweep.closed:
                why = ended["status"]["conditions"][0]
                raise MultistepError(f"sweep {sweep.name} ended: {why['reason']}: {why['message']}")
        except Exception as error:  # an unexpected error, too: otherwise the loop over the groups would wait for ever
            self._fail(error)
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            self._followed.pop(sweep.uid, None)
            self._changed.set()

    async def _watch(self, sweep: OpenSweep, scoring: Scoring) -> None:
        try:
            async with aclosing(sweep.trial_events()) as events:
                async for event in events:
                    await self._observe(sweep, event.object, scoring, deleted=event.type == "DELETED")
        except Exception as error:
            self._fail(error)

    async def _observe(self, sweep: OpenSweep, trial: Object, scoring: Scoring, *, deleted: bool = False) -> None:
        name, uid = trial["metadata"]["name"], trial["metadata"]["uid"]
        group = next((each for each in self._groups if each.sweep == sweep.name and name in each.trials), None)
        if deleted:
            if group is not None and group._uids.get(name) == uid and name not in group._finished:
                group._gone.add(name)
                self._changed.set()
            return
        owner = owner_of(trial)
        if owner is None or owner[1] != sweep.uid:
            return
        if name in self._cancelled:
            self._cancelled.discard(name)
            await sweep.stop_trial(name, uid)
        if group is not None and name not in group._finished:
            group._uids[name] = uid
            if is_finished(parse_status(trial)):
                group._finished[name] = rollout(trial, scoring)
                self._changed.set()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._changed.set()

    async def _change(self) -> None:
        """Wait for a change. Raises the error that ended a watch or a sweep."""
        if self._error is not None:
            raise self._error
        await self._changed.wait()
        self._changed.clear()

    async def _end(self) -> None:
        """Stop the sweeps that have not finished. Best effort: without renewals of its lease, the operator stops a sweep."""
        followed = list(self._followed.values())
        active = {group.sweep for group in self._groups if not group.finished}
        self._groups.clear()
        for sweep, following in followed:
            following.cancel()
            if not sweep.closed or sweep.name in active:
                with suppress(MultistepError):
                    await sweep.stop()
        await asyncio.gather(*(following for _, following in followed), return_exceptions=True)


def replace_weights(weights: SweepWeights | None, **changes: str | bool | None) -> SweepWeights:
    """Return the weights with the changes that are not None."""
    known: Mapping[str, str | bool] = {name: value for name, value in changes.items() if value is not None}
    return (weights or SweepWeights()).model_copy(update=known)
