"""A trial that quits after the first of three steps scores 1/3 and does not pass; the oracle passes with 1.0, whatever the
reward keys."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from multistep.kube.resources import SWEEPS
from tests.e2e.given import IMAGE, Object, Step, condition, trial
from tests.support.process_world import Trials as Given

QUITS = 'grep -q one "$MULTISTEP_INSTRUCTION_FILE" && touch /tmp/one; exit 1'
SOLVED = '#!/bin/sh\n[ -e /tmp/one ] && reward=1 || reward=0\necho "{keys}" | sed "s/R/$reward/g" > /logs/verifier/reward.json\n'


def step(name: str, keys: str) -> Step:
    """Return a step that is solved if /tmp/one exists. keys: the JSON of its rewards, with R for each number."""
    return Step(name, solve="#!/bin/sh\ntouch /tmp/one\n", test=SOLVED.replace("{keys}", keys.replace('"', '\\"')))


STEPS = (step("one", '{"reward": R}'), step("two", '{"correctness": R, "style": R}'), step("three", '{"tests": R}'))


def sweep() -> Object:
    quits = {"name": "quits", "agent": {"name": "command", "command": ["sh", "-c", QUITS]}}
    return {
        "apiVersion": SWEEPS.api_version,
        "kind": SWEEPS.kind,
        "metadata": {"name": "scores"},
        "spec": {
            "tasks": [{"name": "keys", "inline": trial(*STEPS)["spec"]["task"]["inline"]}],
            "agents": [quits, {"name": "oracle", "agent": {"name": "oracle"}}],
            "template": {"spec": {"environment": {"image": IMAGE}}},
        },
    }


async def test_status_report_and_all_files_agree_on_the_score_and_the_pass(given: Given, tmp_path: Path) -> None:
    await given.applied(sweep())
    done = await given.sweep_ended("scores")
    complete = condition(done, "Complete")
    assert (complete["status"], complete["message"]) == ("True", "2 of 2 trials count")
    agents = {each["name"]: each for each in done["status"]["agents"]}
    assert (agents["quits"]["mean"], agents["quits"].get("passed", 0)) == (pytest.approx(1 / 3), 0)
    assert (agents["oracle"]["mean"], agents["oracle"]["passed"]) == (1.0, 1)
    files = [tmp_path / f"scores.{form}" for form in ("json", "csv", "parquet", "html")]
    outputs = [word for each in files for word in ("-o", str(each))]
    code, _, err = await given.command("sweep", "report", "scores", "-n", given.namespace, *outputs)
    assert code == 0, err
    rows = {each["agent"]: each for each in json.loads(files[0].read_text())["trials"]}
    quits, oracle = rows["quits"], rows["oracle"]
    assert (quits["counts"], quits["passed"], quits["outcome"], quits["rewards"]) == (1 / 3, False, "AgentError", {"reward": 1.0})
    assert quits["how"] == "mean of 3 declared steps: one 1, two 0 (not reached), three 0 (not reached)"
    assert (oracle["counts"], oracle["passed"], oracle["outcome"]) == (1.0, True, "Passed")
    assert [each["rewards"] for each in oracle["steps"]] == [{"reward": 1.0}, {"correctness": 1.0, "style": 1.0}, {"tests": 1.0}]
    lines = {each["agent"]: each for each in csv.DictReader(io.StringIO(files[1].read_text()))}
    table = {each["agent"]: each for each in pq.read_table(files[2]).to_pylist()}
    for agent, row in rows.items():
        status = (await given.get(row["trial"]))["status"]
        assert (status["score"], status["passed"], status["outcome"]) == (row["counts"], row["passed"], row["outcome"])
        assert (float(lines[agent]["counts"]), lines[agent]["passed"]) == (row["counts"], str(row["passed"]))
        assert json.loads(lines[agent]["steps"]) == row["steps"] and json.loads(lines[agent]["rewards"]) == row["rewards"]
        assert (table[agent]["counts"], table[agent]["passed"]) == (row["counts"], row["passed"])
        assert [dict(each["rewards"]) for each in table[agent]["steps"]] == [each["rewards"] for each in row["steps"]]
    page = files[3].read_text()
    assert quits["how"] in page and "agent error" in page and "passed" in page
    code, out, _ = await given.command("show", oracle["trial"], "-n", given.namespace)
    assert code == 0 and f"{oracle['trial']} Complete: passed, score 1, reward " in out
