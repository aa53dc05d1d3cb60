"""The contents of result files in Harbor's format. tests/harbor checks that Harbor itself can load these files."""

from __future__ import annotations

import copy
import json

import pytest

from multistep.api.task.layout import Services, TaskLayout
from multistep.api.task.task_toml import TaskConfig, VerifierConfig
from multistep.api.trial.status import ResumeStatus, Usage
from multistep.api.trial.task_source import TaskSourceStatus
from multistep.engine.journal.journal import Journal, StepException, StepRun
from multistep.engine.plan.plan import TrialEnv
from multistep.store.harbor import secret_variables, trial_config, trial_files
from multistep.store.harbor.trial_files import agent_result, trial_log
from tests.harbor.samples import BEGIN, DIGEST, SAMPLES, SECRET, SPEC, Sample, journal, run

BY_NAME = {sample.name: sample for sample in SAMPLES}


def result(sample: Sample, failure: StepException | None = None) -> dict[str, object]:
    return trial_files.result_json(sample.plan(), sample.trial(), sample.journal, BEGIN + 30, failure=failure or sample.failure)


@pytest.mark.parametrize(
    ("name", "sensitive"),
    [("API_KEY", True), ("secret", True), ("GH_TOKEN", True), ("MAX_TOKENS", False), ("TOKENS_TOKEN", True), ("PASSWD", False),
     ("AWS_CREDENTIALS", True), ("AUTHOR", True), ("MODE", False)],
)  # fmt: skip
def test_names_that_resemble_a_secrets(name: str, sensitive: bool) -> None:
    assert secret_variables.is_sensitive(name) is sensitive


def test_secrets_are_those_of_agent_and_verifier_but_no_switches_and_no_other_tables() -> None:
    config = TaskConfig(verifier=VerifierConfig(env={"A_KEY": "${VALUE}", "B_KEY": "${UNSET}", "C_KEY": "${UNSET:-default}"}))
    env = TrialEnv(
        variables={"VALUE": "resolved", "SOME_KEY": "only a variable"},
        environment={"ENV_KEY": "environment's"},
        agent={"AGENT_KEY": "agent's", "FORCE_AUTH": " True ", "USE_KEY": "1", "EMPTY_KEY": "", "MODE": "fast"},
        verifier={"TOKEN": "verifier's"},
    )
    assert secret_variables.secret_values(env, config) == {"resolved", "default", "agent's", "verifier's"}


def test_secrets_of_services_are_redacted_because_their_output_is_stored() -> None:
    compose = Services("environment/docker-compose.yaml", (), variables={"API_KEY": "3", "MODE": "4", "LATER_KEY": "5"})
    env = TrialEnv(variables={"API_KEY": "service's", "MODE": "fast", "SOME_KEY": "only a variable"})
    assert secret_variables.secret_values(env, TaskConfig(), TaskLayout(compose=compose)) == {"service's"}


def test_no_value_of_a_secret_is_in_the_config() -> None:
    spec = {**SPEC, "agent": {"name": "nop", "env": [{"name": "A_KEY", "value": "${B}"}, {"name": "C_KEY", "value": "${B:-x}"}]}}
    sample = Sample("s", Journal(), spec=spec)
    assert trial_config.config_json(sample.plan(), sample.trial())["agent"]["env"] == {"A_KEY": "${B}", "C_KEY": "[REDACTED]"}
    whole = Sample("s", Journal())
    assert SECRET.encode() not in b"".join(trial_files.trial_files(whole.plan(), whole.trial(), Journal(), BEGIN).values())


def test_a_failed_trial_has_no_reward_and_the_failure_as_its_exception() -> None:
    sample = Sample("s", journal(run("scaffold", BEGIN), rewards={"reward": 1}))
    failed = result(sample, StepException("EnvironmentStartError", "no such image"))
    assert failed["verifier_result"] is None
    assert failed["exception_info"] == {
        "exception_type": "EnvironmentStartError",
        "exception_message": "no such image",
        "exception_traceback": "EnvironmentStartError: no such image\n",
        "occurred_at": "2027-01-15T08:00:30.000Z",
        "policy": {"should_retry": True, "should_grade": True, "has_valid_reward": True},
    }
    assert (failed["schema_version"], failed["reward_valid"]) == (1, False)


def test_a_reward_is_valid_unless_an_exception_of_any_step_makes_it_invalid_as_the_spec_says() -> None:
    limited, overridden = result(BY_NAME["limited"]), result(BY_NAME["overridden"])
    assert (limited["reward_valid"], overridden["reward_valid"]) == (False, True)
    assert result(BY_NAME["exceptions"])["reward_valid"] is True
    assert limited["step_results"][0]["exception_info"]["policy"]["has_valid_reward"] is False  # type: ignore[index]
    changed = overridden["step_results"][0]["exception_info"]  # type: ignore[index]
    assert changed["policy"] == {"should_retry": True, "should_grade": True, "has_valid_reward": True}
    assert changed["policy_override"] == {"should_retry": None, "should_grade": None, "has_valid_reward": True}
    sample = BY_NAME["overridden"]
    locked = trial_config.lock_json(sample.plan(), sample.trial(), Journal())
    assert locked["override_error_policy"] == {"ApiRateLimitError": changed["policy_override"]}
    assert locked["artifacts"] == [{"source": "/app/out", "destination": "out", "exclude": ["*.log"]}]


def test_a_trial_error_in_the_middle_leaves_the_steps_in_place() -> None:
    steps = (run("scaffold", BEGIN, rewards={"reward": 1}), StepRun(name="second", started_at=BEGIN + 10))
    found = result(Sample("s", journal(*steps, exception=StepException("RuntimeError", "x"), broken=True)))
    assert [step["step_name"] for step in found["step_results"]] == ["scaffold", "second"]  # type: ignore[attr-defined]
    assert found["step_results"][1]["agent_result"] is None  # type: ignore[index]


def test_the_checksum_is_the_bundles_digest_or_of_the_inline_text() -> None:
    assert result(BY_NAME["rewards"])["task_checksum"] == DIGEST
    inline = result(BY_NAME["inline"])["task_checksum"]
    assert str(inline).startswith("sha256:") and inline == result(BY_NAME["inline"])["task_checksum"]


def test_the_environments_setup_is_the_last_attempts() -> None:
    sample = Sample("s", journal(run("scaffold", BEGIN)), attempts=({"number": 1, "completionTime": "2027-01-15T07:59:30Z"},))
    assert result(sample)["environment_setup"] == {
        "started_at": "2027-01-15T07:59:30.000Z",
        "finished_at": "2027-01-15T08:00:00.000Z",
    }


def test_the_environments_setup_ends_with_the_first_step_that_the_last_attempt_runs_itself() -> None:
    kept, own = run("scaffold", BEGIN - 50), run("second", BEGIN)
    sample = Sample("s", journal(kept, own), attempts=({"number": 1, "completionTime": "2027-01-15T07:59:30Z"},))
    resumed = ResumeStatus(after="scaffold", attempts=[1], digest="d")
    trial = sample.trial().model_copy(update={"status": sample.trial().status.model_copy(update={"resumed": resumed})})
    found = trial_files.result_json(sample.plan(), trial, sample.journal, BEGIN + 30)
    assert found["environment_setup"] == {"started_at": "2027-01-15T07:59:30.000Z", "finished_at": "2027-01-15T08:00:00.000Z"}
    assert found["agent_setup"] == {"started_at": "2027-01-15T08:00:00.000Z", "finished_at": "2027-01-15T08:00:00.000Z"}


def test_directories_are_those_of_started_steps_or_the_roots() -> None:
    started = BY_NAME["early-stop"]
    assert trial_files.step_directories(started.plan(), started.journal) == ["steps/scaffold/agent", "steps/scaffold/verifier"]
    single = BY_NAME["single-step"]
    assert trial_files.step_directories(single.plan(), single.journal) == ["agent", "verifier", "artifacts"]


def test_what_setup_and_healthcheck_printed_lies_beside_harbors_own_directories() -> None:
    for name, place in (("early-stop", "steps/scaffold/"), ("single-step", "")):
        sample = BY_NAME[name]
        journal = copy.deepcopy(sample.journal)
        journal.steps[0].printed |= {"setup": "made\n", "healthcheck": ""}
        files = trial_files.trial_files(sample.plan(), sample.trial(), journal, BEGIN)
        assert files[f"{place}setup.txt"] == b"made\n" and f"{place}healthcheck.txt" not in files


def test_what_a_hostile_verifier_wrote_makes_no_file_unreadable() -> None:
    sample = Sample("s", journal(run("scaffold", BEGIN, rewards={"\ud800\n": 1}, exception=StepException("E", "a\n\udcff"))))
    files = trial_files.trial_files(sample.plan(), sample.trial(), sample.journal, BEGIN)
    texts = {name: data.decode() for name, data in files.items()}
    assert json.loads(texts["result.json"])["step_results"][0]["verifier_result"] == {"rewards": {"?\n": 1}}
    assert all(line.startswith("2027-") for line in texts["trial.log"].splitlines())


@pytest.mark.parametrize(("seconds", "year"), [(-(2.0**53), "1970"), (2.0**53, "9999")])
def test_any_time_that_a_runner_reports_can_be_written(seconds: float, year: str) -> None:
    sample = Sample("s", journal(run("scaffold", BEGIN, timings={"agent": (seconds, seconds)})))
    files = trial_files.trial_files(sample.plan(), sample.trial(), sample.journal, BEGIN)
    assert f"\n{year}-".encode() in b"\n" + files["trial.log"]
    span = json.loads(files["result.json"])["step_results"][0]["agent_execution"]
    assert span["started_at"].startswith(year)


def test_the_log_reports_in_order_what_happened() -> None:
    sample = BY_NAME["early-stop"]
    lines = trial_log(sample.plan(), sample.trial(), sample.journal, BEGIN + 30).splitlines()
    assert lines == sorted(lines, key=lambda line: line.split()[0])
    assert any("the gate was not met: reward is 0" in line for line in lines)
    assert lines[-1].endswith('the trial ended; rewards: {"reward": 0}')


@pytest.mark.parametrize(
    "source",
    [
        {"oci": {"image": "registry.example/tasks/greet:latest"}},
        {"git": {"url": "https://example.com/tasks.git", "ref": "main"}},
        {"url": {"url": "https://example.com/greet.tar.gz", "digest": "sha256:" + "01" * 32}},
    ],
)
def test_checksum_and_lock_name_the_task_that_a_remote_source_was_resolved_to(source: dict[str, object]) -> None:
    resolved = "sha256:" + "cd" * 32
    sample = Sample("s", Journal(), spec={**SPEC, "task": source})
    trial = sample.trial()
    trial.status.task_source = TaskSourceStatus(revision="r", digest=resolved)
    assert trial_files.result_json(sample.plan(), trial, Journal(), BEGIN)["task_checksum"] == resolved
    assert trial_config.lock_json(sample.plan(), trial, Journal())["task"]["digest"] == resolved


def test_the_lock_has_the_images_as_the_kubelet_resolved_them() -> None:
    sample = BY_NAME["rewards"]
    trial = sample.trial()
    trial.status.image_id = "docker.io/library/debian@sha256:" + "12" * 32
    apart = StepRun(name="scaffold", verifier_image_id="docker.io/library/python@sha256:" + "34" * 32)
    kwargs = trial_config.lock_json(sample.plan(), trial, journal(apart))["environment"]["kwargs"]
    assert kwargs["image"] == "i" and kwargs["image_id"] == trial.status.image_id
    assert kwargs["verifier_image_ids"] == {"scaffold": apart.verifier_image_id}
    without = trial_config.lock_json(sample.plan(), sample.trial(), journal(StepRun(name="scaffold")))["environment"]["kwargs"]
    assert without == {"image": "i", "image_id": None}


def test_the_result_says_who_counted_the_tokens_and_with_which_prices() -> None:
    counted = Usage(input_tokens=7, requests=2, incomplete=1, held_seconds=3.5, source="Gateway", prices="genai-prices 1.0")
    facts = {"source": "Gateway", "prices": "genai-prices 1.0", "requests": 2, "incomplete": 1, "heldSeconds": 3.5}
    own = {"turns": 3, "multistep": "forged"}
    assert agent_result(StepRun("a", usage=counted, metadata=own))["metadata"] == {"turns": 3, "multistep": facts}
    assert agent_result(StepRun("a", usage=counted))["metadata"] == {"multistep": facts}
    assert agent_result(StepRun("a", usage=Usage(input_tokens=7), metadata=own))["metadata"] == {"turns": 3}
    assert agent_result(StepRun("a"))["metadata"] is None
