"""Test how outcomes are read from a status and a results directory."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.status import TrialStatus

from .outcome import Unexplained, outcome, refusal

TIMING = {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:01Z"}
NOW = "2026-01-01T00:00:00Z"


def recorded(
    name: str = "", rewards: Any = None, exception: str | None = None, *, agent: bool = True, verifier: bool = True
) -> dict[str, Any]:
    """Return the fields of result.json that a step and the whole trial have in common."""
    return {
        "step_name": name,
        "verifier_result": None if rewards is None else {"rewards": rewards},
        "exception_info": exception and {"exception_type": exception, "exception_message": ""},
        "agent_execution": TIMING if agent else None,
        "verifier": TIMING if verifier else None,
    }


def status(phase: str = "Complete", reason: str = "", message: str = "", **fields: Any) -> TrialStatus:
    condition = {"type": phase, "status": "True", "reason": reason, "message": message, "lastTransitionTime": NOW}
    return TrialStatus.model_validate({"conditions": [condition], **fields})


def results(directory: Path, result: object, files: dict[str, bytes] | None = None) -> Path:
    for path, data in {"result.json": json.dumps(result).encode(), **(files or {})}.items():
        place = directory / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
    return directory


def results_of_two_steps(tmp_path: Path) -> Path:
    """Return the directory of a trial with files and links as artifacts of its first step."""
    directory = results(
        tmp_path,
        {
            **recorded(rewards={"reward": 0.5}),
            "step_results": [recorded("a b", {"reward": 0.5}), recorded("c", None, "RuntimeError", agent=False, verifier=False)],
        },
        {
            "steps/a b/artifacts/manifest.json": b'[{"source": "/app/run.sh", "status": "ok"}]',
            "steps/a b/artifacts/run.sh": b"run\n",
            "steps/a b/artifacts/deep/er/manifest.json": b"an artifact of this name",
            "steps/a b/agent/oracle.txt": b"",
            "steps/a b/verifier/reward.txt": b"0.5",
        },
    )
    (directory / "steps/a b/artifacts/run.sh").chmod(0o654)
    (directory / "steps/a b/artifacts/link").symlink_to("/etc/passwd")
    (directory / "steps/a b/artifacts/linked").symlink_to("deep")
    return directory


def test_a_trial_in_steps_has_the_shape_of_an_expectation(tmp_path: Path) -> None:
    directory = results_of_two_steps(tmp_path)
    reported = status(
        rewards={"reward": 0.5},
        steps=[{"name": "a b", "rewards": {"reward": 0.5}}, {"name": "c", "exception": {"type": "RuntimeError"}}],
    )

    found = outcome(reported, directory, ["a b", "c", "d"])

    assert (found["load_error"], found["kind"]) == (None, "multi-step")
    assert found["trial"] == {"rewards": {"reward": 0.5}, "exception_type": None}
    assert (found["steps_run"], found["steps_not_run"]) == (["a b", "c"], ["d"])
    first, second = found["steps"]
    assert [(each["path"], each["executable"], each["sha256"]) for each in first["artifacts"]] == [
        ("deep/er/manifest.json", False, hashlib.sha256(b"an artifact of this name").hexdigest()),
        ("link", False, None),
        ("linked", False, None),
        ("run.sh", True, hashlib.sha256(b"run\n").hexdigest()),
    ]
    assert first["manifest"] == [{"source": "/app/run.sh", "status": "ok"}]
    assert (first["agent_files"], first["verifier_files"]) == (["oracle.txt"], ["reward.txt"])
    assert second == {
        "name": "c",
        "ran_agent": False,
        "ran_verifier": False,
        "rewards": None,
        "exception_type": "RuntimeError",
        "artifacts": [],
        "manifest": None,
        "agent_files": [],
        "verifier_files": [],
    }  # fmt: skip


def test_a_single_step_trial_has_its_outputs_at_the_top(tmp_path: Path) -> None:
    directory = results(
        tmp_path, {**recorded(rewards={}), "step_results": None}, {"artifacts/manifest.json": b"[]", "artifacts/x": b"x"}
    )

    found = outcome(status(rewards={}, steps=[{"name": "task", "rewards": {}}]), directory, [])

    assert found["kind"] == "single-step"
    assert (found["trial"]["rewards"], found["trial"]["manifest"]) == ({}, [])
    assert [each["path"] for each in found["trial"]["artifacts"]] == ["x"]


def test_a_trial_whose_steps_were_not_reached_has_none(tmp_path: Path) -> None:
    directory = results(tmp_path, {**recorded(exception="HealthcheckError"), "step_results": None})

    found = outcome(status("Failed", "EnvironmentFailed", exception={"type": "HealthcheckError"}), directory, ["a"])

    assert (found["steps_run"], found["steps_not_run"], found["steps"]) == ([], ["a"], [])
    assert found["trial"]["exception_type"] == "HealthcheckError"


def test_a_refusal_is_failed_for_an_invalid_spec_and_nothing_else() -> None:
    refused = refusal(status("Failed", "InvalidSpec", "why", exception={"type": "ValidationError"}))

    assert refused == {"load_error": {"type": "ValidationError", "message": "why"}}
    assert refusal(status("Failed", "EnvironmentFailed")) is None
    assert refusal(status("Complete", "InvalidSpec")) is None
    assert refusal(TrialStatus()) is None


@pytest.mark.parametrize(
    ("reported", "output"),
    [
        ({"rewards": {"reward": 1}, "steps": [{"name": "a", "rewards": {"reward": 0.5}}]}, "trial's rewards"),
        ({"rewards": {"reward": 0.5}, "steps": [{"name": "a", "rewards": None}]}, "step a: rewards"),
        (
            {"rewards": {"reward": 0.5}, "steps": [{"name": "a", "rewards": {"reward": 0.5}, "exception": {"type": "X"}}]},
            "step a: exception",
        ),
        (
            {"rewards": {"reward": 0.5}, "exception": {"type": "X"}, "steps": [{"name": "a", "rewards": {"reward": 0.5}}]},
            "trial's exception",
        ),
        ({"rewards": {"reward": 0.5}, "steps": []}, "status.steps"),
    ],
)
def test_a_status_that_contradicts_the_results_is_an_error(tmp_path: Path, reported: dict[str, Any], output: str) -> None:
    directory = results(tmp_path, {**recorded(rewards={"reward": 0.5}), "step_results": [recorded("a", {"reward": 0.5})]})

    with pytest.raises(Unexplained, match=output):
        outcome(status(**reported), directory, ["a"])


def test_what_a_status_cannot_hold_is_no_contradiction(tmp_path: Path) -> None:
    rewards = {"huge": 10**400, "k" * 300: 1, "ok": 1}
    directory = results(tmp_path, {**recorded(rewards=rewards), "step_results": [recorded("a", rewards)]})

    found = outcome(status(rewards={"ok": 1}, steps=[{"name": "a", "rewards": {"ok": 1}}]), directory, ["a"])

    assert found["trial"]["rewards"] == rewards


@pytest.mark.parametrize("text", [None, "{", "\udcff"])
def test_results_without_a_proper_result_are_an_error(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "result.json").write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(Unexplained, match=r"result\.json"):
        outcome(status(), tmp_path, ["a"])
