"""Traces of tampering that the runner finds are in a trial's status, Events, results and metrics."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from tests.support.world import World

FOUND = {
    "findings": [{"kind": "ProgramShadowed", "count": 1, "paths": ["/usr/local/bin/python3"]}],
    "processes": ["sleep"],
    "processCount": 1,
}
LONG = {"b/agent": 100.0}


def tampered(durations: Mapping[str, float] | None = None) -> World:
    return World(results={"a/inspect": FOUND}, durations=durations or {})


async def test_what_the_runner_finds_is_in_status_events_results_and_metrics() -> None:
    world = tampered()
    await world.run()
    entries = [
        {"attempt": 1, "step": "a", "kind": "ProgramShadowed", "detail": "/usr/local/bin/python3"},
        {"attempt": 1, "step": "a", "kind": "SurvivingProcesses", "detail": "sleep"},
    ]
    assert [each.model_dump() for each in world.status.tampering] == entries
    assert world.condition == ("Complete", "TrialComplete", "ran 3 steps; evidence of tampering: ProgramShadowed")
    assert json.loads(world.kept.files["result.json"])["tampering"] == entries
    notes = [each["note"] for each in world.cluster.events if each["reason"] == "Tampering"]
    assert notes == [
        "step a: ProgramShadowed: /usr/local/bin/python3",
        "step a: SurvivingProcesses: sleep",
    ]
    labels = {"agent": "oracle", "kind": "ProgramShadowed"}
    assert world.metrics.registry.get_sample_value("multistep_trials_tampering_total", labels) == 1


async def test_a_trial_in_which_nothing_is_found_says_nothing() -> None:
    world = World()
    await world.run()
    assert world.status.tampering == [] and "tampering" not in json.loads(world.kept.files["result.json"])


async def test_evidence_of_a_lost_attempt_stays() -> None:
    world = tampered(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.cluster.remove("Pod", "default", "t-1")
    await world.run()
    found = [(each.attempt, each.step, each.kind) for each in world.status.tampering if each.kind == "ProgramShadowed"]
    assert found == [(1, "a", "ProgramShadowed"), (2, "a", "ProgramShadowed")]


async def test_a_trial_whose_exec_sessions_are_killed_says_so_in_its_results() -> None:
    world = World(durations=LONG)
    await world.run(until=lambda: world.status.current_step == "b")
    world.runner.killed = 10**6
    world.now += 100
    world.end_phases()
    await world.run()
    (entry,) = world.status.tampering
    assert (entry.step, entry.kind) == ("b", "ExecSessionsKilled")
    assert json.loads(world.kept.files["result.json"])["tampering"] == [entry.model_dump()]


async def test_a_runner_of_an_earlier_release_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.runner_client.session.PROTOCOLS", (3, 2, 1))
    world = tampered()
    await world.run()
    assert world.condition[0] == "Complete" and world.status.tampering == []
    assert {each["op"] for each in world.runner.requests} & {"baseline", "inspect"} == set()
