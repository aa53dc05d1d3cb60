"""The questions to the history: leaderboards, trends, regressions between versions, and costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from multistep.report.history_database import HistoryDatabase
from multistep.report.statistics import mean_score, paired_difference

Period = Literal["day", "week", "month"]
Row = Mapping[str, object]
_SHOWN: Final = 3  # tasks that a regression names


@dataclass(frozen=True)
class Filters:
    """Which trials a question is about. Unset fields select all trials."""

    namespace: str | None = None
    dataset: str | None = None
    sweep: str | None = None
    task: str | None = None
    agent: str | None = None
    model: str | None = None
    since: str | None = None
    """A day, YYYY-MM-DD (UTC): trials that were created on this day or later."""

    def where(self, *, every: bool = False) -> tuple[str, list[object]]:
        """Return a condition of SQL and its parameters. every: whether it holds for branches of sweeps and regrades, too, which
        repeat a part of other trials."""
        named = {name: getattr(self, name) for name in ("namespace", "dataset", "sweep", "task", "agent", "model")}
        terms = {f"{name} = ?": value for name, value in named.items() if value is not None}
        terms |= {"date >= CAST(? AS DATE)": self.since} if self.since else {}
        return " AND ".join(["true" if every else "branch = '' AND regrade_of = ''", *terms]), list(terms.values())


def leaderboard(database: HistoryDatabase, filters: Filters) -> list[Row]:
    """Return the agents, the best first. Scores are averaged per task; the interval is that of `sweep report`."""
    where, parameters = filters.where()
    _, found = database.query(
        "SELECT agent, agent_version, model, task, avg(score), avg(CAST(passed AS INTEGER)), count(score), count(*),"
        f" sum(cost_usd) FROM trials WHERE {where} GROUP BY ALL",
        parameters,
    )
    rows = [_standing(key, group) for key, group in _grouped(found, 3).items()]
    return sorted(rows, key=lambda row: (row["score"] is None, -_number(row["score"])))


def _standing(key: Sequence[object], tasks: Sequence[Sequence[Any]]) -> Row:
    scored = [each for each in tasks if each[4] is not None]
    estimate = mean_score({each[3]: [each[4]] for each in scored})
    return {
        **dict(zip(("agent", "version", "model"), key, strict=True)),
        "score": estimate.value if estimate else None,
        "low": estimate.low if estimate else None,
        "high": estimate.high if estimate else None,
        "passed": sum(each[5] for each in scored) / len(scored) if scored else None,
        "tasks": len(scored),
        "trials": sum(each[6] for each in tasks),
        "excluded": sum(each[7] - each[6] for each in tasks),
        "cost_usd": _total(each[8] for each in tasks),
    }


def trends(database: HistoryDatabase, filters: Filters, period: Period) -> list[Row]:
    """Return an agent's mean score, its trials and their cost in each period, the newest last."""
    where, parameters = filters.where()
    return _rows(
        database,
        "SELECT CAST(period AS VARCHAR) AS period, agent, avg(score) AS score, count(score) AS tasks,"
        " CAST(sum(scored) AS BIGINT) AS trials, CAST(sum(trials - scored) AS BIGINT) AS excluded, sum(cost) AS cost_usd,"
        " sum(seconds) / sum(timed) AS seconds"
        f" FROM (SELECT CAST(date_trunc('{period}', date) AS DATE) AS period, agent, task, avg(score) AS score,"
        " count(score) AS scored, count(*) AS trials, sum(cost_usd) AS cost, sum(seconds) AS seconds, count(seconds) AS timed"
        f" FROM trials WHERE {where} GROUP BY ALL) GROUP BY period, agent ORDER BY period, agent",
        parameters,
    )


def regressions(database: HistoryDatabase, filters: Filters) -> list[Row]:
    """Return, for each agent and model with several versions, the newest version against the one before it, the worst first.

    Versions are ordered by their first trial. The test is that of `sweep compare`, over the tasks that both versions have.
    """
    where, parameters = filters.where()
    _, found = database.query(
        "WITH chosen AS (SELECT agent, model, agent_version, task, score, finished FROM trials"
        f" WHERE {where} AND agent_version <> '' AND score IS NOT NULL),"
        " versions AS (SELECT agent, model, agent_version, row_number() OVER (PARTITION BY agent, model"
        " ORDER BY min(finished) DESC, agent_version) AS age FROM chosen GROUP BY agent, model, agent_version)"
        " SELECT agent, model, age, agent_version, task, avg(score) FROM chosen JOIN versions"
        " USING (agent, model, agent_version) WHERE age <= 2 GROUP BY ALL",
        parameters,
    )
    rows = [row for key, group in _grouped(found, 2).items() if (row := _regression(key, group)) is not None]
    return sorted(rows, key=lambda row: _number(row["difference"]))


def _regression(key: Sequence[object], scores: Sequence[Sequence[Any]]) -> Row | None:
    """Return an agent's row, None if the two versions share no task."""
    now, before = ({each[4]: [each[5]] for each in scores if each[2] == age} for age in (1, 2))
    versions = {each[2]: each[3] for each in scores}
    found = paired_difference(now, before)
    if found is None:
        return None
    deltas = {task: now[task][0] - before[task][0] for task in now if task in before}
    worst = sorted((task for task in deltas if deltas[task] < 0), key=lambda task: (deltas[task], task))
    return {
        "agent": key[0],
        "model": key[1],
        "former": versions[2],
        "version": versions[1],
        "difference": found.estimate.value,
        "low": found.estimate.low,
        "high": found.estimate.high,
        "p": found.p,
        "significant": found.is_real,
        "tasks": found.estimate.tasks,
        "worst_tasks": [f"{task} {deltas[task]:+.3g}" for task in worst[:_SHOWN]],
    }


def costs(database: HistoryDatabase, filters: Filters, period: Period, label: str = "") -> list[Row]:
    """Return the known costs (USD) and tokens by period and team: the namespace, or the value of a label of trials."""
    where, parameters = filters.where(every=True)
    team = "coalesce(labels[?], '')" if label else "namespace"
    return _rows(
        database,
        f"SELECT CAST(CAST(date_trunc('{period}', date) AS DATE) AS VARCHAR) AS period, {team} AS team, count(*) AS trials,"
        " sum(cost_usd) AS cost_usd, sum(judge_cost_usd) AS judge_cost_usd, CAST(sum(input_tokens) AS BIGINT) AS input_tokens,"
        " CAST(sum(output_tokens) AS BIGINT) AS output_tokens,"
        " count(*) FILTER (cost_usd IS NULL AND input_tokens IS NOT NULL) AS unpriced"
        f" FROM trials WHERE {where} GROUP BY period, team ORDER BY period, team",
        [*([label] if label else []), *parameters],
    )


def _rows(database: HistoryDatabase, sql: str, parameters: Sequence[object]) -> list[Row]:
    names, found = database.query(sql, parameters)
    return [dict(zip(names, each, strict=True)) for each in found]


def _grouped(rows: Sequence[Sequence[Any]], columns: int) -> dict[tuple[Any, ...], list[Sequence[Any]]]:
    """Return the rows by their first columns."""
    found: dict[tuple[Any, ...], list[Sequence[Any]]] = defaultdict(list)
    for row in rows:
        found[tuple(row[:columns])].append(row)
    return found


def _total(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: object) -> float:
    return value if isinstance(value, float) else 0.0


QUESTIONS: Final[Mapping[str, Callable[[HistoryDatabase, Filters, Period, str], list[Row]]]] = {
    "leaderboard": lambda database, filters, _, __: leaderboard(database, filters),
    "trends": lambda database, filters, period, _: trends(database, filters, period),
    "regressions": lambda database, filters, _, __: regressions(database, filters),
    "costs": costs,
}
