"""Test `delete` and `retry` of trials, and `delete`, `retry` and `stop` of sweeps."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from multistep.client.reconnecting_watch import WatchEvent

from .conftest import Invoke
from .fakes import FAILED, CliCluster, status, step
from .fakes import GOOD as COMPLETE

GOOD = {**COMPLETE, "score": 1.0, "outcome": "Passed"}
LOST = {**FAILED, "failure": {"class": "Infrastructure", "reason": "PodDeleted"}}
RUNNING = status("Running", step("a", "Agent"))


def trial(cluster: CliCluster, name: str, found: Any = LOST, number: int | None = None, **metadata: Any) -> Any:
    made = cluster.put("MultiStepTrial", name, spec={"task": {}, "agent": {"name": "nop"}}, status=dict(found))
    if number is not None:
        owner = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": "uid-s", "controller": True}
        labels = {"multistep.dev/sweep": "s", "multistep.dev/number": str(number), **metadata.pop("labels", {})}
        made["metadata"] |= {"ownerReferences": [owner], "labels": labels}
    made["metadata"] |= metadata
    return made


def sweep(cluster: CliCluster, phase: str = "Complete", retried: int = 0, **spec: Any) -> Any:
    holds = [{"type": phase, "status": "True", "reason": "x", "message": "y", "lastTransitionTime": "2026-01-01T00:00:00Z"}]
    found = {"phase": phase, "conditions": holds, "trials": {"total": 4, "created": 4, "retried": retried}}
    return cluster.put("TrialSweep", "s", spec=spec, status=found)


def retries(cluster: CliCluster) -> Any:
    return cluster.objects["TrialSweep", "s"]["spec"].get("retries")


def test_trials_are_deleted_with_yes(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    trial(cluster, "u", RUNNING)
    result = invoke("delete", "--yes", "t", "u", "t")
    assert (result.exit_code, cluster.of("MultiStepTrial")) == (0, [])
    assert result.stderr == "t: deleted\nu: deleted\n"


def test_without_a_terminal_yes_is_required(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    sweep(cluster)
    for command in (["delete", "t"], ["sweep", "delete", "s"]):
        result = invoke(*command)
        assert result.exit_code == 2 and "--yes" in result.stderr
    assert len(cluster.objects) == 2


@pytest.mark.parametrize(("answer", "left"), [(True, 0), (False, 1)])
def test_on_a_terminal_the_user_is_asked(
    invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch, answer: bool, left: int
) -> None:
    trial(cluster, "t")
    monkeypatch.setattr("multistep.cli.manage.stop_and_delete._is_terminal", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: answer)
    result = invoke("delete", "t")
    assert len(cluster.of("MultiStepTrial")) == left
    assert result.exit_code == (2 if left else 0)


def test_none_is_deleted_when_one_does_not_exist(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    result = invoke("delete", "--yes", "t", "none")
    assert (result.exit_code, len(cluster.of("MultiStepTrial"))) == (2, 1)


@pytest.mark.parametrize(
    "command", [("delete", "--yes"), ("show",), ("sweep", "report"), ("sweep", "status"), ("sweep", "stop"), ("sweep", "compare")]
)
def test_an_empty_name_is_that_of_no_object(invoke: Invoke, cluster: CliCluster, command: tuple[str, ...]) -> None:
    """For an empty name, the API server would return the list of all objects."""
    trial(cluster, "t")
    result = invoke(*command, "")
    assert (result.exit_code, "'' " in result.stderr, len(cluster.objects)) == (2, True, 1), result.output


def test_a_sweep_is_deleted(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    assert invoke("sweep", "delete", "-y", "s").exit_code == 0
    assert cluster.of("TrialSweep") == []


def test_a_sweep_is_stopped_and_waited_for(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, "Running")
    cluster.story = [status("Running"), status("Failed", reason="Stopped", message="spec.stop is true")]
    result = invoke("sweep", "stop", "s")
    assert (result.exit_code, cluster.objects["TrialSweep", "s"]["spec"]) == (0, {"stop": True})
    assert result.stderr == "s: stopping\ns: Failed: Stopped: spec.stop is true\n"


def test_a_finished_sweep_is_not_stopped(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    result = invoke("sweep", "stop", "--no-wait", "s")
    assert (result.stderr, cluster.objects["TrialSweep", "s"]["spec"]) == ("s: is Complete already\n", {})


def test_exactly_the_excluded_trials_of_a_sweep_run_again(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, stop=True)
    trial(cluster, "a", number=0, found=GOOD)
    trial(cluster, "b", number=1)
    trial(cluster, "c", number=2, found=RUNNING)
    trial(cluster, "d", number=3)
    trial(cluster, "stranger")
    result = invoke("sweep", "retry", "s", "--excluded")
    assert (result.exit_code, result.stdout, retries(cluster)) == (0, "b\nd\n", [1, 3])
    assert result.stderr == "sweep s: 2 trials run again\n"
    assert cluster.objects["TrialSweep", "s"]["spec"]["stop"] is None


def test_a_sweep_is_followed_until_its_retries_have_finished(
    invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first status that the command sees is from before the operator reconciled spec.retries."""
    sweep(cluster)
    trial(cluster, "b", number=1)
    versions = [{**status(phase), "observedGeneration": seen} for phase, seen in (("Complete", 1), ("Running", 2), ("Failed", 2))]

    async def watch(*given: Any, **options: Any) -> AsyncGenerator[WatchEvent, None]:
        for each in versions:
            yield WatchEvent("MODIFIED", {"metadata": {"name": "s", "namespace": "default", "generation": 2}, "status": each})

    monkeypatch.setattr(cluster, "watch", watch)
    result = invoke("sweep", "retry", "s", "--excluded", "--follow")
    assert (result.exit_code, "s Failed" in result.stdout) == (3, True), result.output


def test_a_retry_that_is_due_is_not_requested_twice(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    trial(cluster, "b", number=1)
    assert [invoke("sweep", "retry", "s", "--excluded").stdout for _ in range(2)] == ["b\n", ""]
    assert retries(cluster) == [1]


def test_a_retry_without_a_score_is_retried_under_the_same_number(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, retries=[1], retried=1)
    trial(cluster, "b", number=1)
    trial(cluster, "b-r1", number=4, labels={"multistep.dev/retry-of": "1"})
    assert invoke("sweep", "retry", "s", "--excluded").stdout == "b-r1\n"
    assert retries(cluster) == [1, 1]


def test_a_number_that_the_sweep_does_not_have_counts_as_no_retry(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, retries=[9, 1], retried=1)
    trial(cluster, "b", number=1)
    trial(cluster, "b-r1", number=4, labels={"multistep.dev/retry-of": "1"})
    assert invoke("sweep", "retry", "s", "--excluded").stdout == "b-r1\n"
    assert retries(cluster) == [9, 1, 1]


def test_a_number_with_a_scored_retry_is_not_retried(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, retries=[1], retried=1)
    trial(cluster, "b", number=1)
    trial(cluster, "b-r1", number=4, found=GOOD, labels={"multistep.dev/retry-of": "1"})
    result = invoke("sweep", "retry", "s", "--excluded")
    assert (result.exit_code, result.stderr, retries(cluster)) == (0, "sweep s: no trial is excluded\n", [1])


def test_a_trial_without_verification_has_no_score_to_miss(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    trial(cluster, "a", number=0, found={**COMPLETE, "outcome": "Unverified"})
    assert invoke("sweep", "retry", "s", "--excluded").stderr == "sweep s: no trial is excluded\n"


def test_a_sweep_retry_needs_to_say_which(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    assert "--excluded" in invoke("sweep", "retry", "s").stderr


def test_a_trial_of_a_sweep_runs_again_in_its_sweep(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    trial(cluster, "a", number=0)
    trial(cluster, "b", number=1)
    result = invoke("retry", "b")
    assert (result.exit_code, result.stdout, retries(cluster)) == (0, "s\n", [1])
    again = invoke("retry", "b")
    assert again.exit_code == 2 and "will run again already" in again.stderr


@pytest.mark.parametrize(
    ("found", "number", "text"),
    [
        (GOOD, 0, "has a score, which a retry does not replace"),
        (RUNNING, 0, "is active: stop it first"),
        (GOOD, None, "has a score: to run its task again"),
        (RUNNING, None, "is active: stop it first"),
    ],
)
def test_an_active_or_scored_trial_is_not_retried(
    invoke: Invoke, cluster: CliCluster, found: Any, number: int | None, text: str
) -> None:
    sweep(cluster)
    trial(cluster, "t", found, number)
    result = invoke("retry", "t")
    assert result.exit_code == 2 and text in result.stderr
    assert retries(cluster) is None and len(cluster.of("MultiStepTrial")) == 1


def test_a_trial_that_its_retry_replaced_is_not_retried(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster, retries=[1], retried=1)
    trial(cluster, "b", number=1)
    trial(cluster, "b-r1", number=4, labels={"multistep.dev/retry-of": "1"})
    result = invoke("retry", "b")
    assert result.exit_code == 2 and "does not count" in result.stderr


def test_a_trial_of_its_own_gets_a_new_trial_with_its_spec(invoke: Invoke, cluster: CliCluster) -> None:
    found = trial(cluster, "t", labels={"team": "evals"})
    found["spec"] |= {"stop": True, "suspend": False, "timeoutMultiplier": 2}
    assert invoke("retry", "t").stdout == "t-r1\n"
    new = cluster.objects["MultiStepTrial", "t-r1"]
    assert new["spec"] == {"task": {}, "agent": {"name": "nop"}, "timeoutMultiplier": 2}
    mark, annotations = "multistep.dev/submission", new["metadata"]["annotations"]
    assert annotations == {"multistep.dev/retry-of": "t", mark: annotations[mark]}
    assert new["metadata"]["labels"] == {"team": "evals"}
    new["status"] = dict(LOST)
    assert invoke("retry", "t-r1").stdout == "t-r2\n"
    again = cluster.objects["MultiStepTrial", "t-r2"]["metadata"]["annotations"]
    assert again == {"multistep.dev/retry-of": "t", mark: again[mark]} and again[mark] != annotations[mark]


def test_the_retry_owns_what_the_first_trial_owns(invoke: Invoke, cluster: CliCluster) -> None:
    found = trial(cluster, "t")
    secret = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "t-variables", "key": "X"}}}
    found["spec"] |= {"task": {"bundle": {"configMaps": ["part", "shared"], "digest": "d"}}, "variables": [secret]}
    for kind, name in (("ConfigMap", "part"), ("ConfigMap", "shared"), ("Secret", "t-variables")):
        made = cluster.put(kind, name)
        if name != "shared":
            made["metadata"]["ownerReferences"] = [{"uid": "uid-t"}]
    assert invoke("retry", "t").stderr.count("warning") == 0
    for kind, name in (("ConfigMap", "part"), ("Secret", "t-variables")):
        assert cluster.objects[kind, name]["metadata"]["ownerReferences"][0]["uid"] == "uid-t-r1"
    assert "ownerReferences" not in cluster.objects["ConfigMap", "shared"]["metadata"]


def test_what_cannot_be_shared_is_a_warning(invoke: Invoke, cluster: CliCluster) -> None:
    found = trial(cluster, "t")
    found["spec"]["task"] = {"bundle": {"configMaps": ["gone"], "digest": "d"}}
    result = invoke("retry", "t")
    assert (result.exit_code, result.stdout) == (0, "t-r1\n") and "warning: ConfigMap gone" in result.stderr


@pytest.mark.parametrize("name", ["s", "sweep/s"])
def test_show_finds_sweeps(invoke: Invoke, cluster: CliCluster, name: str) -> None:
    sweep(cluster)
    assert "s Complete" in invoke("show", name).stdout


def test_show_asks_which_one_is_meant(invoke: Invoke, cluster: CliCluster) -> None:
    sweep(cluster)
    trial(cluster, "s", GOOD)
    assert "write trial/s or sweep/s" in invoke("show", "s").stderr
    assert invoke("show", "trial/s").exit_code == 0
    assert "neither a trial nor a sweep 'x' exists" in invoke("show", "x").stderr
