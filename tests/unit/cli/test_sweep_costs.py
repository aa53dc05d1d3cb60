"""Test that `multistep sweep report` of 1,000 trials shows tokens and costs in each format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.unit.report.usage_samples import AGENTS, ATTEMPTS, TASKS, Agent, trials

from .conftest import Invoke
from .fakes import CliCluster
from .test_sweep_report import owner

TRIALS_EACH = TASKS * ATTEMPTS


@pytest.fixture
def sweep(cluster: CliCluster) -> str:
    """Create the sweep with its trials, and return its name."""
    uid = cluster.put("TrialSweep", "s")["metadata"]["uid"]
    for each in trials():
        each["metadata"] |= {"labels": {"multistep.dev/sweep": "s"}, "ownerReferences": [owner("s", uid)]}
        cluster.objects["MultiStepTrial", each["metadata"]["name"]] = each
    return "s"


def cost(agent: Agent) -> float:
    """Return the cost of all of the agent's trials in US dollars."""
    return agent.usages * agent.cost_usd


def cost_per_pass(agent: Agent) -> float:
    return cost(agent) / (TASKS * agent.passes)


def test_the_table_and_the_page_show_cost_and_cost_per_pass_of_each_agent(invoke: Invoke, sweep: str, tmp_path: Path) -> None:
    result = invoke("sweep", "report", sweep, "-o", "table", "-o", tmp_path / "r.html")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "COST COST PER PASS COUNTED" in lines[0]
    page = (tmp_path / "r.html").read_text()
    for agent in AGENTS:
        (line,) = [each for each in lines if each.startswith(f"{agent.name} ") and f"{TRIALS_EACH} of {TRIALS_EACH}" in each]
        assert f"${cost(agent):.2f} ${cost_per_pass(agent):.2f}" in line
        assert f">${cost(agent):.2f}</span>" in page and f">${cost_per_pass(agent):.2f} per pass</span>" in page


def test_the_document_has_the_costs_of_each_agent(invoke: Invoke, sweep: str, tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    assert invoke("sweep", "report", sweep, "-o", file).exit_code == 0
    found = {each["agent"]: each for each in json.loads(file.read_text())["agents"]}
    for agent in AGENTS:
        standing = found[agent.name]
        assert (standing["trials"], standing["cost_usd"]) == (TRIALS_EACH, pytest.approx(cost(agent)))
        assert standing["cost_per_pass"] == pytest.approx(cost_per_pass(agent))


def _csv(file: Path) -> Sequence[Mapping[str, Any]]:
    return list(csv.DictReader(file.read_text().splitlines()))


def _json(file: Path) -> Sequence[Mapping[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text())["trials"]
    return found


def _parquet(file: Path) -> Sequence[Mapping[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(file).to_pylist()
    return found


@pytest.mark.parametrize(("form", "read"), [("csv", _csv), ("json", _json), ("parquet", _parquet)])
def test_a_file_has_tokens_and_cost_of_each_trial(
    invoke: Invoke, sweep: str, tmp_path: Path, form: str, read: Callable[[Path], Sequence[Mapping[str, Any]]]
) -> None:
    file = tmp_path / f"r.{form}"
    assert invoke("sweep", "report", sweep, "-o", file).exit_code == 0
    rows = read(file)
    assert len(rows) == len(AGENTS) * TRIALS_EACH and {each["counted_by"] for each in rows} == {"Gateway"}
    for agent in AGENTS:
        those = [each for each in rows if each["agent"] == agent.name]
        assert sum(int(each["input_tokens"]) for each in those) == agent.usages * agent.input_tokens
        assert sum(int(each["output_tokens"]) for each in those) == agent.usages * agent.output_tokens
        assert sum(float(each["cost_usd"]) for each in those) == pytest.approx(cost(agent))


def test_the_table_says_which_cost_is_without_requests_of_unknown_usage(invoke: Invoke, sweep: str, cluster: CliCluster) -> None:
    assert "of unknown usage" not in invoke("sweep", "report", sweep).stdout
    agent, other = AGENTS
    name = agent.trial(0, 1)["metadata"]["name"]
    cluster.objects["MultiStepTrial", name]["status"]["steps"][0]["usage"]["incomplete"] = 2
    result = invoke("sweep", "report", sweep)
    assert f"cost of {agent.name}: without 2 requests of unknown usage" in result.stdout.splitlines()
    assert f"cost of {other.name}" not in result.stdout
