"""A sweep that the client created, or looked up by its name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from multistep.api.common.labels import SWEEP
from multistep.api.sweep.sweep import SweepStatus, TrialSweep, parse_sweep_status
from multistep.api.trial.conditions import is_finished
from multistep.api.trial.trial import parse_status
from multistep.client.rollout import Rollout, rollout
from multistep.engine.sweep.own_trials import Members
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import NotFound, Unavailable
from multistep.kube.client import Client as Cluster
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import SWEEPS, TRIALS
from multistep.reconcile.sweep.decision_records import members


class AsyncRun:
    """A sweep. ``async for rollout in run`` yields each trial once, when it finishes. The loop ends when the sweep has finished."""

    def __init__(self, cluster: Cluster, sweep: TrialSweep) -> None:
        self._cluster = cluster
        self._sweep = sweep
        self.name = sweep.metadata.name
        self.namespace = sweep.metadata.namespace
        self._members = Members(sweep.metadata.uid, ())

    def __repr__(self) -> str:
        return f"AsyncRun(name={self.name!r}, namespace={self.namespace!r})"

    @property
    def uid(self) -> str:
        """Return the UID of the sweep: another sweep of the same name has another UID."""
        return self._sweep.metadata.uid

    async def status(self) -> SweepStatus:
        """Return the sweep's current status. Raises NotFound if the sweep was deleted, Unavailable if the API server does not
        answer."""
        return parse_sweep_status(await self._current())

    async def _current(self) -> Object:
        found = await self._cluster.get(SWEEPS, self.namespace, self.name)
        if found["metadata"]["uid"] != self.uid:
            raise NotFound(f"sweep {self.name} was deleted, and another one has its name now", status=404)
        return found

    async def __aiter__(self) -> AsyncGenerator[Rollout, None]:
        """Yield the trials as they finish. A broken watch is resumed; no trial is yielded twice. Raises NotFound if the sweep is
        deleted, and ClusterError if a request fails."""
        seen: set[str] = set()
        finished: asyncio.Queue[Object | Exception | None] = asyncio.Queue()
        watchers = [asyncio.create_task(each) for each in (self._watch_trials(finished), self._watch_sweep(finished))]
        try:
            while (trial := await finished.get()) is not None:
                if isinstance(trial, Exception):
                    raise trial
                if (uid := trial["metadata"]["uid"]) not in seen:
                    seen.add(uid)
                    yield rollout(trial, self._sweep.spec.scoring)
        finally:
            for each in watchers:
                each.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)

    async def results(self) -> list[Rollout]:
        """Wait until the sweep has finished, and return all of its trials."""
        return [each async for each in self]

    async def stop(self) -> None:
        """Stop the sweep: active trials are stopped, and their pods are deleted. The sweep and its results remain."""
        changes = {"metadata": {"uid": self.uid}, "spec": {"stop": True}}
        await self._cluster.patch(SWEEPS, self.namespace, self.name, changes)

    async def delete(self) -> None:
        """Delete the sweep with its trials and their pods, if it exists. The results remain for the operator's retention time."""
        await self._cluster.delete(SWEEPS, self.namespace, self.name, uid=self.uid)

    async def _watch_trials(self, finished: asyncio.Queue[Object | Exception | None]) -> None:
        try:
            async with aclosing(self._cluster.watch(TRIALS, self.namespace, label_selector=f"{SWEEP}={self.name}")) as events:
                async for event in events:
                    if event.type != "DELETED" and await self._has_finished(event.object):
                        finished.put_nowait(event.object)
        except Exception as error:
            finished.put_nowait(error)

    async def _watch_sweep(self, finished: asyncio.Queue[Object | Exception | None]) -> None:
        """When the sweep has finished, put its finished trials into the queue, then None, which ends the queue."""
        try:
            await self._until_finished()
            for each in await self._cluster.list_all(TRIALS, self.namespace, label_selector=f"{SWEEP}={self.name}"):
                if await self._has_finished(each):
                    finished.put_nowait(each)
            finished.put_nowait(None)
        except Exception as error:  # also one that nobody expects: the loop over the trials must not wait for ever
            finished.put_nowait(error)

    async def _until_finished(self) -> None:
        async with aclosing(self._cluster.watch(SWEEPS, self.namespace, field_selector=f"metadata.name={self.name}")) as events:
            async for event in events:
                if event.type == "DELETED" or event.object["metadata"]["uid"] != self.uid:
                    raise NotFound(f"sweep {self.name} was deleted before it finished", status=404)
                if is_finished(parse_sweep_status(event.object)):
                    return
        raise Unavailable(f"the API server ended the watch of sweep {self.name}")

    async def _has_finished(self, trial: Object) -> bool:
        owner = owner_of(trial)
        if owner is None or owner[1] != self.uid or not is_finished(parse_status(trial)):
            return False
        if not self._members.has(trial):  # the plan may have grown: branches, retries
            self._members = await members(self._cluster, await self._current())
        return self._members.has(trial)
