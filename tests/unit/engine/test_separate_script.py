"""The script of operations for steps with a separate verifier."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.api.task.layout import StepLayout
from multistep.api.trial.content_references import Content
from multistep.engine.journal.operations import AwaitVerifierPod, Collect, ResetDirectory, Source, Start, Transfer, place_of
from multistep.engine.score.rewards import REWARD_JSON, REWARD_TXT
from multistep.errors import RunnerError
from tests.support.played import COMPLETE, FAULT, IMAGE, NO_SPACE, Played, plan, play

STEPS = """
artifacts = ["/app/out"]
[environment]
docker_image = "img"
[environment.env]
E = "agents"
[verifier]
user = "judge"
environment_mode = "separate"
[verifier.env]
V = "verifier"
[[verifier.collect]]
command = "hook"
[[steps]]
name = "a"
[steps.verifier.environment]
workdir = "/judge"
[steps.verifier.environment.env]
E = "judges"
[steps.verifier.environment.healthcheck]
command = "up"
[[steps]]
name = "b"
[steps.verifier]
environment_mode = "shared"
[[steps]]
name = "c"
"""
SHARED = StepLayout(tests=True, test_script=True)
FILE = {"a/collect": {"types": ["directory", "missing", "file"]}}


def separate(results: Mapping[str, Mapping[str, Any]] | None = None, **options: Any) -> Played:
    return play(plan(STEPS, root=SHARED, environment_files=True, **options), results)


MIXED_ORDER = [
    "/prepare",
    "/environment",
    "/user-0",
    "a/begin",
    "a/baseline",
    "a/solution",
    "a/agent",
    "a/collect-hook-0",
    "a/collect",
    "a/verifier/environment",
    "a/verifier/prepare",
    "a/verifier/files",
    "a/verifier/healthcheck",
    "a/verifier/artifacts",
    "a/verifier/artifact-0",
    "a/verifier/artifact-1",
    "a/verifier/tests",
    "a/verifier/step-tests",
    "a/verifier/verifier",
    "a/verifier/collect",
    "a/release",
    "a/end",
    "b/begin",
    "b/solution",
    "b/agent",
    "b/collect-hook-0",
    "b/inspect",
    "b/verify",
    "b/tests",
    "b/step-tests",
    "b/verifier",
    "b/collect",
    "b/end",
    "c/begin",
    "c/solution",
    "c/agent",
    "c/collect-hook-0",
    "c/collect",
    "c/verifier/environment",
    "c/verifier/prepare",
    "c/verifier/files",
    "c/verifier/artifacts",
    "c/verifier/artifact-0",
    "c/verifier/artifact-1",
    "c/verifier/tests",
    "c/verifier/step-tests",
    "c/verifier/verifier",
    "c/verifier/collect",
    "c/release",
    "c/end",
]


def test_the_order_of_operations_when_modes_are_mixed() -> None:
    played = separate()
    assert played.ids == MIXED_ORDER
    assert played.journal.finished and not played.journal.broken
    assert [run.rewards for run in played.journal.steps] == [{"reward": 1.0}] * 3


def test_where_each_operation_takes_place_is_in_its_id() -> None:
    for operation in separate().operations:
        assert operation.where == place_of(operation.id)


def test_the_agents_environment_is_not_reset_after_a_separate_verification() -> None:
    played = separate()
    assert played.operation("b/begin").directories == (ResetDirectory("/logs/agent"),)
    assert played.operation("c/begin").directories == (
        ResetDirectory("/logs/agent"),
        ResetDirectory("/logs/verifier"),
        ResetDirectory("/tests"),
    )


def test_what_the_verifiers_environment_is_asked() -> None:
    played = separate(FILE)
    logs, entries = (Source("/logs/agent"),), (Source("/logs/artifacts"), Source("/app/out"))
    assert played.operation("a/collect") == Collect("1/a/collect", 0, logs + entries, "agent")
    assert played.operation("a/verifier/environment") == AwaitVerifierPod("1/a/verifier/environment", 0)
    assert played.operation("a/verifier/prepare").directories == (
        ResetDirectory("/logs/agent", keep=True),
        ResetDirectory("/logs/verifier"),
        ResetDirectory("/logs/artifacts", keep=True),
    )
    assert (played.operation("a/verifier/files").target, played.operation("a/verifier/files").content) == (
        "/judge",
        Content("environment"),
    )
    assert played.operation("a/verifier/healthcheck").env == {"E": "judges"}
    assert played.operation("a/verifier/artifact-1") == Transfer("1/a/verifier/artifact-1", "/app", 0, 1)
    assert "a/verifier/artifact-0" not in played.ids and "a/verifier/artifacts" not in played.ids
    assert played.operation("a/verifier/verifier") == Start(
        "1/a/verifier/verifier",
        ("/tests/test.sh",),
        user="judge",
        env={"E": "judges", "V": "verifier"},
        timeout=600,
        make_executable="/tests/test.sh",
        remove=(REWARD_TXT, REWARD_JSON),
        output="/logs/verifier/test-stdout.txt",
        captures=(REWARD_JSON, REWARD_TXT),
        kill_at_end=True,
        where="verifier",
    )
    assert played.operation("a/verifier/collect").sources == (Source("/logs/verifier"),)
    assert played.operation("a/verifier/collect").part == "verifier"
    assert played.operation("c/verifier/verifier").env == {"E": "agents", "V": "verifier"}


def test_directories_are_emptied_and_filled_at_their_source_paths() -> None:
    toml = STEPS.replace('["/app/out"]', '["/app/out/", "rel/dir", {source = "/data", destination = "elsewhere"}]')
    played = play(plan(toml, root=SHARED))
    assert played.operation("a/verifier/artifacts").directories == (
        ResetDirectory("/logs/artifacts"),
        ResetDirectory("/app/out"),
        ResetDirectory("/judge/rel/dir"),
        ResetDirectory("/data"),
    )
    targets = [played.operation(f"a/verifier/artifact-{number}").target for number in range(4)]
    assert targets == ["/logs/artifacts", "/app/out", "/judge/rel/dir", "/data"]


def test_an_image_with_tests_gets_none() -> None:
    toml = STEPS.replace('workdir = "/judge"', 'docker_image = "judge"')
    played = play(plan(toml, root=SHARED, environment_files=True))
    assert {"a/verifier/tests", "a/verifier/step-tests", "a/verifier/files"}.isdisjoint(played.ids)
    assert "c/verifier/tests" in played.ids
    assert played.journal.finished


@pytest.mark.parametrize(
    ("operation", "result", "exception"),
    [
        ("prepare", FAULT, "RuntimeError"),
        ("files", FAULT, "RuntimeError"),
        ("healthcheck", {"healthy": False}, "HealthcheckError"),
        ("artifacts", FAULT, "RuntimeError"),
        ("artifact-1", FAULT, "RuntimeError"),
        ("step-tests", FAULT, "AddTestsDirError"),
        ("prepare", NO_SPACE, "OutOfDiskError"),
        ("artifact-1", NO_SPACE, "OutOfDiskError"),
        ("step-tests", NO_SPACE, "OutOfDiskError"),
        ("verifier", {"timedOut": True}, "VerifierTimeoutError"),
        ("verifier", {"captures": {}}, "RewardFileNotFoundError"),
    ],
)
def test_whatever_fails_there_is_the_steps_exception(operation: str, result: dict[str, Any], exception: str) -> None:
    played = separate({f"a/verifier/{operation}": result})
    (run,) = played.journal.steps
    assert run.exception and (run.exception.type, run.exception.phase) == (exception, "verifier")
    assert played.ids[-3:] == ["a/verifier/collect", "a/release", "a/end"]
    assert not played.journal.broken and run.rewards is None


def test_a_variable_that_cannot_be_resolved_is_the_steps_exception() -> None:
    (run,) = play(plan(STEPS.replace('V = "verifier"', 'V = "${NOWHERE}"'), root=SHARED)).journal.steps
    assert run.exception and run.exception.type == "ValueError"


def test_with_verification_disabled_there_is_nothing_apart() -> None:
    played = separate(spec={"verifier": {"disable": True}})
    assert not any(place_of(each.id) != "agent" for each in played.operations)
    assert played.operation("a/collect").part == "all"


def test_an_agents_error_is_verified_apart_too() -> None:
    played = separate({"a/agent": {"timedOut": True}}, spec={"onAgentError": "Abort"})
    assert played.ids[-2:] == ["a/release", "a/end"]
    (run,) = played.journal.steps
    assert run.exception and run.exception.type == "AgentTimeoutError" and run.rewards == {"reward": 1.0}


def test_a_single_step_task_is_verified_apart_too() -> None:
    played = play(plan(f'{IMAGE}[verifier]\nenvironment_mode = "separate"', root=COMPLETE))
    assert "task/verifier/tests" in played.ids and "task/verifier/step-tests" not in played.ids
    assert played.journal.rewards == {"reward": 1.0}


def test_a_verifiers_working_directory_that_is_no_absolute_path_is_its_runners_error() -> None:
    noted = next(each.id for each in separate().operations if isinstance(each, AwaitVerifierPod))
    with pytest.raises(RunnerError) as caught:
        separate({noted.split("/", 1)[1]: {"workdir": "judge"}})
    assert caught.value.code == "Protocol"
