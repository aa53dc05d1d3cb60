"""Finds traces of tampering, which are changes of the agent's environment that could change a verdict.

With isolation Shared, an agent can change programs that the verifier runs. The operator cannot prevent such changes, so the runner
looks for them before a verification, and the status reports them. Root can hide its traces, so the absence of findings proves
nothing. docs/reference/tampering.md describes the findings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from multistep.api.trial.runner_records import Fields, Record
from multistep.api.trial.values import VERIFIER
from multistep.engine.journal.journal import StepRun, TamperingTraces
from multistep.engine.journal.operations import Baseline, Inspect, Script
from multistep.engine.plan.plan import StepPlan, TrialPlan, VerifierPlan
from multistep.engine.plan.resolve_templates import Unresolved
from multistep.engine.script.operation_scope import Scope
from multistep.engine.status.tampering_findings import KINDS

_FILE_VARIABLES: Final = ("PATH", "HOME", "BASH_ENV", "ENV", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP")
_MAX_KINDS, _MAX_ITEMS = 32, 100  # maximum number of kinds, and of items of one kind, in the runner's answer


@dataclass(frozen=True)
class _Verification:
    """The user and the environment of a verification, which decide which files can change its verdict."""

    user: str
    env: Mapping[str, str]
    """The environment variables that name files."""

    @classmethod
    def of(cls, plan: TrialPlan, verifier: VerifierPlan) -> _Verification:
        own = {} if isinstance(verifier.env, Unresolved) else verifier.env
        every = {**plan.environment_env, **own}
        return cls(verifier.user, {name: every[name] for name in _FILE_VARIABLES if name in every})


def record_baseline(scope: Scope, step: StepPlan) -> Script[None]:
    """Record the state of the environment before an attempt's first agent phase.

    Do nothing unless a step is verified in this environment or in a copy of it.
    """
    verifier = next((inspected.verifier for inspected in (step, *scope.plan.steps) if _is_inspected(inspected)), None)
    if verifier is not None:
        about = _Verification.of(scope.plan, verifier)
        yield Baseline(scope.id("baseline"), about.user, about.env)


def _is_inspected(step: StepPlan) -> bool:
    return step.verifier is not None and (step.verifier.environment is None or step.verified_restored)


def inspect_environment(scope: Scope, verifier: VerifierPlan, run: StepRun) -> Script[None]:
    """Find changes of the agent's environment that could change the verdict, and add them to the step's journal entry."""
    about = _Verification.of(scope.plan, verifier)
    record = yield Inspect(scope.id("inspect"), about.user, about.env)
    run.timed(VERIFIER, record)
    run.findings = _findings(record, scope.attempt)


def _findings(record: Record, attempt: int) -> tuple[TamperingTraces, ...]:
    """Return the findings in the record of an Inspect, without those of unknown kinds.

    Return () if the runner is of an earlier release, which does not inspect the environment.
    """
    if record.op != "inspect":
        return ()
    result = Fields(record.result, "inspection")
    findings = [_finding(Fields(finding, "finding"), attempt) for finding in result.sequence("findings", _MAX_KINDS)]
    processes = result.texts("processes", _MAX_ITEMS)
    if processes:
        names = tuple(dict.fromkeys(name or "?" for name in processes))
        findings.append(TamperingTraces("SurvivingProcesses", attempt, names, max(len(names), result.integer("processCount"))))
    if result.optional_boolean("incomplete"):
        findings.append(TamperingTraces("InspectionIncomplete", attempt, ("a limit of files, bytes or time was exceeded",), 1))
    return tuple(finding for finding in findings if finding.kind in KINDS)


def _finding(fields: Fields, attempt: int) -> TamperingTraces:
    return TamperingTraces(fields.text("kind", 64), attempt, fields.texts("paths", _MAX_ITEMS), fields.integer("count"))
