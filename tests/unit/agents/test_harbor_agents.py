"""Test trials with Harbor's agents: one setup, then one run per step. The runner admits the agent host only during these calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.agents import harbor as host_outcome
from multistep.api.task.task_toml import parse_task
from multistep.api.trial.error_policy import POLICIES, SPENT_BUDGET
from multistep.api.trial.runner_records import PhaseResult, Record
from multistep.api.trial.status import CheckpointStatus, Usage
from multistep.api.trial.trial import parse_trial
from multistep.api.trial.values import AGENT_SETUP
from multistep.engine.journal.operations import HOST_OUTCOME, Admit, Dismiss, HostCall
from multistep.engine.plan.plan import TrialEnv, TrialPlan, isolation
from multistep.engine.score.usage_totals import total_usage, usage_of_step
from multistep.engine.script.operation_scope import KeptStep
from multistep.engine.status.trial_status import complete
from multistep.errors import InvalidSpec
from multistep.store.harbor import secret_variables
from tests.support.phase_results import DEFAULTS
from tests.support.played import IMAGE, THREE, Played, captured, outcome, plan, play

MODEL = {"name": "claude-code", "model": "anthropic/claude-sonnet-4-5", "access": "Direct"}
CREDENTIALS = {**MODEL, "access": "Gateway", "credentials": [{"name": "ANTHROPIC_API_KEY", "value": "k"}]}
OWN = {"importPath": "my.agents:Mine", "model": "openai/m"}
NO_USER = {"error": {"code": "NoSuchUser", "message": "no user x"}}


def hosted(agent: Mapping[str, Any] = MODEL, toml: str = THREE, **spec: Any) -> TrialPlan:
    credentials = TrialEnv(credentials={"ANTHROPIC_API_KEY": "k"}, agent={"MODE": "fast"})
    return plan(toml, {"agent": agent, **spec}, env=credentials)


def agents_part(played: Played) -> list[str]:
    return [id for each, id in zip(played.operations, played.ids, strict=True) if isinstance(each, Admit | HostCall | Dismiss)]


def test_the_agent_is_set_up_once_and_runs_in_each_step_under_an_admission() -> None:
    played = play(hosted())
    setup = ["/agent-setup-admit", "/host/agent-setup", "/agent-setup-dismiss"]
    steps = [f"{step}/{each}" for step in "abc" for each in ("agent-admit", "host/agent", "agent-dismiss")]
    assert agents_part(played) == setup + steps
    assert played.ids.index("/host/agent-setup") < played.ids.index("a/begin")
    assert played.journal.agent is not None and played.journal.agent.model_provider == "openai"
    assert all(run.exception is None for run in played.journal.steps)


def test_a_stop_by_the_agent_host_keeps_the_usage() -> None:
    stopped = outcome(error=("AgentTimeoutError", "Agent execution timed out after 5 seconds"), tokens=(10, 0, 1))
    played = play(hosted(), {"a/host/agent": stopped})
    run = played.journal.steps[0]
    assert run.exception is not None and run.exception.type == "AgentTimeoutError"
    assert run.usage is not None and run.usage.input_tokens == 10
    assert played.operation("a/agent-dismiss").kill


def test_harbors_agents_may_act_as_root_and_what_runs_on_is_kept() -> None:
    played = play(hosted({**MODEL, "user": "agent"}))
    admissions = [each for each in played.operations if isinstance(each, Admit)]
    assert [(each.user, each.root) for each in admissions] == [("agent", True)] * 4
    assert not any(each.kill for each in played.operations if isinstance(each, Dismiss))


def test_a_preinstalled_class_of_the_users_never_acts_as_root() -> None:
    played = play(hosted({**OWN, "preinstalled": True}))
    assert not any(each.root for each in played.operations if isinstance(each, Admit))


def test_an_agents_image_replaces_its_installation_and_its_programs_come_first_in_path() -> None:
    played = play(hosted({**OWN, "image": "registry.example/own:1"}))
    assert not any(each.root for each in played.operations if isinstance(each, Admit))
    setup, step = played.operation("/host/agent-setup").request, played.operation("b/host/agent").request
    assert setup["agent"]["preinstalled"]
    assert setup["environment"]["path"] == step["environment"]["path"] == "/multistep-agent/bin"
    assert play(hosted(OWN)).operation("/host/agent-setup").request["environment"]["path"] == ""


def test_a_class_of_the_users_that_was_root_once_may_change_verdicts() -> None:
    users = THREE + '[agent]\nuser = "1000"\n[verifier]\nuser = "root"\n'
    assert isolation(hosted(toml=users), "0") == "User"
    assert isolation(hosted(OWN, toml=users), "0") == "Shared"
    assert isolation(hosted({**OWN, "preinstalled": True}, toml=users), "0") == "User"


def test_the_agent_host_gets_the_agent_its_variables_and_the_instruction_but_nothing_that_tells_the_attempt() -> None:
    agent = {**MODEL, "kwargs": {"max_turns": 3}, "version": "2.1", "preinstalled": True}
    played = play(hosted(agent), trial_uid="uid", attempt=2)
    setup, step = played.operation("/host/agent-setup").request, played.operation("b/host/agent").request
    assert setup["agent"] == {
        **{"name": "claude-code", "importPath": None, "model": MODEL["model"], "version": "2.1"},
        **{"kwargs": {"max_turns": 3}, "preinstalled": True},
    }
    assert setup["env"] == step["env"] == {"ANTHROPIC_API_KEY": "k", "MODE": "fast"}
    assert step["step"] == {"name": "b", "instruction": "do it", "resume": False}
    assert setup["trial"] == "uid" and "2/" not in json.dumps([setup, step])


def test_the_agent_host_gets_the_tasks_mcp_servers_and_skills_for_the_agent() -> None:
    servers = (
        'mcp_servers = [{name = "a", url = "http://a", transport = "http"}, {name = "b", transport = "stdio", command = "b"}]\n'
    )
    setup = (
        play(hosted(toml=THREE.replace(IMAGE, f'{IMAGE}skills_dir = "/skills"\n{servers}'))).operation("/host/agent-setup").request
    )
    assert setup["skillsDir"] == "/skills"
    assert setup["mcpServers"] == [
        {"name": "a", "transport": "streamable-http", "url": "http://a", "args": [], "headers": {}},
        {"name": "b", "transport": "stdio", "command": "b", "args": [], "headers": {}},
    ]


@pytest.mark.parametrize(("agent", "seconds"), [(MODEL, 360), ({"name": "hermes", "model": "openai/m", "access": "Direct"}, 1200)])
def test_a_setup_may_take_as_long_as_in_harbor(agent: Mapping[str, Any], seconds: float) -> None:
    usual, doubled = play(hosted(agent)), play(hosted(agent, agentSetupTimeoutMultiplier=2))
    assert [each.operation("/host/agent-setup").request["timeoutSeconds"] for each in (usual, doubled)] == [seconds, 2 * seconds]


def test_a_resuming_agent_resumes_from_the_second_step_on_and_keeps_its_logs() -> None:
    played = play(hosted(resumeTrajectory=True))
    assert [played.operation(f"{step}/host/agent").request["step"]["resume"] for step in "abc"] == [False, True, True]
    logs = [played.operation(f"{step}/begin").directories[0] for step in "abc"]
    assert [each.keep for each in logs] == [False, True, True]


def test_a_timeout_is_the_agents_and_kills_all_that_it_started() -> None:
    toml = THREE + "[agent]\ntimeout_sec = 5\n"
    played = play(hosted(toml=toml), {"a/host/agent": {"timedOut": True, "exitCode": None, "captures": {}}})
    call = played.operation("a/host/agent")
    assert (call.request["timeoutSeconds"], call.timeout) == (5, 65)
    assert played.operation("a/agent-dismiss").kill
    run = played.journal.steps[0]
    assert run.exception is not None and (run.exception.type, run.exception.phase) == ("AgentTimeoutError", "agent")


@pytest.mark.parametrize(
    ("result", "type_"),
    [
        (outcome(error=("NonZeroAgentExitCodeError", "exited with status 2")), "NonZeroAgentExitCodeError"),
        ({"captures": {HOST_OUTCOME: None}, "exitCode": 1}, "AgentHostError"),
        ({"captures": {HOST_OUTCOME: captured("[]")}}, "AgentHostError"),
        ({"captures": {HOST_OUTCOME: captured("{")}}, "AgentHostError"),
        ({"captures": {}, "exitCode": None, "signal": 9, "oomKills": 1}, "OutOfMemoryError"),
    ],
)
def test_how_an_agent_fails_in_a_step(result: Mapping[str, Any], type_: str) -> None:
    run = play(hosted(), {"a/host/agent": result}).journal.steps[0]
    assert run.exception is not None and (run.exception.type, run.exception.phase) == (type_, "agent")


def test_a_user_that_does_not_exist_is_the_agents_error() -> None:
    played = play(hosted(), {"a/agent-admit": NO_USER})
    assert "a/host/agent" not in played.ids
    assert "no user x" in played.journal.steps[0].exception.message  # type: ignore[union-attr]


@pytest.mark.parametrize("agent", [MODEL, OWN])
def test_a_user_that_the_image_lacks_is_the_tasks_failure_because_no_code_of_the_agent_ran(agent: Mapping[str, Any]) -> None:
    """The environment's runner rejects the agent host's admission before any code of the agent runs."""
    played = play(hosted(agent), {"/agent-setup-admit": NO_USER})
    assert "/host/agent-setup" not in played.ids and played.journal.lost is None and played.journal.broken
    assert played.journal.exception is not None and played.journal.exception.phase != AGENT_SETUP
    assert "no user x" in played.journal.exception.message


def test_a_user_that_restored_files_lack_is_the_checkpoints_failure() -> None:
    """A custom class that acts as root can remove its user before the checkpoint is made, so an earlier checkpoint is used next."""
    made = hosted(OWN)
    records = {id: each for id, each in play(made).records.items() if id.startswith("1/a/")}
    kept = (KeptStep(1, CheckpointStatus(digest="d")),)
    lost = play(made, {"/agent-setup-admit": NO_USER}, attempt=2, kept=kept, records=records).journal.lost
    assert lost is not None and lost.reason == "RestoreFailed" and "no user x" in lost.message


def test_a_failed_setup_of_harbors_agent_loses_the_attempt_before_its_first_step() -> None:
    played = play(hosted(), {"/host/agent-setup": outcome(error=("RuntimeError", "no network"))})
    assert played.journal.lost is not None and played.journal.lost.reason == "AgentSetupFailed"
    assert not played.journal.finished and played.journal.steps == []


def test_an_agent_without_the_key_of_its_model_is_configured_wrongly() -> None:
    error = ("MissingModelCredentialError", "aider: no nonempty model API key selected. Set OPENAI_API_KEY")
    lost = play(hosted(), {"/host/agent-setup": outcome(error=error)}).journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("ModelAccessDenied", True)
    assert lost.message.startswith("the agent's setup failed: aider: no nonempty model API key selected. Set OPENAI_API_KEY; ")


@pytest.mark.parametrize(("status", "lost"), [(78, True), (0, False)])
def test_a_class_that_the_agent_host_lacks_is_configured_wrongly_if_no_code_of_the_class_says_so(status: int, lost: bool) -> None:
    """The exit status is that of the agent host's command, which looks for the class before the class runs."""
    missing = outcome(error=("AgentClassNotFoundError", "the agent host's image has no module 'my'"), exitCode=status)
    journal = play(hosted(OWN), {"/host/agent-setup": missing}).journal
    assert (journal.lost and (journal.lost.reason, journal.lost.final)) == (("AgentNotStarted", True) if lost else None)
    assert journal.broken is not lost


def ended(type_: str, exit_code: int | None = None) -> dict[str, Any]:
    document = json.dumps({"error": {"type": type_, "message": "words", "exitCode": exit_code}})
    return {"captures": {HOST_OUTCOME: captured(document)}}


KEYLESS = {"name": "claude-code", "model": None}


@pytest.mark.parametrize(
    ("agent", "result", "requests", "lost"),
    [
        (CREDENTIALS, ended("NonZeroAgentExitCodeError", 127), False, True),
        (CREDENTIALS, ended("NonZeroAgentExitCodeError", 126), False, True),
        (CREDENTIALS, ended("NonZeroAgentExitCodeError", 127), True, False),
        (CREDENTIALS, ended("NonZeroAgentExitCodeError", 1), False, False),
        (CREDENTIALS, ended("ValueError"), False, True),  # e.g. pi without model_api
        (CREDENTIALS, ended("ValueError"), True, False),
        (MODEL, ended("ValueError"), False, False),
        (MODEL, ended("NonZeroAgentExitCodeError", 127), False, True),
        (MODEL, {**ended("NonZeroAgentExitCodeError", 127), "durationSeconds": 60.0}, False, False),
        (KEYLESS, ended("AgentAuthenticationError"), False, True),
        ({**KEYLESS, "env": [{"name": "ANTHROPIC_API_KEY", "value": "k"}]}, ended("AgentAuthenticationError"), False, False),
        (OWN, ended("NonZeroAgentExitCodeError", 127), False, False),
    ],
)
def test_an_agent_of_harbor_that_could_not_start_is_configured_wrongly(
    agent: Mapping[str, Any], result: Mapping[str, Any], requests: bool, lost: bool
) -> None:
    usage = {"a/host/model-usage": closed()} if requests else {}
    journal = play(hosted(agent), {"a/host/agent": result, **usage}).journal
    assert (journal.lost and (journal.lost.reason, journal.lost.final)) == (("AgentNotStarted", True) if lost else None)
    later = play(hosted(agent), {"b/host/agent": result}).journal
    assert later.lost is None and later.steps[1].exception is not None


def test_a_program_that_is_not_where_the_spec_says_ends_the_trial_with_the_command_and_the_path() -> None:
    error = ("NotPreinstalledError", "the program of claude-code is not in the environment: `claude --version`; PATH=/bin")
    lost = play(hosted(), {"/host/agent-setup": outcome(error=error)}).journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("AgentNotStarted", True)
    assert "claude --version" in lost.message and "PATH=/bin" in lost.message


def test_a_failed_setup_of_a_users_class_is_the_agents_own_failure() -> None:
    """A user's class can read the environment. If failed setups were retried, it could avoid a score on hard tasks by failing."""
    slow: Mapping[str, Any] = {"timedOut": True, "exitCode": None, "captures": {}}
    played = play(hosted(OWN), {"/host/agent-setup": slow})
    assert played.operation("/agent-setup-dismiss").kill
    assert played.journal.lost is None and played.journal.broken
    assert (played.journal.exception and played.journal.exception.type) == "AgentSetupTimeoutError"


def test_only_the_code_of_a_users_class_may_have_caused_later_failures() -> None:
    assert play(hosted(OWN)).journal.class_ran_at is not None
    assert play(hosted(OWN), {"/agent-setup-admit": NO_USER}).journal.class_ran_at is None
    assert play(hosted()).journal.class_ran_at is None


def test_usage_is_that_of_each_step_also_for_an_agent_that_counts_all_steps() -> None:
    counts = {f"{step}/host/agent": outcome(tokens=(100 * n, 10 * n, n)) for n, step in enumerate("abc", 1)}
    each = play(hosted(), counts).journal.steps
    assert [run.usage and run.usage.input_tokens for run in each] == [100, 200, 300]
    resumed = play(hosted(resumeTrajectory=True), counts).journal.steps
    assert [run.usage and run.usage.input_tokens for run in resumed] == [100, 100, 100]
    assert total_usage(run.usage for run in resumed) == Usage(input_tokens=300, cached_tokens=30, output_tokens=3, cost_usd=0.5)


tokens = st.one_of(st.none(), st.integers(0, 10**9))
usages = st.builds(Usage, input_tokens=tokens, cached_tokens=tokens, output_tokens=tokens, cost_usd=tokens)


@given(before=st.one_of(st.none(), usages), now=st.one_of(st.none(), usages))
def test_a_steps_usage_is_never_negative(before: Usage | None, now: Usage | None) -> None:
    found = usage_of_step(now, before)
    assert (found is None) == (now is None)
    assert found is None or all(each is None or each >= 0 for each in found.model_dump(exclude={"source", "prices"}).values())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)))
def test_an_outcome_of_any_form_is_read_or_an_error(document: Any) -> None:
    capture = captured(json.dumps(document))
    result = PhaseResult.from_record(
        Record("1/a/host/agent", "start", "done", 1.0, 2.0, result={**DEFAULTS["start"], "captures": {HOST_OUTCOME: capture}})
    )
    assert isinstance(host_outcome.parse_outcome(result), host_outcome.HostOutcome)


def test_keys_are_redacted_and_named_in_no_file() -> None:
    env = TrialEnv(credentials={"ANTHROPIC_API_KEY": "sk-secret"})
    assert "sk-secret" in secret_variables.secret_values(env, parse_task(THREE))


@pytest.mark.parametrize(
    ("agent", "mode", "refused"),
    [
        (CREDENTIALS, "public", False),
        (CREDENTIALS, "no-network", True),
        (CREDENTIALS, 'allowlist"\nallowed_hosts = ["10.0.0.1', True),
        ({**CREDENTIALS, "access": "Direct"}, 'allowlist"\nallowed_hosts = ["10.0.0.1', False),
        ({**CREDENTIALS, "access": "Direct"}, "no-network", True),
        (MODEL, "no-network", True),  # the agent's key is in agent.env, or in a file of its image
        ({**MODEL, "baseURL": "http://localhost:8000"}, "no-network", False),  # a model server in the pod
        ({**MODEL, "env": [{"name": "ANTHROPIC_BASE_URL", "value": "http://localhost:8000"}]}, "no-network", False),
    ],
)
def test_a_model_that_the_task_cannot_reach_is_refused(agent: Mapping[str, Any], mode: str, refused: bool) -> None:
    end = '"]\n' if "hosts" in mode else '"\n'
    toml = THREE.replace(IMAGE, f'{IMAGE}network_mode = "{mode}{end}')
    with pytest.raises(InvalidSpec, match="network_mode") if refused else nullcontext():
        plan(toml, {"agent": agent}, egress="NetworkPolicy")


def test_an_agent_that_calls_the_provider_gets_key_and_url() -> None:
    spec = {**CREDENTIALS, "access": "Direct", "baseURL": "https://models.example"}
    env = play(hosted(spec)).operation("a/host/agent").request["env"]
    assert (env["ANTHROPIC_API_KEY"], env["ANTHROPIC_BASE_URL"]) == ("k", "https://models.example")
    assert "ANTHROPIC_API_KEY" not in play(hosted(CREDENTIALS)).operation("a/host/agent").request["env"]


def closed(failure: str | None = None) -> dict[str, Any]:
    """Return the gateway's report when a step's access is closed. failure: kind of the failure of the last request, None if it
    succeeded."""
    usage = {
        "inputTokens": 7,
        "cachedTokens": 0,
        "outputTokens": 1,
        "costUSD": None,
        "requests": 2,
        "incomplete": 0,
        "heldSeconds": 0,
    }
    return {"usage": usage, "failure": failure and {"kind": failure, "message": "the gateway's words"}}


def test_the_gateways_count_replaces_the_agents_also_for_an_agent_that_counts_all_steps() -> None:
    reports = {f"{step}/host/model-usage": closed() for step in "ab"}
    counts = {f"{step}/host/agent": outcome(tokens=(100, 0, 1)) for step in "abc"}
    resumed = play(hosted(CREDENTIALS, resumeTrajectory=True), {**reports, **counts}).journal.steps
    assert [run.usage and (run.usage.input_tokens, run.usage.source) for run in resumed] == [(7, "Gateway"), (7, "Gateway"), None]
    each = play(hosted(CREDENTIALS), {**reports, **counts}).journal.steps
    assert [run.usage and (run.usage.input_tokens, run.usage.source) for run in each][1:] == [(7, "Gateway"), (100, "Agent")]


def test_a_resuming_agent_whose_step_made_no_request_does_not_count_the_earlier_steps_again() -> None:
    counts = {"a/host/agent": outcome(tokens=(100, 0, 1)), "b/host/agent": outcome(tokens=(100, 0, 1))}
    journal = play(hosted(CREDENTIALS, resumeTrajectory=True), {"a/host/model-usage": closed(), **counts}).journal
    assert [run.usage and run.usage.input_tokens for run in journal.steps][:2] == [7, None]


def test_model_requests_of_the_setup_count_in_the_trial_but_in_no_step() -> None:
    reports = {"/host/agent-setup-model-usage": closed(), "a/host/model-usage": closed()}
    journal = play(hosted(CREDENTIALS), reports).journal
    assert journal.setup_usage is not None and journal.setup_usage.input_tokens == 7
    assert [run.usage.input_tokens for run in journal.steps if run.usage and run.usage.source == "Gateway"] == [7]


def test_a_failure_of_the_provider_loses_the_attempt_whatever_the_agent_says() -> None:
    played = play(hosted(CREDENTIALS), {"b/host/model-usage": closed("Provider")})
    assert played.journal.lost is not None
    assert (played.journal.lost.reason, played.journal.lost.final) == ("ProviderFailed", False)
    assert played.ids[-1] == "b/host/model-usage" and not played.journal.finished


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        ("Provider", "ProviderFailed"),
        ("Configuration", "ModelAccessDenied"),
        ("SweepBudget", "SweepBudgetSpent"),
        ("Budget", None),
        (None, None),
    ],
)
def test_a_failure_of_the_provider_in_the_setup_of_a_users_class_is_not_the_agents(failure: str | None, reason: str | None) -> None:
    own = {**OWN, "credentials": CREDENTIALS["credentials"]}
    failed = {"/host/agent-setup": outcome(error=("RuntimeError", "no answer"))}
    journal = play(hosted(own), {**failed, "/host/agent-setup-model-usage": closed(failure)}).journal
    assert (journal.lost and journal.lost.reason) == reason
    assert (journal.exception is None) == (reason is not None)
    fine = play(hosted(own), {"/host/agent-setup-model-usage": closed(failure)}).journal
    assert fine.lost is None and fine.finished


def test_a_users_class_whose_setup_fails_while_the_gateway_is_down_loses_the_attempt() -> None:
    own = {**OWN, "credentials": CREDENTIALS["credentials"]}
    failed = {"/host/agent-setup": outcome(error=("RuntimeError", "no answer"))}
    at = play(hosted(own), failed).records["1//host/agent-setup"].started_at
    down = {"downtimes": [{"began": at, "ended": at + 20}]}
    for ended in (failed, {}):
        lost = play(hosted(own), {**ended, "/host/agent-setup-model-usage": down}).journal.lost
        assert lost is not None and lost.reason == "ModelGatewayDown"


@pytest.mark.parametrize("failure", ["Configuration", "SweepBudget", "LostBudget", "Provider"])
def test_a_downtime_comes_before_a_failed_request_as_the_record_that_explains_it_may_be_lost(failure: str) -> None:
    own = {**OWN, "credentials": CREDENTIALS["credentials"]}
    for agent, command, access in (
        (CREDENTIALS, "a/host/agent", "a/host/model-usage"),
        (own, "/host/agent-setup", "/host/agent-setup-model-usage"),
    ):
        failed = {command: outcome(error=("RuntimeError", "no answer"))}
        at = play(hosted(agent), failed).records[f"1/{command}"].started_at
        report = {**closed(failure), "downtimes": [{"began": at, "ended": at + 20}]}
        lost = play(hosted(agent), {**failed, access: report}).journal.lost
        assert lost is not None and (lost.reason, lost.final) == ("ModelGatewayDown", False)


FAULT_SEEN = {"kind": "Provider", "message": "the provider refused the request"}


def silent(seconds: float, **usage: Any) -> dict[str, Any]:
    report = closed()
    return {**report, "usage": {**report["usage"], "silentSeconds": seconds, **usage}}


@pytest.mark.parametrize(
    ("report", "error", "lost"),
    [
        ({**closed(), "fault": FAULT_SEEN}, "ApiError", True),
        ({**closed(), "fault": FAULT_SEEN}, "AgentTimeoutError", True),
        ({**closed(), "fault": FAULT_SEEN}, None, False),
        (silent(600.0), None, False),
        (silent(10.0), "ApiError", True),
        (silent(9.0), "ApiError", False),
        (silent(20.0), "AgentTimeoutError", True),
        (silent(19.0), "AgentTimeoutError", False),
    ],
)
def test_a_fault_or_a_silence_that_is_no_usual_wait_counts_if_the_agent_failed(
    report: Mapping[str, Any], error: str | None, lost: bool
) -> None:
    toml = THREE + "[agent]\ntimeout_sec = 40\n"
    result = outcome(error=None if error is None else (error, "words"))
    journal = play(hosted(CREDENTIALS, toml=toml), {"a/host/agent": result, "a/host/model-usage": report}).journal
    assert (journal.lost and (journal.lost.reason, journal.lost.final)) == (("ProviderFailed", False) if lost else None)


@pytest.mark.parametrize(("before", "lost"), [(-60.0, True), (10.0, True), (10.1, False)])
@pytest.mark.parametrize("error", ["ApiError", "AgentTimeoutError"])
def test_a_silence_counts_only_for_an_agent_that_still_waited(before: float, lost: bool, error: str) -> None:
    """before: seconds from the end of the last request to the end of the agent."""
    toml = THREE + "[agent]\ntimeout_sec = 40\n"
    failed = {"a/host/agent": outcome(error=(error, "words"))}
    ended = play(hosted(CREDENTIALS, toml=toml), failed).records["1/a/host/agent"].ended_at or 0.0
    report = silent(40.0, lastRequestAt=ended - before)
    journal = play(hosted(CREDENTIALS, toml=toml), {**failed, "a/host/model-usage": report}).journal
    assert (journal.lost is not None) is lost
    assert lost or (journal.steps[0].exception is not None and journal.steps[0].exception.type == error)


@pytest.mark.parametrize(("after", "lost"), [(-60.0, True), (0.0, True), (5.0, True), (5.1, False)])
def test_a_silence_counts_until_the_agents_end_and_not_until_the_gateway_hears_of_it(after: float, lost: bool) -> None:
    """A process that the agent left running may hold a slow request meanwhile."""
    failed = {"a/host/agent": outcome(error=("ApiError", "words"))}
    ended = play(hosted(CREDENTIALS, toml=THREE), failed).records["1/a/host/agent"].ended_at or 0.0
    report = silent(15.0, silentUntil=ended + after)
    journal = play(hosted(CREDENTIALS, toml=THREE), {**failed, "a/host/model-usage": report}).journal
    assert (journal.lost is not None) is lost


@pytest.mark.parametrize("report", [{**closed(), "fault": FAULT_SEEN}, silent(15.0)])
def test_a_fault_in_the_failed_setup_of_a_users_class_is_the_providers(report: Mapping[str, Any]) -> None:
    own = {**OWN, "credentials": CREDENTIALS["credentials"]}
    failed = {"/host/agent-setup": outcome(error=("RuntimeError", "no answer"))}
    lost = play(hosted(own), {**failed, "/host/agent-setup-model-usage": report}).journal.lost
    assert lost is not None and lost.reason == "ProviderFailed"


def test_a_rejected_key_ends_the_trial_at_once() -> None:
    lost = play(hosted(CREDENTIALS), {"a/host/model-usage": closed("Configuration")}).journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("ModelAccessDenied", True)
    assert "the gateway's words; check spec.agent.model (anthropic/claude-sonnet-4-5) and spec.agent.credentials" in lost.message


def test_a_spent_budget_is_the_agents_own_failure() -> None:
    run = play(hosted(CREDENTIALS), {"a/host/model-usage": closed("Budget")}).journal.steps[0]
    assert run.exception is not None and (run.exception.type, run.exception.phase) == ("BudgetExceededError", "agent")


def test_a_budget_that_lost_attempts_have_used_ends_the_trial_without_a_failure_of_the_agent() -> None:
    journal = play(hosted(CREDENTIALS), {"a/host/model-usage": closed("LostBudget")}).journal
    assert journal.lost is not None
    assert (journal.lost.reason, journal.lost.final) == ("BudgetUsedByLostAttempts", True)
    assert journal.steps[0].exception is None


def test_a_spent_budget_of_the_sweep_is_not_the_agents_failure() -> None:
    journal = play(hosted(CREDENTIALS), {"a/host/model-usage": closed("SweepBudget")}).journal
    assert journal.lost is not None
    assert (journal.lost.reason, journal.lost.final) == ("SweepBudgetSpent", False)
    assert journal.steps[0].exception is None


@pytest.mark.parametrize("type_", ["APIConnectionError", "AgentTimeoutError"])
def test_an_agent_that_runs_while_the_gateway_is_down_loses_the_attempt_however_it_ends(type_: str) -> None:
    """The agent's requests, which it may have repeated until its timeout, could not reach the gateway, which has no record of
    them. A program that prints the error and exits with status 0 has lost as much as one that fails."""
    refused = {"a/host/agent": outcome(error=(type_, "connection refused"))}
    record = play(hosted(CREDENTIALS), refused).records["1/a/host/agent"]
    assert record.ended_at is not None
    down = {**closed(), "downtimes": [{"began": record.ended_at, "ended": record.ended_at + 20}]}
    lost = play(hosted(CREDENTIALS), {**refused, "a/host/model-usage": down}).journal.lost
    assert lost is not None and (lost.reason, lost.final) == ("ModelGatewayDown", False)
    assert type_ in lost.message
    assert play(hosted(CREDENTIALS), {"a/host/model-usage": down}).journal.lost is not None
    spent = {**closed("Budget"), "downtimes": down["downtimes"]}
    assert play(hosted(CREDENTIALS), {"a/host/model-usage": spent}).journal.lost is not None
    later = {**closed(), "downtimes": [{"began": record.ended_at + 1, "ended": record.ended_at + 20}]}
    run = play(hosted(CREDENTIALS), {**refused, "a/host/model-usage": later}).journal.steps[0]
    assert run.exception is not None and run.exception.type == type_


def test_what_only_the_agent_says_about_its_provider_is_no_evidence() -> None:
    printed = outcome(error=("ApiRateLimitError", "429: rate limit exceeded"))
    played = play(hosted(CREDENTIALS), {"a/host/agent": printed, "a/host/model-usage": closed()})
    assert played.journal.lost is None
    assert (played.journal.steps[0].exception and played.journal.steps[0].exception.type) == "ApiRateLimitError"


UNGRADED: Final = [name for name, policy in POLICIES.items() if not policy.grade]
GRADED: Final = [*(name for name, policy in POLICIES.items() if policy.grade), "RuntimeError", "NoSuchError"]


def failed_with(
    toml: str, error: str, changes: Mapping[str, Any] | None = None, *, agent: Mapping[str, Any] = CREDENTIALS
) -> Played:
    """Return a trial whose agent raised an exception of this type in its first step. changes: spec.scoring.overrideErrorPolicy."""
    step = "a" if "steps" in toml else "task"
    scoring = {"overrideErrorPolicy": changes or {}}
    made = hosted(agent, toml, onAgentError="Continue", scoring=scoring)
    usage = {f"{step}/host/model-usage": closed("Budget")} if error == SPENT_BUDGET else {}
    return play(made, {f"{step}/host/agent": outcome(error=(error, "it failed")), **usage})


@pytest.mark.parametrize("error", GRADED)
@pytest.mark.parametrize("toml", [IMAGE, THREE])
def test_a_step_is_verified_after_an_exception_after_which_harbor_verifies(error: str, toml: str) -> None:
    played = failed_with(toml, error)
    first = played.journal.steps[0]
    assert (first.exception and first.exception.type, played.journal.rewards) == (error, {"reward": 1.0})
    assert len(played.journal.steps) == (3 if toml == THREE else 1)


@pytest.mark.parametrize("error", UNGRADED)
@pytest.mark.parametrize("toml", [IMAGE, THREE])
def test_a_step_is_not_verified_and_ends_the_trial_after_an_exception_after_which_harbor_does_not_verify(
    error: str, toml: str
) -> None:
    played = failed_with(toml, error)
    only = played.journal.steps[0].name
    assert [run.name for run in played.journal.steps] == [only]
    assert (played.journal.rewards, played.journal.lost, played.journal.finished) == (None, None, True)
    assert f"{only}/verifier" not in played.ids and f"{only}/collect" in played.ids


@pytest.mark.parametrize("error", ["AgentAuthenticationError", "NotFoundError", "HealthcheckError", "CancelledError"])
@pytest.mark.parametrize("agent", [CREDENTIALS, MODEL, OWN])
def test_an_agent_that_chooses_an_exception_after_which_nothing_is_verified_counts_0_for_the_rest(
    error: str, agent: Mapping[str, Any]
) -> None:
    made = hosted(agent)
    played = play(made, {"b/host/agent": outcome(error=(error, "as if my key were wrong"))})
    trial = parse_trial({"metadata": {"name": "t", "uid": "u"}, "spec": {"task": {"inline": {"config": {}}}, "agent": agent}})
    final = complete(trial, played.journal, None, 1_700_000_000.0)
    assert (final.failure and (final.failure.class_, final.failure.reason)) == ("Agent", error)
    assert (final.score, final.passed, final.outcome) == (1 / 3, False, "AgentError")


def test_a_spec_decides_whether_a_step_is_verified_after_an_exception() -> None:
    verified = failed_with(THREE, "ModelNotFoundError", {"ModelNotFoundError": {"grade": True}})
    assert (verified.journal.rewards, len(verified.journal.steps)) == ({"reward": 1.0}, 3)
    skipped = failed_with(THREE, "ApiRateLimitError", {"ApiRateLimitError": {"grade": False}})
    assert (skipped.journal.rewards, len(skipped.journal.steps)) == (None, 1)
    other = failed_with(THREE, "ModelNotFoundError", {"ModelNotFoundError": {"valid": True}, "AgentTimeoutError": {"grade": True}})
    assert other.journal.rewards is None
