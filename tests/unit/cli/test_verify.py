"""Test the table, the JSON document and the exit codes of `multistep verify`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from multistep.store.evidence.signing import Signer
from tests.harbor.samples import FIRST, SAMPLES, make_results
from tests.support.signing_keys import write_keys

from .conftest import Invoke


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a directory with the signed results of several trials."""
    private, _ = write_keys(tmp_path)
    for name, path in make_results(tmp_path / "v", Signer.load(private).envelope).items():
        shutil.copytree(path, tmp_path / "out" / name, ignore=lambda _, names: [each for each in names if each.startswith(".")])
    return tmp_path / "out"


def test_the_results_of_one_trial(results: Path, invoke: Invoke) -> None:
    found = invoke("verify", results / "rewards", "--key", results.parent / "signing-key.pub.pem")
    assert found.exit_code == 0
    assert [line.split() for line in found.stdout.splitlines()] == [
        ["DIRECTORY", "TRIAL", "OUTCOME", "REWARD", "FILES", "SIZE", "SIGNATURE", "RESULTS"],
        [".", "default/rewards", "Complete", "0.5", "14", *found.stdout.split()[13:15], "valid", "as", "the", "evidence", "says"],
    ]


def test_an_edited_file_of_one_of_several_trials_is_named(results: Path, invoke: Invoke) -> None:
    edited = results / "rewards/steps" / FIRST / "artifacts/x"
    edited.write_text("DATA")
    found = invoke("verify", results)
    assert found.exit_code == 1
    assert found.stdout.splitlines()[-1] == f"differs: rewards/steps/{FIRST}/artifacts/x was changed: its SHA-256 differs"
    assert len([line for line in found.stdout.splitlines() if "as the evidence says" in line]) == len(SAMPLES) - 1


def test_the_document(results: Path, invoke: Invoke) -> None:
    (results / "rewards" / "\udcff").touch()
    found = json.loads(invoke("verify", results, "-o", "json").stdout)
    assert not found["ok"] and len(found["trials"]) == len(SAMPLES)
    [differing] = [each for each in found["trials"] if not each["ok"]]
    assert differing["trial"]["name"] == "rewards" and differing["signature"] == "not checked"
    assert differing["findings"] == [{"file": "\\udcff", "problem": "was added: the evidence does not list it"}]
    assert differing["moreFindings"] == 0


def test_a_missing_signature_is_a_failure_if_a_key_is_given(results: Path, invoke: Invoke) -> None:
    (results / "rewards/evidence.dsse.json").unlink()
    assert invoke("verify", results / "rewards").exit_code == 0
    found = invoke("verify", results / "rewards", "--key", results.parent / "signing-key.pub.pem")
    assert found.exit_code == 1 and "evidence.dsse.json is missing: the evidence is not signed" in found.stdout


def test_a_copy_of_a_trial_in_place_of_another_is_found(results: Path, invoke: Invoke) -> None:
    shutil.rmtree(results / "exceptions")
    shutil.copytree(results / "rewards", results / "exceptions")
    found = invoke("verify", results)
    assert found.exit_code == 1
    assert f"rewards/evidence.json is of the same trial as that in {results / 'exceptions'}" in found.stdout


def test_many_differences_are_cut(results: Path, invoke: Invoke) -> None:
    for number in range(25):
        (results / f"rewards/more-{number}").touch()
    lines = invoke("verify", results / "rewards").stdout.splitlines()
    assert lines[-1] == ".: and 5 more" and len(lines) == 2 + 20 + 1


def test_hostile_texts_are_shown_without_control_characters(results: Path, invoke: Invoke) -> None:
    top = results / "rewards"
    text = json.loads((top / "evidence.json").read_text())
    text["predicate"] |= {"trial": {"name": "\x1b[31m\udcff", "namespace": []}, "rewards": {"reward": 10**400}, "outcome": {}}
    (top / "evidence.json").write_text(json.dumps(text))
    found = invoke("verify", top)
    assert found.exit_code == 1 and "\x1b" not in found.stdout


@pytest.mark.parametrize(
    "predicate", [{"trial": 3, "rewards": "x"}, {"trial": {"uid": []}, "rewards": [1], "steps": [3, {"artifacts": 4}]}]
)
def test_a_statement_of_odd_types_is_refused(results: Path, invoke: Invoke, predicate: object) -> None:
    top = results / "rewards"
    text = json.loads((top / "evidence.json").read_text())
    (top / "evidence.json").write_text(json.dumps({**text, "predicate": predicate}))
    assert invoke("verify", top).exit_code == 1


def test_what_cannot_be_verified(results: Path, invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    found = invoke("verify", tmp_path / "empty")
    assert found.exit_code == 2 and "has no results" in found.stderr
    found = invoke("verify", results, "--key", tmp_path / "signing-key.pem")
    assert found.exit_code == 2 and "is not a public key" in found.stderr
    assert invoke("verify", tmp_path / "none").exit_code == 2
