"""Test `multistep list` and `sweep list`: columns, filters, formats and --watch."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from hack.generate import crds
from multistep.cli.manage.list import SWEEP_COLUMNS, TRIAL_COLUMNS, Column
from multistep.client.reconnecting_watch import WatchEvent
from multistep.errors import Unavailable

from .conftest import Invoke
from .fakes import GOOD, CliCluster, status, step

RUNNING = status("Running", step("a", "Agent"), currentStep="a", task="hello", podName="t-1")


def put(cluster: CliCluster, name: str, found: Any = RUNNING, kind: str = "MultiStepTrial", **labels: str) -> Any:
    made = cluster.put(kind, name, spec={"agent": {"name": "nop"}}, status=dict(found))
    made["metadata"] |= {"creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels, "resourceVersion": "1"}
    return made


def names(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines()[1:]]


def test_trials_are_a_table_with_the_columns_of_kubectl(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "t")
    put(cluster, "u", {**GOOD, "task": "hello", "rewards": {"reward": 1.0}})
    head, *rows = invoke("list").stdout.splitlines()
    assert head.split() == ["NAME", "TASK", "AGENT", "PHASE", "STEP", "OUTCOME", "SCORE", "REWARD", "FAILURE", "AGE"]
    assert [row.split()[:4] for row in rows] == [["t", "hello", "nop", "Running"], ["u", "hello", "nop", "Complete"]]
    assert rows[0].split()[-1].endswith("d")


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ({"taskSteps": ["a", "b"], "currentStep": "b", "steps": [{"completionTime": "x"}, {}]}, "1/2 b - - - -"),
        ({"currentStep": "a"}, "a - - - -"),
        ({"taskSteps": ["a"], "score": 2 / 3, "rewards": {"reward": 1, "x": 0}}, "0/1 - 0.666667 1 -"),
        ({"rewards": {"b": 1, "a": 0.25}}, "- - - a=0.25, b=1 -"),
        ({"rewards": {}, "failure": {"class": "User", "reason": "Stopped"}}, "- - - - User: Stopped"),
    ],
)
def test_columns_are_computed_from_the_status(invoke: Invoke, cluster: CliCluster, found: Any, shown: str) -> None:
    put(cluster, "t", {"phase": "P", **found})
    assert " ".join(invoke("list").stdout.splitlines()[1].split()[4:-1]) == shown


@pytest.mark.parametrize(("agent", "shown"), [({"importPath": "my.agents:Mine"}, "Mine"), ({}, "-"), (None, "-")])
def test_the_agent_of_a_class_is_the_classs_name(invoke: Invoke, cluster: CliCluster, agent: Any, shown: str) -> None:
    put(cluster, "t")["spec"]["agent"] = agent
    assert invoke("list").stdout.splitlines()[1].split()[2] == shown


def test_wide_has_more_columns_and_all_namespaces_one_for_them(invoke: Invoke, cluster: CliCluster) -> None:
    conditions = [{"type": "Complete", "reason": "No"}, {"type": "Ready", "status": "False", "reason": "Unschedulable"}]
    put(cluster, "t", {**RUNNING, "conditions": conditions})
    head, row = invoke("list", "-A", "-o", "wide").stdout.splitlines()
    assert head.split()[:2] == ["NAMESPACE", "NAME"] and head.split()[-3:] == ["POD", "NODE", "REASON"]
    assert row.split()[0] == "default" and row.split()[-3:] == ["t-1", "-", "Unschedulable"]


@pytest.mark.parametrize(("kind", "columns"), [(crds.TRIAL, TRIAL_COLUMNS), (crds.SWEEP, SWEEP_COLUMNS)])
def test_the_columns_are_those_of_the_crd(kind: crds.Kind, columns: tuple[Column, ...]) -> None:
    assert [(each.head, each.wide) for each in columns] == [
        (name.upper(), priority > 0) for name, _, _, priority, _ in kind.columns
    ]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--phase", "running"], ["t"]),
        (["--phase", "Running", "--phase", "Pending"], ["new", "t"]),
        (["--sweep", "s"], ["u"]),
        (["--sweep", ""], []),
        (["-l", "multistep.dev/sweep=s"], ["u"]),
        (["--outcome", "excluded"], ["u"]),
        ([], ["new", "t", "u"]),
    ],
)
def test_filters_choose(invoke: Invoke, cluster: CliCluster, options: list[str], found: list[str]) -> None:
    put(cluster, "t")
    put(cluster, "u", {**GOOD, "outcome": "Excluded"}, **{"multistep.dev/sweep": "s"})
    put(cluster, "new", {})
    assert names(invoke("list", *options).stdout) == found
    assert invoke("list", "-o", "name", *options).stdout.split() == found


def test_nothing_to_list_is_no_output_and_a_note(invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("list")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no trials in namespace default\n")
    assert json.loads(invoke("list", "-o", "json").stdout)["items"] == []


@pytest.mark.parametrize("options", [["--phase", "Failed"], ["--outcome", "Passed"], ["-l", "a=b"]])
def test_a_filter_that_nothing_matches_is_not_reported_as_an_empty_namespace(
    invoke: Invoke, cluster: CliCluster, options: list[str]
) -> None:
    put(cluster, "t")
    assert invoke("list", *options).stderr == "no matching trials in namespace default\n"


@pytest.mark.parametrize(
    ("command", "value"), [(("list", "--phase"), "runing"), (("list", "--outcome"), "pass"), (("sweep", "list", "--phase"), "x")]
)
def test_a_misspelt_filter_is_rejected(invoke: Invoke, cluster: CliCluster, command: tuple[str, ...], value: str) -> None:
    result = invoke(*command, value)
    assert result.exit_code == 2 and f"'{value}' is not one of " in result.stderr


@pytest.mark.parametrize(
    ("command", "kind"),
    [(("list",), "MultiStepTrial"), (("list", "-A", "-o", "json"), "MultiStepTrial"), (("sweep", "list"), "TrialSweep")],
)
def test_a_list_in_a_cluster_without_multistep_reports_it(
    invoke: Invoke, cluster: CliCluster, command: tuple[str, ...], kind: str
) -> None:
    cluster.installed = False
    result = invoke(*command)
    assert (result.exit_code, result.stdout) == (2, "") and f"no CRD for {kind}: install Multistep" in result.stderr


def test_json_is_one_list(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "t")
    document = json.loads(invoke("list", "-o", "json").stdout)
    assert (document["kind"], [each["metadata"]["name"] for each in document["items"]]) == ("List", ["t"])


def test_control_characters_do_not_reach_the_terminal(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "t", {**RUNNING, "task": "a\x1b[2Jb"})
    assert "\x1b" not in invoke("list").stdout


@pytest.mark.parametrize(("form", "lines"), [("table", 4), ("json", 3)])
def test_with_watch_each_change_is_a_line(
    invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch, form: str, lines: int
) -> None:
    first = put(cluster, "t")

    async def changes(*_: Any, **__: Any) -> AsyncGenerator[WatchEvent, None]:
        yield WatchEvent("ADDED", first)  # the list contained this object already
        later = {**first, "status": {**RUNNING, "phase": "Complete"}, "metadata": {**first["metadata"], "resourceVersion": "2"}}
        yield WatchEvent("MODIFIED", later)
        yield WatchEvent("DELETED", later)
        yield WatchEvent("ADDED", {**first, "metadata": {**first["metadata"], "name": "u", "uid": "uid-u"}})
        raise Unavailable("the watch ended")

    monkeypatch.setattr(cluster, "watch", changes)
    result = invoke("list", "--watch", "-o", form)
    assert (result.exit_code, len(result.stdout.splitlines())) == (4, lines)


def test_sweeps_are_listed_alike(invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {"phase": "Running", "trials": {"total": 4, "finished": 1}}, kind="TrialSweep")
    put(cluster, "old", {"phase": "Complete", "trials": {"total": 2, "finished": 2}}, kind="TrialSweep")
    assert names(invoke("sweep", "list").stdout) == ["old", "s"]
    assert names(invoke("sweep", "list", "--phase", "Running").stdout) == ["s"]
    assert invoke("sweep", "list", "--phase", "Failed").stderr == "no matching sweeps in namespace default\n"
