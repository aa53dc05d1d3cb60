"""Test how a status is stored: the fields of the CRD, and all others in one text."""

from __future__ import annotations

import base64
import gzip
import json
import secrets
from typing import Any

import pytest

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status import StepStatus, TrialStatus, Usage, VerifierStatus
from multistep.api.trial.status_journal import FIELD, MAX_OBJECTS, MAX_WHOLE_BYTES, joined, may_be_stored, stored
from multistep.api.trial.trial import parse_status, parse_trial, salvaged
from multistep.engine.sweep.trial_manifests import trial_facts
from multistep.errors import InvalidSpec

WHOLE: dict[str, Any] = {
    "podName": "t-1",
    "containerID": "c1",
    "verifier": {"podName": "t-1-v0"},
    "steps": [{"name": "a", "rewards": {"reward": 1}, "gate": True}, {"name": "b"}],
    "usage": {"inputTokens": 1, "incomplete": 2},
}


def packed(details: object) -> str:
    return base64.b64encode(gzip.compress(json.dumps(details).encode())).decode()


def test_a_stored_status_has_the_fields_of_the_crd_and_one_text() -> None:
    found = stored(TrialStatus, WHOLE)
    text = found.pop(FIELD)
    assert found == {
        "podName": "t-1",
        "steps": [{"name": "a", "rewards": {"reward": 1}}, {"name": "b"}],
        "usage": {"inputTokens": 1},
    }
    assert " " not in text and json.loads(gzip.decompress(base64.b64decode(text))) == {
        "containerID": "c1", "verifier": {"podName": "t-1-v0"}, "steps": [{"gate": True}, {}], "usage": {"incomplete": 2},
    }  # fmt: skip
    assert stored(TrialStatus, {"podName": "t-1"}) == {"podName": "t-1"}


def test_the_whole_status_is_read_again_wherever_it_is_parsed() -> None:
    wanted = TrialStatus(
        pod_name="t-1",
        container_id="c1",
        verifier=VerifierStatus(pod_name="t-1-v0"),
        steps=[StepStatus(name="a", rewards={"reward": 1}, gate=True), StepStatus(name="b")],
        usage=Usage(input_tokens=1, incomplete=2),
    )
    status = stored(TrialStatus, WHOLE)
    assert joined(TrialStatus, status) == WHOLE
    assert parse_status({"status": status}) == wanted
    trial = {"spec": {"task": {"inline": {"config": {}}}}, "status": status}
    assert parse_trial(trial).status == wanted
    assert salvaged(trial).status == wanted


def test_the_journal_replaces_no_field_of_the_crd() -> None:
    other = {
        "podName": "other", "attempt": "text", "containerID": "c1",
        "steps": [{"name": "x", "gate": False, "seconds": {"agent": 1.0}, "rewards": {"reward": 1}}, {}, {"name": "third"}],
    }  # fmt: skip
    found = joined(TrialStatus, {"podName": "t-1", "steps": [{"name": "a"}], "attempt": 1, FIELD: packed(other)})
    assert found == {"podName": "t-1", "steps": [{"name": "a", "gate": False}], "attempt": 1, "containerID": "c1"}


def test_the_journal_adds_no_field_of_the_crd() -> None:
    hidden = {"score": 1.0, "passed": True, "outcome": "Passed", "usage": {"incomplete": 2}, "attempts": [{"number": 1}]}
    complete = {"type": "Complete", "status": "True", "reason": "R", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Complete", "conditions": [complete], FIELD: packed(hidden)}
    assert joined(TrialStatus, status) == {"phase": "Complete", "conditions": [complete]}
    assert trial_facts({"metadata": {"name": "t"}, "status": status}, Scoring()).score is None


def test_what_an_earlier_release_stored_in_a_field_is_not_replaced_by_the_journal() -> None:
    found = joined(TrialStatus, {"verifier": {"podName": "v"}, "containerID": "c", FIELD: packed({"verifier": {"podUID": "u"}})})
    assert found == {"verifier": {"podName": "v"}, "containerID": "c"}


@pytest.mark.parametrize("steps", [100, 1000])
def test_an_operator_reads_what_it_may_write(steps: int) -> None:
    whole = {"attempts": [{"number": 1, "steps": [{"name": secrets.token_hex(400), "usage": {"requests": 1}}] * steps}]}
    assert may_be_stored(whole)
    assert joined(TrialStatus, stored(TrialStatus, whole)) == whole


@pytest.mark.parametrize("steps", [[{"name": "x" * 2**10}] * 2**10, [{}] * MAX_OBJECTS], ids=["bytes", "objects"])
def test_a_status_is_too_large_long_before_an_operator_refuses_it(steps: list[dict[str, Any]]) -> None:
    whole = {"attempts": [{"number": 1, "steps": steps}]}
    assert not may_be_stored(whole)
    assert joined(TrialStatus, stored(TrialStatus, whole)) == whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no base64",
        "eA==",
        packed({})[:-8],
        packed({"x": float("nan")}),
        packed("x" * 2 * MAX_WHOLE_BYTES),
        packed([{}] * (2 * MAX_OBJECTS + 1)),
        7,
    ],
    ids=["empty", "text", "no gzip", "cut off", "NaN", "too large", "too many objects", "a number"],
)
def test_a_journal_that_cannot_be_read_is_an_error_of_the_status(text: Any) -> None:
    status = {"phase": "Complete", "podName": "t-1", FIELD: text}
    with pytest.raises(InvalidSpec, match=r"^status"):
        parse_status({"status": status})
    found = salvaged({"spec": {}, "status": status}).status
    assert (found.pod_name, found.container_id) == ("t-1", None)
    counts = trial_facts({"metadata": {"name": "t"}, "status": status}, Scoring())
    assert (counts.state, counts.invalid) == ("Failed", True)


def test_deeply_nested_json_is_an_error() -> None:
    text = base64.b64encode(gzip.compress(b"[" * 10**6)).decode()
    with pytest.raises(ValueError, match="gzip of JSON in base64"):
        joined(TrialStatus, {FIELD: text})
