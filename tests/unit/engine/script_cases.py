"""Tasks, specs and results for tests of the script that runs a trial's steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multistep.api.task.layout import StepLayout
from multistep.engine.journal.journal import AttemptLost, Journal
from multistep.engine.journal.operations import Note, Script
from multistep.engine.script.operation_scope import Scope
from multistep.engine.script.trial_script import AgentSetup
from tests.support.played import IMAGE, THREE, Played, plan, play, rewarded

EVERYTHING = f"""
artifacts = ["/app/shared"]
{IMAGE}workdir = "/app"
[environment.env]
E = "environment"
[environment.healthcheck]
command = "up"
[solution.env]
S = "solution"
[agent]
user = "alice"
[verifier]
user = "judge"
[verifier.env]
V = "verifier"
[[verifier.collect]]
command = "hook-of-task"
[[steps]]
name = "a"
min_reward = 0.5
artifacts = [{{source = "/app/own", exclude = ["*.o"]}}]
[steps.agent]
timeout_sec = 60
[steps.verifier]
timeout_sec = 30
[[steps.verifier.collect]]
command = "hook-of-step"
user = "bob"
timeout_sec = 9
[steps.healthcheck]
command = "ready"
retries = 2
[[steps]]
name = "b"
"""
FULL = StepLayout("do it", workdir=True, setup=True, tests=True, test_script=True, solution=True, solve_script=True)
SHARED = StepLayout(tests=True, test_script=True)


def everything(results: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> Played:
    made = plan(EVERYTHING, steps={"a": FULL}, root=SHARED, environment_files=True)
    return play(made, results, **changes)


# -- steps, specs and results for tests of errors

ALL = ["a", "b", "c"]
ABORT, CONTINUE = {"onAgentError": "Abort"}, {"onAgentError": "Continue"}
NO_REWARD = rewarded()
STARTED_NOT = {"exitCode": None, "error": {"code": "BadCwd", "message": "no directory /app"}}


# -- a task for tests of gates, of trials that stop at a gate, and of the trial's reward

GATED = THREE.replace('name = "b"\n', 'name = "b"\nmin_reward = 0.5\n')


# -- a single-step task

SINGLE = IMAGE + "[verifier]\ntimeout_sec = 7\n"


# -- a task with one step of [[steps]], of which a test chooses tables


def task(head: str = "", step: str = "", environment: str = "") -> str:
    """Return a task.toml with one step. head: other tables; step, environment: contents of [[steps]] and [environment]."""
    return f'[environment]\ndocker_image = "img"\n{environment}\n{head}\n[[steps]]\nname = "a"\n{step}'


# -- an agent whose setup fails


def failing_setup(reason: str) -> AgentSetup:
    def setup(scope: Scope, journal: Journal) -> Script[None]:
        yield Note(scope.id("agent-setup"))
        journal.lost = AttemptLost(reason, "no network")

    return setup
