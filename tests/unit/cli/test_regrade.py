"""Test `multistep regrade` with an in-memory cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from multistep.api.common import labels
from multistep.api.sweep.sweep import parse_sweep
from multistep.api.trial.failure_table import REGRADE_IMPOSSIBLE
from multistep.api.trial.trial import parse_trial
from multistep.engine.sweep.trial_grid import TrialGrid
from multistep.sources.task import stored_bundles
from multistep.sources.task.bundle import Bundle

from .conftest import TASK_TOML, Invoke
from .fakes import GATE, GOOD, CliCluster, status
from .test_sweep_run import GOOD as SWEPT

INLINE: dict[str, Any] = {
    "inline": {
        "config": {"environment": {"docker_image": "img"}, "steps": [{"name": "a"}, {"name": "b"}]},
        "files": {
            **{f"steps/{each}/{file}": f"{each}\n" for each in "ab" for file in ("instruction.md", "tests/test.sh", "tests/old")},
            "tests/shared": "shared\n",
        },
    }
}
TEMPLATE: dict[str, Any] = {
    "checkpoints": {"policy": "AfterStep", "keep": "WithResults"},
    "onAgentError": "Continue",
    "activeDeadlineSeconds": 9,
}


def trial(cluster: CliCluster, name: str = "old", **spec: Any) -> None:
    made = {**TEMPLATE, "suspend": False, "task": INLINE, "agent": {"name": "oracle"}, **spec}
    cluster.put("MultiStepTrial", name, spec=made, status=dict(GOOD))


def made(cluster: CliCluster, name: str = "new") -> dict[str, Any]:
    """Return the trial that the command submitted. Raises InvalidSpec if the trial is invalid."""
    found = cluster.objects["MultiStepTrial", name]
    parse_trial(found)
    return dict(found)


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    """Return a directory with new tests for step "a", and an instruction, which --tests ignores."""
    directory = tmp_path / "fixed"
    (directory / "steps/a/tests").mkdir(parents=True)
    (directory / "steps/a/tests/test.sh").write_text("new\n")
    (directory / "steps/a/instruction.md").write_text("of no interest\n")
    return directory


def test_a_trial_is_regraded_with_its_own_task_and_without_its_agent(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster)
    result = invoke("regrade", "old", "--name", "new")
    assert result.exit_code == 0 and "new Complete: passed, score 1, reward 1" in result.stdout, result.output
    spec = made(cluster)["spec"]
    assert spec == {"task": INLINE, "agent": {"name": "nop"}, "onAgentError": "Continue", "regrade": {"trial": "old"}}


def test_the_exit_code_is_that_of_the_regrade(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster)
    cluster.story = [GATE]
    assert invoke("regrade", "old").exit_code == 1
    (name,) = [each["metadata"]["name"] for each in cluster.of("MultiStepTrial") if each["metadata"]["name"] != "old"]
    assert name.startswith("old-regrade-")


def test_it_need_not_be_followed(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster)
    result = invoke("regrade", "trial/old", "--name", "new", "--detach", "-o", "json")
    assert json.loads(result.stdout)["name"] == "new" and result.exit_code == 0


def test_only_the_given_directories_of_tests_are_replaced(invoke: Invoke, cluster: CliCluster, tests: Path) -> None:
    trial(cluster)
    assert invoke("regrade", "old", "--name", "new", "--tests", tests).exit_code == 0
    files = made(cluster)["spec"]["task"]["inline"]["files"]
    assert files["steps/a/tests/test.sh"] == "new\n" and "steps/a/tests/old" not in files
    unchanged = {path: text for path, text in INLINE["inline"]["files"].items() if not path.startswith("steps/a/tests/")}
    assert {path: text for path, text in files.items() if not path.startswith("steps/a/tests/")} == unchanged


def bundle_of(cluster: CliCluster, spec: Any) -> Bundle:
    names, digest = spec["task"]["bundle"]["configMaps"], spec["task"]["bundle"]["digest"]
    return Bundle.from_archive(stored_bundles.join_bundle([cluster.objects["ConfigMap", each] for each in names], digest), digest)


def test_a_packed_task_is_copied_so_that_the_source_can_be_deleted(
    task: Path, tests: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    assert invoke("run", task, "--name", "old").exit_code == 0
    before = made(cluster, "old")["spec"]
    assert invoke("regrade", "old", "--name", "new").exit_code == 0
    same = made(cluster)["spec"]
    assert same["task"]["bundle"]["digest"] == before["task"]["bundle"]["digest"]
    assert not set(same["task"]["bundle"]["configMaps"]) & set(before["task"]["bundle"]["configMaps"])
    owners = [cluster.objects["ConfigMap", each]["metadata"]["ownerReferences"] for each in same["task"]["bundle"]["configMaps"]]
    assert [[each["name"] for each in owner] for owner in owners] == [["new"]]

    assert invoke("regrade", "old", "--name", "changed", "--tests", tests).exit_code == 0
    entries, former = (bundle_of(cluster, each).entries for each in (made(cluster, "changed")["spec"], before))
    assert bytes(entries["steps/a/tests/test.sh"].data) == b"new\n"
    assert {path for path in entries if entries[path] != former.get(path)} == {"steps/a/tests/test.sh"}


def test_another_version_of_the_task_is_checked_and_used(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster)
    assert invoke("regrade", "old", "--name", "new", "--task", task).exit_code == 0
    spec = made(cluster)["spec"]
    assert bytes(bundle_of(cluster, spec).entries["task.toml"].data).decode() == TASK_TOML
    (task / "steps/a/tests/test.sh").unlink()
    result = invoke("regrade", "old", "--task", task)
    assert result.exit_code == 2 and "the task my-task cannot be run" in result.stderr


def test_a_judge_is_kept_and_gives_the_variables_of_another_version_of_the_task(
    task: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    (task / "task.toml").write_text(TASK_TOML + '\n[verifier.env]\nGRADER_KEY = "${OPENAI_API_KEY}"\n')
    judge = {"judge": {"model": "openai/m", "credentials": [{"name": "OPENAI_API_KEY", "value": "k"}]}}
    trial(cluster, models=judge)
    assert invoke("regrade", "old", "--name", "new", "--task", task).exit_code == 0
    assert made(cluster)["spec"]["models"] == judge
    trial(cluster)
    assert "needs a variable" in invoke("regrade", "old", "--task", task).stderr


JUDGE: dict[str, Any] = {
    "model": "openai/m",
    "credentials": [{"name": "OPENAI_API_KEY", "value": "k"}],
    "baseURL": "https://proxy.example/v1",
    "limits": {"costUSD": 0.1},
}
ANTHROPIC = {"name": "ANTHROPIC_API_KEY", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "anthropic"}}}


@pytest.mark.parametrize(
    ("given", "changed"),
    [
        (["--judge", "openai/other"], {**JUDGE, "model": "openai/other"}),
        (["--judge", "my-proxy/other"], {**JUDGE, "model": "my-proxy/other"}),
        (
            ["--judge", "anthropic/other", "--judge-key-from-secret", "keys:anthropic", "--judge-max-cost", "2"],
            {"model": "anthropic/other", "credentials": [ANTHROPIC], "limits": {"costUSD": 2.0}},
        ),
    ],
)
def test_another_judge_is_the_only_one_and_keeps_what_no_option_replaces(
    given: list[str], changed: dict[str, Any], invoke: Invoke, cluster: CliCluster
) -> None:
    trial(cluster, models={"judge": JUDGE}, verifier={"env": [{"name": "MODEL_NAME", "value": "m"}, {"name": "A", "value": "b"}]})
    result = invoke("regrade", "old", "--name", "new", *given, "--judge-model-env", "MODEL_NAME")
    assert result.exit_code == 0, result.output
    spec = made(cluster)["spec"]
    assert spec["models"] == {"judge": {**changed, "otherModels": "Refuse"}}
    assert spec["verifier"]["env"] == [{"name": "A", "value": "b"}, {"name": "MODEL_NAME", "value": changed["model"]}]


def test_the_judge_of_a_regraded_sweep_grades_all_of_its_trials(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (task / "task.toml").write_text(TASK_TOML + '\n[verifier.env]\nGRADER_KEY = "${ANTHROPIC_API_KEY}"\n')
    own = {"verifier": {"env": [{"name": "A", "value": "b"}]}, "models": {"judge": {**JUDGE, "model": "openai/own"}}}
    overrides = [{"tasks": ["one"], "spec": own}, {"tasks": ["one"], "spec": {"podCleanup": "Never"}}]
    sweep(cluster, template={"spec": {"models": {"judge": JUDGE}}}, overrides=overrides)
    given = ["--judge", "anthropic/m", "--judge-key-from-secret", "keys:anthropic", "--judge-model-env", "MODEL"]
    assert invoke("regrade", "nightly", "--name", "new", "--task", task, *given).exit_code == 0
    model, found = {"name": "MODEL", "value": "anthropic/m"}, swept(cluster)
    assert found["template"]["spec"]["models"]["judge"]["model"] == "anthropic/m"
    assert found["template"]["spec"]["verifier"] == {"env": [model]}
    env = [{"name": "A", "value": "b"}, model]
    assert [each["spec"] for each in found["overrides"]] == [{"verifier": {"env": env}}, {"podCleanup": "Never"}]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--judge", "anthropic/m"], "--judge anthropic/m needs its provider's key: --judge-key-from-secret SECRET:KEY"),
        (["--judge-max-cost", "1"], "the options of a judge need its model: --judge PROVIDER/NAME"),
        (["--judge", "openai/m", "--judge-key-from-secret", "keys"], "--judge-key-from-secret keys: must be SECRET:KEY"),
    ],
)
def test_a_judge_without_model_or_key_is_refused(given: list[str], message: str, invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, models={"judge": JUDGE})
    result = invoke("regrade", "old", *given)
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_a_deleted_trial_needs_its_task(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    result = invoke("regrade", "gone")
    assert result.exit_code == 2
    assert "neither a trial nor a sweep 'gone' exists in namespace 'default'" in result.stderr and "--task" in result.stderr
    assert invoke("regrade", "gone", "--task", task, "--name", "new", "--image", "registry.example/x:1").exit_code == 0
    spec = made(cluster)["spec"]
    assert spec["regrade"] == {"trial": "gone"} and spec["environment"] == {"image": "registry.example/x:1"}


SECRET = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


@pytest.mark.parametrize(("access", "names"), [("Gateway", ["A", "PLAIN"]), ("Direct", ["A", "PLAIN", "OPENAI_API_KEY"])])
def test_secrets_that_files_may_have_are_known_and_optional(
    access: str, names: list[str], invoke: Invoke, cluster: CliCluster
) -> None:
    env = [{**SECRET, "name": "A"}, {"name": "PLAIN", "value": "x"}]
    agent = {"name": "terminus-2", "model": "openai/m", "access": access, "env": env}
    trial(cluster, agent={**agent, "credentials": [{**SECRET, "name": "OPENAI_API_KEY"}]})
    assert invoke("regrade", "old", "--name", "new").exit_code == 0
    found = made(cluster)["spec"]["agent"]
    assert found["name"] == "nop" and [each["name"] for each in found["env"]] == names
    assert found["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "s", "key": "k", "optional": True}


def test_the_steps_of_a_trial_that_started_at_a_step_are_those_of_its_regrade(invoke: Invoke, cluster: CliCluster) -> None:
    started: dict[str, Any] = {"from": {"trial": "oldest", "step": "a"}, "toStep": "a"}
    trial(cluster, **started)
    assert invoke("regrade", "old", "--name", "new").exit_code == 0
    assert made(cluster)["spec"]["toStep"] == "a" and "from" not in made(cluster)["spec"]


def test_the_queue_and_the_shard_stay(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster)
    given = {"kueue.x-k8s.io/queue-name": "q", "multistep.dev/shard": "s", "multistep.dev/bundle": "b"}
    cluster.objects["MultiStepTrial", "old"]["metadata"]["labels"] = given
    invoke("regrade", "old", "--name", "new")
    assert made(cluster)["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q", "multistep.dev/shard": "s"}


SWEEP: dict[str, Any] = {
    "tasks": [{"name": "one", **INLINE, "environment": {"image": "i"}}, {"name": "My_Task", **INLINE}],
    "agents": [{"name": "solver", "agent": {"name": "oracle"}}],
    "attempts": 3,
    "parallelism": 7,
    "order": "Tasks",
    "branch": {"at": ["each"], "attempts": 2},
    "stopWhen": {"podHours": 1},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": {**TEMPLATE, "infrastructureRetries": 5}},
    "overrides": [{"tasks": ["one"], "spec": {"checkpoints": {"policy": "Never"}, "podCleanup": "Never"}}],
    "scoring": {"tampering": "Zero"},
}


def sweep(cluster: CliCluster, **spec: Any) -> None:
    given = {key: value for key, value in {**SWEEP, **spec}.items() if value is not None}
    cluster.put("TrialSweep", "nightly", spec=given, status={})
    cluster.story = [SWEPT]


def swept(cluster: CliCluster) -> Any:
    found = cluster.objects["TrialSweep", "new"]
    parse_sweep(found)
    return found["spec"]


def test_a_sweep_is_regraded_trial_by_trial_without_its_retries(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, retries=[1])
    result = invoke("regrade", "nightly", "--name", "new")
    assert result.exit_code == 0, result.output
    assert swept(cluster) == {
        "tasks": SWEEP["tasks"],
        "agents": [{"name": "solver", "agent": {"name": "nop"}}],
        "attempts": 3,
        "parallelism": 7,
        "order": "Tasks",
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"onAgentError": "Continue", "infrastructureRetries": 5}},
        "overrides": [{"tasks": ["one"], "spec": {"podCleanup": "Never"}}],
        "scoring": {"tampering": "Zero"},
        "regrade": {"sweep": "nightly"},
    }


@pytest.mark.parametrize("impossible", [1, 2])
def test_a_regrade_of_a_sweep_that_verified_nothing_is_no_success(invoke: Invoke, cluster: CliCluster, impossible: int) -> None:
    """The trials keep the scores of their sources, so that the sweep is Complete and all of its trials are scored."""
    sweep(cluster, tasks=SWEEP["tasks"][:1], attempts=2)
    kept = {"score": 0.0, "passed": False, "outcome": "AgentError", "failure": {"class": "Agent", "reason": REGRADE_IMPOSSIBLE}}
    why = status("Failed", reason=REGRADE_IMPOSSIBLE, message="the source has no checkpoint", **kept)
    owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "new", "uid": "uid-new", "controller": True}
    for number in range(2):
        name = TrialGrid(["one"], ["solver"], 2).trial_name("new", number)
        its = cluster.put("MultiStepTrial", name, spec={}, status=why if number < impossible else dict(GOOD))["metadata"]
        its |= {"labels": {labels.SWEEP: "new", labels.NUMBER: str(number)}, "ownerReferences": [owner]}
    result = invoke("regrade", "nightly", "--name", "new")
    assert result.exit_code == 1, result.output
    assert f"error: {impossible} of 2 trials verified nothing (RegradeImpossible)" in result.stderr
    assert "the source has no checkpoint" in result.stderr


def test_the_lease_of_a_sweep_is_not_copied_because_no_client_renews_that_of_its_regrade(
    invoke: Invoke, cluster: CliCluster
) -> None:
    sweep(cluster, lease={"seconds": 60})
    assert invoke("regrade", "nightly", "--name", "new").exit_code == 0
    assert "lease" not in swept(cluster)


def test_the_task_of_the_given_name_is_replaced_in_a_sweep(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    assert invoke("regrade", "sweep/nightly", "--name", "new", "--task", task).exit_code == 0
    first, second = swept(cluster)["tasks"]
    assert first == SWEEP["tasks"][0] and second["name"] == "My_Task" and "bundle" in second
    (owner,) = cluster.objects["ConfigMap", second["bundle"]["configMaps"][0]]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("TrialSweep", "new")


def test_a_task_that_replaces_another_gets_its_image_from_the_sweeps_template(
    task: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    (task / "task.toml").write_text(TASK_TOML.replace('docker_image = "registry.example/image:1"', ""))
    sweep(cluster, template={"spec": {"environment": {"image": "i"}}})
    result = invoke("regrade", "nightly", "--name", "new", "--task", task)
    assert result.exit_code == 0, result.stderr


def test_the_only_task_of_a_sweep_may_get_other_tests(tests: Path, invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, tasks=SWEEP["tasks"][:1])
    assert invoke("regrade", "nightly", "--name", "new", "--tests", tests).exit_code == 0
    assert swept(cluster)["tasks"][0]["inline"]["files"]["steps/a/tests/test.sh"] == "new\n"


def test_tasks_from_elsewhere_stay_at_the_revision_of_the_source(task: Path, invoke: Invoke, cluster: CliCluster) -> None:
    source = {"git": {"url": "https://example.com/r.git", "ref": "main", "path": "tasks"}}
    sweep(cluster, tasks=None, tasksFrom=source, overrides=None)
    status = {"tasksFrom": {"revision": "c0ffee", "count": 2, "configMap": "x", "digest": "y"}}
    cluster.objects["TrialSweep", "nightly"]["status"] = status
    assert invoke("regrade", "nightly", "--name", "new").exit_code == 0
    assert swept(cluster)["tasksFrom"] == {"git": {**source["git"], "ref": "c0ffee"}}
    result = invoke("regrade", "nightly", "--task", task)
    assert result.exit_code == 2 and "--tests and --task need tasks in spec.tasks" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("both",), "there are a trial and a sweep of this name: write trial/both or sweep/both"),
        (("pod/old",), "pod/old is neither NAME nor trial/NAME nor sweep/NAME"),
        (("old", "--tests", "fixed", "--task", "my-task"), "--tests and --task exclude each other"),
        (("old", "--task", "my-task", "--task", "my-task"), "old is a trial, which has one task"),
        (("old", "--tests", "my-task/steps/a"), "has neither tests/ nor steps/NAME/tests/"),
        (("old", "--tests", "nowhere"), "nowhere is not a directory"),
        (("old", "--tests", "other"), "steps/x: the task has no such step"),
        (("old", "--tests", "binary"), "is not UTF-8 text, and the task is inline"),
        (("remote", "--tests", "fixed"), "the task comes from git: name the directory of the whole task with --task instead"),
        (("lost",), "the ConfigMaps of the source's task were deleted"),
        (("nightly", "--tests", "fixed"), "--tests is for one task, and the sweep has 2"),
        (("nightly", "--task", "strange"), "the sweep has no task 'strange', but one, My_Task"),
        (("nightly", "--results", "out"), "--results is for a trial"),
        (("old", "--image", "x"), "--image is for a deleted trial: old exists and names its image"),
        (("old", "--name", "No_Name"), "must be at most 63 of a-z"),
    ],
)
@pytest.mark.usefixtures("task", "tests")
def test_what_cannot_be_regraded_is_refused(
    arguments: tuple[str, ...],
    message: str,
    tmp_path: Path,
    invoke: Invoke,
    cluster: CliCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep(cluster)
    trial(cluster)
    trial(cluster, "both")
    cluster.put("TrialSweep", "both", spec=SWEEP, status={})
    trial(cluster, "remote", task={"git": {"url": "https://example.com/r.git"}})
    trial(cluster, "lost", task={"bundle": {"configMaps": ["x"], "digest": f"sha256:{'0' * 64}"}})
    for name in ("strange", "other/steps/x/tests", "binary/tests"):
        Path(name).mkdir(parents=True)
    Path("strange/task.toml").write_text(TASK_TOML.replace("org/My_Task", "strange"))
    Path("binary/tests/data").write_bytes(b"\xff")
    if "my-task/steps/a" in arguments:
        (tmp_path / "my-task/steps/a/tests").rename(tmp_path / "my-task/steps/a/checks")
    before = len(cluster.objects)
    result = invoke("regrade", *arguments)
    assert (result.exit_code, len(cluster.objects)) == (2, before) and message in result.stderr, result.output
