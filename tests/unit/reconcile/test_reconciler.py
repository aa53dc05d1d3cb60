"""Test that the reconciler runs a trial from its creation to its end."""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from multistep.reconcile.queue.work_queue import SOON_SECONDS
from multistep.reconcile.trial.end_in_status import TASK_GRACE_SECONDS
from multistep.store.evidence.verify_results import check_evidence
from multistep.store.results_volume import ResultsVolume
from tests.support.fake_runner import FakeRunner
from tests.support.played import FAULT
from tests.support.world import CONFIG, FILES, KEY, START, World, manifest
from tests.unit.reconcile.reconciler_cases import ALL, LONG, ran


def listing(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


# -- a trial from its creation to its end


async def test_a_trial_of_short_phases_runs_to_its_end_at_once_in_one_session() -> None:
    world = await ran()
    status = world.status
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps")
    assert [step.name for step in status.steps] == ALL
    assert [step.phase for step in status.steps] == ["Complete"] * 3
    assert [step.rewards for step in status.steps] == [{"reward": 1}, {"reward": 0.5, "style": 1}, {"reward": 0}]
    assert [step.gate for step in status.steps] == [True, None, None]
    assert status.rewards == {"reward": 0.5, "style": pytest.approx(1 / 3)}
    assert (status.attempt, status.pod_name, status.isolation, status.exception) == (1, "t-1", "Shared", None)
    assert (status.current_step, status.attempts) == (None, [])
    assert status.results == "http://127.0.0.1:8080/results/default/t/trial-uid"
    assert world.execs == 1
    assert world.errors == []
    assert world.pods == []  # the pod was deleted, because podCleanup is Always
    assert set(world.runner.starts.values()) == {1}


async def test_events_report_each_transition_once() -> None:
    world = await ran()
    assert [event["reason"] for event in world.cluster.events] == [
        "PodCreated",
        "StepStarted",
        *["StepCompleted"] * 3,
        "TrialComplete",
    ]
    notes = [event["note"] for event in world.cluster.events]
    assert notes[1:3] == ["step a started", "step a: rewards 1; step b started"]


async def test_unknown_keys_are_reported_once() -> None:
    typo = {**CONFIG, "steps": [{"name": "a", "min_rewards": 0.5}, {"name": "b"}, {"name": "c"}], "zzz\x1b": 1}
    world = await ran(trial=manifest(config=typo), durations=LONG, user=1000)  # the pod is created twice, the second time as root
    assert [event for event in world.cluster.events if event["reason"] == "UnknownKeys"] == [
        {
            "reason": "UnknownKeys",
            "note": 'ignored in task.toml: steps[0].min_rewards: did you mean min_reward?; "zzz?": unknown key',
            "type": "Warning",
            "action": "Reconcile",
        }
    ]


async def test_numbers_that_are_not_finite_are_an_event_by_name() -> None:
    config = {**CONFIG, "steps": [{"name": "a", "min_reward": "nan"}, {"name": "b", "agent": {"timeout_sec": "inf"}}]}
    world = await ran(trial=manifest(config=config))
    assert [event["note"] for event in world.cluster.events if event["reason"] == "NotFinite"] == [
        "in task.toml: steps[0].min_reward is nan: every reward passes it; set a finite number, or remove it; "
        "steps[1].agent.timeout_sec is inf: nothing ever times out; set a number of seconds"
    ]


async def test_parts_of_a_task_that_are_ignored_are_an_event_by_name() -> None:
    config = {
        **CONFIG,
        "environment": {**CONFIG["environment"], "mcp_servers": [{"name": "m", "url": "http://x"}], "skills_dir": "/s"},
    }
    world = await ran(trial=manifest(config=config))
    (note,) = [event["note"] for event in world.cluster.events if event["reason"] == "UnsupportedFeatures"]
    assert note.startswith("environment.mcp_servers: is ignored") and "; environment.skills_dir: is ignored" in note


async def test_variables_that_no_template_uses_are_an_event_by_name() -> None:
    variables = [{"name": "LOST", "value": "x"}, {"name": "USED", "value": "y"}]
    agent = {"name": "oracle", "env": [{"name": "A", "value": "${USED}"}]}
    world = await ran(trial=manifest({"variables": variables, "agent": agent}))
    (note,) = [event["note"] for event in world.cluster.events if event["reason"] == "UnusedVariables"]
    assert note == ("spec.variables: no template of the task uses LOST; an agent receives the variables of spec.agent.env only")


async def test_fields_that_have_no_effect_without_another_one_are_events() -> None:
    paths = {"paths": ["/app"]}
    world = await ran(trial=manifest({"checkpoints": {"keep": "WithResults"}, "verifier": paths}))
    assert [event["note"] for event in world.cluster.events if event["reason"] == "UnusedFields"] == [
        "spec.checkpoints.keep is WithResults without checkpoints: set spec.checkpoints.policy to AfterStep, not Never",
        "spec.verifier.paths has no effect: set spec.verifier.isolation to Separate or Both, not Declared",
    ]
    whole = {"checkpoints": {"policy": "AfterStep", "keep": "WithResults"}, "verifier": {**paths, "isolation": "Separate"}}
    assert not [event for event in (await ran(trial=manifest(whole))).cluster.events if event["reason"] == "UnusedFields"]


async def test_the_first_of_very_many_unknown_keys_are_reported() -> None:
    world = await ran(trial=manifest(config={**CONFIG, **{f"x{number}": 1 for number in range(1000)}}))
    (note,) = [event["note"] for event in world.cluster.events if event["reason"] == "UnknownKeys"]
    assert note.count("unknown key") == 20


async def test_writes_are_few() -> None:
    for durations in ({}, LONG):
        world = await ran(durations=durations)
        assert world.status_writes <= 12 + 3 * len(ALL)


async def test_results_are_kept_before_the_trial_is_complete() -> None:
    world = await ran()
    assert list(world.kept.steps) == ALL
    assert json.loads(world.kept.files["result.json"])["verifier_result"]["rewards"]["reward"] == 0.5
    assert world.faults.trace.index("volume finish after") < len(world.faults.trace) - 1 - world.faults.trace[::-1].index(
        "apply_status default/t before"
    )


async def test_results_on_a_real_volume(tmp_path: Path) -> None:
    volume = ResultsVolume(tmp_path)
    world = await ran(volume=volume)
    volume.close()
    found = listing(tmp_path / "default/t/trial-uid")
    assert {"result.json", "config.json", "lock.json", "trial.log", "steps/a/agent/log.txt", "steps/c/artifacts/out"} <= found
    assert {f"steps/{step}/{name}" for step in ALL for name in ("agent", "verifier", "artifacts/manifest.json")} <= found
    top = {path for path in found if "/" not in path and not path.startswith(".")}
    evidence = {"evidence.json", "evidence.files.jsonl"}
    assert top == {"result.json", "config.json", "lock.json", "trial.log", "steps"} | evidence
    assert world.status.results and world.status.results.startswith("http://127.0.0.1:8080/results/default/t/trial-uid/")


async def test_results_have_evidence_when_the_trial_is_finished(tmp_path: Path) -> None:
    volume = ResultsVolume(tmp_path / "volume")
    world = await ran(volume=volume)
    volume.close()
    hidden = shutil.ignore_patterns(".*")
    top = await asyncio.to_thread(shutil.copytree, volume.root / "default/t/trial-uid", tmp_path / "out", ignore=hidden)
    checked = check_evidence(top)
    assert checked.ok, checked.findings
    assert checked.predicate["outcome"] == "Complete"
    assert checked.predicate["environment"]["imageID"] == world.status.image_id
    assert checked.predicate["rewards"] == world.status.rewards


async def test_a_single_step_task_lifts_its_error_to_the_trial() -> None:
    files = {"instruction.md": "x", "tests/test.sh": "x", "solution/solve.sh": "x"}
    trial = manifest(config={"environment": {"docker_image": "img"}}, files=files)
    world = await ran(trial=trial, results={"task/verifier": {"timedOut": True}})
    assert world.status.exception and world.status.exception.type == "VerifierTimeoutError"
    assert (world.condition[0], world.status.rewards) == ("Complete", None)


async def test_an_environment_that_is_never_healthy_fails_the_trial() -> None:
    world = await ran(results={"/healthcheck": {"healthy": False}})
    assert world.condition[:2] == ("Failed", "EnvironmentFailed")
    assert world.status.exception and world.status.exception.type == "HealthcheckError"
    assert (world.status.steps, world.status.rewards) == ([], None)
    assert "exception.txt" in world.kept.files


async def test_an_upload_that_fails_for_good_fails_the_trial_and_keeps_what_was_reached() -> None:
    world = await ran(results={"b/begin": FAULT})
    assert world.condition[:2] == ("Failed", "EnvironmentFailed")
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}, None]


# -- trials that wait, and events that change nothing


async def test_a_suspended_trial_waits_without_a_pod_and_continues_when_resumed() -> None:
    world = World(trial=manifest({"suspend": True}))
    await world.run()
    assert world.condition == ("Reconciling", "Suspended", "spec.suspend is true; set it to false to start")
    assert (world.status.phase, world.pods, world.status.attempt) == ("Suspended", [], None)
    world.change_trial(suspend=False)
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_missing_config_map_is_waited_for() -> None:
    files = {**FILES}
    trial = manifest({"variables": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]}, files=files)
    world = World(trial=trial)
    assert await world.reconcile() == 10
    assert world.condition[1] == "TaskUnavailable"
    assert "spec.variables[X]: ConfigMap 'late'" in world.condition[2]
    assert world.pods == []
    world.cluster.put({"kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"x": "1"}})
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_missing_bundle_is_waited_for_by_name() -> None:
    source = {"bundle": {"configMaps": ["parts-0"], "digest": "sha256:" + "0" * 64}}
    world = World(trial={**manifest(), "spec": {"task": source}})
    assert await world.reconcile() == 10
    assert world.condition[1:] == ("TaskUnavailable", "ConfigMap parts-0 does not exist: apply it together with the trial")


async def test_what_is_created_right_after_the_trial_is_waited_for_without_a_word() -> None:
    trial = manifest({"variables": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "x"}}}]})
    trial["metadata"]["creationTimestamp"] = datetime.fromtimestamp(START, UTC).isoformat()
    world = World(trial=trial)
    assert await world.reconcile() == SOON_SECONDS
    assert (world.status_writes, world.status.conditions) == (0, [])
    world.now += TASK_GRACE_SECONDS
    await world.reconcile()
    assert world.condition[1] == "TaskUnavailable"
    world.cluster.put({"kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"x": "1"}})
    await world.run()
    assert world.condition[0] == "Complete"


async def test_a_trial_whose_task_went_away_ends_at_its_deadline() -> None:
    variable = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "x"}}}
    world = World(trial=manifest({"variables": [variable], "activeDeadlineSeconds": 100}), durations=LONG)
    world.cluster.put({"kind": "Secret", "metadata": {"name": "s"}, "data": {"x": "MQ=="}})
    await world.reconcile()
    world.cluster.remove("Secret", "default", "s")
    world.reconciler = world.fresh()  # the restarted operator must read the Secret again
    await world.run(most=50)
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert world.now - START <= 102


async def test_no_session_is_opened_while_a_phase_is_known_to_run() -> None:
    world = World(durations={"a/agent": 100.0})
    await world.reconcile()
    assert (world.execs, world.status.current_step, world.status.steps[0].phase) == (1, "a", "Agent")
    for _ in range(20):
        world.now += 1
        await world.reconcile()
    assert world.execs == 1
    world.now += 60  # now the operator opens a session even without an event
    await world.reconcile()
    assert world.execs == 2


async def test_a_result_that_waits_is_fetched_at_once() -> None:
    world = World(durations={"a/agent": 5.0})
    await world.reconcile()
    world.now += 5
    world.end_phases()
    assert not world.runner.ready
    await world.reconcile()
    assert (world.execs, world.condition[0]) == (2, "Complete")


async def test_nothing_is_written_when_nothing_changed() -> None:
    world = World(durations={"a/agent": 1000.0})
    await world.reconcile()
    writes = list(world.cluster.writes)
    for seconds in (1, 60, 120):
        world.now += seconds
        await world.reconcile()
    assert world.cluster.writes == writes
    await world.run()
    writes = list(world.cluster.writes)
    await world.reconcile(3)
    assert world.cluster.writes == writes


async def test_nothing_is_written_again_while_the_pod_is_starting() -> None:
    world = World(pods_run=False)
    await world.reconcile()
    world.pod_status(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/1 nodes"}])
    await world.reconcile()
    assert world.condition == ("Reconciling", "Unschedulable", "0/1 nodes")
    writes = list(world.cluster.writes)
    for _ in range(5):
        world.now += 30
        await world.reconcile()
    assert world.cluster.writes == writes


async def test_a_trial_that_is_being_deleted_is_left_alone() -> None:
    world = World(trial={**manifest(), "metadata": {**manifest()["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert await world.reconcile() is None
    assert world.cluster.writes == []


async def test_a_trial_that_is_gone_is_nobodys_business() -> None:
    world = World()
    world.cluster.remove("MultiStepTrial", *KEY)
    assert await world.reconcile() is None
    assert world.errors == []


# -- the trial's deadline


async def test_at_its_deadline_a_trial_fails_with_what_it_had() -> None:
    world = await ran(trial=manifest({"activeDeadlineSeconds": 150}), durations=LONG)
    assert world.condition[:2] == ("Failed", "DeadlineExceeded")
    assert START + 150 <= world.now <= START + 152
    assert [step.rewards for step in world.status.steps] == [{"reward": 1}, {"reward": 0.5, "style": 1}, None]
    assert (world.status.rewards, world.pods) == (None, [])
    result = json.loads(world.kept.files["result.json"])
    assert result["verifier_result"] is None
    assert result["exception_info"]["exception_type"] == "DeadlineExceeded"


# -- invalid specs


def of_main(**fields: object) -> dict[str, Any]:
    """Return a spec whose pod template has these fields of the trial's container."""
    return {"environment": {"podTemplate": {"spec": {"containers": [{"name": "main", **fields}]}}}}


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"agent": {"name": "nobody"}}, "spec.agent.name"),
        ({"agent": {"name": "command"}}, "command"),
        ({"task": {"inline": {"config": {"steps": 5}}}}, "steps"),
        ({"task": {"inline": {"config": {"steps": [{"name": "a"}]}}}}, "steps/a"),
        ({"task": {"inline": {"config": {**CONFIG, "environment": {"os": "windows"}}, "files": FILES}}}, "environment.os"),
        ({"environment": {"podTemplate": {"spec": {"hostPID": True}}}}, "spec.environment.podTemplate.spec.hostPID"),
        (of_main(livenessProbe={"exec": {"command": ["true"]}}), "containers[main].livenessProbe.exec"),
        (of_main(lifecycle={"preStop": {"exec": {"command": ["true"]}}}), "containers[main].lifecycle.preStop.exec"),
        ({"task": {"inline": {"config": {}, "files": {"../x": ""}}}}, "spec.task.inline.files"),
    ],
)
async def test_an_invalid_spec_fails_by_the_name_of_the_field(spec: dict[str, Any], named: str) -> None:
    trial = manifest()
    world = await ran(trial={**trial, "spec": {**trial["spec"], **spec}})
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert named in world.condition[2]
    assert world.status.exception is not None
    assert world.pods == []
    writes = list(world.cluster.writes)
    await world.reconcile(2)
    assert world.cluster.writes == writes


# -- after the trial has finished

POLICIES = [  # spec, whether a step fails, seconds the pod and the trial are retained (None: forever)
    ({}, False, 0, None),
    ({}, True, 0, None),
    ({"podCleanup": "OnSuccess"}, False, 0, None),
    ({"podCleanup": "OnSuccess"}, True, None, None),
    ({"podCleanup": "Never"}, False, None, None),
    ({"podTTLSecondsAfterFinished": 30}, False, 30, None),
    ({"ttlSecondsAfterFinished": 50}, False, 0, 50),
    ({"podTTLSecondsAfterFinished": 30, "ttlSecondsAfterFinished": 50}, False, 30, 50),
    ({"podCleanup": "Never", "ttlSecondsAfterFinished": 50}, False, 50, 50),  # the pod is deleted with the trial
    ({"podTTLSecondsAfterFinished": 90, "ttlSecondsAfterFinished": 50}, True, 50, 50),
]


@pytest.mark.parametrize(("spec", "fails", "pod_stays", "trial_stays"), POLICIES)
async def test_what_stays_after_the_end(
    spec: dict[str, Any], fails: bool, pod_stays: float | None, trial_stays: float | None
) -> None:
    world = World(trial=manifest(spec), results={"c/verifier": {"captures": {}}} if fails else {})
    gone: dict[str, float] = {}

    def note() -> None:
        if not world.pods:
            gone.setdefault("pod", world.now - START)
        if ("MultiStepTrial", *KEY) not in world.cluster.objects:
            gone.setdefault("trial", world.now - START)

    await world.run(until=note)
    assert (gone.get("pod"), gone.get("trial")) == (pod_stays, trial_stays)


@pytest.mark.parametrize(("programs", "wanted"), [((), "User"), (("/usr/bin/sudo",), "Shared")])
async def test_sudo_in_an_image_is_shown_as_no_isolation_and_files_are_protected_all_the_same(
    monkeypatch: pytest.MonkeyPatch, programs: tuple[str, ...], wanted: str
) -> None:
    monkeypatch.setattr(FakeRunner, "root_programs", programs)
    world = World(trial=manifest(config={**CONFIG, "verifier": {}, "agent": {"user": "1000:1000"}}))
    await world.run()
    assert (world.condition[0], world.status.isolation) == ("Complete", wanted)
    emptied = [each for request in world.runner.requests if request["op"] == "reset" for each in request["directories"]]
    assert {each.get("mode") for each in emptied if each["path"] == "/tests"} >= {0o700}
