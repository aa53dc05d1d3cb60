"""Test `multistep sweep report` and `compare` with an in-memory cluster."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest

from multistep.errors import ClusterError, Unavailable
from multistep.kube.resources import TRIALS
from tests.unit.report.samples import step, trial, used

from .conftest import Invoke
from .fakes import CliCluster

Outcomes = Mapping[tuple[str, str], Sequence[float | str | None]]


def put(cluster: CliCluster, sweep: str, outcomes: Outcomes, content: str = "1", **status: Any) -> None:
    """Create a sweep and its trials. outcomes: the reward or failure class of each trial (None: an active trial), by task and
    agent; content: digest of the tasks' bundles; status: fields of the sweep's status."""
    uid = cluster.put("TrialSweep", sweep, status=status)["metadata"]["uid"]
    for (task, agent), those in outcomes.items():
        for attempt, outcome in enumerate(those, 1):
            if isinstance(outcome, str):
                made = trial(task, agent, attempt, ended="Failed", failure=(outcome, "Why"))
            else:
                made = trial(task, agent, attempt, ended=None if outcome is None else "Complete", reward=outcome)
            name = f"{sweep}-{made['metadata']['name']}"
            made["metadata"] |= {"name": name, "labels": {"multistep.dev/sweep": sweep}, "ownerReferences": [owner(sweep, uid)]}
            made["spec"]["task"]["bundle"]["digest"] = content
            cluster.objects["MultiStepTrial", name] = made


def owner(sweep: str, uid: str) -> dict[str, Any]:
    return {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": sweep, "uid": uid, "controller": True}


MANY: Outcomes = {
    **{(f"t{n}", "good"): [1.0 - n / 100, 0.9] for n in range(8)},
    **{(f"t{n}", "poor"): [n / 100, 0.0] for n in range(8)},
}


def test_a_report_is_a_table_of_agents_and_their_differences(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {**MANY, ("t0", "lost"): ["Infrastructure", None]})
    result = invoke("sweep", "report", "s")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "AGENT MEAN SCORE 95 % INTERVAL PASS@1 PASS@2 COUNTED TASKS EXCLUDED SCORED FAILURES"
    assert lines[1].startswith("good 0.932 0.922 to 0.943 0.062 0.125 16 of 16 8 of 8 - -")
    assert lines[3] == "lost - - - - 0 of 2 0 of 1 1 Infrastructure, 1 not finished -"
    assert lines[6].startswith("good poor +0.915 0.895 to 0.935 0.008 8 real")


def test_pass_at_k_has_the_number_of_its_tasks_if_others_have_fewer_trials(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {("t0", "a"): [1.0, 1.0], ("t1", "a"): [0.0, "Infrastructure"], ("t2", "a"): [0.0, None]})
    lines = [" ".join(line.split()) for line in invoke("sweep", "report", "s").stdout.splitlines()]
    assert lines[1].startswith("a 0.333 0.000 to 1.000 0.333 1.000 of 1 task 4 of 6 3 of 3")


def test_a_narrow_terminal_breaks_no_number(invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "s", {**MANY, ("t0", "good"): [1.0, "Infrastructure"]})
    for name, value in {"FORCE_COLOR": "1", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    lines = [" ".join(line.split()) for line in click.unstyle(invoke("sweep", "report", "s").stdout).splitlines()]
    good = "good 0.939 0.916 to 0.961 0.125 0.000 of 7 tasks 15 of 16 8 of 8 1 Infrastructure"
    assert any(each.startswith(good) for each in lines)


def test_the_table_says_that_trials_are_missing_as_the_page_does(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", MANY, phase="Failed", trials={"total": 40})
    assert "Failed: 32 of 40 trials were created and exist" in invoke("sweep", "report", "s").stdout.splitlines()


def put_graded(cluster: CliCluster, sweep: str, judge: str, rewards: Mapping[str, float], **spec: Any) -> None:
    """Create a sweep with a judge, and a trial with one step of each task. rewards: by task."""
    put(cluster, sweep, {(task, "mine"): [reward] for task, reward in rewards.items()}, sourceUID="uid-first")
    for task, reward in rewards.items():
        cluster.objects["MultiStepTrial", f"{sweep}-s-{task}-mine-1"]["status"]["steps"] = [step("one", reward)]
    template = {"spec": {"models": {"judge": {"model": judge}}}}
    cluster.objects["TrialSweep", sweep] |= {"spec": {"template": template, **spec}}


def test_the_report_of_a_regrade_shows_how_far_its_judge_agrees_with_the_former_one(invoke: Invoke, cluster: CliCluster) -> None:
    first = {f"t{n}": float(n % 2) for n in range(10)}
    put_graded(cluster, "first", "openai/one", first)
    put_graded(cluster, "second", "openai/two", {**first, "t0": 1.0}, regrade={"sweep": "first"})
    lines = [" ".join(line.split()) for line in invoke("sweep", "report", "second").stdout.splitlines()]
    start = lines.index(
        "agreement with first, judged by openai/one and now by openai/two: 9 of 10 steps of 10 tasks passed in both or in none"
    )
    assert lines[start + 1 : start + 4] == [
        "VERDICT ALPHA 95 % INTERVAL",
        "passed or not 0.808 0.370 to 1.000",
        "score of a step 0.808 0.370 to 1.000",
    ]
    found = json.loads(invoke("sweep", "report", "second", "-o", "json").stdout)["agreement"]
    assert (found["judge"], found["alike"], round(found["passes"]["value"], 3)) == ("openai/two", 9, 0.808)
    assert "Agreement with first" in invoke("sweep", "report", "second", "-o", "html").stdout
    assert "agreement" not in json.loads(invoke("sweep", "report", "first", "-o", "json").stdout)
    cluster.objects["TrialSweep", "first"]["metadata"]["uid"] = "another"
    result = invoke("sweep", "report", "second")
    assert result.exit_code == 0 and "sweep first, whose trials this one regrades, was deleted" in result.stderr


def put_branches(cluster: CliCluster, sweep: str, task: str, state: str, *rewards: float | None) -> None:
    """Create branches of an existing sweep at step "two". rewards: the step's reward in each branch; None: not finished."""
    uid = cluster.objects["TrialSweep", sweep]["metadata"]["uid"]
    for attempt, reward in enumerate(rewards, 1):
        made = trial(
            task, attempt=attempt, ended="Complete" if reward is not None else None, reward=reward, steps=[step("two", reward)]
        )
        made["metadata"] |= {
            "name": f"{sweep}-{task}-two-{state}-{attempt}",
            "labels": {"multistep.dev/sweep": sweep, "multistep.dev/branch": state},
            "annotations": {**made["metadata"]["annotations"], "multistep.dev/step": "two"},
            "ownerReferences": [owner(sweep, uid)],
        }
        cluster.objects["MultiStepTrial", made["metadata"]["name"]] = made


def test_a_report_of_branches_has_a_table_of_steps_and_states(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {("t", "mine"): [0.5, 0.5], ("u", "mine"): [0.5], ("v", "mine"): [0.5]})
    put_branches(cluster, "s", "t", "Own", 0.0, 1.0, None)
    put_branches(cluster, "s", "t", "Reference", 1.0, 1.0)
    put_branches(cluster, "s", "u", "Own", 1.0)
    put_branches(cluster, "s", "u", "Reference", 1.0)
    put_branches(cluster, "s", "v", "Reference", 0.0)
    result = invoke("sweep", "report", "s")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[1].startswith("mine 0.500 -")
    first = lines.index("TASK AGENT STEP STATE PASSED PASS@1 PASS@2 EXCLUDED OWN - REFERENCE 95 % INTERVAL")
    assert lines[first + 1 :] == [
        "t mine two own 1 of 2, 1 not finished 0.500 1.000 - -0.500 -0.905 to 0.273",
        "t mine two reference 2 of 2 1.000 1.000 - - -",
        "u mine two own 1 of 1 1.000 - - +0.000 -0.793 to 0.793",
        "u mine two reference 1 of 1 1.000 - - - -",
        "v mine two own no state: 0 of 1 trials reached the step - - - - -",
        "v mine two reference 0 of 1 0.000 - - - -",
        "mine: own minus reference over 2 tasks, paired by task: -0.250, 95 % interval -1.000 to 1.000, p 0.500",
    ]
    assert "warning: 1 of 3 branched steps have no trials from the agent's own state" in result.stderr


def test_a_comparison_is_of_ordinary_trials(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", {("t", "mine"): [1.0]})
    put(cluster, "b", {("t", "mine"): [0.0]})
    put_branches(cluster, "a", "t", "Reference", 0.0, 0.0)
    (found,) = json.loads(invoke("sweep", "compare", "a", "b", "-o", "json").stdout)
    assert (found["difference"]["estimate"]["value"], found["difference"]["estimate"]["trials"]) == (1.0, 2)


def test_a_report_shows_what_is_spent_of_the_budget(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", MANY, costUSD=0.9, budget={"costUSD": 1, "since": "2026-01-01T00:00:00Z"})
    assert "$0.90 of $1.00 spent" in invoke("sweep", "report", "s").stdout.splitlines()
    assert "<li>$0.90 of $1.00 spent</li>" in invoke("sweep", "report", "s", "-o", "html").stdout
    document = json.loads(invoke("sweep", "report", "s", "-o", "json").stdout)
    assert (document["cost_usd"], document["budget_usd"]) == (0.9, 1)


def test_a_report_does_not_show_an_unknown_cost_as_0(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", MANY, budget={"costUSD": 1, "since": "2026-01-01T00:00:00Z"})
    assert "no cost known, of a budget of $1.00" in invoke("sweep", "report", "s").stdout.splitlines()


def test_a_trial_that_has_the_sweeps_label_but_not_its_uid_changes_nothing(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {("t", "mine"): [0.0, 0.0]})
    for number, owners in enumerate(([], [owner("s", "another")], [owner("x", "uid-s")])):
        forged = trial("t", "mine", 7 + number, reward=1.0)
        name = f"forged-{number}"
        forged["metadata"] |= {"name": name, "labels": {"multistep.dev/sweep": "s"}, "ownerReferences": owners}
        cluster.objects["MultiStepTrial", name] = forged
    result = invoke("sweep", "report", "s", "-o", "json")
    document = json.loads(result.stdout)
    assert (document["agents"][0]["mean"]["value"], document["agents"][0]["trials"]) == (0.0, 2)
    del cluster.objects["TrialSweep", "s"]
    result = invoke("sweep", "report", "s")
    assert (result.exit_code, "belong to 2 deleted sweeps" in result.stderr) == (2, True)


def test_several_outputs_are_written_at_once(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put(cluster, "s", MANY, phase="Running", trials={"total": 40})
    files = [tmp_path / f"r.{form}" for form in ("html", "csv", "json", "parquet")]
    result = invoke("sweep", "report", "s", *(word for file in files for word in ("-o", file)))
    assert (result.exit_code, result.stdout) == (0, "")
    progress = [f"reading the output of trials without a pass: {done} of 31" for done in (20, 31)]
    assert result.stderr.splitlines() == [*progress, *(f"wrote {file}" for file in files)]
    assert "32 of 40 trials" in files[0].read_text()
    assert len(files[1].read_text().splitlines()) == 33
    assert json.loads(files[2].read_text())["planned"] == 40
    assert pq.read_table(files[3]).num_rows == 32
    assert sorted(each.name for each in tmp_path.glob("r.*")) == ["r.csv", "r.html", "r.json", "r.parquet"]


@pytest.mark.parametrize("form", ["json", "csv", "html", "parquet"])
def test_one_output_can_go_to_stdout(invoke: Invoke, cluster: CliCluster, form: str) -> None:
    put(cluster, "s", MANY)
    result = invoke("sweep", "report", "s", "-o", form)
    assert result.exit_code == 0, result.stderr
    assert result.stdout_bytes[:4] == {"json": b'{\n "', "csv": b"name", "html": b"<!do", "parquet": b"PAR1"}[form]


@pytest.mark.parametrize(
    ("outputs", "reported"),
    [
        (["x.pdf"], "-o x.pdf: must be a file ending in .html, .csv, .json or .parquet, or table, html, csv, json, parquet"),
        (["yaml"], "-o yaml: must be"),
        (["json", "csv"], "only one of them can go to stdout"),
        (["no/such/place.html"], "directory no/such does not exist"),
    ],
)
def test_an_output_that_cannot_be_is_refused_before_the_cluster_is_asked(
    invoke: Invoke, cluster: CliCluster, outputs: list[str], reported: str
) -> None:
    cluster.reachable = False
    result = invoke("sweep", "report", "s", *(word for each in outputs for word in ("-o", each)))
    assert (result.exit_code, reported in result.stderr) == (2, True), result.stderr


def test_a_file_that_cannot_be_written_is_reported_and_nothing_is_left(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put(cluster, "s", MANY)
    (tmp_path / "r.csv").mkdir()
    result = invoke("sweep", "report", "s", "-o", tmp_path / "r.csv")
    assert (result.exit_code, "Is a directory" in result.stderr) == (2, True)
    assert [each.name for each in tmp_path.iterdir()] == ["r.csv"]


def test_no_such_sweep_is_reported(invoke: Invoke, cluster: CliCluster) -> None:
    for command in (["report", "none"], ["compare", "none"], ["status", "none"]):
        result = invoke("sweep", *command)
        assert (result.exit_code, "sweep 'none' does not exist in namespace 'default'" in result.stderr) == (2, True)


def test_trials_of_a_sweep_that_is_gone_have_a_report(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", MANY)
    del cluster.objects["TrialSweep", "s"]
    assert invoke("sweep", "report", "s").exit_code == 0


def test_a_cluster_without_multistep_is_reported(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.installed = False
    result = invoke("sweep", "report", "s")
    assert (result.exit_code, "the cluster has no CRD for TrialSweep: install Multistep" in result.stderr) == (2, True)


def test_a_list_that_was_too_slow_restarts(invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "s", MANY)
    whole, asked = cluster.iterate, []

    async def iterate(*arguments: Any, **options: Any) -> Any:
        asked.append(arguments[0])
        count = 0
        async for found in whole(*arguments, **options):
            if len(asked) == 1 and count == 3:
                raise ClusterError("too old", status=410)
            count += 1
            yield found

    monkeypatch.setattr(cluster, "iterate", iterate)
    result = invoke("sweep", "report", "s", "-o", "csv")
    assert (asked, len(result.stdout.splitlines())) == ([TRIALS, TRIALS], 33)


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_missing_extra_is_reported_with_what_brings_it(
    invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    find = util.find_spec
    monkeypatch.setattr("multistep.cli.options.find_spec", lambda name: None if name == "scipy" else find(name))
    result = invoke("sweep", command, "s")
    assert result.exit_code == 2
    assert "this needs scipy, which Multistep's extra `report` brings: pip install 'multistep[report]'" in result.stderr


def test_a_real_difference_is_reported_in_words(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", {(f"t{n}", "mine"): [1.0 - n / 100] for n in range(8)})
    put(cluster, "b", {(f"t{n}", "mine"): [n / 50] for n in range(8)})
    result = invoke("sweep", "compare", "a", "b")
    assert result.exit_code == 0, result.stderr
    assert (
        "a/mine is better than b/mine by 0.895 over 8 shared tasks, and the difference is real "
        "(95 % interval of a/mine minus b/mine 0.834 to 0.956, p = 0.008)."
    ) in result.stdout
    assert result.stderr == ""


def test_too_few_tasks_are_reported(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", {(f"t{n}", "mine"): [1.0] for n in range(5)})
    put(cluster, "b", {(f"t{n}", "mine"): [0.0] for n in range(5)})
    assert "this is not significant: fewer than 6 tasks never show a difference" in invoke("sweep", "compare", "a", "b").stdout
    put(cluster, "c", {("t0", "mine"): [0.5]})
    assert "in the only task that they share" in invoke("sweep", "compare", "a", "c").stdout


def test_no_difference_is_reported(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", {(f"t{n}", "mine"): [n % 2] for n in range(8)})
    put(cluster, "b", {(f"t{n}", "mine"): [(n + 1) % 2 if n < 7 else 0] for n in range(8)})
    assert "no difference is shown" in invoke("sweep", "compare", "a", "b").stdout
    assert "have the same mean score over 8 shared tasks" in invoke("sweep", "compare", "a", "a").stdout


def test_the_agents_of_one_sweep_are_compared_each_with_each(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {**MANY, **{(f"t{n}", "third"): [0.5 + n / 1000] for n in range(8)}})
    result = invoke("sweep", "compare", "s", "-o", "json")
    found = json.loads(result.stdout)
    assert [(each["first"], each["second"], each["is_real"]) for each in found] == [
        ("good", "poor", True), ("good", "third", True), ("poor", "third", True),
    ]  # fmt: skip
    assert found[0]["p"] > found[0]["difference"]["p"]
    assert "3 comparisons at once" in invoke("sweep", "compare", "s").stdout


def test_two_sweeps_are_compared_by_agents_of_the_same_name(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", MANY)
    put(cluster, "b", {key: those for key, those in MANY.items() if key[1] == "poor"} | {("t0", "other"): [1.0]})
    found = json.loads(invoke("sweep", "compare", "a", "b", "-o", "json").stdout)
    assert [(each["first"], each["second"]) for each in found] == [("a/poor", "b/poor")]


def test_any_two_agents_can_be_named(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", MANY)
    (found,) = json.loads(invoke("sweep", "compare", "a/good", "a/poor", "-o", "json").stdout)
    assert (found["first"], found["second"], found["is_real"]) == ("a/good", "a/poor", True)


@pytest.mark.parametrize(
    ("sides", "reported"),
    [
        (["a/none"], "a has no agent 'none'; it has 'good', 'poor'"),
        (["a/good"], "a has the agent 'good' only: name a second sweep"),
        (["a", "b"], "a has 'good', 'poor', and b has 'x', 'y': no agent is in both sweeps; name the agents: SWEEP/AGENT"),
        (["a/good", "b/x"], "a/good and b/x share no task in which both have scored trials"),
        (["a", "b", "c"], "compare takes one or two sides, not 3"),
    ],
)
def test_sweeps_that_cannot_be_compared_are_rejected(invoke: Invoke, cluster: CliCluster, sides: list[str], reported: str) -> None:
    put(cluster, "a", MANY)
    put(cluster, "b", {("u", "x"): [1.0], ("u", "y"): [1.0]})
    result = invoke("sweep", "compare", *sides)
    assert (result.exit_code, reported in result.stderr) == (2, True), result.stderr


def test_weaknesses_of_a_comparison_are_reported(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "a", {**{(f"t{n}", "m"): [0.5] for n in range(7)}, ("u", "m"): [1.0], ("t9", "m"): ["Infrastructure"]})
    put(cluster, "b", {**{(f"t{n}", "m"): [0.25] for n in range(7)}, ("t9", "m"): [None]}, content="2")
    assert invoke("sweep", "compare", "a", "b").stderr.splitlines() == [
        "warning: a/m: 1 of 9 trials are excluded",
        "warning: b/m: 1 of 8 trials have not finished",
        "warning: 11% of the finished trials of a/m are excluded, but 0% of b/m's: their means are of different samples; "
        "compare them by the mean if 0, or run the excluded trials again",
        "warning: left out: 1 task with trials that count only in a/m or only in b/m",
        "warning: these tasks are not the same in a/m and b/m: t0, t1, t2 and 4 more",
    ]


def test_a_fact_about_several_comparisons_is_reported_once(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {("a", "x"): [1.0, "Task"], ("a", "y"): [0.5, "Task"], ("a", "z"): [0.25, "Task"]})
    reported = [f"warning: {agent}: 1 of 2 trials are excluded" for agent in "xyz"]
    assert invoke("sweep", "compare", "s").stderr.splitlines() == reported


def test_a_report_that_was_kept_can_be_compared_when_its_sweep_is_gone(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put(cluster, "a", MANY)
    file = tmp_path / "monday.json"
    assert invoke("sweep", "report", "a", "-o", file).exit_code == 0
    (found,) = json.loads(invoke("sweep", "compare", f"{file}/good", "a/poor", "-o", "json").stdout)
    assert (found["first"], found["is_real"]) == (f"{file}/good", True)
    (same,) = json.loads(invoke("sweep", "compare", f"{file}/good", "a/good", "-o", "json").stdout)
    assert same["difference"]["estimate"]["value"] == 0


def test_kept_reports_are_compared_without_a_cluster(
    invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(cluster, "a", MANY)
    file = tmp_path / "monday.json"
    assert invoke("sweep", "report", "a", "-o", file).exit_code == 0

    def connect(_: object) -> None:
        raise Unavailable("no kubeconfig names a cluster")

    monkeypatch.setattr("multistep.cli.cluster.connect", connect)
    result = invoke("sweep", "compare", f"{file}/good", f"{file}/poor")
    printed = " ".join(result.stdout.split())  # where lines break depends on the path's length
    assert (result.exit_code, "the difference is real" in printed) == (0, True), result.stderr
    assert invoke("sweep", "compare", file, "a").exit_code == 4


def test_sweeps_that_score_by_other_rules_are_distinguished(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    put(cluster, "a", MANY)
    put(cluster, "b", MANY)
    file = tmp_path / "a.json"
    assert invoke("sweep", "report", "a", "-o", file).exit_code == 0
    assert "spec.scoring" not in invoke("sweep", "compare", "a", "b").stderr
    cluster.objects["TrialSweep", "b"]["spec"] = {"scoring": {"agentErrors": "Exclude"}}
    for first in ("a", str(file)):
        warned = f"warning: {first} and b have different spec.scoring: their means follow different rules"
        assert warned in invoke("sweep", "compare", first, "b").stderr.splitlines()


@pytest.mark.parametrize(
    "content", ["", "[]", '{"sweep": "x"}', '{"sweep": "x", "trials": [{"steps": []}]}', '{"sweep": 1, "trials": 3}']
)
def test_a_file_that_is_no_report_is_reported(invoke: Invoke, cluster: CliCluster, tmp_path: Path, content: str) -> None:
    file = tmp_path / "x.json"
    file.write_text(content)
    result = invoke("sweep", "compare", file, file)
    assert result.exit_code == 2
    assert f"{file} is not a report: `multistep sweep report SWEEP -o {file}` writes one" in result.stderr
    assert "No such file" in invoke("sweep", "compare", tmp_path / "none.json", "a").stderr


def test_the_cost_of_an_agent_includes_trials_that_a_retry_replaced(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {("t", "a"): ["Infrastructure", 1.0], ("t", "b"): [1.0]})
    trials = [each for (kind, _), each in cluster.objects.items() if kind == "MultiStepTrial"]
    for number, each in enumerate(trials):
        each["metadata"]["labels"]["multistep.dev/number"] = str(number)
        each["status"]["steps"] = [step("a", 1.0, usage=used(0.25))]
    trials[1]["metadata"]["labels"]["multistep.dev/retry-of"] = "0"
    result = invoke("sweep", "report", "s")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "a 1.000 - 1.000 $0.50 $0.50 1 of 1 1 of 1 - -" in lines
    assert "b 1.000 - 1.000 $0.25 $0.25 1 of 1 1 of 1 - -" in lines
    assert "1 trial without a score was run again; each number counts once" in lines
