"""The rows of the dashboard: sweeps and trials, updated by watches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from datetime import datetime
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import parsed
from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus
from multistep.api.trial.score import outcome_level, outcome_words
from multistep.api.trial.status import RefusedTarget, TrialStatus, total
from multistep.api.trial.trial import parse_status
from multistep.cli.costs import usage_text
from multistep.cli.terminal import bytes_text
from multistep.cli.trial.trial_view import stored_text
from multistep.client.connection import Cluster
from multistep.client.outcome import brief, outcome
from multistep.client.reconnecting_watch import WatchEvent
from multistep.engine.status.status_size import reward_text
from multistep.errors import InvalidSpec, Unavailable
from multistep.kube.resources import SWEEPS, TRIALS, Resource

_MAX_REFUSED: Final = 10  # maximum refused hosts to show, the most frequent first, as in the status of a step


def trial_row(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a MultiStepTrial. Raises InvalidSpec if the status is invalid."""
    status, metadata = parse_status(trial), trial["metadata"]
    annotations, spec = metadata.get("annotations") or {}, trial.get("spec") or {}
    agent = spec.get("agent") or {}
    failure_class = status.failure.class_ if status.failure else ""
    return {
        "kind": "trial",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "sweep": (metadata.get("labels") or {}).get(labels.SWEEP, ""),
        "task": annotations.get(labels.TASK) or status.task or "",
        "agent": annotations.get(labels.AGENT) or agent.get("name") or agent.get("importPath") or "",
        "phase": outcome(status).phase,
        "outcome": outcome_words(status.outcome, failure_class) if status.outcome else outcome(status).phase,
        "level": outcome_level(status.outcome) if status.outcome else "",
        "step": _step(status),
        "score": None if status.score is None else f"{status.score:.4g}",
        "reward": reward_text(status.rewards),
        "message": brief(status),
        "created": metadata.get("creationTimestamp"),
        "started": _time(status.start_time),
        "completed": _time(status.completion_time),
    }


def trial_facts(namespace: str, name: str, status: TrialStatus) -> list[str]:
    """Return lines on a trial: its model usage with the cost, its artifacts, the hosts that were refused, and how to get its
    files."""
    lines = [usage_text(status.usage)] if status.usage else []
    lines += [f"judge {usage_text(status.judge_usage)}"] if status.judge_usage else []
    lines += [f"user {usage_text(status.user_usage)}"] if status.user_usage else []
    stored = [each.artifacts for each in status.steps if each.artifacts]
    if stored:
        files, size = sum(each.count for each in stored), sum(each.bytes for each in stored)
        lines.append(f"artifacts: {plural(files, 'file')}, {bytes_text(size)}")
    refused = total([each.egress for each in status.steps if each.egress], _MAX_REFUSED)
    targets = [f"{_target(each)} ({each.count})" for each in refused.refused]
    targets += [f"{refused.others} others"] if refused.others else []
    lines += [f"refused by the network's limits: {', '.join(targets)}"] if targets else []
    if status.results_store:
        lines.append(stored_text(status.results_store))
    return [*lines, f"its files: multistep results {name} DIRECTORY -n {namespace}"] if status.results else lines


def sweep_row(sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a TrialSweep. Raises InvalidSpec if the status is invalid."""
    status, metadata = parsed(SweepStatus, sweep.get("status") or {}, under="status."), sweep["metadata"]
    ready = next((each for each in status.conditions if each.type == "Ready"), None)
    return {
        "kind": "sweep",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "phase": status.phase or "Submitted",
        "trials": status.trials.model_dump(mode="json"),
        "score": status.score,
        "costUSD": status.cost_usd,
        "message": ready.message if ready else "",
        "created": metadata.get("creationTimestamp"),
        "started": _time(status.start_time),
        "completed": _time(status.completion_time),
    }


def _step(status: TrialStatus) -> str:
    """Return the number of started steps, the total number of steps if known, and the current step's name, as one string."""
    if not status.steps:
        return ""
    total = f"/{len(status.task_steps)}" if status.task_steps else ""
    return f"{len(status.steps)}{total} {status.current_step or status.steps[-1].name}"


def _target(target: RefusedTarget) -> str:
    return f"{target.protocol} {target.host}{'' if target.port is None else f':{target.port}'}"


def _time(time: datetime | None) -> str | None:
    return time.isoformat() if time else None


Key = tuple[str, str, str]  # kind, namespace and name of an object
Row = Mapping[str, Any]
RETRY_SECONDS: Final = 5.0
MAX_DELETED: Final = 1000  # maximum remembered deletions. A page that missed an older deletion receives all rows
_ROWS = {TRIALS.kind: trial_row, SWEEPS.kind: sweep_row}


class Board:
    """The current row of each sweep and trial. Each change increments ``version``, so that a page can request only the rows that
    changed after the version it has."""

    def __init__(self) -> None:
        self.version = 0
        self.unavailable = ""  # why the API server is unreachable; "" while it is reachable
        self._rows: dict[Key, tuple[int, Row]] = {}
        self._deleted: dict[Key, int] = {}  # version of each remembered deletion, oldest first
        self._forgotten = 0  # version of the newest deletion that is no longer remembered
        self._changed = asyncio.Event()

    async def follow(self, cluster: Cluster, namespace: str | None) -> None:
        """Watch sweeps and trials without end; retry while the API server is unreachable. namespace: None for all namespaces.
        Raises ClusterError if the API server rejects a request."""
        try:
            async with asyncio.TaskGroup() as group:
                for resource in (SWEEPS, TRIALS):
                    group.create_task(self._watch(cluster, resource, namespace))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def changes(self, since: int) -> dict[str, Any]:
        """Wait for a version newer than ``since``; return the newest version and the rows that changed after ``since``.

        A row with ``deleted`` names an object that no longer exists. If ``all`` is true, the rows are all current rows.
        """
        while self.version <= since:
            await self._changed.wait()
        everything = since <= self._forgotten
        newer = [row for version, row in self._rows.values() if everything or version > since]
        if not everything:
            newer += [{**_names(key), "deleted": True} for key, version in self._deleted.items() if version > since]
        return {"version": self.version, "unavailable": self.unavailable, "all": everything, "rows": newer}

    async def _watch(self, cluster: Cluster, resource: Resource, namespace: str | None) -> None:
        while True:
            try:
                async with aclosing(cluster.watch(resource, namespace)) as events:
                    async for event in events:
                        self.apply(event)
            except Unavailable as error:
                self._report(str(error))
                await asyncio.sleep(RETRY_SECONDS)
                self._forget(resource.kind)  # the next watch first lists all objects, and so adds their rows again

    def apply(self, event: WatchEvent) -> None:
        """Update the row of a watch event's object."""
        metadata, kind = event.object["metadata"], str(event.object["kind"])
        key = (kind, metadata["namespace"], metadata["name"])
        if event.type == "DELETED":
            self._delete(key)
            return
        try:
            self._set(key, _ROWS[kind](event.object))
        except InvalidSpec as error:
            self._set(key, {**_names(key), "message": f"its status cannot be read: {error}"})
        self._report("")

    def _forget(self, kind: str) -> None:
        for key in [each for each in self._rows if each[0] == kind]:
            self._delete(key)

    def _report(self, unavailable: str) -> None:
        if unavailable != self.unavailable:
            self.unavailable = unavailable
            self._notify()

    def _set(self, key: Key, row: Row) -> None:
        self._notify()
        self._rows[key] = (self.version, row)
        self._deleted.pop(key, None)

    def _delete(self, key: Key) -> None:
        self._notify()
        self._rows.pop(key, None)
        self._deleted.pop(key, None)
        self._deleted[key] = self.version
        if len(self._deleted) > MAX_DELETED:
            self._forgotten = self._deleted.pop(next(iter(self._deleted)))

    def _notify(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _names(key: Key) -> dict[str, Any]:
    kind, namespace, name = key
    return {"kind": "sweep" if kind == SWEEPS.kind else "trial", "namespace": namespace, "name": name}
