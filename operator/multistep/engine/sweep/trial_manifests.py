"""Builds the manifests of a sweep's trials, and reads from the trials the facts that the sweep needs. All functions are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION, GROUP
from multistep.api.sweep.sweep import MAX_TRIALS, SWEEP_KIND, Scoring, SweepSpec, SweepTask, TrialSweep, check_overrides
from multistep.api.sweep.tasks_source import DatasetSource, TasksSource
from multistep.api.task.allowed_names import same_server
from multistep.api.trial.status import AttemptStatus, StepStatus, TrialStatus, holds
from multistep.api.trial.trial import KIND, parse_status
from multistep.api.trial.values import FINISHED_PHASES
from multistep.engine.lifecycle.stop_and_suspend import SWEEP_BUDGET_SPENT
from multistep.engine.score.score_in_sweep import State, has_agent_error, scored
from multistep.engine.score.usage_totals import usages
from multistep.engine.status.tampering_findings import evidence
from multistep.engine.sweep import plan_branches
from multistep.engine.sweep.next_trials import ActivePhase, TrialFacts
from multistep.engine.sweep.plan_branches import States
from multistep.engine.sweep.trial_grid import TrialCell, TrialGrid, retries_of
from multistep.errors import InvalidSpec

Object = Mapping[str, Any]
_COULD_COST: Final = re.compile(r" US dollars are .*?, and it may use (\d+(?:\.\d+)?(?:e-?\d+)?)")
_ACTIVE_PHASES: Final[Mapping[str, ActivePhase]] = {"Running": "Running", "Suspended": "Suspended"}


@dataclass(frozen=True)
class RegradedSweep:
    """The sweep whose trials another sweep regrades."""

    uid: str | None = None
    """The sweep's UID, None if the sweep does not exist."""
    counting: Mapping[int, str] = field(default_factory=dict)
    """Names of the sweep's retries that count, by the number of the trial that regrades them."""


@dataclass(frozen=True)
class SweepPlan:
    """Everything from which the manifests of a sweep's trials are built."""

    spec: SweepSpec
    grid: TrialGrid
    sources: Sequence[Mapping[str, Any]]
    """The trials' spec.task, by task index."""
    names: Sequence[str]
    """The trials' names, by trial number."""
    source: RegradedSweep = field(default_factory=RegradedSweep)
    """The sweep that this sweep regrades."""


def plan_sweep(sweep: TrialSweep, tasks: Sequence[SweepTask]) -> SweepPlan:
    """Return the plan of a sweep. Raises InvalidSpec.

    ``tasks`` is spec.tasks, or the tasks to which spec.tasksFrom was resolved.
    """
    spec = sweep.spec
    plan_branches = None if spec.branch else ()
    grid = TrialGrid([task.name for task in tasks], [agent.name for agent in spec.agents], spec.attempts, spec.order, plan_branches)
    grid = grid if spec.branch else replace(grid, retries=retries_of(spec.retries, grid.total))
    text = f"{len(grid.tasks)} tasks, {len(grid.agents)} agents and spec.attempts = {grid.attempts}"
    _refuse_many(f"spec: {text}", grid.total)
    try:
        check_overrides(spec.overrides, grid.tasks)
    except ValueError as error:
        raise InvalidSpec(f"spec.{error}") from None
    return SweepPlan(
        spec,
        grid,
        [task.model_dump(**_AS_WRITTEN, exclude={"environment"}) for task in tasks],
        [grid.trial_name(sweep.metadata.name, number) for number in range(len(grid))],
    )


def with_branches(sweep: TrialSweep, plan: SweepPlan, states: States) -> SweepPlan:
    """Return the plan with the branches. ``states`` has the checkpoints of the ordinary trials. Raises InvalidSpec."""
    branch = plan.spec.branch
    assert branch is not None
    more = plan_branches.count_branches(plan.grid, branch, states)
    _refuse_many(f"spec.branch: {plan.grid.ordinary} ordinary trials and {more} branches", plan.grid.ordinary + more)
    grid = replace(plan.grid, branches=plan_branches.cells_of(plan.grid, branch, states))
    grid = replace(grid, retries=retries_of(plan.spec.retries, grid.total))
    names = [grid.trial_name(sweep.metadata.name, number) for number in range(grid.ordinary, len(grid))]
    return replace(plan, grid=grid, names=[*plan.names, *names])


def _refuse_many(what: str, trials: int) -> None:
    if trials > MAX_TRIALS:
        raise InvalidSpec(f"{what} are {trials} trials; a sweep may have {MAX_TRIALS}; split it into several sweeps")


def tasks_at(source: TasksSource, revision: str, names: Sequence[str]) -> list[SweepTask]:
    """Return the tasks of a source, pinned to a revision, so that later changes of the branch or tag have no effect.

    ``names`` are the names of the task directories. For a dataset, they are JSON arrays of name, repository, commit and directory.
    """
    if source.dataset is not None:
        return [_dataset_task(source.dataset, *json.loads(name)) for name in names]
    ((kind, place),) = pinned_source(source.model_dump(**_AS_WRITTEN), revision).items()
    root = place.get("path", "").strip("/")
    return [SweepTask.model_validate({"name": name, kind: {**place, "path": f"{root}/{name}".lstrip("/")}}) for name in names]


def pinned_source(source: Object, revision: str) -> dict[str, Any]:
    """Return a source of tasks, as written in the spec, with the revision in place of its branch or tag."""
    ((kind, place),) = source.items()
    if kind == "git":
        return {kind: {**place, "ref": revision}}
    if kind == "oci":
        host, slash, name = place["image"].partition("@")[0].rpartition("/")
        return {kind: {**place, "image": f"{host}{slash}{name.partition(':')[0]}@{revision}"}}
    return {kind: dict(place)}


def _dataset_task(dataset: DatasetSource, name: str, url: str, commit: str, path: str) -> SweepTask:
    git: dict[str, Any] = {"url": url, "ref": commit, "path": path}
    if dataset.secret_ref is not None and same_server(dataset.registry, url):
        git["secretRef"] = {"name": dataset.secret_ref.name}
    return SweepTask.model_validate({"name": name, "git": git})


_AS_WRITTEN: Final[dict[str, Any]] = {"mode": "json", "by_alias": True, "exclude_unset": True}


def trial_manifest(
    sweep: TrialSweep, plan: SweepPlan, number: int, *, early: bool = False, limited_models: Container[str] = ()
) -> dict[str, Any]:
    """Return the manifest of the trial with this number.

    Args:
        early: Whether to create the trial suspended, with spec.prestart.
        limited_models: Models whose number of active trials is limited. Their trials are not prestarted, because a trial with a pod
            counts as active, so suspended trials could use up a model's limit.
    """
    cell, template, owner = plan.grid.cell(number), plan.spec.template, sweep.metadata
    task, agent = plan.grid.tasks[cell.task], plan.spec.agents[cell.agent]
    annotations = {labels.TASK: task, labels.AGENT: agent.name, labels.ATTEMPT: str(cell.attempt)}
    if cell.branch is not None:
        annotations[labels.STEP] = cell.branch.step
    if early:
        annotations[labels.SUSPENDED_BY] = owner.name
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": plan.names[number],
            "namespace": owner.namespace,
            "labels": {**template.metadata.labels, **_labels(sweep, plan, number)},
            "annotations": {**template.metadata.annotations, **annotations},
            "ownerReferences": [owner_reference(sweep)],
        },
        "spec": {
            "task": plan.sources[cell.task],
            "agent": agent.agent.model_dump(**_AS_WRITTEN),
            **_started(plan, cell, _merged_spec(plan.spec, cell.task, task, agent.name)),
            **_regrade(plan, number),
            **_scoring(plan.spec.scoring),
            **({"suspend": True, "prestart": agent.agent.model not in limited_models} if early else {}),
        },
    }


def _labels(sweep: TrialSweep, plan: SweepPlan, number: int) -> dict[str, str]:
    owner, cell = sweep.metadata, plan.grid.cell(number)
    trial_labels = {labels.SWEEP: owner.name, labels.NUMBER: str(number)}
    if (shard := owner.labels.get(labels.SHARD)) is not None:
        trial_labels[labels.SHARD] = shard
    if cell.branch is not None:
        trial_labels[labels.BRANCH] = cell.branch.state
    if cell.retry:
        trial_labels[labels.RETRY_OF] = str(plan.grid.sweep_number(number))
    return trial_labels


def _regrade(plan: SweepPlan, number: int) -> dict[str, Any]:
    """Return the spec field ``regrade`` of a trial, {} if the sweep regrades no other sweep.

    The trial regrades the other sweep's trial that counts for the same number.
    """
    source, sweep_number = plan.spec.regrade, plan.grid.sweep_number(number)
    if source is None:
        return {}
    name = plan.source.counting.get(sweep_number) or plan.grid.trial_name(source.sweep, sweep_number)
    return {"regrade": {"trial": name, **({"sweepUID": plan.source.uid} if plan.source.uid else {})}}


def _scoring(scoring: Scoring) -> dict[str, Any]:
    """Return the spec field ``scoring`` of a trial; {} if the sweep changes nothing for exceptions."""
    changes = scoring.model_dump(**_AS_WRITTEN, include={"override_error_policy"})
    return {"scoring": changes} if any(changes.values()) else {}


def _started(plan: SweepPlan, cell: TrialCell, merged: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trial's spec, which is ``merged`` with the fields that branches need.

    A branch gets the state from which it starts. An ordinary trial of a sweep with branches gets the setting to store checkpoints,
    from which branches start.
    """
    branch = cell.branch
    if branch is None:
        kept = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}}
        return _merged(merged, kept) if plan.spec.branch else merged
    ends = {} if branch.alone else {"toStep": branch.step}
    if branch.state == "Own":
        source = plan.names[plan.grid.number(cell.task, cell.agent, branch.source)]
        return {**merged, "from": {"trial": source, "step": branch.after}, **ends}
    return {**merged, **({"fromStep": branch.step} if branch.state == "Reference" else {}), **ends}


def _merged_spec(spec: SweepSpec, index: int, task: str, agent: str) -> dict[str, Any]:
    """Return the spec merged from the template, the task's environment and the matching overrides. Later values take precedence."""
    layers: list[Object] = [spec.template.spec.model_dump(**_AS_WRITTEN)]
    if spec.tasks:
        layers.append(spec.tasks[index].model_dump(**_AS_WRITTEN, include={"environment"}))
    for override in spec.overrides:
        if (not override.tasks or task in override.tasks) and (not override.agents or agent in override.agents):
            layers.append(override.spec.model_dump(**_AS_WRITTEN))
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = _merged(merged, layer)
    return merged


def _merged(base: Object, override: Object) -> dict[str, Any]:
    """Return ``base`` with the values of ``override``. Tables are merged field by field. Other values, also lists, are replaced."""
    both = {
        key: _merged(base[key], value) if isinstance(value, Mapping) and isinstance(base.get(key), Mapping) else value
        for key, value in override.items()
    }
    return {**base, **both}


def owner_reference(sweep: TrialSweep) -> dict[str, Any]:
    """Return the owner reference that makes Kubernetes delete an object after its sweep was deleted."""
    owner = sweep.metadata
    return {"apiVersion": API_VERSION, "kind": SWEEP_KIND, "name": owner.name, "uid": owner.uid, "controller": True}


def owner_of(trial: Object) -> tuple[str, str] | None:
    """Return name and UID of the sweep that owns a trial, None if no sweep owns it."""
    return owning_sweep(trial["metadata"].get("ownerReferences") or [])


def owning_sweep(references: Iterable[Object]) -> tuple[str, str] | None:
    """Return name and UID of the sweep among a trial's owner references, None if there is none."""
    for owner in references:
        if owner.get("controller") and owner.get("kind") == SWEEP_KIND and str(owner.get("apiVersion", "")).startswith(f"{GROUP}/"):
            return owner["name"], owner["uid"]
    return None


def number_of(trial: Object) -> int:
    """Return the trial's number in its sweep, -1 without one. It is read from a label, which users can change."""
    number = (trial["metadata"].get("labels") or {}).get(labels.NUMBER, "")
    return int(number) if number.isdecimal() else -1


def retry_of(trial: Object) -> int | None:
    """Return the number of the trial that a retry repeats, None if the trial is no retry."""
    number = (trial["metadata"].get("labels") or {}).get(labels.RETRY_OF, "")
    return int(number) if number.isdecimal() else None


def trial_facts(trial: Object, scoring: Scoring | None = None) -> TrialFacts:
    """Return the facts of a trial that a sweep needs. ``scoring`` is the sweep's spec.scoring.

    The API server checks the CRD's schema, but a user may have written a status that the schema allows and the operator never
    writes. Such a status has no score.
    """
    try:
        return facts_of(trial, parse_status(trial), scoring or Scoring())
    except (InvalidSpec, ValueError, TypeError, LookupError, AttributeError, OverflowError):
        finished = str((trial.get("status") or {}).get("phase")) in FINISHED_PHASES
        return TrialFacts(number=number_of(trial), state="Failed" if finished else "Active", invalid=True)


def facts_of(trial: Object, status: TrialStatus, scoring: Scoring) -> TrialFacts:
    """Return the facts of a trial with this parsed status."""
    metadata, spec = trial["metadata"], trial.get("spec") or {}
    state, score, costs = _state(status), scored(status, scoring), _costs(status)
    refusals = [(at, _refused_usd(attempt)) for attempt in status.attempts if (at := _refused_at(attempt)) is not None]
    at, usd = max(refusals, key=lambda record: record[0], default=(None, None))
    worked = sum(_seconds(_first_start(attempt.own_steps), attempt.completion_time) for attempt in status.attempts)
    since = _first_start(status.steps[status.kept_steps :])
    if state != "Active":
        worked, since = worked + _seconds(since, status.completion_time), None
    return TrialFacts(
        number=number_of(trial),
        state=state,
        score=score.score,
        passed=score.passed,
        invalid=score.invalid,
        failure_class=status.failure.class_ if status.failure else None,
        agent_error=has_agent_error(status, scoring.override_error_policy),
        tolerated=_tolerated(status, scoring),
        tampered=bool(evidence(finding.kind for finding in status.tampering)),
        pod_seconds=worked,
        since=since.timestamp() if since else None,
        phase=_ACTIVE_PHASES.get(status.phase or "", "Pending"),
        suspend=bool(spec.get("suspend")),
        by_sweep=labels.SUSPENDED_BY in (metadata.get("annotations") or {}),
        stop=bool(spec.get("stop")),
        cost_usd=_known_cost(costs),
        unpriced=None in costs,
        refused_at=at,
        refused_usd=usd,
    )


def _known_cost(costs: Sequence[float | None]) -> float | None:
    return sum(filter(None, costs)) if any(cost is not None for cost in costs) else None


def _costs(status: TrialStatus) -> list[float | None]:
    """Return the costs of the model requests of all attempts, None for requests of unknown cost.

    The last attempt's cost (status.usage) includes the agent's setup.
    """
    known = status.usage is not None and status.usage.cost_usd is not None
    return [usage.cost_usd for usage in usages(status, whole=known)]


def _refused_at(attempt: AttemptStatus) -> float | None:
    """Return the start of the step in which the sweep's budget refused a request, None if it refused none.

    Return the attempt's end if the budget refused a request of the agent's setup, or if the status has no steps because it was too
    large.
    """
    if attempt.reason != SWEEP_BUDGET_SPENT:
        return None
    started = attempt.own_steps[-1].start_time if attempt.own_steps else None
    at = started or attempt.completion_time
    return at.timestamp() if at else None


def _refused_usd(attempt: AttemptStatus) -> float | None:
    """Return the most that the refused request could have cost, from the gateway's message, None if the message has no such
    number."""
    match = _COULD_COST.search(attempt.message or "")
    return None if match is None else float(match[1])


def _tolerated(status: TrialStatus, scoring: Scoring) -> bool:
    change = scoring.override_error_policy.get(status.failure.reason) if status.failure else None
    return change is not None and change.valid is True


def _state(status: TrialStatus) -> State:
    return "Complete" if holds(status, "Complete") else "Failed" if holds(status, "Failed") else "Active"


def _first_start(steps: Sequence[StepStatus]) -> datetime | None:
    """Return the start of the first step, None without steps. A status that was too large has no steps."""
    return steps[0].start_time if steps else None


def _seconds(since: datetime | None, end: datetime | None) -> float:
    return max(0.0, (end - since).total_seconds()) if since and end else 0.0
