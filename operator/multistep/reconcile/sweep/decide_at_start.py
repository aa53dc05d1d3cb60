"""Makes the decisions that a sweep makes once: its tasks, the sweep that it regrades, and the checkpoints for its branches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from multistep.api.common import labels
from multistep.api.common.labels import AGENT, ATTEMPT, BRANCH, RETRY_OF, SWEEP, TASK
from multistep.api.sweep.sweep import (
    SweepBranchesStatus,
    SweepTask,
    SweepTasksStatus,
    TrialSweep,
    parse_scoring,
    parse_sweep_status,
)
from multistep.api.trial.status import is_finished
from multistep.api.trial.values import DIGEST
from multistep.engine.score.score_in_sweep import counted_score
from multistep.engine.sweep.next_trials import trials_that_count
from multistep.engine.sweep.own_trials import SweepMembers
from multistep.engine.sweep.plan_branches import StepCheckpoints, parse_record, record_text, states_of, step_checkpoints
from multistep.engine.sweep.sweep_status import branches_planned
from multistep.engine.sweep.trial_grid import TrialGrid
from multistep.engine.sweep.trial_manifests import (
    RegradedSweep,
    SweepPlan,
    number_of,
    owner_of,
    retry_of,
    tasks_at,
    trial_facts,
    with_branches,
)
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import CONFIG_MAPS, SWEEPS, TRIALS
from multistep.reconcile.loading.load_tasks import SweepFetches
from multistep.reconcile.sweep.decision_records import MAX_BYTES, NAME_DIGITS, create_once, members
from multistep.reconcile.trial.source_checkpoints import GRACE_SECONDS
from multistep.sources.load.remote_tasks import RemoteTasks
from multistep.sources.task.bundle import digest_of

_BRANCHES_KEY: Final = "states"


async def load_branches(cluster: Cluster, sweep: TrialSweep, plan: SweepPlan) -> tuple[SweepPlan, SweepBranchesStatus]:
    """Return the plan with the sweep's branches, and their status. The ordinary trials must have finished.

    Raises InvalidSpec if there are too many steps or branches, and SourceError if the ConfigMap with the record of the checkpoints
    is not the one that the status names.
    """
    name = f"{sweep.metadata.name}-branches-{hashlib.sha256(sweep.metadata.uid.encode()).hexdigest()[:NAME_DIGITS]}"
    try:
        found = await cluster.get(CONFIG_MAPS, sweep.metadata.namespace, name)
    except NotFound:
        found = await create_once(cluster, sweep, name, {_BRANCHES_KEY: await _record(cluster, sweep, plan)})
    text = str((found.get("data") or {}).get(_BRANCHES_KEY, ""))
    owner, digest, known = owner_of(found), digest_of(text.encode()), sweep.status.branches
    if not found.get("immutable") or owner is None or owner[1] != sweep.metadata.uid:
        raise SourceError(f"spec.branch: ConfigMap {name} exists, but this sweep did not create it: delete it", transient=True)
    if known is not None and known.digest != digest:
        raise SourceError(f"spec.branch: ConfigMap {name} does not have the branches that were planned: delete it", transient=True)
    try:
        states = parse_record(text, plan.grid)
    except ValueError as error:
        raise SourceError(f"spec.branch: ConfigMap {name} is damaged: delete it: {error}", transient=True) from None
    return with_branches(sweep, plan, states), branches_planned(plan, states, name, digest)


async def _record(cluster: Cluster, sweep: TrialSweep, plan: SweepPlan) -> str:
    """Return the record of the ordinary trials' checkpoints. Raises SourceError if one of these trials is active."""
    checkpoints: dict[int, StepCheckpoints] = {}
    metadata, known, own = sweep.metadata, sweep.status.branches, SweepMembers(sweep.metadata.uid, plan.names)
    async for each in cluster.iterate(TRIALS, metadata.namespace, label_selector=f"{labels.SWEEP}={metadata.name}"):
        if own.has(each):
            if trial_facts(each, sweep.spec.scoring).state == "Active":  # the cache is outdated, as a watch event was missed
                raise SourceError(f"spec.branch: trial {each['metadata']['name']} has not finished", transient=True)
            checkpoints[number_of(each)] = step_checkpoints(each)
    text = record_text(states_of(plan.grid, checkpoints))
    if len(text.encode()) > MAX_BYTES:
        raise InvalidSpec(f"spec.branch: the record of the steps has more than {MAX_BYTES} bytes: use several sweeps")
    if known is not None and known.digest != digest_of(text.encode()):
        raise SourceError("spec.branch: the record of the planned branches was deleted, and trials changed since", transient=True)
    return text


async def unfinished_source(cluster: Cluster, sweep: TrialSweep, now: float) -> str:
    """Return why the sweep must wait for the sweep that it regrades, its source; "" if it need not wait.

    An existing source must have finished, because trials that it creates later would not be regraded. The sweep waits only for a
    short time for a source that does not exist, because it may be deleted while the results of its trials still exist. ``now`` is
    in seconds since the epoch.
    """
    regrade, metadata = sweep.spec.regrade, sweep.metadata
    if regrade is None or regrade.sweep == metadata.name:
        return ""
    try:
        found = await cluster.get(SWEEPS, metadata.namespace, regrade.sweep)
    except NotFound:
        created = metadata.creation_timestamp
        young = created is not None and now - created.timestamp() < GRACE_SECONDS
        return f"spec.regrade.sweep: sweep {regrade.sweep} does not exist" if young else ""
    return "" if is_finished(parse_sweep_status(found)) else f"sweep {regrade.sweep} is to be regraded and is not finished"


async def regraded_sweep(cluster: Cluster, sweep: TrialSweep, plan: SweepPlan) -> RegradedSweep:
    """Return the UID of the regraded sweep, the source, and its retries that count, by the number of the trial that they replace.

    Both are unset if the sweep regrades no other sweep. If the source does not exist, or another sweep has got its name since the
    regrade started, no retry counts, and the UID is the one in the status.
    """
    regrade, namespace, known = sweep.spec.regrade, sweep.metadata.namespace, sweep.status.source_uid
    if regrade is None:
        return RegradedSweep()
    try:
        source = await cluster.get(SWEEPS, namespace, regrade.sweep)
    except NotFound:
        return RegradedSweep(known)
    if known not in (None, source["metadata"]["uid"]):
        return RegradedSweep(known)
    found = list[tuple[int, Object]]()
    async for each in cluster.iterate(TRIALS, namespace, label_selector=f"{SWEEP}={regrade.sweep},{RETRY_OF}"):
        if (number := _number_in(plan.grid, each)) is not None:
            found.append((number, each))
    for number in sorted({number for number, _ in found}):
        with suppress(NotFound):
            found.append((number, await cluster.get(TRIALS, namespace, plan.grid.trial_name(regrade.sweep, number))))
    its, scoring = await members(cluster, source), parse_scoring(source)
    own = [(number, number_of(each), each) for number, each in found if its.has(each)]
    chosen = trials_that_count(own, lambda each: counted_score(trial_facts(each, scoring), scoring) is not None)
    counting = {number: each["metadata"]["name"] for number, each in chosen.items() if retry_of(each) is not None}
    return RegradedSweep(its.uid, counting)


def _number_in(grid: TrialGrid, trial: Object) -> int | None:
    """Return the number in the regrade of a trial with this task, agent and attempt. The source may have another order of trials.

    Return None for a branch, and if the regrade has no such trial. Users can change annotations and labels, so they may be invalid.
    """
    metadata = trial["metadata"]
    task, agent, attempt = ((metadata.get("annotations") or {}).get(each, "") for each in (TASK, AGENT, ATTEMPT))
    if BRANCH in metadata["labels"] or task not in grid.tasks or agent not in grid.agents:
        return None
    attempts = [str(each) for each in range(1, grid.attempts + 1)]
    return grid.number(grid.tasks.index(task), grid.agents.index(agent), int(attempt)) if attempt in attempts else None


_TASKS_KEY: Final = "tasks"


@dataclass(frozen=True)
class SweepTasks:
    """Loads the tasks of sweeps."""

    cluster: Cluster
    remote: RemoteTasks
    fetches: SweepFetches
    """The fetches of sweeps, which share one concurrency limit with the fetches of trials."""

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

    async def _kept(self, sweep: TrialSweep, pinned: SweepTasksStatus) -> list[str] | None:
        try:
            found = await self.cluster.get(CONFIG_MAPS, sweep.metadata.namespace, pinned.config_map)
        except NotFound:
            return None
        text = (found.get("data") or {}).get(_TASKS_KEY, "")
        if digest_of(text.encode()) != pinned.digest:
            raise SourceError(
                f"ConfigMap {pinned.config_map} does not have the tasks of the sweep's start: delete it", transient=True
            )
        return str(text).split("\n")

    async def _keep(self, sweep: TrialSweep, name: str, text: str) -> None:
        found = await create_once(self.cluster, sweep, name, {_TASKS_KEY: text})
        if found.get("data") != {_TASKS_KEY: text} or not found.get("immutable"):
            raise SourceError(f"ConfigMap {name} exists, but this sweep did not create it: delete it", transient=True)
