"""`multistep sweep report`: read the trials and write the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.table import Table
from rich.text import Text

from multistep.api.common.plural import plural
from multistep.cli import cluster
from multistep.cli.options import Target
from multistep.cli.sweep.branch_tables import branch_tables
from multistep.cli.sweep.report_excerpts import read_excerpts
from multistep.cli.sweep.sweep_rows import read
from multistep.cli.terminal import STYLES, clean, print_bytes, print_err, print_json, print_out, print_text, table
from multistep.errors import UsageError
from multistep.report.excerpts import Excerpts
from multistep.report.files import csv_text, document, json_text, parquet_bytes
from multistep.report.page import dollars, interval, number, page, probability, signed
from multistep.report.statistics import Estimate
from multistep.report.summary import About, Pair, Standing, Summary, summarize

_FILES: Final = ("html", "csv", "json", "parquet")


@dataclass(frozen=True)
class Output:
    """A value of --output. form: format of the report; path: file, None for stdout."""

    form: str
    path: Path | None

    @classmethod
    def parse(cls, text: str) -> Output:
        """Parse --output. Raises UsageError if it is neither a format nor a file name with a known ending."""
        if text in ("table", *_FILES):
            return cls(text, None)
        form = Path(text).suffix.removeprefix(".")
        if form not in _FILES:
            raise UsageError(f"-o {text}: must be a file ending in .html, .csv, .json or .parquet, or table, {', '.join(_FILES)}")
        return cls(form, Path(text))


async def write_report(target: Target, sweep: str, texts: Sequence[str], *, logs: bool = True) -> None:
    """Read a sweep's trials and write its reports. texts: values of --output; logs: whether the HTML page shows failing tests and
    the last lines of outputs. Raises UsageError if a report cannot be written, and ClusterError."""
    outputs = [Output.parse(each) for each in texts]
    if sum(each.path is None for each in outputs) > 1:
        raise UsageError(f"-o {' -o '.join(texts)}: only one of them can go to stdout, the others need files")
    for each in outputs:
        if each.path and not each.path.absolute().parent.is_dir():
            raise UsageError(f"-o {each.path}: directory {each.path.parent} does not exist")
    async with cluster.connect(target) as connected:
        about, rows = await read(connected, target.namespace or connected.namespace, sweep)
        summary = summarize(rows, about.replaced)
        wanted = logs and any(each.form == "html" for each in outputs)
        excerpts = await read_excerpts(connected, summary.rows) if wanted else {}
    for warning in summary.warnings:
        print_err(f"warning: {clean(warning)}")
    for each in outputs:
        if each.form == "table":
            omissions = [f"cost of {clean(each.agent)}: {each.omission}" for each in summary.standings if each.omission]
            notes = [Text(each) for each in (_missing(about, summary), *omissions, about.spending, about.retries) if each]
            print_out(standings_table(summary), *notes, *differences(summary), *branch_tables(summary.branches))
        elif each.path:
            _write(each.path, _content(each.form, about, summary, excerpts))
            print_err(f"wrote {each.path}")
        else:
            _print(each.form, about, summary, excerpts)


def _missing(about: About, summary: Summary) -> str:
    """Return how many of the sweep's trials exist, as text; "" if all do, or if their number is unknown."""
    if about.planned is None or len(summary.rows) >= about.planned:
        return ""
    return f"{about.phase}: {len(summary.rows)} of {about.planned} trials were created and exist"


def _print(form: str, about: About, summary: Summary, excerpts: Mapping[str, Excerpts]) -> None:
    if form == "json":
        print_json(document(about, summary), indent=1)
    elif form == "parquet":
        print_bytes(parquet_bytes(summary.rows))
    else:
        print_text(_content(form, about, summary, excerpts).decode())


def _content(form: str, about: About, summary: Summary, excerpts: Mapping[str, Excerpts]) -> bytes:
    if form == "parquet":
        return parquet_bytes(summary.rows)
    if form == "html":
        return page(about, summary, excerpts).encode()
    return (csv_text(summary.rows) if form == "csv" else json_text(document(about, summary))).encode()


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
    heads = ("AGENT", "MEAN SCORE", "95 % INTERVAL", *passes, *costs, "COUNTED", "TASKS", "EXCLUDED", "SCORED FAILURES")
    found = table(*heads, numbers=("MEAN SCORE", *passes, *costs))
    for each in summary.standings:
        chances = [_chance(each.passes.get(k), each.tasks) for k in ks]
        mean = number(each.mean.value) if each.mean else "-"
        tasks = f"{each.mean.tasks if each.mean else 0} of {each.tasks}"
        counts = (f"{each.counted} of {each.trials}", tasks, _excluded(each), _by_class(each.scored_failures))
        spent = [dollars(each.cost_usd), dollars(each.cost_per_pass)] if costs else []
        found.add_row(Text(clean(each.agent)), mean, interval(each.mean), *chances, *spent, *counts)
    return found


def _chance(found: Estimate | None, tasks: int) -> str:
    """Format pass@k, with the number of tasks that have k scored trials unless all have. tasks: number of the agent's tasks."""
    if found is None:
        return "-"
    return number(found.value) + (f" of {plural(found.tasks, 'task')}" if found.tasks < tasks else "")


def _excluded(standing: Standing) -> Text:
    active = f"{standing.active} not finished" if standing.active else ""
    excluded = _by_class(standing.excluded) if standing.excluded else ""
    return Text(", ".join(filter(None, (excluded, active))) or "-", style=STYLES["excluded"] if excluded else "")


def _by_class(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {failure_class}" for failure_class, count in sorted(counts.items())) or "-"


def differences(summary: Summary) -> list[Text | Table]:
    """Return the table that compares all pairs of agents; an empty list for a single agent."""
    return [Text(), pairs_table(summary.pairs)] if summary.pairs else []


def pairs_table(pairs: Sequence[Pair]) -> Table:
    """Return the table of differences in mean score, first agent minus second."""
    found = table("FIRST", "SECOND", "DIFFERENCE", "95 % INTERVAL", "P", "TASKS", "VERDICT", numbers=("DIFFERENCE", "P", "TASKS"))
    for each in pairs:
        estimate = each.difference.estimate
        verdict = Text("real", style="bold") if each.is_real else "not shown"
        row = (signed(estimate.value), interval(estimate), probability(each.p), str(estimate.tasks), verdict)
        found.add_row(Text(clean(each.first)), Text(clean(each.second)), *row)
    return found
