"""Each trial's resource becomes one row of a report."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.sweep.sweep import Scoring
from multistep.client.run import rollout
from multistep.engine.score.score_in_sweep import counted_score
from multistep.engine.sweep.trial_manifests import trial_facts
from multistep.errors import InvalidSpec
from multistep.report.rows import trial_row
from tests.unit.report.samples import step, trial


def test_a_row_shows_what_the_sweep_noted_on_its_trial() -> None:
    found = trial_row(trial("a/task", "an agent", 3, reward=0.5, resultsStore="s3://bucket/x"))
    assert (found.task, found.agent, found.attempt, found.namespace) == ("a/task", "an agent", 3, "evals")
    assert (found.state, found.rewards, found.counts, found.seconds) == ("Complete", {"reward": 0.5}, 0.5, 60)
    assert (found.failure_class, found.reason, found.excluded, found.results) == ("", "", False, "s3://bucket/x")
    assert found.content == "sha256:" + "1" * 64


def test_a_trial_of_no_sweep_is_a_row_too() -> None:
    bare = {"metadata": {"name": "t"}, "spec": {"task": {"name": "hello"}}}
    found = trial_row(bare)
    assert (found.task, found.agent, found.attempt, found.state) == ("hello", "oracle", 1, "Active")


@pytest.mark.parametrize("noted", ["", "x", "-1", "²", "9" * 5000])
def test_an_annotation_that_is_no_number_harms_nothing(noted: str) -> None:
    made = trial()
    made["metadata"]["annotations"]["multistep.dev/attempt"] = noted
    assert trial_row(made).attempt == 1


@pytest.mark.parametrize("failure_class", ["Verifier", "Task", "Infrastructure", "User"])
def test_what_others_broke_is_lost_and_not_nought(failure_class: str) -> None:
    found = trial_row(trial(ended="Failed", failure=(failure_class, "Why")))
    assert (found.counts, found.excluded, found.failure_class, found.reason) == (None, True, failure_class, "Why")


def test_what_an_agent_broke_is_nought_and_not_lost() -> None:
    found = trial_row(trial(failure=("Agent", "AgentTimeoutError")))
    assert (found.rewards, found.counts, found.passed, found.excluded) == (None, 0.0, False, False)
    assert (found.outcome, found.reason) == ("AgentError", "AgentTimeoutError")


def test_a_trial_at_work_is_neither() -> None:
    found = trial_row(trial(ended=None, reward=1.0))
    assert (found.state, found.counts, found.excluded, found.seconds) == ("Active", None, False, None)


EVIDENCE = [
    {"attempt": 1, "step": "a", "kind": kind, "detail": "/x"} for kind in ("StartupHook", "SurvivingProcesses", "SystemFileChanged")
]


@pytest.mark.parametrize(
    ("policy", "counts", "reason"), [("Report", 1.0, ""), ("Zero", 0.0, "Tampering"), ("Exclude", None, "Tampering")]
)
def test_a_row_shows_evidence_of_tampering_and_what_the_policy_makes_of_it(policy: str, counts: float | None, reason: str) -> None:
    found = trial_row(trial(reward=1.0, tampering=EVIDENCE), Scoring.model_validate({"tampering": policy}))
    assert (found.tampering, found.counts, found.reason) == ("SystemFileChanged StartupHook", counts, reason)
    assert (found.rewards, found.passed) == ({"reward": 1.0}, None if counts is None else counts == 1)
    assert trial_row(trial(reward=1.0, tampering=EVIDENCE[1:2])).tampering == ""


@pytest.mark.parametrize(("choice", "counts", "outcome"), [("Exclude", None, "Excluded"), ("Zero", 0.0, "NotPassed")])
def test_a_sweep_decides_whether_a_failure_of_the_provider_counts_0(choice: str, counts: float | None, outcome: str) -> None:
    failed = trial(failure=("Provider", "ProviderFailed"))
    found = trial_row(failed, Scoring.model_validate({"providerErrors": choice}))
    assert (found.counts, found.outcome, found.failure_class, found.reason) == (counts, outcome, "Provider", "ProviderFailed")
    assert found.passed is (None if counts is None else False)
    how = {None: "excluded, Provider: ProviderFailed", 0.0: "0 by spec.scoring.providerErrors (Provider: ProviderFailed)"}
    assert found.how == how[counts]


def test_a_score_without_its_rule_is_not_explained_as_a_failure() -> None:
    former = trial(reward=1.0, steps=[step("a", 1.0)])
    former["status"].pop("scoreRule")  # a trial that an earlier release finished
    found = trial_row(former)
    assert (found.counts, found.passed, found.how) == (1.0, True, "1, as in status.score")


def test_a_failure_keeps_its_reason_beside_evidence() -> None:
    found = trial_row(trial(failure=("Agent", "AgentTimeoutError"), tampering=EVIDENCE), Scoring(tampering="Zero"))
    assert found.how == "0, as the trial failed (Agent: AgentTimeoutError)"
    complete = trial(reward=1.0, tampering=EVIDENCE)
    complete["status"]["failure"] = {"class": "Agent", "reason": "AgentTimeoutError"}
    ended = trial_row(complete, Scoring(tampering="Zero"))
    assert (ended.reason, ended.counts) == ("AgentTimeoutError", 0.0)
    assert ended.how == "0 by spec.scoring.tampering, as there is evidence of tampering"
    assert (found.reason, found.counts) == ("AgentTimeoutError", 0.0)


def test_a_complete_trial_without_a_reward_is_excluded_with_a_reason() -> None:
    found = trial_row(trial())
    assert (found.counts, found.excluded, found.scored_failure, found.failure_class, found.reason) == (
        None,
        True,
        False,
        "Task",
        "NoReward",
    )


@pytest.mark.parametrize("reward", [1e200, -1e200, 10**400])
def test_a_reward_too_large_for_a_sum_counts_0_and_is_reported(reward: float) -> None:
    found = trial_row(trial(reward=reward, score=0.0, passed=False, steps=[step("a", reward)]))
    assert (found.counts, found.excluded, found.scored_failure, found.failure_class, found.reason) == (
        0.0, False, True, "Verifier", "RewardTooLarge",
    )  # fmt: skip


def test_a_row_counts_what_its_sweep_chose() -> None:
    crashed = step("a", 1.0, exception={"type": "ApiRateLimitError", "message": "", "phase": "agent"})
    made = trial(reward=1.0, steps=[crashed, step("b", 1.0)])
    assert trial_row(made).counts == 1.0 and trial_row(made).failure_class == ""
    found = trial_row(made, Scoring(agent_errors="Exclude"))
    assert (found.counts, found.excluded, found.failure_class, found.reason) == (None, True, "Agent", "AgentError")


FAILURES = st.sampled_from(
    [("Agent", "AgentTimeoutError"), ("Provider", "ProviderFailed"), ("Verifier", "x"), ("Infrastructure", "x")]
)
CRASHED = {"exception": {"type": "NonZeroAgentExitCodeError", "message": "", "phase": "agent"}}
RAN = st.lists(st.builds(step, st.just("a"), st.sampled_from([None, 0.5, 1.0, 1e200])), max_size=2) | st.just(
    [step("a", 1.0, **CRASHED)]
)


@given(
    reward=st.sampled_from([None, 0.0, 0.5, 1.0, 1e200]),
    ended=st.sampled_from(["Complete", "Failed"]),
    failure=st.none() | FAILURES,
    steps=RAN,
    tampering=st.sampled_from([[], EVIDENCE]),
    scoring=st.fixed_dictionaries(
        {},
        optional={
            "strategy": st.sampled_from(["DeclaredSteps", "AsTask"]),
            "tampering": st.sampled_from(["Report", "Zero", "Exclude"]),
            "agentErrors": st.sampled_from(["Score", "Exclude"]),
            "environmentErrors": st.sampled_from(["Score", "Exclude"]),
            "providerErrors": st.sampled_from(["Exclude", "Zero"]),
        },
    ),
)
def test_status_report_and_client_count_a_trial_alike(scoring: Any, ended: str, **fields: Any) -> None:
    made, chosen = trial(ended=ended, **fields), Scoring.model_validate(scoring)
    counts = counted_score(trial_facts(made, chosen), chosen)
    found = rollout(made, chosen)
    assert (trial_row(made, chosen).counts, found.reward, found.valid) == (counts, counts, counts is not None)


def test_a_failure_that_an_agent_may_have_caused_counts_as_the_operator_scored_it() -> None:
    made = trial(reward=1.0, failure=("Verifier", "VerifierTimeoutError"))
    assert trial_row(made).excluded
    made["status"] |= {"score": 0.5, "passed": False, "outcome": "VerifierError"}
    found = trial_row(made)
    assert (found.counts, found.excluded, found.scored_failure, found.failure_class) == (0.5, False, True, "Verifier")
    assert trial_row(made, Scoring(environment_errors="Exclude")).excluded


def test_a_step_is_passed_by_its_gate_and_without_one_by_a_full_reward() -> None:
    steps = [step("gated", 0.5, gate=True), step("missed", 1.0, gate=False), step("full", 1.0), step("half", 0.5), step("none")]
    assert [each.passed for each in trial_row(trial(steps=steps)).steps] == [True, False, True, False, False]


def test_a_step_has_the_seconds_of_its_phases_and_its_exception() -> None:
    made = step("a", seconds={"agent": 2.5, "verifier": 1}, exception={"type": "AgentTimeoutError", "message": "slow"})
    (found,) = trial_row(trial(steps=[made])).steps
    assert (dict(found.seconds), found.exception) == ({"agent": 2.5, "verifier": 1.0}, "AgentTimeoutError")


def test_a_steps_reward_that_no_mean_can_be_made_of_counts_0() -> None:
    (found,) = trial_row(trial(steps=[step("a", 1e300)])).steps
    assert (found.rewards, found.score, found.passed) == ({"reward": 1e300}, 0.0, False)


def test_pods_that_were_lost_on_the_way_are_counted() -> None:
    assert trial_row(trial(reward=1.0, attempts=[{"number": 1, "reason": "PodDeleted"}])).failed_attempts == 1


def test_the_content_of_a_task_from_elsewhere_is_what_it_was_resolved_to() -> None:
    assert trial_row(trial(taskSource={"revision": "r", "digest": "sha256:2"})).content == "sha256:2"


def test_a_status_that_cannot_be_read_is_reported() -> None:
    with pytest.raises(InvalidSpec, match=r"status\.steps"):
        trial_row({"metadata": {"name": "t"}, "status": {"steps": 3}})


def test_what_an_agent_used_is_summed_over_all_attempts() -> None:
    def used(tokens: int, cost: float | None) -> dict[str, Any]:
        return {"inputTokens": tokens, "outputTokens": 1, "source": "Gateway", **({} if cost is None else {"costUSD": cost})}

    lost = {"number": 1, "reason": "ProviderFailed", "steps": [step("a", usage=used(10, 0.5))]}
    retried = trial(reward=1.0, steps=[step("a", 1.0, usage=used(20, 0.25))], attempts=[lost])
    retried["status"]["attempt"] = 2
    found = trial_row(retried)
    assert (found.input_tokens, found.output_tokens, found.cost_usd, found.counted_by) == (30, 2, 0.75, "Gateway")
    unpriced = trial_row(trial(reward=1.0, steps=[step("a", 1.0, usage=used(20, None)), step("b", 1.0, usage=used(1, 1.0))]))
    assert (unpriced.input_tokens, unpriced.cost_usd) == (21, None)
    assert trial_row(trial(reward=1.0)).counted_by == ""


def test_what_a_setup_used_is_counted_with_the_steps_and_each_step_once() -> None:
    def used(tokens: int) -> dict[str, Any]:
        return {"inputTokens": tokens, "outputTokens": 1, "source": "Gateway", "costUSD": 0.5}

    lost = {"number": 1, "reason": "PodDeleted", "steps": [step("a", usage=used(10)), step("b", usage=used(200))]}
    kept = [step("a", 1.0, usage=used(10)), step("b", 1.0, usage=used(20))]
    # status.usage is that of the last attempt: 7 tokens of its setup, 10 of the kept step a, and 20 of its own step b
    resumed = trial(reward=1.0, steps=kept, attempts=[lost], resumed={"after": "a", "attempts": [1], "digest": "d"}, usage=used(37))
    resumed["status"]["attempt"] = 2
    assert trial_row(resumed).input_tokens == 237
    failed = trial(ended="Failed", failure=("Agent", "AgentSetupFailed"), steps=[], usage=used(7))
    assert trial_row(failed).input_tokens == 7


def test_an_agent_without_a_name_is_no_oracle() -> None:
    made = trial(reward=0.0)
    made["spec"]["agent"] = {"importPath": "my.agents:Mine"}
    assert trial_row(made).program == "my.agents:Mine"
