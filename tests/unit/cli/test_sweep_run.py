"""Test `multistep sweep run` and `status` with an in-memory cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from multistep.api.sweep.sweep import SweepStatus, parse_sweep, parse_sweep_status
from multistep.cli.sweep.sweep_view import progress_text, seconds_left
from multistep.client.reconnecting_watch import WatchEvent
from multistep.errors import ClusterError, Unavailable

from .conftest import TASK_TOML, Invoke
from .fakes import START, CliCluster

NOW = datetime(2026, 1, 1, 0, 10, tzinfo=UTC)


def reported(phase: str, *, total: int = 4, done: int = 0, counted: int = 0, **fields: Any) -> dict[str, Any]:
    """Return a sweep's status as the operator writes it. done: number of finished trials."""
    holds = {"Complete": phase == "Complete", "Failed": phase == "Failed", "Reconciling": phase not in ("Complete", "Failed")}
    conditions = [
        {"type": type_, "status": str(value), "lastTransitionTime": START, "reason": "Because", "message": "so it is"}
        for type_, value in holds.items()
    ]
    trials = {
        "total": total,
        "created": total,
        "finished": done,
        "active": total - done,
        "running": total - done,
        "counted": counted,
    }
    return {"phase": phase, "conditions": conditions, "startTime": START, "trials": trials, **fields}


RUNNING = reported("Running", done=1, counted=1)
GOOD = reported(
    "Complete", done=4, counted=4, agents=[{"name": "oracle", "counted": 4, "passed": 3, "finished": 6, "mean": 0.75}], podHours=0.5
)
LOSSY = reported("Complete", done=4, counted=3, excluded={"Infrastructure": 1})
HALTED = reported("Failed", done=2, counted=2)


def made(cluster: CliCluster) -> dict[str, Any]:
    """Return the sweep that the command submitted. Raises InvalidSpec if the sweep is invalid."""
    (found,) = cluster.of("TrialSweep")
    parse_sweep(found)
    return dict(found)


@pytest.fixture
def tasks(task: Path) -> Path:
    """Return a directory with two tasks and one directory that is not a task."""
    directory = task.parent
    other = directory / "other"
    for path in task.rglob("*"):
        if path.is_file():
            (other / path.relative_to(task)).parent.mkdir(parents=True, exist_ok=True)
            (other / path.relative_to(task)).write_bytes(path.read_bytes())
    (other / "task.toml").write_text(TASK_TOML.replace("My_Task", "other"))
    (directory / "notes").mkdir()
    return directory


POOR = {
    **RUNNING,
    "phase": "Suspended",
    "conditions": [
        {
            "type": "Suspended",
            "status": "True",
            "lastTransitionTime": START,
            "reason": "CostBudgetSpent",
            "message": "the trials used 0.9 of 1 US dollars",
        }
    ],
    "trials": {"total": 4, "created": 3, "suspended": 1, "finished": 2},
    "costUSD": 0.9,
    "budget": {"costUSD": 1, "since": "2026-01-01T00:00:00Z"},
}


def test_a_sweep_whose_budget_is_spent_shows_it(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put("TrialSweep", "s", status=POOR)
    lines = invoke("sweep", "status", "s").stdout.splitlines()
    assert "cost: 0.9 of 1 USD" in lines
    assert lines[-1].startswith("s Suspended: 2 of 4 trials finished, 1 suspended: CostBudgetSpent: the trials used 0.9 of 1")


@pytest.mark.parametrize(
    ("cost", "line"),
    [
        ({}, "cost: none known so far, of 1 USD"),
        ({"costUSD": 0.0}, "cost: 0 of 1 USD"),
    ],
)
def test_an_unknown_cost_is_not_shown_as_0_beside_a_budget(
    invoke: Invoke, cluster: CliCluster, cost: dict[str, float], line: str
) -> None:
    cluster.put("TrialSweep", "s", status={**{name: POOR[name] for name in POOR if name != "costUSD"}, **cost})
    assert line in invoke("sweep", "status", "s").stdout.splitlines()


def test_the_budget_of_a_sweep_reaches_its_spec(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [GOOD]
    assert invoke("sweep", "run", task, "--budget", "2.5").exit_code == 0
    assert made(cluster)["spec"]["budget"] == {"costUSD": 2.5}


@pytest.mark.parametrize(("end", "code"), [(GOOD, 0), (LOSSY, 1), (HALTED, 3), (POOR, 3)])
def test_the_exit_code_reports_how_it_ended(task: Path, invoke: Invoke, cluster: CliCluster, end: Any, code: int) -> None:
    cluster.story = [RUNNING, end]
    assert invoke("sweep", "run", task).exit_code == code
    cluster.put("TrialSweep", "s", status=RUNNING)
    assert invoke("sweep", "status", "s", "--follow").exit_code == code


def test_a_directory_of_tasks_becomes_a_sweep_that_owns_them(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [GOOD]
    options = ("--attempts", 3, "--parallelism", 7, "--agent", "nop", "--agent", "mine=sh -c 'my agent'", "--timeout-multiplier", 2)
    (tasks / "other" / "task.toml").write_text(TASK_TOML.replace("org/My_Task", "org/other") + '[verifier.env]\nA = "${KEY}"\n')
    values = ("--var", "KEY=secret", "--agent-env", "API=a")
    result = invoke("sweep", "run", tasks, *options, "--name", "nightly", *values, "--queue", "team")
    assert result.exit_code == 0, result.stderr
    sweep = made(cluster)
    assert [each["name"] for each in sweep["spec"]["tasks"]] == ["My_Task", "other"]
    env = [{"name": "API", "valueFrom": {"secretKeyRef": {"name": "nightly-agent-env", "key": "API"}}}]
    assert sweep["spec"]["agents"] == [
        {"name": "nop", "agent": {"name": "nop", "env": env}},
        {"name": "mine", "agent": {"name": "command", "command": ["sh", "-c", "my agent"], "env": env}},
    ]
    assert (sweep["spec"]["attempts"], sweep["spec"]["parallelism"]) == (3, 7)
    assert sweep["spec"]["template"]["metadata"] == {"labels": {"kueue.x-k8s.io/queue-name": "team"}}
    template = sweep["spec"]["template"]["spec"]
    assert template["timeoutMultiplier"] == 2
    assert template["variables"] == [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "nightly-variables", "key": "KEY"}}}]
    named = {name for each in sweep["spec"]["tasks"] for name in each["bundle"]["configMaps"]}
    assert named == {each["metadata"]["name"] for each in cluster.of("ConfigMap")}
    for each in (*cluster.of("ConfigMap"), *cluster.of("Secret")):
        (owner,) = each["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"], owner["uid"]) == ("TrialSweep", "nightly", "uid-nightly")


def test_a_variable_that_no_task_uses_is_refused_for_a_command_agent(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("sweep", "run", tasks, "--agent", "mine=x", "--var", "KEY=v")
    assert (result.exit_code, cluster.objects) == (2, {})
    assert "--var KEY: no template in task.toml or a compose file uses ${KEY}" in result.stderr
    assert "--agent-env KEY" in result.stderr


def test_a_sweep_is_called_after_its_task_or_the_directory_of_its_tasks(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    for source, stem in ((tasks / "other", "other-"), (tasks, f"{tasks.name.replace('_', '-')}-")):
        result = invoke("sweep", "run", source, "--detach")
        assert result.exit_code == 0, result.stderr
        assert result.stdout.startswith(stem)


def test_a_manifest_goes_to_the_cluster_as_it_is(tmp_path: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [GOOD]
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}}
    inline = {"config": {"version": "1.0"}, "files": {"instruction.md": "do it"}}
    sweep = {
        "apiVersion": "multistep.dev/v1alpha1",
        "kind": "TrialSweep",
        "metadata": {"name": "nightly"},
        "spec": {"tasks": [{"name": "a", "inline": inline}], "agents": [{"name": "nop", "agent": {"name": "nop"}}]},
    }
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump_all([secret, sweep]))
    result = invoke("sweep", "run", tmp_path / "sweep.yaml", "-n", "evals")
    assert result.exit_code == 0, result.stderr
    assert made(cluster)["spec"] == sweep["spec"]
    assert made(cluster)["metadata"]["namespace"] == "evals"
    assert [each["metadata"]["name"] for each in cluster.of("Secret")] == ["keys"]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("kind: ConfigMap\nmetadata: {name: x}\n", "must have one TrialSweep, and has 0"),
        ("- 1\n", "is not a manifest"),
        ("a: [", "while parsing"),
        ("kind: TrialSweep\nmetadata: {}\n", "needs metadata.name"),
        ("kind: TrialSweep\nmetadata: {name: x}\nspec: {agents: []}\n", "spec.agents"),
    ],
)
def test_a_manifest_that_is_none_is_reported(tmp_path: Path, invoke: Invoke, cluster: CliCluster, text: str, reported: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    result = invoke("sweep", "run", tmp_path / "x.yaml")
    assert (result.exit_code, reported in result.stderr) == (2, True), result.stderr


def test_what_a_manifest_sets_itself_is_refused_beside_it(tmp_path: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (tmp_path / "x.yaml").write_text("{}")
    for options in (
        ("--attempts", 2),
        ("--agent", "nop"),
        ("--agent-file", "x"),
        ("--agent-env-from-secret", "A=s:k"),
        ("--var", "A=1"),
        ("--name", "x"),
    ):
        result = invoke("sweep", "run", tmp_path / "x.yaml", *options)
        assert (result.exit_code, f"{options[0]} applies to directories of tasks only" in result.stderr) == (2, True)
    assert "one file alone" in invoke("sweep", "run", tmp_path / "x.yaml", tmp_path).stderr


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        (("--agent", "claude"), "--agent claude: must be oracle, nop, AGENT@MODEL, or NAME=COMMAND"),
        (("--agent-file", "=x"), "--agent-file =x: must be SCRIPT or NAME=SCRIPT"),
        (("--agent-file", "/nowhere"), "--agent-file /nowhere: No such file or directory"),
        (("--agent-env-from-secret", "A"), "--agent-env-from-secret A: must be NAME=SECRET:KEY"),
        (("--agent", "mine="), "--agent mine=: must be NAME=COMMAND"),
        (("--agent", "=x"), "--agent =x: must be NAME=COMMAND"),
        (("--agent", "mine=sh -c 'x"), "--agent mine=sh -c 'x: quotes are not balanced: No closing quotation"),
        (("--agent", 'mine=sh -c "x'), "quotes are not balanced"),
        (("--agent", "mine=x\\"), "quotes are not balanced: No escaped character"),
        (("--agent", "mine=my-agent < $FILE"), "'<' needs a shell"),
        (("--agent", "mine=my-agent >out"), "'>out' needs a shell"),
        (("--agent", "mine=cd /app && my-agent"), "'&&' needs a shell"),
        (("--agent", "mine=cd /app; my-agent"), "'/app;' needs a shell"),
        (("--agent", "mine=bash -c cat $FILE"), "bash -c runs 'cat' only: quote the whole script"),
        (("--agent", "mine=/bin/sh -ec cat x"), "/bin/sh -ec runs 'cat' only: quote the whole script"),
        (("--agent", "nop", "--agent", "nop=x"), "names must be unique"),
        (("--name", "A_B"), "--name 'A_B' must be"),
    ],
)
def test_bad_options_are_reported_before_the_cluster_is_asked(
    task: Path, invoke: Invoke, cluster: CliCluster, options: tuple[str, ...], reported: str
) -> None:
    cluster.reachable = False
    result = invoke("sweep", "run", task, *options)
    assert (result.exit_code, reported in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sh -c 'my agent'", ["sh", "-c", "my agent"]),
        ('sh -c "my-agent < $MULTISTEP_INSTRUCTION_FILE"', ["sh", "-c", "my-agent < $MULTISTEP_INSTRUCTION_FILE"]),
        ("sh -c 'a; b' name '<'", ["sh", "-c", "a; b", "name", "<"]),
        ("bash -c '\"$@\"' name my-agent", ["bash", "-c", '"$@"', "name", "my-agent"]),
        ("my-agent --url=http://x?a=1&b=2 it\\'s '#1' ''", ["my-agent", "--url=http://x?a=1&b=2", "it's", "#1", ""]),
        ('my-agent "a \\"quoted\\" word" \'two\nlines\'', ["my-agent", 'a "quoted" word', "two\nlines"]),
    ],
)
def test_an_agents_command_is_split_as_a_shell_does(
    task: Path, invoke: Invoke, cluster: CliCluster, command: str, words: list[str]
) -> None:
    result = invoke("sweep", "run", task, "--agent", f"mine={command}", "--detach")
    assert result.exit_code == 0, result.stderr
    assert made(cluster)["spec"]["agents"][0]["agent"]["command"] == words


def test_directories_without_tasks_and_tasks_of_one_name_are_reported(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    assert "has no task.toml, and no directory with one" in invoke("sweep", "run", tasks / "notes").stderr
    assert f"{tasks / 'none'} does not exist" in invoke("sweep", "run", tasks / "none").stderr
    (tasks / "other" / "task.toml").write_text(TASK_TOML)
    assert "are both called 'My_Task'" in invoke("sweep", "run", tasks).stderr


def test_a_task_that_cannot_be_run_is_reported_with_its_name(tasks: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (tasks / "other" / "steps" / "a" / "instruction.md").unlink()
    result = invoke("sweep", "run", tasks)
    assert (result.exit_code, "the task other cannot be run:" in result.stderr) == (2, True)
    assert not cluster.objects


def test_a_name_that_is_taken_is_reported_before_and_after_building(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.put("TrialSweep", "s")
    result = invoke("sweep", "run", task, "--name", "s")
    assert (result.exit_code, "sweep 's' already exists" in result.stderr) == (2, True)

    async def nobody(*arguments: object) -> None:
        return None

    monkeypatch.setattr("multistep.client.submit.create.find_object", nobody)
    result = invoke("sweep", "run", task, "--name", "s")
    assert (result.exit_code, "sweep 's' already exists" in result.stderr) == (2, True)


def test_what_was_started_is_withdrawn_when_the_tasks_cannot_follow(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.apply_fails = ClusterError("quota")
    assert invoke("sweep", "run", task).exit_code == 2
    assert not cluster.objects


def test_a_lost_answer_to_the_creation_is_found(
    task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = cluster.create

    async def made_but_lost(manifest: Mapping[str, Any], *, dry_run: bool = False, **options: Any) -> Any:
        created = await create(manifest, dry_run=dry_run, **options)
        if dry_run:
            return created
        raise Unavailable("no answer")

    monkeypatch.setattr(cluster, "create", made_but_lost)
    cluster.story = [GOOD]
    assert invoke("sweep", "run", task).exit_code == 0


def test_ctrl_c_leaves_the_sweep_running(task: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*arguments: Any, **options: Any) -> AsyncGenerator[WatchEvent, None]:
        yield WatchEvent("ADDED", {"metadata": {"name": "s"}, "status": RUNNING})
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)

    monkeypatch.setattr(cluster, "watch", watch)
    result = invoke("sweep", "run", task, "--name", "s")
    assert result.exit_code == 130
    assert "sweep s continues; follow: multistep sweep status --follow s -n default" in result.stderr
    assert cluster.of("TrialSweep")


def test_an_unavailable_server_is_reported_with_what_continues(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [RUNNING]
    result = invoke("sweep", "run", task, "--name", "s")
    assert (result.exit_code, "the watch ended; sweep s continues" in result.stderr) == (4, True)


def test_a_sweep_that_is_deleted_meanwhile_is_reported(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    cluster.story = [RUNNING, {"phase": "Deleted"}]
    result = invoke("sweep", "run", task, "--name", "s")
    assert (result.exit_code, "sweep s in namespace default was deleted before it finished" in result.stderr) == (3, True)


def test_the_status_is_a_table_with_what_counts_and_what_was_lost(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put(
        "TrialSweep",
        "s",
        status={**GOOD, "excluded": {"Task": 2}, "scoredFailures": {"Verifier": 3}, "trials": {**GOOD["trials"], "deleted": 1}},
    )
    result = invoke("sweep", "status", "s")
    assert [" ".join(line.split()) for line in result.stdout.splitlines()] == [
        "AGENT MEAN SCORE PASSED COUNTED",
        "oracle 0.750 3 of 4 4 of 6",
        "excluded: 2 Task",
        "scored although a failure ended them: 3 Verifier",
        "deleted trials: 1",
        "pod-hours: 0.5",
        "s Complete: 4 of 4 trials finished: so it is",
    ]


@pytest.mark.parametrize(("missing", "shown"), [(0, "branches: 8 of the trials"), (2, "2 steps without the agent's own state")])
def test_the_status_shows_the_branches_and_what_they_lack(missing: int, shown: str, invoke: Invoke, cluster: CliCluster) -> None:
    branches = {"trials": 8, "missing": missing, "configMap": "s-branches-1", "digest": "sha256:1"}
    cluster.put("TrialSweep", "s", status={**GOOD, "branches": branches})
    (line,) = [each for each in invoke("sweep", "status", "s").stdout.splitlines() if each.startswith("branches")]
    assert line.rstrip().endswith(shown)


def test_the_status_as_json_is_one_document(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put("TrialSweep", "s", status=LOSSY)
    found = json.loads(invoke("sweep", "status", "s", "-o", "json").stdout)
    assert (found["phase"], found["exitCode"], found["faults"]) == ("Complete", 1, ["1 of 4 trials are excluded"])
    assert found["status"]["trials"]["counted"] == 3


@pytest.mark.parametrize(("agents", "noted"), [(("oracle", "nop"), True), (("oracle",), False)])
def test_too_few_tasks_to_compare_agents_are_noted_before_the_sweep_starts(
    agents: tuple[str, ...], noted: bool, tasks: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    chosen = [word for each in agents for word in ("--agent", each)]
    result = invoke("sweep", "run", tasks, *chosen, "--detach", "--name", "s")
    note = "note: 2 tasks: fewer than 6 tasks never show a significant difference between agents, however many attempts they have"
    assert (note in result.stderr.splitlines()) is noted
    assert result.stdout == "s\n"


def test_a_sweep_that_is_too_small_for_the_asked_drop_says_so_before_it_starts(
    tasks: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    result = invoke("sweep", "run", tasks, "--find-drop", "0.1", "--detach", "--name", "s")
    assert "note: 2 tasks: fewer than 6 tasks never show a drop, however many attempts they have" in result.stderr.splitlines()
    assert result.stdout == "s\n"


def test_a_submitted_sweep_is_named_on_stdout(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    assert invoke("sweep", "run", task, "--detach", "--name", "s").stdout == "s\n"
    cluster.objects.clear()
    assert json.loads(invoke("sweep", "run", task, "--detach", "-o", "json").stdout)["phase"] == "Submitted"


def status(**fields: Any) -> SweepStatus:
    return parse_sweep_status({"status": fields})


def test_the_end_is_estimated_by_what_was_done_in_the_time_that_it_worked() -> None:
    assert seconds_left(status(**reported("Running", total=8, done=2)), NOW) == 1800
    assert seconds_left(status(**reported("Running", total=8, done=2), suspendedSeconds=300), NOW) == 900
    assert seconds_left(status(**reported("Running", total=2, done=2)), NOW - timedelta(hours=1)) == 0


@pytest.mark.parametrize(
    "found", [reported("Running"), reported("Suspended", done=1), reported("Halting", done=1), reported("Complete", done=4), {}]
)
def test_no_end_is_estimated_without_a_rate(found: dict[str, Any]) -> None:
    assert seconds_left(status(**found), NOW) is None


def test_progress_is_one_line() -> None:
    assert progress_text(status(**reported("Running", total=8, done=2)), NOW) == (
        "Running: 2 of 8 trials finished, 6 running, about 30 min left"
    )
    assert progress_text(status(), NOW) == "Submitted"
    waiting = reported("Pending", total=0)
    assert progress_text(status(**waiting), NOW) == "Pending: Because: so it is"


def test_lines_are_few_where_there_is_no_terminal(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put("TrialSweep", "s", status=RUNNING)
    cluster.story = [reported("Running", total=100, done=done) for done in range(50)] + [GOOD]
    lines = invoke("sweep", "status", "s", "--follow").stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["Running", "Complete"]
