"""Reads the source of a sweep that regrades another one: whether the source has finished, and which of its retries count."""

from __future__ import annotations

from contextlib import suppress

from multistep.api.common.labels import AGENT, ATTEMPT, BRANCH, RETRY_OF, SWEEP, TASK
from multistep.api.sweep.sweep import TrialSweep, parse_scoring, parse_sweep_status
from multistep.api.trial.conditions import is_finished
from multistep.engine.score.score_in_sweep import counted_score
from multistep.engine.sweep.next_trials import Grid
from multistep.engine.sweep.retries import current
from multistep.engine.sweep.trial_manifests import Plan, RegradedSweep, facts, number_of, retry_of
from multistep.errors import NotFound
from multistep.kube.cluster_protocols import Cluster, Object
from multistep.kube.resources import SWEEPS, TRIALS
from multistep.reconcile.sweep.decision_records import members
from multistep.reconcile.trial.source_checkpoints import GRACE_SECONDS


async def unfinished_source(cluster: Cluster, sweep: TrialSweep, now: float) -> str:
    """Return why the sweep must wait for its source, "" if it need not. An existing source must have finished, because trials that
    it creates later would not be regraded. A missing source is awaited only for a short time: it may be deleted, and the results of
    its trials may still exist. now: seconds since the epoch."""
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


async def regraded_sweep(cluster: Cluster, sweep: TrialSweep, plan: Plan) -> RegradedSweep:
    """Return the source's UID and its retries that count, by the number of the trial that each retry replaces. Both are unset if
    the sweep is not a regrade. If the source does not exist, or another sweep has its name since the regrade started, no retry
    counts, and the UID is the one in the status."""
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
    async for each in cluster.each(TRIALS, namespace, label_selector=f"{SWEEP}={regrade.sweep},{RETRY_OF}"):
        if (number := _number_in(plan.grid, each)) is not None:
            found.append((number, each))
    for number in sorted({number for number, _ in found}):
        with suppress(NotFound):
            found.append((number, await cluster.get(TRIALS, namespace, plan.grid.trial_name(regrade.sweep, number))))
    its, scoring = await members(cluster, source), parse_scoring(source)
    own = [(number, number_of(each), each) for number, each in found if its.has(each)]
    chosen = current(own, lambda each: counted_score(facts(each, scoring), scoring) is not None)
    counting = {number: each["metadata"]["name"] for number, each in chosen.items() if retry_of(each) is not None}
    return RegradedSweep(its.uid, counting)


def _number_in(grid: Grid, trial: Object) -> int | None:
    """Return the number that a trial's task, agent and attempt have in the regrade, because the source may have another order.
    None for a branch, and if the regrade has no such trial. Users can change annotations and labels, so they may be invalid."""
    metadata = trial["metadata"]
    task, agent, attempt = ((metadata.get("annotations") or {}).get(each, "") for each in (TASK, AGENT, ATTEMPT))
    if BRANCH in metadata["labels"] or task not in grid.tasks or agent not in grid.agents:
        return None
    attempts = [str(each) for each in range(1, grid.attempts + 1)]
    return grid.number(grid.tasks.index(task), grid.agents.index(agent), int(attempt)) if attempt in attempts else None
