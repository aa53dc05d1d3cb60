"""A sweep in the cluster to which a client appends tasks until it closes it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final

from multistep.api.common.labels import SWEEP
from multistep.api.sweep.sweep import SweepWeights, parse_sweep_status
from multistep.api.trial.status import is_finished
from multistep.client import objects
from multistep.client.reconnecting_watch import WatchEvent, WatchingClient
from multistep.client.run import AsyncRun
from multistep.client.submit.manifests import Manifest, Submission, owned_by
from multistep.client.watch import until_finished, versions
from multistep.engine.sweep.trial_grid import TrialGrid
from multistep.errors import Conflict, NotFound
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS

# An object of the API server may have 1.5 MB. Each append sends all tasks, and the trials are kept until the sweep is deleted.
MAX_TASKS: Final = 256
MAX_BYTES: Final = 400_000


def with_names_ending(planned: Submission, ending: str) -> Submission:
    """Return a submission whose tasks' names end with this text, so that a sweep may have a task more than once."""
    spec = planned.main["spec"]
    tasks = [{**each, "name": f"{each['name']}{ending}"} for each in spec["tasks"]]
    return replace(planned, main={**planned.main, "spec": {**spec, "tasks": tasks}})


class OpenSweep:
    """An open sweep of one agent."""

    def __init__(self, cluster: WatchingClient, run: AsyncRun, planned: Submission) -> None:
        """``planned`` is the submission that created the sweep ``run``."""
        self._cluster = cluster
        self._run = run
        self._tasks: list[Manifest] = list(planned.main["spec"]["tasks"])
        self._attempts: int = planned.main["spec"]["attempts"]
        self._agents = [each["name"] for each in planned.main["spec"]["agents"]]
        self._owned = {each["metadata"]["name"] for each in planned.owned}
        self.name, self.namespace, self.uid = run.name, run.namespace, run.uid
        self.closed = False
        """Whether this client closed or stopped the sweep."""

    def has_room(self, tasks: Sequence[Manifest]) -> bool:
        """Return whether the tasks can be appended."""
        more = [*self._tasks, *tasks]
        return not self.closed and len(more) <= MAX_TASKS and len(json.dumps(more)) <= MAX_BYTES

    def trials_of(self, tasks: Sequence[Manifest]) -> tuple[str, ...]:
        """Return the names of the trials of tasks."""
        grids = [TrialGrid([each["name"]], self._agents, self._attempts, "Tasks") for each in tasks]
        return tuple(grid.trial_name(self.name, number) for grid in grids for number in range(len(grid)))

    async def append(self, planned: Submission) -> None:
        """Append the tasks of a submission, after the objects that they need. The call is idempotent. Raises ClusterError."""
        owner = {"kind": SWEEPS.kind, "metadata": {"name": self.name, "uid": self.uid}}
        for each in planned.placed(self.namespace).owned:
            if each["metadata"]["name"] not in self._owned:
                await self._cluster.apply(owned_by(each, owner))
                self._owned.add(each["metadata"]["name"])
        self._tasks += planned.main["spec"]["tasks"]
        await self._change(tasks=self._tasks)

    async def close(self) -> None:
        """Let the sweep finish when its trials have. Raises ClusterError."""
        if not self.closed:
            await self._change(open=False)
            self.closed = True

    async def stop(self) -> None:
        """Stop the sweep and its trials. Raises ClusterError."""
        self.closed = True
        await self._run.stop()

    async def stop_trial(self, name: str, uid: str) -> None:
        """Stop a trial, if it exists. Raises ClusterError."""
        with suppress(NotFound, Conflict):
            await objects.stop(self._cluster, TRIALS, self.namespace, name, uid=uid)

    async def set_weights(self, wanted: SweepWeights, *, drain: bool = False) -> None:
        """Set spec.weights, and wait until the model gateway knows them; with ``drain``, until no request is in flight. A finished
        sweep is not waited for. Raises ClusterError."""
        await self._change(weights=wanted.model_dump())
        found = versions(self._cluster, SWEEPS, self.namespace, self.name, uid=self.uid)
        async with aclosing(found):
            async for each in found:
                status = parse_sweep_status(each)
                known = status.weights
                told = known is not None and (known.version, known.paused) == (wanted.version, wanted.paused)
                if is_finished(status) or (told and not (drain and known is not None and known.in_flight)):
                    return

    async def until_finished(self) -> Object:
        """Wait until the sweep has finished, and return it. Raises NotFound if it is deleted, and ClusterError."""
        return await until_finished(self._cluster, SWEEPS, self.namespace, self.name, uid=self.uid)

    async def trials(self) -> Sequence[Object]:
        """Return all trials that have the sweep's label. Raises ClusterError."""
        return await self._cluster.list_all(TRIALS, self.namespace, label_selector=f"{SWEEP}={self.name}")

    def trial_events(self) -> AsyncGenerator[WatchEvent, None]:
        """Yield all trials that have the sweep's label, and each change. Raises ClusterError."""
        return self._cluster.watch(TRIALS, self.namespace, label_selector=f"{SWEEP}={self.name}")

    async def _change(self, **spec: Any) -> None:
        await self._cluster.patch(SWEEPS, self.namespace, self.name, {"metadata": {"uid": self.uid}, "spec": spec})
