"""Paths and values of the task or the spec that the runner does not take: resolved, or the task's error, never an agent's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from multistep.reconcile.trial.run_sessions import MAX_LINE_CHARACTERS, shortened
from tests.support.fake_runner import Json
from tests.support.world import CONFIG, FILES, World, manifest
from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS

STEPS: list[Json] = CONFIG["steps"]


def collected(world: World) -> list[list[str]]:
    """Return the paths that the agent's pod was asked for, by collection. The fake runner's WORKDIR is /app."""
    requests = [each for each in next(iter(world.cluster.runners.values())).requests if each["op"] == "download"]
    return [[source["path"] for source in each["sources"] if not source["path"].startswith("/logs")] for each in requests]


async def finished(spec: Mapping[str, Any], config: Json, **options: Any) -> World:
    world = World(trial=manifest(spec, config), **options)
    await world.run()
    return world


IN_STEP = {**CONFIG, "artifacts": [], "steps": [{**STEPS[0], "artifacts": ["./out"]}, *STEPS[1:]]}


@pytest.mark.parametrize(
    ("spec", "config"),
    [
        ({}, {**CONFIG, "artifacts": ["out"]}),
        ({}, {**CONFIG, "artifacts": [{"source": "out/"}]}),
        ({}, IN_STEP),
        ({"artifacts": [{"source": "out"}]}, {**CONFIG, "artifacts": []}),
        ({}, {**CONFIG, "artifacts": ["out"], "verifier": {"environment_mode": "separate"}}),
    ],
    ids=["task", "a directory", "step", "spec", "separate verifier"],
)
async def test_a_relative_artifact_is_collected_from_workdir(spec: Json, config: Json) -> None:
    world = await finished(spec, config)
    assert world.condition[:2] == ("Complete", "TrialComplete"), world.condition
    assert collected(world)[0] == ["/app/out"]
    assert world.status.steps[0].artifacts is not None and world.status.steps[0].artifacts.incomplete is None
    assert world.status.tampering == []


@pytest.mark.parametrize("source", [".", "./", ""])
async def test_an_artifact_may_be_workdir_itself(source: str) -> None:
    world = await finished({}, {**CONFIG, "artifacts": [source]})
    assert world.condition[0] == "Complete", world.condition
    assert collected(world)[0] == ["/app"]


TOO_LONG = {"steps/a/instruction.md": "do " * 100_000}
INVALID: dict[str, tuple[Json, Json, Json]] = {
    "an artifact with NUL": ({}, {**CONFIG, "artifacts": ["/a\0b"]}, {}),
    "a hook with NUL": ({}, {**CONFIG, "verifier": {"collect": [{"command": "a\0b"}]}}, {}),
    "a healthcheck with NUL": ({}, {**CONFIG, "environment": {"docker_image": "img", "healthcheck": {"command": "\0"}}}, {}),
    "a variable with NUL": ({"verifier": {"env": [{"name": "A", "value": "\0"}]}}, CONFIG, {}),
}


@pytest.mark.parametrize(("spec", "config", "options"), INVALID.values(), ids=INVALID)
async def test_what_the_runner_would_refuse_is_the_tasks_error(spec: Json, config: Json, options: Json) -> None:
    world = await finished(spec, config, **options)
    kind, reason, message = world.condition
    assert (kind, reason) == ("Failed", "InvalidSpec"), world.condition
    assert "NUL" in message
    status = world.status
    assert status.failure is not None and status.failure.class_ == "Task"
    assert (status.score, status.tampering, status.rewards) == (None, [], None)
    assert not world.errors and world.reconciles < 20, "it is told at once"


async def test_an_instruction_that_an_agent_host_does_not_take_is_the_tasks_error() -> None:
    world = World(trial=manifest(HOSTED, files={**FILES, **TOO_LONG}), **HOSTED_OPTIONS)
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec") and "shorter instruction.md" in world.condition[2]
    assert world.status.failure is not None and (world.status.failure.class_, world.status.score) == ("Task", None)


def test_names_that_an_agent_chose_cannot_make_a_record_too_large() -> None:
    lines = shortened(["é" * 10_000, "\U0001f600" * 10_000] * 50)
    assert lines and all(len(each) <= MAX_LINE_CHARACTERS for each in lines)
    assert len(json.dumps(lines)) < 16 << 10
    assert shortened(["a", "b"]) == ["a", "b"]
