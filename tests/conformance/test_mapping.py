"""Test how trial.json is converted to a spec."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from multistep.api.trial.trial import parse_trial

from .case import Case, CaseError, find_cases, read_case
from .mapping import COMMANDS, manifest, spec
from .options import ECHO_AGENT, SHELL_AGENT, Options

REFUSED = {"load_error": {"type": "ValidationError"}}


def make(directory: Path, trial: object = None, *, expected: object = REFUSED, **files: str) -> Path:
    """Create a case's directory. files: texts by path."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in {"trial.json": json.dumps(trial or {}), "expected.json": json.dumps(expected), **files}.items():
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return directory


def spec_of(trial: Any) -> dict[str, Any]:
    return spec(Options.model_validate(trial), [], None)


def test_without_options_the_oracle_continues_after_errors_as_harbor_does() -> None:
    assert spec_of({"note": "nothing else"}) == {"agent": {"name": "oracle"}, "onAgentError": "Continue"}


@pytest.mark.parametrize(
    ("trial", "expected"),
    [
        ({"agent": {"name": "nop"}}, {"agent": {"name": "nop"}}),
        ({"agent": {"import_path": SHELL_AGENT}}, {"agent": {"name": "command", "command": list(COMMANDS[SHELL_AGENT])}}),
        ({"agent": {"import_path": ECHO_AGENT}}, {"agent": {"name": "command", "command": list(COMMANDS[ECHO_AGENT])}}),
        (
            {"agent": {"override_timeout_sec": 0.7, "max_timeout_sec": 3, "user": "bob"}, "agent_timeout_multiplier": 2},
            {"agent": {"name": "oracle", "timeoutSeconds": 0.7, "maxTimeoutSeconds": 3.0, "timeoutMultiplier": 2.0, "user": "bob"}},
        ),
        ({"agent": {"override_timeout_sec": 0}}, {"agent": {"name": "oracle", "timeoutSeconds": 0.0}}),
        (
            {"agent": {"env": {"A": "1", "B": ""}}},
            {"agent": {"name": "oracle", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": ""}]}},
        ),
        ({"agent": {"resume_trajectory": True}}, {"resumeTrajectory": True}),
        ({"agent": {"resume_trajectory": False}}, {}),
        (
            {
                "verifier": {"override_timeout_sec": 5, "max_timeout_sec": 0.7, "env": {"T": "x"}},
                "verifier_timeout_multiplier": 0.5,
            },
            {
                "verifier": {
                    "timeoutSeconds": 5.0,
                    "maxTimeoutSeconds": 0.7,
                    "env": [{"name": "T", "value": "x"}],
                    "timeoutMultiplier": 0.5,
                }
            },
        ),
        ({"verifier": {"disable": True}}, {"verifier": {"disable": True}}),
        (
            {"timeout_multiplier": 3, "environment_build_timeout_multiplier": 0, "agent_setup_timeout_multiplier": 4},
            {"timeoutMultiplier": 3.0, "environmentTimeoutMultiplier": 0.0, "agentSetupTimeoutMultiplier": 4.0},
        ),
        ({"host_env": {"HOST": "h"}}, {"variables": [{"name": "HOST", "value": "h"}]}),
        ({"environment": {"env": {"E": "e"}}}, {"environment": {"env": [{"name": "E", "value": "e"}]}}),
        (
            {"artifacts": ["/app/x", {"source": "/app/y", "destination": "z", "exclude": ["*.log"], "service": "main"}]},
            {"artifacts": [{"source": "/app/x"}, {"source": "/app/y", "destination": "z", "exclude": ["*.log"]}]},
        ),
    ],
)
def test_each_option_has_its_field(trial: object, expected: dict[str, Any]) -> None:
    assert spec_of(trial) == {"agent": {"name": "oracle"}, "onAgentError": "Continue", **expected}


@pytest.mark.parametrize(
    ("trial", "place"),
    [
        ({"retries": 1}, "retries"),
        ({"agent": {"kwargs": {}}}, "agent.kwargs"),
        ({"verifier": {"import_path": "x:Y"}}, "verifier.import_path"),
        ({"environment": {"type": "docker"}}, "environment.type"),
        ({"artifacts": [{"source": "/x", "mode": 1}]}, "artifacts.0.mode"),
        ({"artifacts": [{"source": "/x", "service": "db"}]}, "artifacts.0.service"),
        ({"agent": {"name": "claude-code"}}, "agent.name"),
        ({"agent": {"import_path": "other:Agent"}}, "agent.import_path"),
        ({"agent": {"name": "nop", "import_path": SHELL_AGENT}}, "agent"),
        ({"agent": {"env": {"A": 1}}}, "agent.env.A"),
        ([], "valid dictionary"),
    ],
)
def test_what_cannot_be_mapped_is_an_error_and_never_ignored(tmp_path: Path, trial: object, place: str) -> None:
    directory = make(tmp_path / "case")
    (directory / "trial.json").write_text(json.dumps(trial))

    with pytest.raises(CaseError, match=rf"trial\.json.*{place}"):
        read_case(directory)


@pytest.mark.parametrize("expected", [[], {}, {"load_error": None}, "text"])
def test_an_expectation_that_expects_nothing_is_an_error(tmp_path: Path, expected: object) -> None:
    with pytest.raises(CaseError, match=r"expected\.json"):
        read_case(make(tmp_path / "case", expected=expected))


@pytest.mark.parametrize("name", ["trial.json", "expected.json"])
def test_a_file_that_is_missing_is_an_error(tmp_path: Path, name: str) -> None:
    directory = make(tmp_path / "case")
    (directory / name).unlink()

    with pytest.raises(CaseError, match=name.replace(".", r"\.")):
        read_case(directory)


def test_extra_instructions_are_texts_of_files_then_those_given(tmp_path: Path) -> None:
    trial = {"extra_instruction_paths": ["more/a.md"], "extra_instructions": ["given"]}
    case = read_case(make(tmp_path / "case", trial, **{"more/a.md": "äöü\n"}))

    assert case.extra_instructions() == ["äöü\n", "given"]


@pytest.mark.parametrize("path", ["../secret.md", "/etc/hostname", "missing.md"])
def test_extra_instructions_are_in_the_case(tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.md").write_text("s")
    case = read_case(make(tmp_path / "case", {"extra_instruction_paths": [path]}))

    with pytest.raises(CaseError, match="extra_instruction_paths"):
        case.extra_instructions()


@pytest.mark.parametrize("name", ["plain", "with space", "it's $(touch x) `y`", 'a"b', "ärger-名前", "-rf", "*?[x]"])
def test_any_directory_name_makes_a_trial(tmp_path: Path, name: str) -> None:
    case = read_case(make(tmp_path / name, **{"task.toml": ""}))

    trial = manifest(case, name="c000-x", namespace="n", bundle={"configMaps": ["p"], "digest": "sha256:" + 64 * "0"}, image="i:1")

    assert parse_trial(trial).spec.task.name == name
    assert trial["spec"]["environment"] == {"image": "i:1", "imagePullPolicy": "IfNotPresent"}
    assert find_cases(tmp_path) == [tmp_path / name]


def members(case: Case) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(case.packed().data))) as tar:
        return {member.name: member for member in tar}


def test_a_task_is_packed_as_it_is_but_for_what_this_program_reads(tmp_path: Path) -> None:
    directory = make(tmp_path / "case", **{"task.toml": "= not TOML", "steps/a/tests/test.sh": "#!/bin/sh\n"})
    (directory / "steps/a/tests/out").symlink_to("/etc/passwd")
    (directory / "steps/a/tests/test.sh").chmod(0o555)  # no write permission, as in a read-only copy of the cases

    found = members(read_case(directory))

    assert set(found) == {"task.toml", "steps", "steps/a", "steps/a/tests", "steps/a/tests/test.sh", "steps/a/tests/out"}
    assert found["steps/a/tests/out"].linkname == "/etc/passwd"
    assert found["steps/a/tests/test.sh"].mode == 0o755


def test_what_copies_of_known_cases_lose_is_created_again_and_reported(tmp_path: Path) -> None:
    empty = read_case(make(tmp_path / "workdir-empty", **{"task.toml": ""}))
    linked = read_case(
        make(tmp_path / "workdir-symlink", **{"steps/a/workdir/link.txt": "real.txt", "steps/a/workdir/real.txt": "r\n"})
    )
    other = read_case(make(tmp_path / "other", **{"steps/a/workdir/link.txt": "real.txt"}))

    assert empty.packed().restored == ("steps/a/workdir",)
    assert linked.packed().restored == ("steps/a/workdir/link.txt",)
    assert members(linked)["steps/a/workdir/link.txt"].linkname == "real.txt"
    assert other.packed().restored == ()


@pytest.mark.parametrize(
    ("toml", "declared"),
    [
        ("", ()),
        ("= no", ()),
        ('[[steps]]\nname = "a"\n[[steps]]\nname = "b c"', ("a", "b c")),
        ("steps = 3", ()),
        ("steps = []", ()),
    ],
)
def test_steps_are_those_of_the_task(tmp_path: Path, toml: str, declared: tuple[str, ...]) -> None:
    assert read_case(make(tmp_path / "case", **{"task.toml": toml})).declared == declared
