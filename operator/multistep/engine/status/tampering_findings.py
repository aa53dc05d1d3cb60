"""Builds status.tampering from traces of tampering, and decides which kinds of traces are evidence. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_args

from multistep.api.trial.status import Tampering, TamperingKind, TrialStatus
from multistep.engine.journal.journal import Journal, StepRun, TamperingTraces
from multistep.engine.status.status_size import bounded

KINDS: Final[Sequence[TamperingKind]] = get_args(TamperingKind)
HINTS: Final[frozenset[TamperingKind]] = frozenset(
    {"WorkdirHook", "SurvivingProcesses", "InspectionIncomplete", "ComparisonIncomplete"}
)
"""Kinds of findings that honest agents cause too.

All other kinds are evidence of tampering, to which a sweep's policy (spec.scoring.tampering) applies.
"""

_OF_FAILURES: Final[Mapping[str, TamperingKind]] = {
    "ExecSessionsKilled": "ExecSessionsKilled",
    "Tampered": "RunnerReplaced",
    "RunnerBroken": "RunnerReplaced",
}
"""Maps the reasons of Failed trials that show tampering to kinds of findings.

With such a reason, a process in the trial's container ended exec sessions or replaced the runner.
"""


_SHOWN_ITEMS, _SHOWN_CHARACTERS = 4, 100  # maximum number of items in Tampering.detail, and of characters per item
_MAX_ENTRIES = 32  # maximum number of entries in status.tampering


def merged(status: TrialStatus, journal: Journal) -> list[Tampering]:
    """Return status.tampering with the journal's findings, which replace entries of the same attempt and step."""
    found = [*_entries(journal.steps)]
    steps = {(each.attempt, each.step) for each in found}
    former = [each for each in status.tampering if (each.attempt, each.step) not in steps]
    return _limited([*former, *found])


def of_failure(known: Sequence[Tampering], status: TrialStatus, reason: str, message: str) -> list[Tampering]:
    """Return the known entries, and one more if the trial Failed because of tampering.

    ``status`` is the status before the failure. ``reason`` and ``message`` are those of the failure.
    """
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


def _entry(run: StepRun, finding: TamperingTraces, items: Sequence[str]) -> Tampering:
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
    """Return the end of a message about a trial with evidence of tampering, "" if there is no evidence."""
    found = evidence(each.kind for each in entries)
    return f"; evidence of tampering: {', '.join(found)}" if found else ""
