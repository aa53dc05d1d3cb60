"""Verifies a step a second time and compares the two verdicts (spec.verifier.isolation Both).

The first verification runs in the agent's environment, the second in a new pod with the files that the agent left. If the verdicts
differ, the agent may have changed programs that the first verification ran.

Only the first verification gives a reward. If the second one fails, the attempt continues and status.tampering reports the cause,
so no agent can prevent the comparison unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from multistep.api.trial.runner_records import Fields
from multistep.api.trial.status import Tampering, TrialStatus
from multistep.api.trial.values import VERIFIER
from multistep.engine.journal.journal import Number, StepRun, TamperingTraces
from multistep.engine.journal.operations import Release, Script
from multistep.engine.plan.plan import StepPlan, TrialPlan, VerifierPlan
from multistep.engine.plan.verifier_environment import VerifierEnvironment
from multistep.engine.score.usage_totals import total_usage
from multistep.engine.script.checkpoint_operations import STORING, UNUSUAL, store_files_for_verifier
from multistep.engine.script.operation_scope import Scope
from multistep.engine.script.verify_step import verify_there
from multistep.engine.status.status_size import bounded

_LOST: Final = "podLost"
_NO_COMPARISON: Final = frozenset({"ComparisonIncomplete", "ComparisonPrevented"})
_ENDED: Final = "the agent's container ended before the step was verified in a fresh pod"


def store_files_for_comparison(scope: Scope, step: StepPlan, run: StepRun) -> Script[bool]:
    """Store the environment's files for the second verification before the first one starts. Return whether this worked."""
    run.phase, second = VERIFIER, StepRun(run.name)
    if (yield from store_files_for_verifier(scope, step, second)):
        return True
    run.verdict_differences = _incomplete(scope, second)
    return False


def verify_again(
    scope: Scope, step: StepPlan, verifier: VerifierPlan, environment: VerifierEnvironment, run: StepRun, *, judged: bool
) -> Script[None]:
    """Verify the step a second time and compare the verdicts, if the first verification has one that counts (``judged``)."""
    if judged:
        run.phase, second = VERIFIER, StepRun(run.name)
        ran, lost = yield from _unless_lost(verify_there(scope, step, verifier, environment, second))
        run.judge_usage = total_usage([run.judge_usage, second.judge_usage])
        run.verdict_differences = _differences(scope, run.rewards, second) if ran else _incomplete(scope, second, lost)
    yield Release(scope.id("release"), step.index)


def lost_pod(why: str) -> Mapping[str, Any]:
    """Return the result to record for an operation that cannot run because the pod of the second verification was lost."""
    return {_LOST: bounded(why)}


def _unless_lost(script: Script[bool]) -> Script[tuple[bool, str]]:
    """Run the script until it ends or its pod is lost.

    Return the script's result and "", or False and the reason for the loss of the pod.
    """
    try:
        operation = next(script)
        while True:
            record = yield operation
            lost = Fields(record.result, f"result of {record.id}").optional_text(_LOST)
            if lost is not None:
                return False, lost
            operation = script.send(record)
    except StopIteration as end:
        return end.value, ""


def _incomplete(scope: Scope, second: StepRun, lost: str = "") -> tuple[TamperingTraces, ...]:
    why = lost or (second.lost.message if second.lost else second.exception.message if second.exception else "")
    kind = "ComparisonPrevented" if why.startswith(f"{STORING}{UNUSUAL}") else "ComparisonIncomplete"
    return (TamperingTraces(kind, scope.attempt, (why,), 1),)


def _differences(scope: Scope, first: Mapping[str, Number] | None, second: StepRun) -> tuple[TamperingTraces, ...]:
    """Return a finding with a line for each reward key whose values differ between the two verdicts, () if none differs."""
    here, there = first or {}, second.rewards or {}
    keys = [key for key in dict.fromkeys([*here, *there]) if not _same(here.get(key), there.get(key))]
    if not keys:
        return ()
    lines = [f"{key}: {_shown(here.get(key))} in place, {_shown(there.get(key))} in a fresh pod" for key in keys]
    lines += [f"in a fresh pod: {second.exception.message}"] if second.exception else []
    return (TamperingTraces("VerdictsDiffer", scope.attempt, tuple(lines), len(lines)),)


def _same(one: Number | None, other: Number | None) -> bool:
    return one == other or str(one) == str(other) == "nan"


def _shown(reward: Number | None) -> str:
    try:
        return "none" if reward is None else f"{reward:.6g}"
    except OverflowError:  # an integer that is too large for a float
        return "too large" if reward and reward > 0 else "too small"


def with_missed_comparison(status: TrialStatus, plan: TrialPlan) -> Sequence[Tampering]:
    """Return status.tampering of a trial whose agent's container was ended by its own processes.

    If the reward of the last step was not compared, add the finding ComparisonIncomplete, because the agent may have avoided the
    comparison.
    """
    last, attempt = status.steps[-1] if status.steps else None, status.attempt or 1
    if last is None or last.completion_time is not None or last.rewards is None:
        return status.tampering
    known = any(
        (finding.attempt, finding.step) == (attempt, last.name) and finding.kind in _NO_COMPARISON for finding in status.tampering
    )
    if known or not any(step.name == last.name and step.compares_verdicts for step in plan.steps):
        return status.tampering
    missed = Tampering(attempt=attempt, step=last.name, kind="ComparisonIncomplete", detail=_ENDED)
    return [*status.tampering, missed]
