"""Format reports as text. Names and messages come from tasks: escape them for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .judging import Report, Verdict

_REMARK_LENGTH = 110
_LINE_LENGTH = 2000


def brief(report: Report) -> Iterator[str]:
    """Yield one line for a case and one for each of its problems."""
    remark = f"  {_shown(report.remark, _REMARK_LENGTH)}" if report.remark else ""
    yield f"{report.verdict:<7} {_shown(report.name)}  {report.seconds:.1f} s{remark}"
    for line in report.lines:
        yield f"        {_shown(line)}"


def summary(reports: Sequence[Report]) -> Iterator[str]:
    """Yield the names of the cases that do not agree, and the number of cases that agree."""
    for verdict in (Verdict.DIFFER, Verdict.ERROR):
        if names := [_shown(report.name) for report in reports if report.verdict is verdict]:
            yield f"{verdict}: {', '.join(names)}"
    agreed = [report for report in reports if report.verdict is Verdict.AGREE]
    refusals = sum(report.is_refusal for report in agreed)
    yield f"{len(agreed)} of {len(reports)} agree ({refusals} of them refusals)"


def _shown(text: str, length: int = _LINE_LENGTH) -> str:
    clean = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return clean if len(clean) <= length else f"{clean[: length - 3]}..."
