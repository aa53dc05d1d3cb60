"""Test traces of tampering: the findings of an inspection become entries of status.tampering."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from multistep.api.sweep.sweep import Scoring
from multistep.api.trial.status import CheckpointStatus, Tampering, TrialStatus
from multistep.engine.journal.journal import Journal
from multistep.engine.journal.operations import Baseline, Inspect
from multistep.engine.score.score_in_sweep import counted_score, failure_class_of
from multistep.engine.script.operation_scope import KeptStep
from multistep.engine.status import trial_status
from multistep.engine.status.status_size import redacted, to_json
from multistep.engine.status.tampering_findings import HINTS, KINDS, evidence, merged, summary
from multistep.engine.sweep.next_trials import count_trials
from multistep.engine.sweep.trial_grid import TrialGrid
from multistep.engine.sweep.trial_manifests import trial_facts
from multistep.errors import RunnerError
from tests.support.played import IMAGE, Played, plan, play
from tests.unit.engine.test_scoring import NOW, finished, resource, trial

STEPS = '[[steps]]\nname = "a"\n[[steps]]\nname = "b"\n'
TWO = f'{IMAGE}[environment.env]\nPATH = "/opt/bin"\nOTHER = "x"\n[verifier]\nuser = "judge"\n{STEPS}'
APART = 'artifacts = ["/out"]\n' + IMAGE + '[[steps]]\nname = "a"\n[steps.verifier]\nenvironment_mode = "separate"\n'


def finding(kind: str, *paths: str, count: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "count": len(paths) if count is None else count, "paths": list(paths)}


def inspected(*findings: Mapping[str, Any], **result: Any) -> dict[str, Any]:
    return {"findings": list(findings), "seconds": 0.1, **result}


def played(**results: Mapping[str, Any]) -> Played:
    """Run the task's script. results: result of each step's inspection, by step name."""
    return play(plan(TWO), {f"{step}/inspect": result for step, result in results.items()})


def entries(journal: Journal) -> list[tuple[str, str, str]]:
    return [(each.step, each.kind, each.detail) for each in merged(TrialStatus(), journal)]


def entry(kind: str, detail: str = "x", step: str = "a", attempt: int = 1) -> Tampering:
    return Tampering.model_validate({"attempt": attempt, "step": step, "kind": kind, "detail": detail})


# -- operations in the script


def test_the_state_is_noted_before_the_first_agent_and_compared_before_each_verification() -> None:
    found = played()
    assert found.ids.index("a/baseline") < found.ids.index("a/agent") < found.ids.index("a/inspect") < found.ids.index("a/verify")
    assert "b/baseline" not in found.ids and "b/inspect" in found.ids
    env = {"PATH": "/opt/bin"}
    assert found.operation("a/baseline") == Baseline("1/a/baseline", "judge", env)
    assert found.operation("b/inspect") == Inspect("1/b/inspect", "judge", env)
    assert entries(found.journal) == []


def test_variables_that_name_files_are_passed_on_and_no_others() -> None:
    toml = TWO.replace("[verifier]\n", '[verifier]\nenv = { BASH_ENV = "/e", KEY = "secret" }\n')
    assert play(plan(toml)).operation("a/inspect").env == {"PATH": "/opt/bin", "BASH_ENV": "/e"}
    unresolved = TWO.replace("[verifier]\n", '[verifier]\nenv = { BASH_ENV = "${MISSING}" }\n')
    assert play(plan(unresolved)).operation("a/inspect").env == {"PATH": "/opt/bin"}


def test_an_environment_in_which_nothing_is_verified_is_not_inspected() -> None:
    for made in (plan(APART), plan(TWO, {"verifier": {"disable": True}})):
        assert not [each for each in play(made).operations if isinstance(each, Baseline | Inspect)]


def test_an_environment_of_which_a_copy_is_verified_is_inspected() -> None:
    found = play(plan(TWO, {"verifier": {"isolation": "Separate"}}), {"a/inspect": inspected(finding("StartupHook", "/x"))})
    assert found.ids.index("a/baseline") < found.ids.index("a/inspect") < found.ids.index("a/snapshot")
    assert entries(found.journal) == [("a", "StartupHook", "/x")]


def test_each_attempt_notes_the_state_before_its_own_first_agent() -> None:
    first = played()
    kept = (KeptStep(1, CheckpointStatus()),)
    steps = {id: each for id, each in first.records.items() if id.startswith("1/a/")}
    second = play(plan(TWO), records=steps, kept=kept, attempt=2)
    assert [each.id for each in second.operations if isinstance(each, Baseline)] == ["2/b/baseline"]


# -- entries of status.tampering


def test_each_kind_of_a_step_is_one_entry() -> None:
    found = played(
        a=inspected(
            finding("SystemFileChanged", "/usr/bin/python3"),
            finding("VerifierFilesPlanted", *(f"/tests/{number}" for number in range(6)), count=900),
            processes=["sleep", "sleep", ""],
            processCount=7,
            incomplete=True,
        )
    )
    assert entries(found.journal) == [
        ("a", "SystemFileChanged", "/usr/bin/python3"),
        ("a", "VerifierFilesPlanted", "/tests/0, /tests/1, /tests/2, /tests/3 and 896 more"),
        ("a", "SurvivingProcesses", "sleep, ? and 5 more"),
        ("a", "InspectionIncomplete", "a limit of files, bytes or time was exceeded"),
    ]


def test_what_an_earlier_step_had_is_not_repeated() -> None:
    changed = finding("SystemFileChanged", "/usr/bin/python3")
    found = played(a=inspected(changed), b=inspected(changed, finding("StartupHook", "/etc/ld.so.preload")))
    assert [(step, kind) for step, kind, _ in entries(found.journal)] == [("a", "SystemFileChanged"), ("b", "StartupHook")]


@pytest.mark.parametrize(
    "result",
    [
        {"findings": [], "error": {"code": "NoBaseline", "message": ""}},
        {"findings": [finding("OfALaterRelease", "/x")]},
    ],
)
def test_a_runner_that_knows_nothing_or_more_is_no_violation(result: Mapping[str, Any]) -> None:
    assert entries(played(a=result).journal) == []


def test_a_runner_of_an_earlier_release_has_a_note_only() -> None:
    before = played()
    note = replace(before.records["1/a/inspect"], op="note", result={})
    assert entries(play(plan(TWO), records={note.id: note}).journal) == []


def test_an_answer_beyond_its_limits_is_a_violation() -> None:
    with pytest.raises(RunnerError):
        played(a=inspected(*[finding("StartupHook", "/x")] * 100))


def test_names_of_an_agent_are_cut_and_printable() -> None:
    found = played(a=inspected(finding("VerifierFilesPlanted", "/tests/\x1b[31m" + "x" * 5000)))
    ((_, _, detail),) = entries(found.journal)
    assert detail.startswith("/tests/?[31mxxx") and len(detail) == 100


def test_the_status_keeps_what_it_has_of_other_steps_and_attempts() -> None:
    found = played(b=inspected(finding("StartupHook", "/x")))
    former = TrialStatus(tampering=[entry("TestHook", attempt=1), entry("StartupHook", step="b", detail="[REDACTED]")])
    assert [(each.step, each.detail) for each in merged(former, found.journal)] == [("a", "x"), ("b", "/x")]
    full = TrialStatus(tampering=[entry("TestHook", attempt=number) for number in range(40)])
    assert len(merged(full, Journal())) == 32


def test_no_number_of_hints_hides_evidence() -> None:
    hints = [entry("SurvivingProcesses", step=f"step-{number}") for number in range(32)]
    shown = merged(TrialStatus(tampering=hints), played(b=inspected(finding("StartupHook", "/x"))).journal)
    assert [(each.step, each.kind) for each in shown[30:]] == [("step-30", "SurvivingProcesses"), ("b", "StartupHook")]
    known = [entry("StartupHook"), *hints[:31]]
    before = trial().model_copy(update={"status": TrialStatus(current_step="b", tampering=known)})
    failed = trial_status.failed(before, "Tampered", "", NOW)
    assert [each.kind for each in (failed.tampering[0], failed.tampering[-1])] == ["StartupHook", "RunnerReplaced"]
    assert len(failed.tampering) == 32


# -- the status of a finished trial


def test_a_finished_trials_status_and_message_have_the_evidence() -> None:
    found = finished(played(a=inspected(finding("StartupHook", "/x"), processes=["sleep"], processCount=1)).journal)
    assert [each.kind for each in found.tampering] == ["StartupHook", "SurvivingProcesses"]
    (complete,) = [each for each in found.conditions if each.type == "Complete"]
    assert complete.message == "ran 2 steps; evidence of tampering: StartupHook"
    assert summary([entry(kind) for kind in HINTS]) == ""


def test_a_running_and_a_paused_trial_show_what_was_found() -> None:
    journal = played(a=inspected(finding("StartupHook", "/x"))).journal
    assert trial_status.running(trial(), journal, NOW).tampering == trial_status.paused(trial(), journal, NOW).tampering != []


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("ExecSessionsKilled", "ExecSessionsKilled"), ("Tampered", "RunnerReplaced"), ("RunnerBroken", "RunnerReplaced")],
)
def test_a_trial_that_fails_as_its_runner_was_attacked_says_so(reason: str, kind: str) -> None:
    before = trial()
    before.status = TrialStatus(attempt=2, current_step="b", tampering=[entry("TestHook")])
    found = trial_status.failed(before, reason, "five times", NOW)
    assert found.tampering == [entry("TestHook"), entry(kind, "five times", "b", 2)]
    assert trial_status.failed(before, "Stopped", "", NOW).tampering == [entry("TestHook")]


def test_details_are_redacted() -> None:
    clean = redacted(TrialStatus(tampering=[entry("VerifierFilesPlanted", "/tests/sk-1234")]), ["sk-1234"])
    assert clean.tampering == [entry("VerifierFilesPlanted", "/tests/[REDACTED]")]


# -- scores of trials with tampering


def test_hints_are_no_evidence() -> None:
    assert evidence(KINDS) == [kind for kind in KINDS if kind not in HINTS]
    assert evidence([]) == [] and set(HINTS) < set(KINDS)


@pytest.mark.parametrize(
    ("policy", "kind", "counts", "failure_class"),
    [
        ("Report", "StartupHook", 1.0, None),
        ("Zero", "StartupHook", 0.0, "Agent"),
        ("Exclude", "StartupHook", None, "Agent"),
        ("Zero", "SurvivingProcesses", 1.0, None),
        ("Exclude", "WorkdirHook", 1.0, None),
    ],
)
def test_a_sweeps_policy_decides_how_a_trial_with_evidence_counts(
    policy: str, kind: str, counts: float | None, failure_class: str | None
) -> None:
    scoring = Scoring.model_validate({"tampering": policy})
    result = inspected(finding(kind, "/x")) if kind != "SurvivingProcesses" else inspected(processes=["x"], processCount=1)
    done = finished(played(a=result).journal)
    known = trial_facts(resource(done))
    assert counted_score(known, scoring) == counts
    assert failure_class_of(known, scoring) == failure_class
    (agent,) = (counted := count_trials(TrialGrid(["t"], ["a"], 1), 1, [known], NOW, scoring)).agents
    assert agent.mean == counts
    assert agent.passed == (counts == 1.0)
    assert counted.excluded == ({"Agent": 1} if counts is None else {})
    assert counted.scored == ({"Agent": 1} if counts == 0.0 else {})


def test_evidence_gives_no_score_to_a_trial_that_the_infrastructure_ended() -> None:
    lost = trial_status.failed(trial(), "PodDeleted", "", NOW).model_copy(update={"tampering": [entry("StartupHook")]})
    known = trial_facts(resource(lost))
    scoring = Scoring(tampering="Zero")
    assert (counted_score(known, scoring), failure_class_of(known, scoring)) == (None, "Infrastructure")
    active = trial_facts({"metadata": {"name": "t"}, "status": to_json(TrialStatus(tampering=[entry("StartupHook")]))})
    assert (counted_score(active, scoring), failure_class_of(active, scoring)) == (None, None)
