"""Creates, adopts and changes the trials of a sweep."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from prometheus_client import Counter

from multistep.api.common import labels
from multistep.api.sweep.sweep import TrialSweep
from multistep.engine.sweep.sweep_status import CreationError
from multistep.engine.sweep.trial_manifests import SweepPlan, owner_of, owner_reference, trial_manifest
from multistep.errors import AlreadyExists, ClusterError, Conflict, NotFound, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS
from multistep.reconcile.sweep.sweep_run import SweepRun

CHANGES_AT_ONCE: Final = 16  # maximum number of concurrent patches of trials' specs
NAME_TAKEN: Final = "NameTaken"
REFUSED: Final = "TrialRefused"


async def create_trials(
    run: SweepRun, plan: SweepPlan, numbers: Iterable[int], early: int, limited_models: Collection[str], created: Counter
) -> CreationError | None:
    """Create trials one after the other. Stop at the first trial that cannot be created, and return its error.

    Trials from the number ``early`` on are created before their turn, which means suspended with spec.prestart. ``limited_models``
    are the models whose number of active trials is limited. ``created`` is the metric of created trials.
    """
    for number in numbers:
        try:
            trial = await run.cluster.create(
                trial_manifest(run.sweep, plan, number, early=number >= early, limited_models=limited_models)
            )
            created.inc()
        except AlreadyExists:
            found = await run.cluster.get(TRIALS, run.sweep.metadata.namespace, plan.names[number])
            if (adopted := await _adopted(run, found)) is None:
                return CreationError(NAME_TAKEN, _name_taken(found, run.sweep))
            trial = adopted
        except (NotFound, Conflict, Unavailable):
            raise
        except ClusterError as error:  # rejected by a quota or policy, or because its spec is invalid
            return CreationError(REFUSED, str(error))
        run.entry.read(trial)
        run.entry.created = max(run.entry.created, number + 1)
    return None


async def _adopted(run: SweepRun, trial: Object) -> Object | None:
    """Return an existing trial with a planned name if it belongs to this sweep, else None.

    If the trial's owner reference names this sweep, but not as the controller, for example after a restore from a backup, correct
    the reference.
    """
    sweep, owner, metadata = run.sweep.metadata, owner_of(trial), trial["metadata"]
    if owner is not None:
        return trial if owner[1] == sweep.uid else None
    references = metadata.get("ownerReferences") or []
    if any(each.get("controller") for each in references) or all(each.get("uid") != sweep.uid for each in references):
        return None
    others = [each for each in references if each.get("uid") != sweep.uid]
    same = {"resourceVersion": metadata["resourceVersion"], "ownerReferences": [*others, owner_reference(run.sweep)]}
    return await run.cluster.patch(TRIALS, sweep.namespace, metadata["name"], {"metadata": same})


async def change_trials(
    run: SweepRun, plan: SweepPlan, numbers: Collection[int], spec: Mapping[str, Any], by: str | None = ""
) -> None:
    """Patch the specs of the trials with these numbers.

    ``by`` is the new value of the annotation labels.SUSPENDED_BY. None deletes the annotation, and "" does not change it.
    """
    metadata = {} if by == "" else {"annotations": {labels.SUSPENDED_BY: by}}
    gate = asyncio.Semaphore(CHANGES_AT_ONCE)

    async def change(name: str) -> None:
        async with gate:
            namespace = run.sweep.metadata.namespace
            run.entry.read(await run.cluster.patch(TRIALS, namespace, name, {"metadata": metadata, "spec": spec}))

    results = await asyncio.gather(*(change(plan.names[number]) for number in numbers), return_exceptions=True)
    for error in results:
        if isinstance(error, BaseException) and not isinstance(error, NotFound):
            raise error


def _name_taken(trial: Object, sweep: TrialSweep) -> str:
    """Return a message for a user that another trial already has the name of a trial to create, and how to remove or adopt it.

    Such a trial remains, for example, after ``kubectl delete --cascade=orphan``.
    """
    name, namespace, controlled = trial["metadata"]["name"], sweep.metadata.namespace, trial["metadata"].get("ownerReferences")
    text = f"trial {name} exists, but this sweep did not create it. Delete it, so that the sweep can create its own: "
    text += f"kubectl -n {namespace} delete multisteptrials -l {labels.SWEEP}={sweep.metadata.name}"
    if controlled:
        return text
    patch = json.dumps({"metadata": {"ownerReferences": [owner_reference(sweep)]}}, separators=(",", ":"))
    return f"{text}; or adopt it with its result: kubectl -n {namespace} patch multisteptrial {name} --type=merge -p '{patch}'"
