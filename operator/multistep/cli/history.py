"""`multistep history`: questions to the history of all trials, with a local copy that DuckDB reads."""

from __future__ import annotations

import asyncio
import hashlib
import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from multistep.cli.completion import complete_agents, complete_sweeps
from multistep.cli.options import as_one_argument, target_options
from multistep.errors import UsageError

if TYPE_CHECKING:
    from multistep.client.options import Target
    from multistep.report.history_database import HistoryDatabase
    from multistep.report.history_questions import Filters, Row

Output = Literal["table", "json", "csv"]
_QUESTIONS: Final = ("leaderboard", "trends", "regressions", "costs")
_EPILOG: Final = """\b
Examples:
  multistep history --dataset terminal-bench
  multistep history trends --task build-kernel --agent claude-code --by day
  multistep history regressions --since 2026-11-01
  multistep history costs -A --team-label team -o csv
  multistep history --sql "SELECT failure_class, count(*) FROM trials GROUP BY ALL"
  multistep history --parquet out/
  multistep history --postgres | psql "$DATABASE_URL"

\b
Questions:
  leaderboard  the mean score of each agent, version and model, with its interval (default)
  trends       an agent's mean score, duration and cost over time
  regressions  the newest version of each agent against the one before it
  costs        known costs and tokens by namespace, or by a label of trials

docs/how-to/history.md describes the columns of the table trials.
"""


def _filters(**given: str | None) -> Filters:
    from multistep.report.history_questions import Filters

    return Filters(**given)


_filter_options = as_one_argument(
    "filters",
    _filters,
    ("dataset", "sweep", "task", "agent", "model", "since"),
    click.option("--dataset", metavar="NAME", help="Only trials of this dataset, or of this source in spec.tasksFrom."),
    click.option("--sweep", metavar="SWEEP", shell_complete=complete_sweeps, help="Only trials of sweeps of this name."),
    click.option("--task", metavar="TASK", help="Only trials of this task."),
    click.option("--agent", metavar="AGENT", shell_complete=complete_agents, help="Only trials of this agent."),
    click.option("--model", metavar="MODEL", help="Only trials with this model."),
    click.option("--since", metavar="DAY", help="Only trials that were created on this day or later, YYYY-MM-DD (UTC)."),
)


@click.command(epilog=_EPILOG)
@click.argument("question", type=click.Choice(_QUESTIONS), default="leaderboard")
@_filter_options
@click.option(
    "--by",
    "period",
    type=click.Choice(["day", "week", "month"]),
    default="week",
    show_default=True,
    help="For trends and costs.",
)
@click.option("--team-label", metavar="LABEL", default="", help="The label of trials that names the team, for costs.")
@click.option("--sql", metavar="QUERY", help="Run this query on the table trials instead of a question; the filters do not apply.")
@click.option("--parquet", metavar="DIRECTORY", type=click.Path(path_type=Path), help="Write the rows as Parquet files.")
@click.option("--postgres", is_flag=True, help="Write a script for psql to stdout, which adds or replaces the rows.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Ask about all namespaces, not only one.")
@click.option("--offline", is_flag=True, help="Do not read new rows from the cluster.")
@click.option("-o", "--output", type=click.Choice(["table", "json", "csv"]), default="table")
@target_options
def history(
    question: str,
    filters: Filters,
    period: Any,
    team_label: str,
    sql: str | None,
    parquet: Path | None,
    postgres: bool,
    all_namespaces: bool,
    offline: bool,
    output: Output,
    target: Target,
) -> None:
    """Ask about the trials that ever finished, also those that were deleted."""
    _require_history()
    if (sql is not None) + (parquet is not None) + postgres > 1:
        raise UsageError("--sql, --parquet and --postgres exclude each other")
    from dataclasses import replace

    from multistep.cli.history_output import print_postgres, print_rows
    from multistep.report.history_questions import QUESTIONS

    database, namespace = asyncio.run(_updated(target, all_namespaces=all_namespaces, offline=offline))
    chosen = replace(filters, namespace=namespace)
    if sql is not None:
        print_rows(_asked(database, sql), output)
    elif parquet is not None:
        database.export(parquet, *chosen.where(every=True))
    elif postgres:
        print_postgres(database, chosen)
    else:
        print_rows(QUESTIONS[question](database, chosen, period, team_label), output)


def _asked(database: HistoryDatabase, sql: str) -> list[Row]:
    names, rows = database.query(sql)
    return [dict(zip(names, row, strict=True)) for row in rows]


async def _updated(target: Target, *, all_namespaces: bool, offline: bool) -> tuple[HistoryDatabase, str | None]:
    """Return the local copy of the cluster's history, and the namespace to ask about, None for all."""
    from multistep.cli import cluster
    from multistep.cli.terminal import print_warning
    from multistep.client.kubeconfig import current_cluster
    from multistep.client.results.sync_history import sync_history
    from multistep.report.history_database import HistoryDatabase

    found = current_cluster(target.kubeconfig, target.context)
    database = HistoryDatabase(_file(found.server if found else ""))
    async with cluster.connect(target) as client:
        namespace = None if all_namespaces else client.namespace
        if not offline:
            for warning in await sync_history(client, namespace, database):
                print_warning(warning)
    return database, namespace


def _file(server: str) -> Path:
    """Return the file with the copy of the history of the cluster with this API server."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "multistep" / f"history-{hashlib.sha256(server.encode()).hexdigest()[:12]}"


def _require_history() -> None:
    """Raise UsageError unless the packages of the pip extra `history` are installed."""
    if missing := [each for each in ("duckdb", "scipy") if find_spec(each) is None]:
        raise UsageError(
            f"this needs {' and '.join(missing)}, which Multistep's extra `history` brings: pip install 'multistep[history]', "
            "or in a checkout: pipx install --force '.[history]'"
        )
