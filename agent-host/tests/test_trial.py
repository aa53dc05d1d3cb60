"""Tests of TrialAgent: setup and steps of a trial's agent."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.paths import EnvironmentPaths

from multistep_host.phase_requests import SetupRequest, StallsRequest, StepRequest
from multistep_host.provider_stalls import stalled_seconds
from multistep_host.trial import TrialAgent, create_agent
from multistep_host.variables import Variables
from runner import TOKEN, Runner

MakeTrial = Callable[..., TrialAgent]


def request(runner: Runner, **changes: Any) -> dict[str, Any]:
    admission = {"id": runner.admission.id, "token": TOKEN.hex(), "socket": runner.socket}
    environment = {"workdir": "", "user": "", "env": {}}
    return {"outcome": "/outcome.json", "admission": admission, "env": {"KEY": "first"}, "environment": environment, **changes}


def setup_request(runner: Runner, **agent: Any) -> SetupRequest:
    whole = {
        "name": None,
        "importPath": "scripted_agent:ScriptedAgent",
        "model": "anthropic/claude-sonnet-4-5",
        "kwargs": {},
        **agent,
    }
    return SetupRequest.model_validate(request(runner, agent=whole, mcpServers=[], skillsDir=None, trial="trial"))


def step_request(runner: Runner, instruction: str, *, resume: bool = False, **changes: Any) -> StepRequest:
    step = {"name": "one", "instruction": instruction, "resume": resume}
    return StepRequest.model_validate(request(runner, step=step, **changes))


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary directory that replaces the environment's /logs/agent."""
    directory = tmp_path / "logs"
    directory.mkdir()
    monkeypatch.setattr(EnvironmentPaths, "agent_dir", directory)
    return directory


@pytest.fixture
def make(runner: Runner, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTrial:
    monkeypatch.delenv("KEY", raising=False)
    return lambda **kwargs: TrialAgent.create(setup_request(runner, kwargs=kwargs), tmp_path / "trial")


async def test_setup_reports_the_agent(make: MakeTrial, runner: Runner) -> None:
    done = await make().setup(setup_request(runner))
    model = {"name": "claude-sonnet-4-5", "provider": "anthropic"}
    assert (done["ok"], done["agent"]) == (True, {"name": "scripted", "version": "7", "model": model})


async def test_commands_of_the_setup_have_the_agents_variables(make: MakeTrial, runner: Runner) -> None:
    """An installation may need the agent's variables, for a proxy or the address of a package registry."""
    await make().setup(setup_request(runner))
    assert [each["env"] for each in runner.requests] == [{"KEY": "first"}]


def test_the_agent_has_the_tasks_mcp_servers_and_skills(runner: Runner, tmp_path: Path) -> None:
    servers = [
        {"name": "a", "transport": "streamable-http", "url": "http://a", "args": [], "headers": {}},
        {"name": "b", "transport": "stdio", "command": "b", "args": ["-v"], "headers": {}},
    ]
    wanted = request(
        runner, agent={"importPath": "scripted_agent:ScriptedAgent"}, mcpServers=servers, skillsDir="/skills", trial="t"
    )
    agent = create_agent(SetupRequest.model_validate(wanted), Variables(), tmp_path)
    assert agent.skills_dir == "/skills"
    assert [(each.name, each.transport, each.url, each.command, each.args) for each in agent.mcp_servers] == [
        ("a", "streamable-http", "http://a", None, []),
        ("b", "stdio", None, "b", ["-v"]),
    ]


def test_the_models_name_need_not_be_parsed(runner: Runner, tmp_path: Path) -> None:
    agent = {"name": "claude-code", "model": "deepseek/deepseek-chat", "kwargs": {"skip_model_parsing": True}}
    variables = Variables()
    variables.replace({"ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": "http://gateway/anthropic"})
    try:
        made = create_agent(SetupRequest.model_validate(request(runner, agent=agent, trial="t")), variables, tmp_path)
    finally:
        variables.replace({})
    assert made.model_name == "deepseek/deepseek-chat"


async def test_a_failed_setup_has_the_exceptions_type_and_message(make: MakeTrial, runner: Runner) -> None:
    done = await make(fail="setup").setup(setup_request(runner))
    assert done["error"] == {"type": "RuntimeError", "message": "Agent install failed: no network"}
    assert not done["ok"]


async def test_a_steps_usage_comes_from_the_environments_logs(make: MakeTrial, runner: Runner, logs: Path) -> None:
    done = await make().step(step_request(runner, f"""echo '{{"in": 5, "out": 7, "cost": 0.5}}' > {logs}/usage.json"""))
    assert done["usage"] == {"inputTokens": 5, "cachedTokens": None, "outputTokens": 7, "costUSD": 0.5}
    assert done["ok"] and not done["rolloutDetails"]


async def test_usage_that_the_agent_reports_itself_needs_no_download(make: MakeTrial, runner: Runner, logs: Path) -> None:
    done = await make(fail="usage").step(step_request(runner, "true"))
    assert (done["usage"]["inputTokens"], done["metadata"], done["rolloutDetails"]) == (3, {"turns": 2}, True)
    assert [each["op"] for each in runner.requests] == ["exec", "upload"]
    assert (logs / "rollout-details.json").read_text() == '[{"logprobs": [[0.5]]}]'


async def test_only_the_hosts_own_logs_are_uploaded(make: MakeTrial, runner: Runner, logs: Path) -> None:
    command = f"""echo '{{"in": 1, "out": 1, "cost": 0}}' > {logs}/usage.json; chmod 600 {logs}/usage.json"""
    await make().step(step_request(runner, command))
    assert {path.name for path in logs.iterdir()} == {"usage.json", "host.txt", "trajectory.json"}


async def test_a_command_finds_the_logs_of_the_host_that_it_names(make: MakeTrial, runner: Runner, logs: Path) -> None:
    """openclaw writes its settings there, and copies them to its home directory by a command."""
    copied = logs.parent / "copied.json"
    await make(fail="share").step(step_request(runner, f"cp {logs}/settings.json {copied}"))
    assert copied.read_text() == "{}"
    assert [each["op"] for each in runner.requests][:2] == ["upload", "exec"]
    before = len(runner.requests)
    await make(fail="share").step(step_request(runner, "true"))
    assert runner.requests[before]["op"] == "exec"


async def test_logs_that_the_agents_class_cannot_read_leave_the_usage_unknown(make: MakeTrial, runner: Runner) -> None:
    done = await make().step(step_request(runner, "true"))
    assert done["ok"]
    assert set(done["usage"].values()) == {None}


async def test_an_agents_error_is_harbors_and_its_logs_are_kept(make: MakeTrial, runner: Runner, logs: Path) -> None:
    done = await make(fail="run").step(step_request(runner, "true"))
    assert done["error"] == {"type": "ApiRateLimitError", "message": "too many requests"}
    assert (logs / "host.txt").exists()


async def test_a_lost_environment_is_no_error_of_the_agent(make: MakeTrial, runner: Runner) -> None:
    wrong = {"id": "another", "token": TOKEN.hex(), "socket": runner.socket}
    done = await make().step(step_request(runner, "true", admission=wrong))
    assert done["error"]["type"] == "AgentHostError"


async def test_the_agents_time_limit_raises_harbors_error(make: MakeTrial, runner: Runner) -> None:
    done = await make().step(step_request(runner, "sleep 30", timeoutSeconds=0.2))
    assert done["error"] == {"type": "AgentTimeoutError", "message": "Agent execution timed out after 0.2 seconds"}


async def test_a_resumed_step_resumes_and_keeps_the_hosts_logs(make: MakeTrial, runner: Runner, logs: Path) -> None:
    trial = make()
    await trial.step(step_request(runner, "echo $HOW"))
    (logs.parent / "trial/agent/session").touch()
    await trial.step(step_request(runner, "echo $HOW", resume=True))
    assert (logs / "host.txt").read_text() == "resume first first resume\n"
    (logs / "session").unlink()  # as the operator does before a step that does not resume
    await trial.step(step_request(runner, "echo $HOW"))
    assert not (logs.parent / "trial/agent/session").exists()


async def test_each_step_has_its_own_variables(make: MakeTrial, runner: Runner, logs: Path) -> None:
    trial = make()
    os.environ["SHADOWED"] = "host"
    await trial.step(step_request(runner, "echo $KEY $SHADOWED", env={"KEY": "${KEY}", "SHADOWED": "agent"}))
    assert (logs / "host.txt").read_text() == "run ${KEY} ${KEY} ${KEY} agent\n"
    await trial.step(step_request(runner, "echo $KEY", env={}))
    assert (logs / "host.txt").read_text() == "run None None \n"
    assert os.environ.pop("SHADOWED") == "host"


async def test_the_environment_is_closed_between_steps(make: MakeTrial, runner: Runner) -> None:
    trial = make()
    await trial.step(step_request(runner, "true"))
    with pytest.raises(RuntimeError, match="admits no commands"):
        await trial._environment.exec("true")


def test_a_request_with_an_unknown_field_is_invalid_and_its_error_shows_no_secret(runner: Runner) -> None:
    with pytest.raises(ValueError, match="Extra inputs") as raised:
        StepRequest.model_validate(request(runner, step={"name": "a", "instruction": "b"}, surprise=TOKEN.hex()))
    assert TOKEN.hex() not in str(raised.value)


async def test_a_timeout_is_extended_while_the_provider_stalls_the_agent(make: MakeTrial, runner: Runner) -> None:
    with gateway([0.3, 0.6, 0.6]) as (url, asked):
        stalls = {"url": url, "token": "t", "maxSeconds": 60}
        done = await make().step(step_request(runner, "sleep 30", timeoutSeconds=0.2, stalls=stalls))
    assert done["error"] == {"type": "AgentTimeoutError", "message": "Agent execution timed out after 0.2 seconds"}
    assert asked == ["Bearer t"] * 3


async def test_an_agent_that_ends_in_its_extended_time_succeeds(make: MakeTrial, runner: Runner) -> None:
    with gateway([60]) as (url, asked):
        stalls = {"url": url, "token": "t", "maxSeconds": 60}
        done = await make().step(step_request(runner, "sleep 1", timeoutSeconds=0.2, stalls=stalls))
    assert (done["ok"], asked) == (True, ["Bearer t"])


@pytest.mark.parametrize(("reported", "seconds"), [(5, 5.0), (500, 60.0), (-1, 0.0), ("x", 0.0), (None, 0.0)])
async def test_stalls_are_bounded_and_invalid_ones_count_as_none(reported: Any, seconds: float) -> None:
    with gateway([reported]) as (url, _):
        request = StallsRequest.model_validate({"url": url, "token": "t", "maxSeconds": 60})
        assert await stalled_seconds(request) == seconds


async def test_without_an_answer_of_the_gateway_nothing_is_extended() -> None:
    request = StallsRequest.model_validate({"url": "http://127.0.0.1:1/", "token": "t", "maxSeconds": 60})
    assert await stalled_seconds(request) == await stalled_seconds(None) == 0


async def test_an_agent_cannot_redirect_the_question_to_a_server_of_its_own(
    make: MakeTrial, runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The containers of a pod share /etc/hosts, which an agent that is root can change in an earlier step."""
    hosts = {"gateway.system": "127.0.0.1"}
    monkeypatch.setattr("multistep_host.provider_stalls._addresses", {})
    monkeypatch.setattr(
        "multistep_host.provider_stalls.socket.getaddrinfo",
        lambda name, port, *_, **__: [(2, 1, 6, "", (hosts.get(name, name), port or 0))],
    )
    with gateway([0, 0]) as (url, asked):
        stalls = {"url": url.replace("127.0.0.1", "gateway.system"), "token": "t", "maxSeconds": 60}
        for _ in range(2):
            done = await make().step(step_request(runner, "sleep 30", timeoutSeconds=0.2, stalls=stalls))
            assert done["error"]["type"] == "AgentTimeoutError"
            hosts["gateway.system"] = "192.0.2.1"
        assert asked == ["Bearer t"] * 2


@contextmanager
def gateway(seconds: list[Any]) -> Iterator[tuple[str, list[str]]]:
    """Serve a fake model gateway that answers requests with these numbers of stalled seconds, in this order. Yield its URL, and the
    list of the requests' Authorization headers."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"stalledSeconds": seconds[len(asked) - 1]}).encode())

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", asked
        finally:
            server.shutdown()
            thread.join()


async def test_output_beyond_the_maximum_is_left_out(
    make: MakeTrial, runner: Runner, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("multistep_host.transcript.MAX_BYTES", 10)
    sent: list[bytes] = []

    async def send(block: bytes) -> None:
        sent.append(block)

    done = await make().step(step_request(runner, "echo 123456; sleep 0.1; echo 7890123; sleep 0.1; echo more"), send)
    assert done["ok"] and b"".join(sent) == b"123456\n789"
    assert (logs / "output.txt").read_bytes() == b"123456\n789"


async def test_a_step_that_prints_nothing_has_no_file_of_output(make: MakeTrial, runner: Runner, logs: Path) -> None:
    trial = make()
    await trial.step(step_request(runner, "echo one"))
    assert (logs / "output.txt").exists()
    (logs / "output.txt").unlink()  # the operator empties the environment's logs
    await trial.step(step_request(runner, "true"))
    assert not (logs / "output.txt").exists()
