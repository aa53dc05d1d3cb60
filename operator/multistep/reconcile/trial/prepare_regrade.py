"""Finds the source of a regrade, which is the trial that is verified again, and copies its checkpoints.

This happens before the regrade's first attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from multistep.api.trial.failure_table import REGRADE_IMPOSSIBLE
from multistep.api.trial.regrade import RegradeSpec, RegradeStatus, SourceAgent, SourceStep
from multistep.api.trial.status import ExceptionStatus, StepStatus, TrialFailure, TrialStatus, holds
from multistep.api.trial.trial import parse_status
from multistep.engine.lifecycle.decisions import Wait
from multistep.engine.plan.plan import TrialPlan
from multistep.engine.score.trial_score import Score, outcome
from multistep.engine.script.regrade_script import is_verified, source_exception, unfit_steps
from multistep.engine.status import trial_status
from multistep.engine.sweep.trial_manifests import owner_of
from multistep.errors import CheckpointLost
from multistep.reconcile.trial import source_checkpoints
from multistep.reconcile.trial.source_checkpoints import GRACE_SECONDS, SOURCE_ACTIVE, SOURCE_SECONDS, SourceTrial, SourceTrials
from multistep.reconcile.trial.trial_run import Continue, Result, TrialRun
from multistep.store.checkpoints.checkpoint_files import ADOPTED
from multistep.store.checkpoints.checkpoint_store import Checkpoints
from multistep.store.evidence.statement import PredicateStep
from multistep.store.files.trial_key import TrialKey

_HINT: Final = "only a trial that ran with `checkpoints: {policy: AfterStep, keep: WithResults}` can be regraded"

# Fields of a step from which a sweep's scoring computes the score.
_VERDICT: Final = ("name", "trial", "exception", "rewards", "omitted_rewards", "score", "passed", "gate")


async def prepare_regrade(run: TrialRun, plan: TrialPlan, sources: SourceTrials, checkpoints: Checkpoints) -> Result | None:
    """Find the trial to regrade and copy its checkpoints. Return None once the first attempt can start, or if this is no regrade.

    The source's UID is written to the status before its checkpoints are copied, so that a crash in between never mixes the
    checkpoints of two trials of the same name.
    """
    regrade, source = run.trial.spec.regrade, run.trial.status.regraded
    if regrade is None:
        return None
    if source is None:
        return await _find_source(run, plan, regrade, sources)
    try:
        await _copy_checkpoints(run, plan, source, sources, checkpoints)
    except CheckpointLost as error:
        return await _refuse(run, f"{error}; {_HINT}", TrialStatus())
    return None


async def _find_source(run: TrialRun, plan: TrialPlan, regrade: RegradeSpec, sources: SourceTrials) -> Result:
    name, sweep = regrade.trial, regrade.sweep_uid
    source = await sources.find(run.trial.metadata.namespace, name)
    if source is None:
        why = "does not exist, and there are no kept results with evidence of exactly one deleted trial of this name"
        created = run.trial.metadata.creation_timestamp
        if created is not None and run.clock() - created.timestamp() < GRACE_SECONDS:
            return Wait(SOURCE_ACTIVE, f"trial {name} {why}", seconds=SOURCE_SECONDS)
        return await _refuse(run, f"trial {name} {why}", TrialStatus())
    if sweep is not None and _sweep_of(source) not in (None, sweep):
        why = f"trial {name} is not of the sweep to regrade, which has the UID {sweep} (spec.regrade.sweepUID)"
        return await _refuse(run, why, TrialStatus())
    former = _status(source)
    if source.key.uid == run.trial.metadata.uid:
        return await _refuse(run, "a trial cannot regrade itself", TrialStatus())
    if not source.finished:
        return Wait(SOURCE_ACTIVE, f"trial {name} is to be regraded and is not finished", seconds=SOURCE_SECONDS)
    regraded = _facts(source, former)
    if why := await _unfit(plan, source, former, regraded, sources):
        return await _refuse(run, why, former)
    # The source's findings apply to the regrade too, because its checkpoints contain the same files.
    changes: dict[str, Any] = {"regraded": regraded, "tampering": former.tampering}
    if source.found is not None and source.found["spec"].get("task") == run.object["spec"].get("task"):
        changes["task_source"] = former.task_source  # the source's revision, even if the Git branch has moved since
    await run.write(run.trial.status.model_copy(update=changes))
    return Continue()


async def _unfit(plan: TrialPlan, source: SourceTrial, former: TrialStatus, regraded: RegradeStatus, sources: SourceTrials) -> str:
    """Return why a finished trial cannot be regraded, "" if it can."""
    if of := _source_of(source):
        return f"trial {regraded.trial} is itself a regrade, of trial {of}: regrade that one"
    if (failed := holds(former, "Failed")) is not None:
        return f"trial {regraded.trial} is Failed ({failed.reason}), so there is no result to regrade"
    if source.evidence is not None and source.evidence.outcome == "Failed":
        return f"trial {regraded.trial} is Failed, so there is no result to regrade"
    if why := next(unfit_steps(plan, regraded), ""):
        return why
    failure, left = former.failure, plan.steps[len(regraded.steps) :]
    if failure is not None and failure.class_ == "Agent" and failure.step is None and left:  # it ended between two steps
        ended = f"the agent of trial {regraded.trial} ended the trial before step {left[0].name} ({failure.reason})"
        return f"{ended}, which no verification shows"
    try:
        await sources.chains(source, _verified(plan, regraded).values())
    except CheckpointLost as error:
        return f"{error}; {_HINT}"
    return ""


async def _copy_checkpoints(
    run: TrialRun, plan: TrialPlan, regraded: RegradeStatus, sources: SourceTrials, checkpoints: Checkpoints
) -> None:
    """Copy the source's checkpoints after the steps that are verified again. Idempotent. Raises CheckpointLost.

    The regrade then no longer depends on the source.
    """
    key = TrialKey.of(run.trial)
    steps = [source_checkpoints.StartedStep(each.name, each.checkpoint) for each in regraded.steps]
    source = SourceTrial(TrialKey(key.namespace, regraded.trial, regraded.uid), steps, finished=True)
    copied = set((await checkpoints.stored(key)).commits)
    # A copied checkpoint has all its layers. After a crash, existing copies are not made again, so the source may be deleted.
    left = [name for index, name in _verified(plan, regraded).items() if (ADOPTED, index) not in copied]
    for chain in reversed(await sources.chains(source, left) if left else []):
        if (ADOPTED, chain[-1].step) not in copied:
            copied |= {each.id for each in await checkpoints.adopt(key, source.key, chain)}


async def _refuse(run: TrialRun, message: str, source: TrialStatus) -> Continue:
    """Fail the trial, which has no pod yet. If its source failed but has a score, the trial gets this score.

    ``source`` is the source's status, empty if unknown.
    """
    new, failure = trial_status.failed(run.trial, REGRADE_IMPOSSIBLE, message, run.clock()), source.failure
    if failure is not None and source.score is not None:
        steps = [StepStatus(**{name: getattr(each, name) for name in _VERDICT}) for each in source.steps]
        kept = TrialFailure(class_=failure.class_, reason=REGRADE_IMPOSSIBLE, step=failure.step)
        same = {name: getattr(source, name) for name in ("score", "passed", "score_rule", "outcome", "tampering")}
        new = new.model_copy(update={"failure": kept, "steps": steps, **same})
    await run.write(new)
    return Continue()


def _facts(source: SourceTrial, former: TrialStatus) -> RegradeStatus:
    """Return the source's facts for the status of a regrade. ``former`` is the source's status."""
    evidence = source.evidence
    found = {each.name: each for each in evidence.steps} if evidence else {}
    ran = {each.name: each for each in former.steps}
    steps = [
        SourceStep(
            name=each.name,
            checkpoint=each.digest,
            exception=source_exception(ran[each.name]),
            trial=ran[each.name].trial,
            tests={made.name: made.digest.sha256 for made in found[each.name].tests} if each.name in found else {},
        )
        for each in source.steps
    ]
    digest = evidence.task.digest if evidence else {}
    return RegradeStatus(
        trial=source.key.name,
        uid=source.key.uid,
        task_digest=next((f"{algorithm}:{value}" for algorithm, value in digest.items()), None),
        agent=_agent(source),
        from_reference=(source.found is not None and "fromStep" in source.found["spec"]) or None,
        steps=steps,
    )


def _status(source: SourceTrial) -> TrialStatus:
    """Return the source's status. If the source was deleted, this is only the part that its evidence contains."""
    if source.found is not None:
        return parse_status(source.found)
    assert source.evidence is not None  # SourceTrials.find returns a deleted trial only with evidence
    stated, trial = source.evidence, source.key.name
    score = None if stated.score is None else Score(stated.score, bool(stated.passed))
    return TrialStatus(
        steps=[StepStatus(name=each.name, trial=each.trial, exception=_stated_exception(trial, each)) for each in stated.steps],
        tampering=[*stated.tampering],
        failure=stated.failure,
        score=stated.score,
        passed=stated.passed,
        outcome=outcome(stated.failure.class_ if stated.failure else None, score, gate_failed=False),
    )


def _stated_exception(trial: str, step: PredicateStep) -> ExceptionStatus | None:
    """Return a step's exception from the evidence, which has no message."""
    if step.exception is None:
        return None
    return ExceptionStatus(type=step.exception, phase=step.exception_phase, message=f"as in trial {trial}")


def _agent(source: SourceTrial) -> SourceAgent:
    if (stated := source.evidence) is not None:
        return SourceAgent(**stated.agent.model_dump())
    spec = source.found["spec"].get("agent", {}) if source.found else {}
    return SourceAgent(name=spec.get("name") or spec.get("importPath") or "oracle", model=spec.get("model"))


def _sweep_of(source: SourceTrial) -> str | None:
    """Return the UID of the sweep that created the source, "" if no sweep did, None if it is unknown."""
    if source.found is None:
        assert source.evidence is not None  # SourceTrials.find returns a deleted trial only with evidence
        return source.evidence.trial.sweep_uid
    if owner := owner_of(source.found):
        return owner[1]
    # If a sweep was deleted with --cascade=orphan, its trials lost their owner references.
    return (source.evidence.trial.sweep_uid if source.evidence else None) or ""


def _source_of(source: SourceTrial) -> str | None:
    """Return the name of the trial that the source itself regrades, None if the source ran an agent."""
    if source.found is not None:
        return (source.found["spec"].get("regrade") or {}).get("trial")
    return source.evidence.regraded.trial if source.evidence and source.evidence.regraded else None


def _verified(plan: TrialPlan, regraded: RegradeStatus) -> Mapping[int, str]:
    """Return the names of the source's steps that are verified again, by index."""
    return {index: each.name for index, each in enumerate(regraded.steps) if is_verified(plan, each)}
