"""The verdict of `multistep gate`: reads both sides, judges them, and writes the verdict for people, machines and pull requests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from multistep.api.common.plural import plural
from multistep.cli.exit_codes import Exit
from multistep.cli.sweep.compare import contest_warnings, contests_of, read_sides, scoring_warnings
from multistep.cli.terminal import clean, print_json, print_out, print_warning
from multistep.client.options import Target
from multistep.errors import UsageError
from multistep.report.gate import GateResult, Need, Verdict, judge
from multistep.report.html_page import p_value_text, signed_text
from multistep.report.statistics import Estimate
from multistep.report.summary import scores_by_task

_EXITS: Final = {
    Verdict.BETTER: Exit.OK,
    Verdict.NO_WORSE: Exit.OK,
    Verdict.WORSE: Exit.FAULT,
    Verdict.NOT_ENOUGH_DATA: Exit.UNDECIDED,
}
_WORDS: Final = {
    Verdict.BETTER: "better",
    Verdict.NO_WORSE: "no worse",
    Verdict.WORSE: "worse",
    Verdict.NOT_ENOUGH_DATA: "not enough data",
}


@dataclass(frozen=True)
class Gate:
    """A verdict about a candidate."""

    candidate: str
    """The candidate as SWEEP/AGENT or FILE.json/AGENT."""
    baseline: str
    """The baseline, in the same form."""
    result: GateResult
    warnings: list[str]
    """Reasons why the verdict may be misleading."""


async def read_gate(target: Target, candidate: str, baseline: str, max_drop: float) -> Gate:
    """Read the trials of both sides and judge them. Raises UsageError if they cannot be compared, and ClusterError."""
    sides = await read_sides(target, [candidate, baseline])
    contests = contests_of(sides)
    if len(contests) > 1:
        raise UsageError(f"{sides[0].name} and {sides[1].name} share several agents; a gate judges one: name it, as SWEEP/AGENT")
    (pair,) = contests
    for name, rows in ((pair.first, pair.first_rows), (pair.second, pair.second_rows)):
        if active := sum(row.state == "Active" for row in rows):
            raise UsageError(f"{name}: {active} of {len(rows)} trials have not finished; a gate judges finished sweeps")
    scores = scores_by_task(pair.first_rows)
    excluded = {row.task for row in pair.first_rows} - scores.keys()
    result = judge(scores, scores_by_task(pair.second_rows), max_drop, excluded)
    return Gate(pair.first, pair.second, result, [*contest_warnings(pair), *scoring_warnings(sides)])


def write_verdict(found: Gate, markdown: Path | None, *, as_json: bool) -> Exit:
    """Print the verdict, append it to the file ``markdown``, and return its exit code. Raises UsageError if the file cannot be
    written."""
    for warning in found.warnings:
        print_warning(warning)
    if markdown is not None:
        _append(markdown, markdown_text(found))
    if as_json:
        print_json(document(found))
    else:
        print_out(*sentences(found))
    return _EXITS[found.result.verdict]


def document(found: Gate) -> dict[str, object]:
    """Return the verdict for ``-o json``."""
    result, difference = found.result, found.result.difference
    numbers: dict[str, object] = {"difference": None, "low": None, "high": None, "p": None, "tasks": 0, "trials": 0}
    if difference is not None:
        estimate = difference.estimate
        numbers |= {"difference": estimate.value, "low": estimate.low, "high": estimate.high, "p": difference.p}
        numbers |= {"tasks": estimate.tasks, "trials": estimate.trials}
    return {
        "verdict": result.verdict.value,
        "candidate": found.candidate,
        "baseline": found.baseline,
        "max_drop": result.max_drop,
        **numbers,
        "need": result.need and asdict(result.need),
        "warnings": found.warnings,
    }


def sentences(found: Gate) -> list[str]:
    """Return the verdict in words, for the terminal."""
    result = found.result
    return [f"{_WORDS[result.verdict]}: {_measured(found)}", *_wanted(result)]


def markdown_text(found: Gate) -> str:
    """Return the verdict as Markdown, for the summary of a pull request."""
    result, difference = found.result, found.result.difference
    rows = [("candidate", _code(found.candidate)), ("baseline", _code(found.baseline))]
    if difference is not None:
        estimate = difference.estimate
        rows += [("difference of the mean score", signed_text(estimate.value)), ("95 % interval", _interval(estimate) or "-")]
        rows += [("p", p_value_text(difference.p))]
        rows += [("shared tasks", f"{estimate.tasks}"), ("scored trials", f"{estimate.trials}")]
    rows += [("tolerated drop", f"{result.max_drop:g}")]
    table = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    after = [line for wanted in _wanted(result) for line in ("", wanted)]
    after += [line for warning in found.warnings for line in ("", f"> {_escaped(warning)}")]
    return "\n".join([f"### Gate: {_WORDS[result.verdict]}", "", *table, *after, ""])


def _measured(found: Gate) -> str:
    difference = found.result.difference
    candidate, baseline = clean(found.candidate), clean(found.baseline)
    if difference is None:
        return f"{candidate} and {baseline} share no task in which both have scored trials"
    estimate = difference.estimate
    span = f" (95 % interval {interval})" if (interval := _interval(estimate)) else ""
    return (
        f"the mean score of {candidate} is {signed_text(estimate.value)} from that of {baseline}{span} over {estimate.tasks} "
        f"shared tasks; a drop of {found.result.max_drop:g} is tolerated"
    )


def _interval(estimate: Estimate) -> str:
    """Return the confidence interval as text, "" if there is none."""
    return "" if estimate.low is None or estimate.high is None else f"{signed_text(estimate.low)} to {signed_text(estimate.high)}"


def _wanted(result: GateResult) -> list[str]:
    """Return what would decide an undecided gate; [] if it is decided."""
    if result.lacking:
        return [
            f"The candidate's trials of {plural(result.lacking, 'task')} are all excluded: run them again (sweep retry --excluded)."
        ]
    return [] if result.need is None else [_needed(result.need, result.max_drop)]


def _needed(need: Need, max_drop: float) -> str:
    if need.attempts is not None:
        return f"About {need.attempts} attempts of each task on both sides would decide it."
    if need.tasks is not None:
        return f"More attempts of these tasks would not decide it; about {need.tasks} tasks would."
    return f"No size decides it with --max-drop {max_drop:g}: allow a drop above 0."


def _append(file: Path, text: str) -> None:
    try:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise UsageError(f"--markdown {file}: {error.strerror}") from error


def _code(text: str) -> str:
    return "`" + clean(text).replace("`", "'").replace("|", "\\|") + "`"


def _escaped(text: str) -> str:
    """Return a text in which Markdown has no markup or HTML: names of tasks and agents are not trusted."""
    return "".join(f"\\{character}" if character in "\\`*_{}[]<>()#+-.!|~" else character for character in clean(text))
