"""`multistep sweep report`: reads the trials of a sweep and writes the reports."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from rich.table import Table
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import Scoring, parse_scoring, parse_sweep_status
from multistep.cli.sweep.report_excerpts import read_excerpts
from multistep.cli.terminal import (
    STYLES,
    clean,
    counts_text,
    print_bytes,
    print_err,
    print_json,
    print_out,
    print_text,
    print_warning,
    table,
)
from multistep.client.connection import Cluster
from multistep.client.objects import find_sweep
from multistep.client.sweep_trials import Owned, owned_trials
from multistep.errors import ClusterError, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.list_objects import GONE
from multistep.report.agreement import Agreement, agreement
from multistep.report.branches import BranchedStep, Branches, Group
from multistep.report.excerpts import Excerpts
from multistep.report.files import csv_text, json_text, parquet_bytes, report_json
from multistep.report.html_page import (
    branch_passes,
    dollars_text,
    interval_text,
    number_text,
    p_value_text,
    report_page,
    signed_text,
)
from multistep.report.rows import StepRow, TrialRow, rows_that_count, trial_row
from multistep.report.statistics import Estimate
from multistep.report.summary import AgentComparison, LeaderboardRow, ReportedSweep, Summary, summarize

_TRIES = 3
_Owned: TypeAlias = tuple[str, TrialRow]  # the UID of the sweep that owns the trial, and the row of the trial


async def read(cluster: Cluster, namespace: str, sweep: str) -> tuple[ReportedSweep, list[TrialRow]]:
    """Return the current state of the sweep and of its trials that count. The sweep itself may be deleted already.

    Raises UsageError if neither the sweep nor any of its trials exists, or if the trials belong to several deleted sweeps.
    """
    found = await find_sweep(cluster, namespace, sweep)
    status = parse_sweep_status(found) if found else None
    spec = (found or {}).get("spec") or {}
    about = ReportedSweep(
        sweep,
        namespace,
        datetime.now(UTC),
        planned=status.trials.total or None if status else None,
        phase=status.phase or "" if status else "",
        scoring=parse_scoring(found) if found else Scoring(),
        cost_usd=status.cost_usd if status else None,
        budget_usd=status.budget.cost_usd if status and status.budget else None,
        judge=_judge(spec.get("template") or {}),
        regraded=(spec.get("regrade") or {}).get("sweep", ""),
        regraded_uid=status.source_uid if status else None,
    )
    read = await _rows(cluster, namespace, sweep, found, about.scoring)
    owned = read.trials
    for warning in read.warnings():
        print_warning(warning)
    uid = found["metadata"]["uid"] if found else _only_owner(sweep, owned)
    created = [each for owner, each in owned if owner == uid]
    rows = rows_that_count(created)
    if found is None and not rows:
        raise UsageError(f"sweep {sweep!r} does not exist in namespace {namespace!r}: `multistep sweep list -A` lists all")
    kept = set(map(id, rows))
    replaced = [each for each in created if id(each) not in kept]
    return replace(about, retried=sum(each.retry_of is not None for each in created), replaced=replaced), rows


def _judge(template: Object) -> str:
    models = (template.get("spec") or {}).get("models") or {}
    return str((models.get("judge") or {}).get("model", ""))


async def _with_agreement(cluster: Cluster, about: ReportedSweep, summary: Summary) -> Summary:
    """Return the summary with the agreement of a regrade's verdicts with those of its source, if that still exists."""
    if not about.regraded:
        return summary
    source = await find_sweep(cluster, about.namespace, about.regraded)
    if source is None or source["metadata"]["uid"] != about.regraded_uid:
        print_warning(f"sweep {about.regraded}, whose trials this one regrades, was deleted: the verdicts are not compared")
        return summary
    former, rows = await read(cluster, about.namespace, about.regraded)
    return replace(summary, agreement=agreement(former.sweep, (former.judge, about.judge), rows, summary.rows))


def _only_owner(sweep: str, owned: Sequence[_Owned]) -> str | None:
    """Return the UID of the deleted sweep that owned the trials; None without trials. Raises UsageError if it is not unique."""
    uids = {uid for uid, _ in owned}
    if len(uids) > 1:
        raise UsageError(f"sweep {sweep!r} does not exist, and its trials belong to {len(uids)} deleted sweeps of that name")
    return next(iter(uids), None)


async def _rows(cluster: Cluster, namespace: str, sweep: str, found: Object | None, scoring: Scoring) -> Owned[TrialRow]:
    for _ in range(_TRIES - 1):
        try:
            return await owned_trials(cluster, namespace, sweep, found, lambda trial: trial_row(trial, scoring))
        except ClusterError as error:
            if error.status != GONE:  # status 410: the continue token of the list has expired
                raise
    return await owned_trials(cluster, namespace, sweep, found, lambda trial: trial_row(trial, scoring))


def read_report(path: Path) -> tuple[str, Scoring, list[TrialRow]]:
    """Return the sweep's name, its scoring and its trials from a file that `multistep sweep report -o FILE.json` wrote.

    Raises UsageError if the file is not a report.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        scoring = Scoring.model_validate(document["scoring"])
        return str(document["sweep"]), scoring, [_row(each) for each in document["trials"]]
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a report: `multistep sweep report SWEEP -o {path}` writes one") from error


def _row(fields: dict[str, Any]) -> TrialRow:
    return TrialRow(**{**fields, "steps": tuple(StepRow(**each) for each in fields["steps"])})


def branch_tables(branches: Branches) -> list[Text | Table]:
    """Return the table of the steps, then a line for each agent with several tasks. Return [] if the sweep has no branches."""
    if not branches.steps:
        return []
    ks = branch_passes(branches)
    passes = [f"PASS@{k}" for k in ks]
    heads = ("TASK", "AGENT", "STEP", "STATE", "PASSED", *passes, "EXCLUDED", "OWN - REFERENCE", "95 % INTERVAL")
    found = table(*heads, numbers=(*passes, "OWN - REFERENCE"))
    for each in branches.steps:
        for state, group in (("image", each.start), ("own", each.own), ("reference", each.reference)):
            if group is not None:
                found.add_row(*_names(each), state, *_counts(group, ks), *_difference(each, state))
            elif state == "own" and each.has_no_own_state:
                nothing = Text(f"no state: {each.reached} of {each.ordinary} trials reached the step", style="red")
                found.add_row(*_names(each), state, nothing, *["-" for _ in ks], "-", "-", "-")
    lines = []
    for one in branches.agents:
        estimate = one.difference.estimate
        text = f"{signed_text(estimate.value)}, 95 % interval {interval_text(estimate)}, p {p_value_text(one.difference.p)}"
        over = f"over {plural(estimate.tasks, 'task')}, paired by task"
        lines.append(Text(f"{clean(one.agent)}: own minus reference {over}: {text}"))
    return [Text(), found, *lines]


def _names(step: BranchedStep) -> tuple[Text, Text, Text]:
    return Text(clean(step.task)), Text(clean(step.agent)), Text(clean(step.step))


def _counts(group: Group, ks: list[int]) -> list[str]:
    active = f", {group.active} not finished" if group.active else ""
    chances = [number_text(group.passes[k]) if k in group.passes else "-" for k in ks]
    return [f"{group.passed} of {group.counted}{active}", *chances, str(group.excluded or "-")]


def _difference(step: BranchedStep, state: str) -> tuple[str, str]:
    if state != "own" or step.difference is None:
        return "-", "-"
    return signed_text(step.difference.value), interval_text(step.difference)


_FILES: Final = ("html", "csv", "json", "parquet")


@dataclass(frozen=True)
class Output:
    """A value of --output."""

    form: str
    """Format of the report."""
    path: Path | None
    """The file to write, or None for stdout."""

    @classmethod
    def parse(cls, text: str) -> Output:
        """Parse --output. Raises UsageError if it is neither a format nor a file name with a known ending."""
        if text in ("table", *_FILES):
            return cls(text, None)
        form = Path(text).suffix.removeprefix(".")
        if form not in _FILES:
            raise UsageError(f"-o {text}: must be a file ending in .html, .csv, .json or .parquet, or table, {', '.join(_FILES)}")
        return cls(form, Path(text))


async def write_report(cluster: Cluster, sweep: str, texts: Sequence[str], *, logs: bool = True) -> None:
    """Read a sweep's trials and write its reports. texts: the values of --output. logs: whether the HTML page shows failing tests
    and the last lines of outputs. Raises UsageError if a report cannot be written, and ClusterError."""
    outputs = [Output.parse(each) for each in texts]
    if sum(each.path is None for each in outputs) > 1:
        raise UsageError(f"-o {' -o '.join(texts)}: only one of them can go to stdout, the others need files")
    for each in outputs:
        if each.path and not each.path.absolute().parent.is_dir():
            raise UsageError(f"-o {each.path}: directory {each.path.parent} does not exist")
    about, rows = await read(cluster, cluster.namespace, sweep)
    summary = await _with_agreement(cluster, about, summarize(rows, about.replaced))
    wanted = logs and any(each.form == "html" for each in outputs)
    excerpts = await read_excerpts(cluster, summary.rows) if wanted else {}
    for warning in summary.warnings:
        print_warning(clean(warning))
    for each in outputs:
        if each.form == "table":
            omissions = [f"cost of {clean(each.agent)}: {each.omission}" for each in summary.standings if each.omission]
            notes = [Text(each) for each in (_missing(about, summary), *omissions, about.spending, about.retries) if each]
            print_out(
                standings_table(summary),
                *notes,
                *differences(summary),
                *agreement_table(summary.agreement),
                *branch_tables(summary.branches),
            )
        elif each.path:
            _write(each.path, _content(each.form, about, summary, excerpts))
            print_err(f"wrote {each.path}")
        else:
            _print(each.form, about, summary, excerpts)


def _missing(about: ReportedSweep, summary: Summary) -> str:
    """Return how many of the sweep's trials exist, as text; "" if all do, or if their number is unknown."""
    if about.planned is None or len(summary.rows) >= about.planned:
        return ""
    return f"{about.phase}: {len(summary.rows)} of {about.planned} trials were created and exist"


def _print(form: str, about: ReportedSweep, summary: Summary, excerpts: Mapping[str, Excerpts]) -> None:
    if form == "json":
        print_json(report_json(about, summary), indent=1)
    elif form == "parquet":
        print_bytes(parquet_bytes(summary.rows))
    else:
        print_text(_content(form, about, summary, excerpts).decode())


def _content(form: str, about: ReportedSweep, summary: Summary, excerpts: Mapping[str, Excerpts]) -> bytes:
    if form == "parquet":
        return parquet_bytes(summary.rows)
    if form == "html":
        return report_page(about, summary, excerpts).encode()
    return (csv_text(summary.rows) if form == "csv" else json_text(report_json(about, summary))).encode()


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, so that no reader sees a partial file. Raises UsageError if the file cannot be written."""
    partial = path.with_name(f".{path.name}.part")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise UsageError(f"-o {path}: {error.strerror}") from error


def standings_table(summary: Summary) -> Table:
    """Return the table of agents, the best agent first."""
    ks = sorted({k for each in summary.standings for k in each.passes})
    passes = [f"PASS@{k}" for k in ks]
    costs = ("COST", "COST PER PASS") if any(each.cost_usd is not None for each in summary.standings) else ()
    judges = ("JUDGE COST",) if any(each.judge_cost_usd is not None for each in summary.standings) else ()
    users = ("USER COST",) if any(each.user_cost_usd is not None for each in summary.standings) else ()
    spends = (*costs, *judges, *users)
    heads = ("AGENT", "MEAN SCORE", "95 % INTERVAL", *passes, *spends, "COUNTED", "TASKS", "EXCLUDED", "SCORED FAILURES")
    found = table(*heads, numbers=("MEAN SCORE", *passes, *spends))
    for each in summary.standings:
        chances = [_chance(each.passes.get(k), each.tasks) for k in ks]
        mean = number_text(each.mean.value) if each.mean else "-"
        tasks = f"{each.mean.tasks if each.mean else 0} of {each.tasks}"
        counts = (f"{each.counted} of {each.trials}", tasks, _excluded(each), counts_text(each.scored_failures) or "-")
        spent = [dollars_text(each.cost_usd), dollars_text(each.cost_per_pass)] if costs else []
        spent += [dollars_text(each.judge_cost_usd)] if judges else []
        spent += [dollars_text(each.user_cost_usd)] if users else []
        found.add_row(Text(clean(each.agent)), mean, interval_text(each.mean), *chances, *spent, *counts)
    return found


def _chance(found: Estimate | None, tasks: int) -> str:
    """Format pass@k, with the number of tasks that have k scored trials unless all have. tasks: number of the agent's tasks."""
    if found is None:
        return "-"
    return number_text(found.value) + (f" of {plural(found.tasks, 'task')}" if found.tasks < tasks else "")


def _excluded(standing: LeaderboardRow) -> Text:
    active = f"{standing.active} not finished" if standing.active else ""
    excluded = counts_text(standing.excluded)
    return Text(", ".join(filter(None, (excluded, active))) or "-", style=STYLES["excluded"] if excluded else "")


def differences(summary: Summary) -> list[Text | Table]:
    """Return the table that compares all pairs of agents; an empty list for a single agent."""
    return [Text(), pairs_table(summary.pairs)] if summary.pairs else []


def pairs_table(pairs: Sequence[AgentComparison]) -> Table:
    """Return the table of differences in mean score, first agent minus second."""
    found = table("FIRST", "SECOND", "DIFFERENCE", "95 % INTERVAL", "P", "TASKS", "VERDICT", numbers=("DIFFERENCE", "P", "TASKS"))
    for each in pairs:
        estimate = each.difference.estimate
        verdict = Text("real", style="bold") if each.is_real else "not shown"
        row = (signed_text(estimate.value), interval_text(estimate), p_value_text(each.p), str(estimate.tasks), verdict)
        found.add_row(Text(clean(each.first)), Text(clean(each.second)), *row)
    return found


def agreement_table(found: Agreement | None) -> list[Text | Table]:
    """Return the table of the agreement with the regraded sweep, below a line of what was compared; an empty list without one."""
    if found is None:
        return []
    judges = f", judged by {found.former_judge or 'no model'} and now by {found.judge}" if found.judge else ""
    over = f"{plural(found.steps, 'step')} of {plural(found.tasks, 'task')}"
    alphas = table("VERDICT", "ALPHA", "95 % INTERVAL", numbers=("ALPHA",))
    for name, estimate in (("passed or not", found.passes), ("score of a step", found.scores)):
        alphas.add_row(name, number_text(estimate.value if estimate else None), interval_text(estimate))
    alike = f"{found.alike} of {over} passed in both or in none"
    return [Text(), Text(clean(f"agreement with {found.source}{judges}: {alike}")), alphas]
