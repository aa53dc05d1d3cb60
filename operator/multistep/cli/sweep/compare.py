"""`multistep sweep compare`: selects pairs of agents, compares them, and prints the verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import Scoring
from multistep.cli import cluster
from multistep.cli.sweep.sweep_report import pairs_table, read, read_report
from multistep.cli.terminal import clean, print_json, print_out, print_warning
from multistep.client.connection import Cluster
from multistep.client.options import Target
from multistep.errors import UsageError
from multistep.report.html_page import number_text, p_value_text
from multistep.report.report_warnings import warnings
from multistep.report.rows import FEWEST, TrialRow
from multistep.report.summary import AgentComparison, adjusted_comparisons, mean_difference

_KEPT = ".json"
_SOME = 3


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""

    name: str
    """The SIDE argument without its agent."""
    scoring: Scoring
    agents: Mapping[str, Sequence[TrialRow]]
    """The sweep's trials by agent."""


@dataclass(frozen=True)
class Contest:
    """A pair of agents to compare, by their names, with the trials of each."""

    first: str
    second: str
    first_rows: Sequence[TrialRow]
    second_rows: Sequence[TrialRow]


async def write_comparison(target: Target, texts: Sequence[str], *, as_json: bool) -> None:
    """Compare the sides and print the verdicts. texts: the SIDE arguments. Raises UsageError if they cannot be compared, and
    ClusterError."""
    if len(texts) > 2:
        raise UsageError(f"compare takes one or two sides, not {len(texts)}: SWEEP, SWEEP/AGENT or FILE.json")
    sides = await read_sides(target, texts)
    contests = contests_of(sides)
    for warning in scoring_warnings(sides):
        print_warning(warning)
    compared = [(each.first, each.second, mean_difference(each.first_rows, each.second_rows)) for each in contests]
    pairs = adjusted_comparisons(compared)
    if not pairs:
        raise UsageError(f"{contests[0].first} and {contests[0].second} share no task in which both have scored trials")
    for warning in dict.fromkeys(warning for contest in contests for warning in contest_warnings(contest)):  # without duplicates
        print_warning(warning)
    if as_json:
        print_json([{**asdict(each), "is_real": each.is_real, "verdict": verdict(each)} for each in pairs])
        return
    print_out(pairs_table(pairs), "", *map(verdict, pairs))
    if len(pairs) > 1:
        print_out(f"{len(pairs)} comparisons at once: each p is adjusted for their number (Holm); the intervals are not.")


async def read_sides(target: Target, texts: Sequence[str]) -> list[Side]:
    """Parse the SIDE arguments and read their trials. Connects to the cluster only if one of them is a sweep."""
    kept = {each: side for each in texts if (side := _of_file(each)) is not None}
    if len(kept) == len(set(texts)):
        return [kept[each] for each in texts]
    async with cluster.connect(target) as connected:
        return [kept.get(each) or await _of_sweep(connected, connected.namespace, each) for each in texts]


def _of_file(text: str) -> Side | None:
    """Return the side in a report file; None if the text is neither FILE.json nor FILE.json/AGENT."""
    file, kept, rest = text.partition(_KEPT)
    if not kept or rest[:1] not in ("", "/"):
        return None
    _, scoring, rows = read_report(Path(file + kept))
    return _side(file + kept, rest[1:], scoring, rows)


async def _of_sweep(connected: Cluster, namespace: str, text: str) -> Side:
    name, _, agent = text.partition("/")
    about, rows = await read(connected, namespace, name)
    return _side(name, agent, about.scoring, rows)


def _side(name: str, agent: str, scoring: Scoring, rows: Iterable[TrialRow]) -> Side:
    """Return the side, without branches. agent: the only agent to include, "" for all. Raises UsageError if the side lacks it."""
    agents: dict[str, list[TrialRow]] = defaultdict(list)
    for row in rows:
        if not row.branch:
            agents[row.agent].append(row)
    if agent and agent not in agents:
        raise UsageError(f"{name} has no agent {agent!r}; it has {_listed(agents)}")
    return Side(name, scoring, {agent: agents[agent]} if agent else dict(sorted(agents.items())))


def contests_of(sides: Sequence[Side]) -> list[Contest]:
    """Return the pairs of agents to compare.

    For one side, these are all pairs of its agents. For two sides with one agent each, these two agents are the pair. For other
    sides, each agent that both sides have is compared with itself.
    """
    if len(sides) == 1:
        (side,) = sides
        if len(side.agents) < 2:
            raise UsageError(f"{side.name} has the agent {_listed(side.agents)} only: name a second sweep to compare it with")
        return [Contest(one, other, side.agents[one], side.agents[other]) for one, other in combinations(side.agents, 2)]
    first, second = sides
    if len(first.agents) == len(second.agents) == 1:
        (one,), (other,) = first.agents, second.agents
        return [_contest(first, one, second, other)]
    if shared := [agent for agent in first.agents if agent in second.agents]:
        return [_contest(first, agent, second, agent) for agent in shared]
    raise UsageError(
        f"{first.name} has {_listed(first.agents)}, and {second.name} has {_listed(second.agents)}: "
        "no agent is in both sweeps; name the agents: SWEEP/AGENT"
    )


def _contest(first: Side, one: str, second: Side, other: str) -> Contest:
    return Contest(f"{first.name}/{one}", f"{second.name}/{other}", first.agents[one], second.agents[other])


def _listed(agents: Mapping[str, object]) -> str:
    return ", ".join(map(repr, agents)) or "none"


def verdict(pair: AgentComparison) -> str:
    """Return the result of a comparison as a sentence."""
    found, first, second = pair.difference.estimate, clean(pair.first), clean(pair.second)
    tasks = f"{found.tasks} shared tasks"
    if found.value == 0:
        result = f"{first} and {second} have the same mean score"
    else:
        better, worse = (first, second) if found.value > 0 else (second, first)
        result = f"{better} is better than {worse} by {number_text(abs(found.value))}"
    if found.tasks == 1:
        return f"{result} in the only task that they share; one task does not allow a conclusion about others."
    if found.tasks < FEWEST:
        return f"{result} over {tasks}, but this is not significant: fewer than {FEWEST} tasks never show a difference."
    span = (
        ""
        if found.low is None
        else f"95 % interval of {first} minus {second} {number_text(found.low)} to {number_text(found.high)}, "
    )
    numbers = f"({span}p {_equals(p_value_text(pair.p))})"
    if pair.is_real:
        return f"{result} over {tasks}, and the difference is real {numbers}."
    return f"{result} over {tasks}, and no difference is shown {numbers}: chance alone can explain it."


def _equals(p: str) -> str:
    return p if p.startswith("<") else f"= {p}"


def scoring_warnings(sides: Sequence[Side]) -> Iterator[str]:
    """Yield a warning if the sides are scored by different rules."""
    if sides[0].scoring != sides[-1].scoring:
        yield f"{sides[0].name} and {sides[-1].name} have different spec.scoring: their means follow different rules"


def contest_warnings(contest: Contest) -> Iterator[str]:
    """Yield the reasons why the comparison may be misleading."""
    names = (contest.first, contest.second)
    for name, rows in zip(names, (contest.first_rows, contest.second_rows), strict=True):
        if active := sum(row.state == "Active" for row in rows):
            yield f"{name}: {active} of {len(rows)} trials have not finished"
        if excluded := sum(row.excluded for row in rows):
            yield f"{name}: {excluded} of {len(rows)} trials are excluded"
    yield from (clean(each) for each in warnings(dict(zip(names, (contest.first_rows, contest.second_rows), strict=True))))
    first, second = _contents(contest.first_rows), _contents(contest.second_rows)
    if apart := len(first.keys() ^ second.keys()):
        yield f"left out: {plural(apart, 'task')} with trials that count only in {names[0]} or only in {names[1]}"
    differ = [task for task in first if task in second and first[task] and second[task] and first[task] != second[task]]
    if differ:
        more = f" and {len(differ) - _SOME} more" if len(differ) > _SOME else ""
        yield f"these tasks are not the same in {names[0]} and {names[1]}: {', '.join(differ[:_SOME])}{more}"


def _contents(rows: Sequence[TrialRow]) -> dict[str, set[str]]:
    """Return the known content digests of each task with scored trials."""
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        if row.counts is not None:
            found[row.task] |= {row.content} - {""}
    return found
