from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from multistep.api.trial.status import ExceptionStatus, ResumeStatus, StepStatus, TrialStatus
from multistep.engine.journal.journal import StepRun
from multistep.engine.script.replay import changed_rewards, lost_verdict, missing_records
from tests.support.played import THREE, plan

ENDED = datetime(2026, 1, 1, tzinfo=UTC)


def step(name: str, *, done: bool = True, **fields: Any) -> StepStatus:
    return StepStatus(name=name, completion_time=ENDED if done else None, **fields)


def run(name: str, rewards: dict[str, float] | None, *, done: bool = True) -> StepRun:
    return StepRun(name=name, completed_at=1.0 if done else None, rewards=rewards)


@pytest.mark.parametrize(
    ("steps", "ids", "named"),
    [
        ([], [], ""),
        ([step("a", done=False)], [], "no records"),
        ([step("a", done=False)], ["2//healthcheck"], ""),
        ([step("a")], ["2//healthcheck"], "step a"),
        ([step("a")], ["1/a/agent"], "step a"),
        ([step("a"), step("b", done=False)], ["2/a/agent"], ""),
        ([step("a"), step("b", done=False)], ["2/b/agent"], "step a"),
        ([step("a"), step("b")], ["2/a/agent", "2/b/agent"], ""),
        ([step("a"), step("b")], ["2/a/agent"], "step b"),
    ],
)
def test_each_step_that_was_done_has_records(steps: list[StepStatus], ids: list[str], named: str) -> None:
    found = missing_records(TrialStatus(steps=steps, attempt=2), ids)
    assert named in found and bool(found) == bool(named)


@pytest.mark.parametrize(
    ("ids", "named"), [(["3//restore"], "step c"), (["3/c/agent"], ""), ([], "no records"), (["2/b/agent", "1/a/agent"], "step c")]
)
def test_the_runner_has_no_records_of_steps_that_were_kept(ids: list[str], named: str) -> None:
    resumed = ResumeStatus(after="b", attempts=[1, 2], digest="d")
    steps = [step("a"), step("b"), step("c"), step("d", done=False)]
    found = missing_records(TrialStatus(steps=steps, attempt=3, resumed=resumed), ids)
    assert named in found and bool(found) == bool(named)
    assert missing_records(TrialStatus(steps=steps[:2], attempt=3, resumed=resumed), []) == "", "it may not have restored yet"


JUDGED: dict[str, Any] = {"rewards": {"reward": 0}}
UNCOPIED: dict[str, Any] = {"exception": ExceptionStatus(type="RuntimeError", message="the files are too large", phase="verifier")}
UNREADABLE: dict[str, Any] = {
    "exception": ExceptionStatus(type="RewardFileNotFoundError", message="none", phase="verifier"),
    "verifier_image_id": "sha256:1",
}
BY_AGENT: dict[str, Any] = {"exception": ExceptionStatus(type="AgentTimeoutError", message="late", phase="agent")}


@pytest.mark.parametrize(
    ("steps", "stored", "lost"),
    [
        ([step("a", **JUDGED), step("b", done=False)], [0], False),
        ([step("a", **JUDGED), step("b", done=False)], [], True),
        ([step("a", **UNREADABLE)], [], True),
        ([step("a", **UNCOPIED)], [], False),
        ([step("a", **BY_AGENT)], [], False),
        ([step("a")], [], False),
        ([step("a", done=False, **JUDGED)], [], False),
        ([step("a", **JUDGED), step("b", **JUDGED)], [0], True),
    ],
)
@pytest.mark.parametrize("apart", [True, False])
def test_a_verdict_that_a_separate_verifier_gave_is_on_the_volume(
    steps: list[StepStatus], stored: list[int], *, lost: bool, apart: bool
) -> None:
    made = plan(THREE, {"verifier": {"isolation": "Separate" if apart else "Declared"}})
    assert bool(lost_verdict(TrialStatus(steps=steps), made, stored)) == (lost and apart)


def test_the_verdicts_of_kept_steps_are_in_the_checkpoint() -> None:
    made = plan(THREE, {"verifier": {"isolation": "Separate"}})
    kept = TrialStatus(steps=[step("a", **JUDGED)], attempt=2, resumed=ResumeStatus(after="a", attempts=[1], digest="d"))
    assert lost_verdict(kept, made, []) == ""


@pytest.mark.parametrize(
    ("before", "now", "changed"),
    [
        (step("a", rewards={"reward": 1}), run("a", {"reward": 1.0}), False),
        (step("a", rewards={"reward": 0}), run("a", {"reward": 1.0}), True),
        (step("a", rewards={"reward": 0}), run("a", {"reward": 0, "more": 1}), False),
        (step("a", rewards={"reward": 0}, done=False), run("a", {"reward": 1.0}), False),
        (step("a", rewards={"reward": 0}), run("a", {"reward": 1.0}, done=False), False),
        (step("a"), run("a", {"reward": 1.0}), False),
        (step("a", rewards={"reward": 0}), run("a", None), False),
    ],
)
def test_the_rewards_of_a_step_do_not_change(before: StepStatus, now: StepRun, changed: bool) -> None:
    assert bool(changed_rewards(TrialStatus(steps=[before, step("b", done=False)]), [now])) is changed
