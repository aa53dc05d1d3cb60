"""Traces of tampering: changes of the agent's environment that could change a verdict. The runner finds them before a verification.

With isolation Shared, an agent can change programs that the verifier runs. This cannot be prevented; it is detected and reported.
Root can hide its traces, so the absence of findings proves nothing. docs/reference/tampering.md describes the findings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_args

from multistep.api.trial.phases import VERIFIER
from multistep.api.trial.runner_records import Fields, Record
from multistep.api.trial.status import Tampering, TamperingKind, TrialStatus
from multistep.engine.journal.journal import Finding, Journal, StepRun
from multistep.engine.journal.operations import Baseline, Inspect, Script
from multistep.engine.plan.plan import StepPlan, TrialPlan, VerifierPlan
from multistep.engine.plan.resolve_templates import Unresolved
from multistep.engine.script.operation_scope import Scope
from multistep.engine.status.status_size import bounded

KINDS: Final[Sequence[TamperingKind]] = get_args(TamperingKind)
HINTS: Final[frozenset[TamperingKind]] = frozenset(
    {"WorkdirHook", "SurvivingProcesses", "InspectionIncomplete", "ComparisonIncomplete"}
)
"""Kinds of findings that honest agents cause, too. All other kinds are evidence of tampering, to which a sweep's policy
(spec.scoring.tampering) applies."""

_OF_FAILURES: Final[Mapping[str, TamperingKind]] = {
    "ExecSessionsKilled": "ExecSessionsKilled",
    "Tampered": "RunnerReplaced",
    "RunnerBroken": "RunnerReplaced",
}
"""The kind of finding for each reason of a Failed trial that shows tampering: a process in the trial's container ended exec
sessions, or replaced the runner."""

_FILE_VARIABLES: Final = ("PATH", "HOME", "BASH_ENV", "ENV", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP")
_MAX_KINDS, _MAX_ITEMS = 32, 100  # maximum number of kinds, and of items of one kind, in the runner's answer
_SHOWN_ITEMS, _SHOWN_CHARACTERS = 4, 100  # maximum number of items in Tampering.detail, and of characters per item
_MAX_ENTRIES = 32  # maximum number of entries in status.tampering


@dataclass(frozen=True)
class _Verification:
    """The verification for which files are compared: its user, and its variables that name files."""

    user: str
    env: Mapping[str, str]

    @classmethod
    def of(cls, plan: TrialPlan, verifier: VerifierPlan) -> _Verification:
        own = {} if isinstance(verifier.env, Unresolved) else verifier.env
        every = {**plan.environment_env, **own}
        return cls(verifier.user, {name: every[name] for name in _FILE_VARIABLES if name in every})


def baseline(scope: Scope, step: StepPlan) -> Script[None]:
    """Record the state of the environment before an attempt's first agent phase, if any step is verified in this environment or in
    a copy of it."""
    verifier = next((each.verifier for each in (step, *scope.plan.steps) if _is_inspected(each)), None)
    if verifier is not None:
        about = _Verification.of(scope.plan, verifier)
        yield Baseline(scope.id("baseline"), about.user, about.env)


def _is_inspected(step: StepPlan) -> bool:
    return step.verifier is not None and (step.verifier.environment is None or step.verified_restored)


def inspect(scope: Scope, verifier: VerifierPlan, run: StepRun) -> Script[None]:
    """Find changes of the agent's environment that could change the verdict, and add them to the step's journal entry."""
    about = _Verification.of(scope.plan, verifier)
    record = yield Inspect(scope.id("inspect"), about.user, about.env)
    run.timed(VERIFIER, record)
    run.findings = _findings(record, scope.attempt)


def _findings(record: Record, attempt: int) -> tuple[Finding, ...]:
    """Return the findings in the record of an Inspect. Unknown kinds are ignored. () if the runner is of an earlier release, which
    does not inspect."""
    if record.op != "inspect":
        return ()
    result = Fields(record.result, "inspection")
    found = [_finding(Fields(each, "finding"), attempt) for each in result.sequence("findings", _MAX_KINDS)]
    processes = result.texts("processes", _MAX_ITEMS)
    if processes:
        names = tuple(dict.fromkeys(each or "?" for each in processes))
        found.append(Finding("SurvivingProcesses", attempt, names, max(len(names), result.integer("processCount"))))
    if result.optional_boolean("incomplete"):
        found.append(Finding("InspectionIncomplete", attempt, ("a limit of files, bytes or time was exceeded",), 1))
    return tuple(each for each in found if each.kind in KINDS)


def _finding(fields: Fields, attempt: int) -> Finding:
    return Finding(fields.text("kind", 64), attempt, fields.texts("paths", _MAX_ITEMS), fields.integer("count"))


def merged(status: TrialStatus, journal: Journal) -> list[Tampering]:
    """Return status.tampering with the journal's findings. They replace entries of the same attempt and step."""
    found = [*_entries(journal.steps)]
    steps = {(each.attempt, each.step) for each in found}
    former = [each for each in status.tampering if (each.attempt, each.step) not in steps]
    return _limited([*former, *found])


def of_failure(known: Sequence[Tampering], status: TrialStatus, reason: str, message: str) -> list[Tampering]:
    """Return the known entries, and one more if the trial Failed because of tampering. status: the status before the failure;
    reason, message: reason and message of the failure."""
    kind = _OF_FAILURES.get(reason)
    if kind is None:
        return list(known)
    last = Tampering(attempt=status.attempt or 1, step=status.current_step or "", kind=kind, detail=bounded(message))
    return _limited([*known, last])


def _limited(entries: Sequence[Tampering]) -> list[Tampering]:
    """Return at most _MAX_ENTRIES entries. Hints are omitted first, because an agent could cause enough hints to hide evidence."""
    by_weight = sorted(range(len(entries)), key=lambda index: entries[index].kind in HINTS)
    return [entries[index] for index in sorted(by_weight[:_MAX_ENTRIES])]


def _entries(runs: Iterable[StepRun]) -> Iterable[Tampering]:
    """Yield an entry for each kind of finding of each step. Items that an earlier step's entry has are not repeated."""
    seen: set[tuple[str, str]] = set()
    for run in runs:
        for finding in run.findings:
            new = [each for each in finding.items if (finding.kind, each) not in seen]
            seen |= {(finding.kind, each) for each in new}
            if new:
                yield _entry(run, finding, new)
        yield from (_entry(run, finding, finding.items) for finding in run.verdict_differences)


def _entry(run: StepRun, finding: Finding, items: Sequence[str]) -> Tampering:
    detail = _detail(items, finding.count - len(finding.items))
    return Tampering.model_validate({"attempt": finding.attempt, "step": run.name, "kind": finding.kind, "detail": detail})


def _detail(items: Sequence[str], unnamed: int) -> str:
    shown = ", ".join(bounded(each[:_SHOWN_CHARACTERS]) for each in items[:_SHOWN_ITEMS])
    more = unnamed + max(0, len(items) - _SHOWN_ITEMS)
    return f"{shown} and {more} more" if more > 0 else shown


def evidence(kinds: Iterable[Any]) -> list[str]:
    """Return the kinds that are evidence of tampering, without duplicates, in the order of KINDS."""
    found = set(kinds) - HINTS
    return [kind for kind in KINDS if kind in found]


def summary(entries: Iterable[Tampering]) -> str:
    """Return text for a message about a trial with evidence of tampering; "" without any."""
    found = evidence(each.kind for each in entries)
    return f"; evidence of tampering: {', '.join(found)}" if found else ""
