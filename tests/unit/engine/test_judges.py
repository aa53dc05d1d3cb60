"""Test the plan of a trial's judge, and the access of verifiers to it in the script."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.trial.trial import parse_trial
from multistep.engine.journal.operations import CloseModelAccess, Note, Reset, Start, SwitchNetwork
from multistep.engine.plan.judge_plan import access_names
from multistep.engine.plan.network_types import Egress
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.engine.status.trial_status import step_run, step_status
from multistep.errors import InvalidSpec
from tests.support.fake_models import counted
from tests.support.played import FAULT, IMAGE, Played, plan, play, rewarded
from tests.support.world import manifest

JUDGE = {"model": "openai/gpt-5-mini", "credentials": [{"name": "OPENAI_API_KEY", "value": "sk"}]}
ENV = """
[verifier.env]
OPENAI_API_KEY = "${OPENAI_API_KEY}"
GRADER_KEY = "${OPENAI_API_KEY}"
OPENAI_BASE_URL = "https://api.openai.com/v1"
MODEL = "${MODEL:-gpt-5-mini}"
[[steps]]
name = "a"
"""
ONE = '[[steps]]\nname = "a"\n'
APART = f'[verifier]\nenvironment_mode = "separate"\n{ONE}'


def judged(toml: str = ONE, *, egress: Egress = "Disabled", **spec: Any) -> TrialPlan:
    return plan(IMAGE + toml, {"models": {"judge": JUDGE}, **spec}, env=TrialEnv(judge={"OPENAI_API_KEY": "sk"}), egress=egress)


def phases(played: Played) -> list[Start]:
    return [each for each in played.operations if isinstance(each, Start) and each.model_access]


def test_the_tasks_own_names_get_what_the_judge_has_under_its_names_and_no_key() -> None:
    verifier = judged(ENV).steps[0].verifier
    assert verifier is not None and verifier.env == {"MODEL": "gpt-5-mini"}
    assert verifier.judge_variables["GRADER_KEY"] == verifier.judge_variables["OPENAI_API_KEY"] == "OPENAI_API_KEY"
    sdks = {"OPENAI_BASE_URL", "OPENAI_API_BASE", "LITELLM_API_KEY", "LITELLM_PROXY_API_BASE"}
    assert sdks <= verifier.judge_variables.keys()


def test_only_the_verifiers_phase_gets_access_and_it_ends_with_the_phase() -> None:
    played = play(judged(ENV))
    assert [each.id for each in phases(played)] == ["1/a/verifier"]
    end = played.ids.index("a/judge-usage")
    assert played.ids[end - 1] == "a/verifier"
    assert played.operations[end] == CloseModelAccess("1/a/judge-usage", "a", "judge", where="agent")
    assert "a/judge-usage" not in play(plan(IMAGE + ONE)).ids


def test_a_separate_verifiers_access_has_a_name_of_its_own() -> None:
    played = play(judged(APART))
    assert [(each.id, each.model_access, each.where) for each in phases(played)] == [
        ("1/a/verifier/verifier", "a/verifier", "verifier")
    ]
    assert CloseModelAccess("1/a/verifier/judge-usage", "a/verifier", "judge", where="verifier") in played.operations


def test_the_usage_of_both_verifications_is_in_the_status_apart_from_the_agents() -> None:
    results = {"a/judge-usage": counted((100, 0, 5)), "a/verifier/judge-usage": counted((100, 0, 5), incomplete=1)}
    played = play(judged(verifier={"isolation": "Both"}), results)
    (step,) = [step_status(run) for run in played.journal.steps]
    assert step.usage is None and step.judge_usage is not None
    assert (step.judge_usage.input_tokens, step.judge_usage.requests, step.judge_usage.incomplete) == (200, 2, 1)
    assert step_run(step).judge_usage == step.judge_usage


@pytest.mark.parametrize("toml", [ONE, APART])
def test_the_gateway_is_reachable_in_the_verifiers_phase_only(toml: str) -> None:
    played = play(judged(f'network_mode = "no-network"\n{toml}', egress="Sidecar"))
    switches = [each for each in played.operations if isinstance(each, SwitchNetwork)]
    (opened,) = [each for each in switches if each.network.gateway]
    verifier = played.operations.index(phases(played)[0])
    assert played.operations.index(opened) < verifier < played.operations.index(switches[-1])


def test_a_judge_that_no_policy_lets_through_is_refused() -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.models\.judge: its model cannot be reached, as the network_mode .* Sidecar"):
        judged(f'network_mode = "no-network"\n{ONE}', egress="NetworkPolicy")


def doubted(cause: str, requests: int = 1) -> dict[str, Any]:
    unanswered = {"cause": cause, "message": "503 from the provider"}
    return {**counted((100, 0, 5), requests=requests), "unanswered": unanswered, "at": 1000.0}


def runs_of(played: Played) -> list[str]:
    return [each.model_access for each in phases(played)]


ZERO, GOOD = rewarded(txt="0"), counted((100, 0, 5))


@pytest.mark.parametrize(("toml", "name", "there"), [(ONE, "a", "a/"), (APART, "a/verifier", "a/verifier/")])
@pytest.mark.parametrize("cause", ["Outage", "Provider", "Left"])
def test_a_verdict_without_an_answer_is_not_taken_and_the_verification_alone_is_repeated(
    toml: str, name: str, there: str, cause: str
) -> None:
    results = {
        f"{there}verifier": ZERO,
        f"{there}judge-usage": doubted(cause),
        f"{there}judge-usage-2": GOOD,
        f"{there}verifier-2": rewarded(txt="1"),
    }
    played = play(judged(toml), results)
    assert runs_of(played) == [name, f"{name}/2"]
    assert sum(each == "a/agent" for each in played.ids) == 1
    (run,) = played.journal.steps
    assert (run.rewards, run.exception, run.lost) == ({"reward": 1.0}, None, None)
    assert run.judge_usage is not None and run.judge_usage.requests == 2
    pause = played.operation(f"{there}judge-pause")
    assert isinstance(pause, Note) and (pause.not_before, pause.where) == (1010.0, "agent" if toml == ONE else "verifier")
    assert "503 from the provider" in pause.why
    reset = played.operation(f"{there}verify-2")
    assert isinstance(reset, Reset) and "/logs/verifier" in [each.path for each in reset.directories]
    assert played.ids.index(f"{there}verify-2") < played.ids.index(f"{there}verifier-2")
    lost = (name,) if cause == "Outage" else ()
    assert played.operation(f"{there}judge-usage-2").lost == lost


@pytest.mark.parametrize(("cause", "first"), [("Outage", False), ("Provider", True)])
def test_the_time_of_runs_in_an_outage_is_not_that_of_the_phase(cause: str, first: bool) -> None:
    """At the trial's deadline, the time of verifications in the agent's environment counts as the agent's."""
    played = play(judged(), {"a/judge-usage": doubted(cause), "a/judge-usage-2": GOOD, "a/verifier-2": ZERO})
    start, end = played.journal.steps[0].timings["verifier"]
    assert end is not None and end > played.records["1/a/judge-pause"].started_at
    assert (start < played.records["1/a/judge-pause"].started_at) is first


def test_a_repetition_whose_preparation_fails_ends_the_verification_with_that_failure() -> None:
    results = {"a/judge-usage": doubted("Provider"), "a/verify-2": FAULT}
    (run,) = play(judged(), results).journal.steps
    assert run.rewards is None and run.exception is not None
    assert "emptying /logs/verifier" in run.exception.message


def test_each_run_of_a_verification_has_an_access_of_its_own() -> None:
    assert [*access_names("a", apart=False)][:2] == ["a", "a/2"]
    assert [*access_names("a", apart=True)][:2] == ["a/verifier", "a/verifier/2"]


@pytest.mark.parametrize(
    ("cause", "runs", "lost", "exception"),
    [
        ("Outage", 6, ("ProviderFailed", True), None),
        ("Provider", 6, None, "JudgeFailedError"),
        ("Left", 3, None, "JudgeFailedError"),
        ("Budget", 1, None, "JudgeBudgetExceededError"),
        ("LostBudget", 1, ("BudgetUsedByLostAttempts", True), None),
        ("Configuration", 1, ("ModelAccessDenied", True), None),
        ("Request", 1, ("ModelAccessDenied", True), None),
    ],
)
def test_the_repetitions_end_and_no_verdict_is_taken(
    cause: str, runs: int, lost: tuple[str, bool] | None, exception: str | None
) -> None:
    ids = ["", *(f"-{number}" for number in range(2, 7))]
    played = play(judged(), {f"a/judge-usage{each}": doubted(cause) for each in ids})
    (run,) = played.journal.steps
    assert len(runs_of(played)) == runs
    assert (run.lost and (run.lost.reason, run.lost.final)) == lost
    assert (run.exception and run.exception.type) == exception
    assert run.rewards is None
    pauses = [each.not_before for each in played.operations if isinstance(each, Note) and each.not_before]
    assert pauses == [1010.0, 1020.0, 1040.0, 1080.0, 1120.0][: runs - 1]


@pytest.mark.parametrize("cause", ["Budget", "LostBudget", "Request"])
def test_a_verdict_of_the_fresh_pod_that_lacks_an_answer_is_no_trace_of_tampering(cause: str) -> None:
    results = {"a/verifier": rewarded(txt="1"), "a/verifier/verifier": ZERO, "a/verifier/judge-usage": doubted(cause)}
    (run,) = play(judged(verifier={"isolation": "Both"}), results).journal.steps
    assert (run.rewards, run.lost) == ({"reward": 1.0}, None)
    assert [each.kind for each in run.verdict_differences] == ["ComparisonIncomplete"]


def test_a_step_without_a_verdict_is_not_verified_in_a_fresh_pod() -> None:
    played = play(judged(verifier={"isolation": "Both"}), {"a/judge-usage": doubted("Budget"), "a/verifier/verifier": ZERO})
    (run,) = played.journal.steps
    assert run.exception is not None and run.exception.type == "JudgeBudgetExceededError"
    assert (runs_of(played), run.verdict_differences) == (["a"], ())


@pytest.mark.parametrize(
    ("causes", "end"),
    [
        (("Outage", "Provider", "Provider", "Provider", "Provider", "Provider"), "ProviderFailed"),
        (("Provider", "Outage", "Left"), "ProviderFailed"),
        (("Provider", "Provider", "Left"), "JudgeFailedError"),
        (("Outage", "Budget"), "JudgeBudgetExceededError"),
    ],
)
def test_an_outage_in_one_run_explains_why_later_ones_lack_answers(causes: tuple[str, ...], end: str) -> None:
    ids = [f"a/judge-usage{'' if number == 1 else f'-{number}'}" for number in range(1, 7)]
    (run,) = play(judged(), {each: doubted(cause) for each, cause in zip(ids, causes, strict=False)}).journal.steps
    found = run.lost.reason if run.lost is not None else run.exception.type if run.exception is not None else None
    assert (found, run.rewards) == (end, None)


def test_requests_that_nothing_can_answer_are_no_wrong_configuration_if_a_process_of_the_agent_may_have_sent_them() -> None:
    """Otherwise a process that the agent left could have its trial excluded, whose tests ask no judge, instead of scored 0."""
    survivor = {"findings": [], "processes": ["sleep"], "processCount": 1}
    (run,) = play(judged(), {"a/inspect": survivor, "a/judge-usage": doubted("Request")}).journal.steps
    assert run.lost is None and run.exception is not None and run.exception.type == "JudgeFailedError"


def test_a_downtime_of_the_gateway_during_the_phase_repeats_it_and_then_loses_the_attempt() -> None:
    down = {"downtimes": [{"began": 5.0, "ended": 1e9, "why": "was down"}], "at": 1000.0}
    ids = ["", *(f"-{number}" for number in range(2, 7))]
    played = play(judged(), {f"a/judge-usage{each}": down for each in ids})
    lost = played.journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("ModelGatewayDown", False)
    later = {"downtimes": [{"began": 1e9, "ended": 2e9, "why": "was down"}]}
    assert runs_of(play(judged(), {"a/judge-usage": later})) == ["a"]


def test_a_verifier_that_reaches_its_timeout_while_requests_were_left_keeps_that_exception() -> None:
    slow = {"exitCode": None, "timedOut": True}
    results = {f"a/judge-usage{each}": doubted("Left") for each in ("", "-2", "-3")}
    played = play(judged(), results | {f"a/verifier{each}": slow for each in ("", "-2", "-3")})
    (run,) = played.journal.steps
    assert run.exception is not None and run.exception.type == "VerifierTimeoutError"


@pytest.mark.parametrize(
    ("judge", "verifier", "message"),
    [
        ({"model": "m"}, {}, "spec.models.judge.credentials"),
        ({"model": "m", "credentials": []}, {}, "spec.models.judge.credentials"),
        ({"credentials": JUDGE["credentials"]}, {}, "spec.models.judge.model"),
        ({"model": "m", "credentials": [{"name": "GROQ_API_KEY", "value": "x"}]}, {}, "does not know GROQ_API_KEY, only ANTHROPIC"),
        (
            {"model": "m", "credentials": [{"name": "GEMINI_API_KEY", "value": "x"}, {"name": "GOOGLE_API_KEY", "value": "x"}]},
            {},
            "only one key of gemini",
        ),
        ({**JUDGE, "baseURL": "https://user:password@host/"}, {}, "baseURL: must be https://HOST"),
        (JUDGE, {"env": [{"name": "LITELLM_API_KEY", "value": "x"}]}, "verifier.env: LITELLM_API_KEY must not be set"),
    ],
)
def test_a_judge_that_can_only_fail_is_refused(judge: Any, verifier: Any, message: str) -> None:
    with pytest.raises(InvalidSpec) as error:
        parse_trial(manifest({"models": {"judge": judge}, "verifier": verifier}))
    assert message in str(error.value)
