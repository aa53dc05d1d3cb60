"""Records the checkpoints of a sweep's ordinary trials when all of these have finished: the sweep's branches start from them.

An immutable ConfigMap owned by the sweep has the record, and the status has the record's digest. The first ConfigMap counts: its
name does not depend on its content, so neither a restarted operator nor a former leader creates a second one. If it is deleted, the
operator creates it again from the trials; if these have changed meanwhile, the sweep waits.
"""

from __future__ import annotations

import hashlib
from typing import Final

from multistep.api.common import labels
from multistep.api.sweep.branch import SweepBranchesStatus
from multistep.api.sweep.sweep import TrialSweep
from multistep.engine.sweep.own_trials import Members
from multistep.engine.sweep.plan_branches import StepCheckpoints, from_text, states_of, step_checkpoints, to_text
from multistep.engine.sweep.sweep_status import branches_planned
from multistep.engine.sweep.trial_manifests import Plan, facts, number_of, owner_of, with_branches
from multistep.errors import InvalidSpec, NotFound, SourceError
from multistep.kube.cluster_protocols import Cluster
from multistep.kube.resources import CONFIG_MAPS, TRIALS
from multistep.reconcile.sweep.decision_records import MAX_BYTES, NAME_DIGITS, create_once
from multistep.sources.task.bundle import digest_of

_KEY: Final = "states"


async def load_branches(cluster: Cluster, sweep: TrialSweep, plan: Plan) -> tuple[Plan, SweepBranchesStatus]:
    """Return the plan with the sweep's branches, and their status. The ordinary trials must have finished.

    Raises InvalidSpec if there are too many steps or branches, SourceError if the ConfigMap with the checkpoints is not the
    one that the status names.
    """
    name = f"{sweep.metadata.name}-branches-{hashlib.sha256(sweep.metadata.uid.encode()).hexdigest()[:NAME_DIGITS]}"
    try:
        found = await cluster.get(CONFIG_MAPS, sweep.metadata.namespace, name)
    except NotFound:
        found = await create_once(cluster, sweep, name, {_KEY: await _record(cluster, sweep, plan)})
    text = str((found.get("data") or {}).get(_KEY, ""))
    owner, digest, known = owner_of(found), digest_of(text.encode()), sweep.status.branches
    if not found.get("immutable") or owner is None or owner[1] != sweep.metadata.uid:
        raise SourceError(f"spec.branch: ConfigMap {name} exists, but this sweep did not create it: delete it", transient=True)
    if known is not None and known.digest != digest:
        raise SourceError(f"spec.branch: ConfigMap {name} does not have the branches that were planned: delete it", transient=True)
    try:
        states = from_text(text, plan.grid)
    except ValueError as error:
        raise SourceError(f"spec.branch: ConfigMap {name} is damaged: delete it: {error}", transient=True) from None
    return with_branches(sweep, plan, states), branches_planned(plan, states, name, digest)


async def _record(cluster: Cluster, sweep: TrialSweep, plan: Plan) -> str:
    """Return the record, computed from the ordinary trials. Raises SourceError if one of them is active."""
    checkpoints: dict[int, StepCheckpoints] = {}
    metadata, known, own = sweep.metadata, sweep.status.branches, Members(sweep.metadata.uid, plan.names)
    async for each in cluster.each(TRIALS, metadata.namespace, label_selector=f"{labels.SWEEP}={metadata.name}"):
        if own.has(each):
            if facts(each, sweep.spec.scoring).state == "Active":  # the cache is outdated: a watch event was missed
                raise SourceError(f"spec.branch: trial {each['metadata']['name']} has not finished", transient=True)
            checkpoints[number_of(each)] = step_checkpoints(each)
    text = to_text(states_of(plan.grid, checkpoints))
    if len(text.encode()) > MAX_BYTES:
        raise InvalidSpec(f"spec.branch: the record of the steps has more than {MAX_BYTES} bytes: use several sweeps")
    if known is not None and known.digest != digest_of(text.encode()):
        raise SourceError("spec.branch: the record of the planned branches was deleted, and trials changed since", transient=True)
    return text
