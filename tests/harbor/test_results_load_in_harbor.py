"""Test that Harbor 0.26's own models and viewer read the operator's results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.harbor.environment import harbor_python
from tests.harbor.samples import FIRST, SAMPLES, SECOND, SECRET, make_results

LOAD = Path(__file__).with_name("load_results.py")
Loaded = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a jobs directory for Harbor's viewer, with every sample in one job."""
    top = tmp_path_factory.mktemp("harbor")
    for name, path in make_results(top / "results").items():
        shutil.copytree(path, top / "jobs/job" / name)
    return top / "jobs"


@pytest.fixture(scope="module")
def loaded(jobs: Path, request: pytest.FixtureRequest) -> Loaded:
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():  # show output of the installation
        python = harbor_python()
    done = python.run(LOAD, jobs)
    assert done.returncode == 0, done.stderr[-4000:]
    found: Loaded = json.loads(done.stdout)
    return found


def test_every_sample_loads_and_its_config_is_the_one_in_its_result(loaded: Loaded) -> None:
    assert set(loaded) == {sample.name for sample in SAMPLES}
    assert all(each["same_config"] for each in loaded.values())


@pytest.mark.parametrize(
    ("name", "rewards", "steps", "valid"),
    [
        ("rewards", {"reward": 0.5}, [FIRST, SECOND], True),
        ("exceptions", {"reward": 0.0}, [FIRST], True),
        ("no-reward", None, [FIRST], False),
        ("early-stop", {"reward": 0}, [FIRST], True),
        ("setup", None, [FIRST], False),
        ("single-step", {"reward": 1.0}, None, True),
        ("single-step-timeout", None, None, False),
        ("environment", None, None, False),
        ("failed", None, None, False),
        ("huge", {"reward": 10**40}, [FIRST], True),
        ("hosted", {"reward": 1.0}, [FIRST, SECOND], True),
        ("limited", {"reward": 0.5}, [FIRST], False),
        ("overridden", {"reward": 0.5}, [FIRST], True),
        ("inline", None, None, False),
    ],
)
def test_rewards_steps_and_validity_are_what_harbor_reports(
    loaded: Loaded, name: str, rewards: object, steps: list[str] | None, valid: bool
) -> None:
    result = loaded[name]["result"]
    found = result["step_results"]
    assert (result["verifier_result"] or {}).get("rewards") == rewards
    assert (found and [step["step_name"] for step in found]) == steps
    assert loaded[name]["reward_valid"] is valid


@pytest.mark.parametrize("name", [sample.name for sample in SAMPLES])
def test_result_json_has_the_fields_that_harbor_computes(loaded: Loaded, name: str) -> None:
    assert loaded[name]["written"] == loaded[name]["computed"]


@pytest.mark.parametrize("name", [sample.name for sample in SAMPLES])
def test_exception_txt_is_there_with_a_trials_own_exception_only(loaded: Loaded, name: str) -> None:
    assert loaded[name]["exception_txt"] == (loaded[name]["result"]["exception_info"] is not None)


def test_a_step_has_all_that_harbor_knows_of_one(loaded: Loaded) -> None:
    first, second = loaded["rewards"]["result"]["step_results"]
    assert set(first["agent_result"].values()) == {None}
    assert first["agent_execution"] == {"started_at": "2027-01-15T08:00:01Z", "finished_at": "2027-01-15T08:00:05Z"}
    assert second["verifier_result"] == {"rewards": {}}
    assert loaded["setup"]["result"]["step_results"][0]["agent_result"] is None


def test_the_viewer_shows_every_step(loaded: Loaded) -> None:
    for shown in loaded["rewards"]["viewer"]:
        assert shown["verifier-output"]["stdout"] == "1 passed"
        assert shown["verifier-output"]["reward"] == {"reward": 1}
        assert [file["path"] for file in shown["artifacts"]["files"]] == ["x"]
    assert loaded["single-step"]["viewer"][0]["verifier-output"]["stdout"] == "1 passed"


def test_no_secret_is_left_anywhere(jobs: Path) -> None:
    texts = {path: path.read_text() for path in jobs.rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if SECRET in text]
    assert any("said [REDACTED]" in text for text in texts.values())


def test_an_agents_model_and_what_it_used_are_read(loaded: Loaded) -> None:
    result = loaded["hosted"]["result"]
    info = {"name": "claude-code", "version": "2.1.197", "model_info": {"name": "claude-sonnet-4-5", "provider": "anthropic"}}
    assert result["agent_info"] == info
    used = result["step_results"][0]["agent_result"]
    assert (used["n_input_tokens"], used["n_cache_tokens"], used["n_output_tokens"], used["cost_usd"]) == (120, 20, 7, 0.25)
    assert result["step_results"][1]["agent_result"]["metadata"] == {"turns": 3}
    assert result["config"]["agent"]["model_name"] == "anthropic/claude-sonnet-4-5"
