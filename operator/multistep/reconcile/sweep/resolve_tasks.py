"""The tasks of a sweep: spec.tasks, or all tasks that the source spec.tasksFrom has at the sweep's start.

The list of these tasks may be too large for a status. So an immutable ConfigMap owned by the sweep contains the list, and the
status its digest. A missing ConfigMap is created again from the same revision; if that fails, the sweep waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from multistep.api.sweep.sweep import SweepTask, SweepTasksStatus, TrialSweep
from multistep.engine.sweep.trial_manifests import tasks_at
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import CONFIG_MAPS
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.reconcile.loading.fetch_tasks import SweepFetches
from multistep.reconcile.sweep.decision_records import MAX_BYTES, NAME_DIGITS, create_once
from multistep.sources.load.remote_tasks import Remote
from multistep.sources.task.bundle import digest_of
from multistep.sources.task.condition_reasons import DIGEST

_KEY: Final = "tasks"


@dataclass(frozen=True)
class SweepTasks:
    """Loads the tasks of sweeps. fetches: the sweeps' fetches, which share one concurrency limit with the trials' fetches."""

    cluster: Cluster
    remote: Remote
    fetches: SweepFetches

    async def load(self, sweep: TrialSweep) -> tuple[Sequence[SweepTask], SweepTasksStatus | None]:
        """Return the sweep's tasks, and the status of spec.tasksFrom (None without it). Raises InvalidSpec and SourceError."""
        source, pinned = sweep.spec.tasks_from, sweep.status.tasks_from
        if source is None:
            return sweep.spec.tasks, None
        if pinned is not None and (names := await self._kept(sweep, pinned)) is not None:
            return tasks_at(source, pinned.revision, names), pinned
        revision, names = await self.remote.tasks(sweep)
        text = "\n".join(names)
        if len(text.encode()) > MAX_BYTES:
            raise InvalidSpec(f"spec.tasksFrom: the list of {len(names)} tasks has more than {MAX_BYTES} bytes: use several sweeps")
        digest = digest_of(text.encode())
        if pinned is not None and digest != pinned.digest:
            raise SourceError(f"revision {revision} has other tasks than at the start of the sweep", reason=DIGEST)
        name = f"{sweep.metadata.name}-tasks-{digest.removeprefix('sha256:')[:NAME_DIGITS]}"
        await self._keep(sweep, name, text)
        return tasks_at(source, revision, names), SweepTasksStatus(
            revision=revision, count=len(names), config_map=name, digest=digest
        )

    def settle(self, key: Key) -> None:
        """Release the sweep's slot unless a fetch uses it. Call it at the end of each reconcile."""
        self.fetches.settle(key)

    async def _kept(self, sweep: TrialSweep, pinned: SweepTasksStatus) -> list[str] | None:
        try:
            found = await self.cluster.get(CONFIG_MAPS, sweep.metadata.namespace, pinned.config_map)
        except NotFound:
            return None
        text = (found.get("data") or {}).get(_KEY, "")
        if digest_of(text.encode()) != pinned.digest:
            raise SourceError(
                f"ConfigMap {pinned.config_map} does not have the tasks of the sweep's start: delete it", transient=True
            )
        return str(text).split("\n")

    async def _keep(self, sweep: TrialSweep, name: str, text: str) -> None:
        found = await create_once(self.cluster, sweep, name, {_KEY: text})
        if found.get("data") != {_KEY: text} or not found.get("immutable"):
            raise SourceError(f"ConfigMap {name} exists, but this sweep did not create it: delete it", transient=True)
