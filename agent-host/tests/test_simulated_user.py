"""Tests of simulated users, with a stand-in for acpx, an agent that speaks the Agent Client Protocol, and a scripted model."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from harbor.models.trial.paths import EnvironmentPaths

from multistep_host.phase_requests import SetupRequest, StepRequest
from multistep_host.trial import TrialAgent
from runner import TOKEN, Runner

TESTS = Path(__file__).parent


class Model(ThreadingHTTPServer):
    """A scripted model, which counts its requests by token."""

    counts: Counter[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def env(self, token: str) -> dict[str, str]:
        return {"OPENAI_API_KEY": token, "OPENAI_BASE_URL": self.url}


class _Answers(BaseHTTPRequestHandler):
    server: Model

    def do_POST(self) -> None:
        token = self.headers["Authorization"].removeprefix("Bearer ")
        self.server.counts[token] += 1
        text = f"{token} {self.server.counts[token]}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture
def model() -> Iterator[Model]:
    with Model(("127.0.0.1", 0), _Answers) as server:
        server.counts = Counter()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary directory that replaces the environment's /logs/agent. The environment has acpx."""
    monkeypatch.setenv("PATH", f"{TESTS}:{os.environ['PATH']}")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    directory = tmp_path / "logs"
    (directory / "user-agent").mkdir(parents=True)
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(EnvironmentPaths, "agent_dir", directory)
    return directory


Requests = Callable[..., tuple[SetupRequest, StepRequest]]


@pytest.fixture
def requests(runner: Runner, tmp_path: Path, logs: Path, model: Model) -> Requests:
    def made(agent: str = "ScriptedTarget", user: dict[str, Any] | None = None, **fields: Any) -> tuple[SetupRequest, StepRequest]:
        admission = {"id": runner.admission.id, "token": TOKEN.hex(), "socket": runner.socket}
        environment = {"workdir": str(tmp_path / "work"), "user": "", "env": {}}
        common = {"outcome": "/outcome.json", "admission": admission, "environment": environment, "env": model.env("agent")}
        player = {"importPath": "scripted_agent:ScriptedUser", "model": "openai/m", **(user or {})}
        target = {"importPath": f"scripted_agent:{agent}", "model": "openai/m"}
        of_user = {"agent": player, "env": {**model.env("user"), "ONLY_OF_USER": "1"}, **fields}
        setup = {**common, "agent": target, "trial": "trial", "user": of_user}
        step = {**common, "step": {"name": "one", "instruction": "buy a ticket"}, "user": {"env": of_user["env"]}}
        return SetupRequest.model_validate(setup), StepRequest.model_validate(step)

    return made


async def test_a_user_of_five_turns_talks_to_the_agent_and_each_role_has_its_own_token(
    requests: Requests, tmp_path: Path, logs: Path, model: Model, runner: Runner
) -> None:
    setup, step = requests()
    trial = TrialAgent.create(setup, tmp_path / "trial")
    assert (await trial.setup(setup))["ok"]
    done = await trial.step(step)
    assert (done["ok"], done["agent"]["name"], done["error"]) == (True, "scripted", None)
    assert model.counts == {"agent": 5, "user": 5}
    turns = json.loads((logs / "bridge-trajectory.json").read_text())
    assert turns == [{role: f"{role} {number}"} for number in range(1, 6) for role in ("user", "agent")]
    prompt = (logs / "user-agent" / "prompt.txt").read_text()
    assert prompt.startswith("You are playing the role of a human user") and prompt.endswith("buy a ticket")
    assert "acpx prompt" in prompt
    written = next(each for each in runner.requests if each["op"] == "exec" and ".acpxrc.json" in each["argv"][2])
    assert "ONLY_OF_USER" in written["env"] and written["env"]["OPENAI_API_KEY"] == "user"
    assert "-u" in written["argv"][2] and "OF_THE_TARGET=agent" in written["argv"][2]
    assert not (tmp_path / "work" / ".acpxrc.json").exists()


async def test_the_user_has_its_own_persona_and_prompt(requests: Requests, tmp_path: Path, logs: Path) -> None:
    template = "{{ persona }}|{{ instruction }}|{{ bridge_instructions }}"
    setup, step = requests(persona="A pilot", promptTemplate=template)
    trial = TrialAgent.create(setup, tmp_path / "trial")
    await trial.setup(setup)
    await trial.step(step)
    assert (logs / "user-agent" / "prompt.txt").read_text().startswith("A pilot|buy a ticket|## How to talk")


async def test_an_error_of_the_user_ends_the_step_and_the_conversation_is_kept(
    requests: Requests, tmp_path: Path, logs: Path
) -> None:
    setup, step = requests(user={"kwargs": {"fail": "run"}})
    trial = TrialAgent.create(setup, tmp_path / "trial")
    await trial.setup(setup)
    assert (await trial.step(step))["error"] == {"type": "ApiRateLimitError", "message": "too many requests"}
    assert len(json.loads((logs / "bridge-trajectory.json").read_text())) == 10


async def test_a_timeout_stops_the_user(requests: Requests, tmp_path: Path) -> None:
    setup, step = requests()
    trial = TrialAgent.create(setup, tmp_path / "trial")
    await trial.setup(setup)
    done = await trial.step(step.model_copy(update={"timeout_seconds": 0.0}))
    assert done["error"] == {"type": "AgentTimeoutError", "message": "Agent execution timed out after 0.0 seconds"}


def test_an_agent_without_acp_is_refused(requests: Requests, tmp_path: Path) -> None:
    setup, _ = requests("ScriptedAgent")
    with pytest.raises(ValueError, match="cannot talk to the agent scripted"):
        TrialAgent.create(setup, tmp_path / "trial")


def test_an_invalid_prompt_is_refused(requests: Requests, tmp_path: Path) -> None:
    setup, _ = requests(promptTemplate="{{ instruction }}")
    with pytest.raises(ValueError, match="bridge_instructions"):
        TrialAgent.create(setup, tmp_path / "trial")
