"""Drives a trial's script in its pod: one session, as long as things go fast; then lets go until a result waits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..api.records import Hello, Record
from ..api.trial import MultiStepTrial
from ..cluster import pods
from ..cluster.edge import Cluster
from ..engine.journal import Journal
from ..engine.lifecycle import PodFacts
from ..engine.operations import Collect, Operation
from ..engine.plan import isolation
from ..engine.replay import Progress, replay
from ..engine.scope import Scope
from ..engine.script import AgentScript
from ..metrics import Metrics
from ..pod.perform import perform
from ..pod.session import Session
from ..settings import Settings
from ..sources.trial import Loaded
from ..store.volume import TrialKey, Volume

Report = Callable[[Journal, str], Awaitable[None]]


@dataclass(frozen=True)
class Left:
    """How a pod was left. image_user: the pod has to be made again as root, and this is whom the image runs as."""

    journal: Journal | None = None
    image_user: str | None = None


@dataclass(frozen=True)
class _Ride:
    """What stays the same through one session."""

    trial: MultiStepTrial
    loaded: Loaded
    agent: AgentScript
    scope: Scope
    session: Session


class Driver:
    """Opens sessions and rides them."""

    def __init__(self, cluster: Cluster, volume: Volume, settings: Settings, metrics: Metrics) -> None:
        self._cluster = cluster
        self._volume = volume
        self._settings = settings
        self._metrics = metrics

    async def drive(self, trial: MultiStepTrial, loaded: Loaded, agent: AgentScript, pod: PodFacts, report: Report) -> Left:
        """Go on with the script until it is finished, or a phase takes its time. Raises PodError when the session breaks."""
        async with self._session(trial, pod) as session:
            hello = await session.hello()
            if _must_be_root(trial, hello):
                return Left(image_user=f"{hello.user.uid}:{hello.user.gid}")
            ride = _Ride(trial, loaded, agent, _scope(trial, loaded, hello), session)
            records = {each.id: await _acknowledged(session, each) for each in hello.records}
            journal = await self._ride(ride, records, report)
        return Left(journal=journal)

    @asynccontextmanager
    async def _session(self, trial: MultiStepTrial, pod: PodFacts) -> AsyncIterator[Session]:
        self._metrics.execs.inc()
        stream = await self._cluster.open_exec(trial.metadata.namespace, pod.name, pods.CONTAINER, pods.RUNNER_CALL)
        with self._metrics.execs_open.track_inprogress():
            session = Session(stream, pod_uid=pod.uid, answer_timeout_seconds=self._settings.answer_timeout_seconds)
            async with session:
                yield session

    async def _ride(self, ride: _Ride, records: dict[str, Record], report: Report) -> Journal:
        steps_told = -1
        while (progress := replay(ride.scope, ride.agent, records)).next is not None:
            if len(progress.journal.steps) != steps_told:
                await report(progress.journal, _isolation(ride.scope))
                steps_told = len(progress.journal.steps)
            record = await self._advance(ride, progress)
            records[record.id] = record
            if progress.running is not None and not record.done:
                await report(progress.journal, _isolation(ride.scope))
                break
        return progress.journal

    async def _advance(self, ride: _Ride, progress: Progress) -> Record:
        """Do the next operation, or wait a little for the running one."""
        assert progress.next is not None
        if progress.running is None:
            record = await self._perform(ride, progress.next)
        else:
            record = await ride.session.wait(progress.running.id, self._settings.linger_seconds)
        return await _acknowledged(ride.session, record)

    async def _perform(self, ride: _Ride, operation: Operation) -> Record:
        if isinstance(operation, Collect):
            return await self._collect(ride, operation)
        return await perform(ride.session, operation, ride.loaded.task.content)

    async def _collect(self, ride: _Ride, operation: Collect) -> Record:
        """Bring the files into the store, then write down that they are there: a repeated collection replaces the first."""
        trial, step = ride.trial, ride.loaded.plan.steps[operation.step]
        key = TrialKey(trial.metadata.namespace, trial.metadata.name, trial.metadata.uid)
        async with self._volume.spool(key) as spool:
            found = await ride.session.download(operation.sources, spool.write)
            kept = await self._volume.keep_step(key, spool, attempt=ride.scope.attempt, step=step, types=found.types)
        self._metrics.collected_bytes.inc(found.size)
        data = {"types": list(found.types), "count": kept.count, "bytes": kept.bytes}
        return await ride.session.note(operation.id, data)


async def _acknowledged(session: Session, record: Record) -> Record:
    """A result that was seen makes the pod ready again; the runner keeps it all the same."""
    if record.done and not record.acknowledged:
        await session.ack(record.id)
    return record


def _scope(trial: MultiStepTrial, loaded: Loaded, hello: Hello) -> Scope:
    default_user = trial.status.image_user or str(hello.user.uid)
    return Scope(
        plan=loaded.plan,
        attempt=trial.status.attempt or 1,
        workdir=hello.workdir,
        runtime_dir=hello.runtime_dir,
        isolated=isolation(loaded.plan, default_user) == "User",
    )


def _isolation(scope: Scope) -> str:
    return "User" if scope.isolated else "Shared"


def _must_be_root(trial: MultiStepTrial, hello: Hello) -> bool:
    """The runner makes /logs and /tests and switches users, so it has to be root, unless the pod template says otherwise."""
    return hello.user.uid != 0 and trial.status.image_user is None and not pods.chooses_user(trial)
