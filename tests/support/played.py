"""Trials without a cluster: make plans from TOML, and run scripts until they finish, with the results that a test chooses."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from multistep.agents import script_of
from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import parse_task
from multistep.api.trial.runner_records import Record
from multistep.api.trial.spec import TrialSpec
from multistep.engine.journal.journal import Journal
from multistep.engine.journal.operations import (
    HOST_OUTCOME,
    Admit,
    AwaitVerifierPod,
    Baseline,
    Checkpoint,
    CloseModelAccess,
    Collect,
    Dismiss,
    Healthcheck,
    HostCall,
    Inspect,
    Launch,
    Note,
    Operation,
    Release,
    Reset,
    Restore,
    ServiceHook,
    Start,
    SwitchNetwork,
)
from multistep.engine.plan.make_plan import make_plan
from multistep.engine.plan.network_types import Egress
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.engine.score.rewards import REWARD_JSON, REWARD_TXT
from multistep.engine.script.operation_scope import Scope
from multistep.engine.script.replay import replay
from multistep.engine.script.trial_script import AgentScript
from tests.support.phase_results import DEFAULTS

Results = Mapping[str, Mapping[str, Any]]  # by "STEP/OPERATION": fields of the result that differ from a success

COMPLETE = StepLayout(instruction="do it", tests=True, test_script=True, solution=True, solve_script=True)
IMAGE = '[environment]\ndocker_image = "img"\n'
THREE = IMAGE + "".join(f'[[steps]]\nname = "{name}"\n' for name in "abc")


def plan(
    toml: str = THREE,
    spec: Mapping[str, Any] | None = None,
    *,
    steps: Mapping[str, StepLayout] | None = None,
    root: StepLayout | None = None,
    env: TrialEnv | None = None,
    egress: Egress = "Disabled",
    images: Mapping[str, str] | None = None,
    **layout: Any,
) -> TrialPlan:
    """Return the plan of the task in `toml`. steps: layouts by name (default: COMPLETE). images: built images. layout: other fields
    of TaskLayout."""
    config = parse_task(toml)
    names = [step.name for step in config.steps or []]
    files = dict.fromkeys(names, COMPLETE) | dict(steps or {})
    shared = root or (StepLayout() if names else COMPLETE)
    whole = TrialSpec.model_validate({"task": {"inline": {"config": {}}}, **(spec or {})})
    task = TaskLayout(steps=files, root=shared, **layout)
    return make_plan(config, task, whole, env or TrialEnv(), name="dir-name", egress=egress, images=images or {})


def rewarded(json: str | None = None, txt: str | None = None, **result: Any) -> dict[str, Any]:
    """Return the result of a verifier that wrote reward.json or reward.txt with these contents."""
    return {"captures": {REWARD_JSON: captured(json), REWARD_TXT: captured(txt)}, **result}


def captured(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    data = text.encode()
    return {"base64": base64.b64encode(data).decode(), "size": len(data), "truncated": False}


def outcome(*, error: tuple[str, str] | None = None, tokens: tuple[int, int, int] | None = None, **result: Any) -> dict[str, Any]:
    """Return the result of the agent host's command. error: type and message; tokens: input, cached, output tokens."""
    names = ("inputTokens", "cachedTokens", "outputTokens")
    document = {
        "ok": error is None,
        "error": error and {"type": error[0], "message": error[1]},
        "agent": {"name": "terminus-2", "version": "2.0.0", "model": {"name": "m", "provider": "openai"}},
        "usage": tokens and {**dict(zip(names, tokens, strict=True)), "costUSD": 0.5},
        "metadata": None,
    }
    return {"captures": {HOST_OUTCOME: captured(json.dumps(document))}, **result}


ONE = rewarded(txt="1.0")
FAULT = {"error": {"code": "Internal", "message": "no space left"}}
NO_SPACE = {"error": {"code": "DiskFull", "message": "no space left on device"}}


@dataclass
class Played:
    """A finished trial that `play` has run."""

    journal: Journal
    operations: list[Operation] = field(default_factory=list)
    records: dict[str, Record] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        """Return the ids of the operations without the attempt's number."""
        return [each.id.split("/", 1)[1] for each in self.operations]

    def operation(self, id: str) -> Any:
        """Return the operation with the id "STEP/OPERATION"."""
        return next(each for each in self.operations if each.id.split("/", 1)[1] == id)


def scope(plan: TrialPlan, **changes: Any) -> Scope:
    return Scope(**{"plan": plan, "attempt": 1, "workdir": "/app", "runtime_dir": "/run/multistep", **changes})


def play(
    plan: TrialPlan,
    results: Results | None = None,
    records: Mapping[str, Record] = MappingProxyType({}),
    script: AgentScript | None = None,
    **changes: Any,
) -> Played:
    """Run a trial until it is finished: operations start at 10, 20, 30, ... seconds, take one second, and return their `results`.

    records: records of the steps that earlier attempts ran; script: the agent's script, by default the script of the plan's agent.
    """
    here, agent, times = scope(plan, **changes), script or script_of(plan), itertools.count(10, 10)
    played = Played(Journal(), records=dict(records))
    while (progress := replay(here, agent, played.records)).next is not None:
        operation = progress.next
        played.operations.append(operation)
        played.records[operation.id] = record(operation, results or {}, float(next(times)))
    played.journal = progress.journal
    return played


def record(operation: Operation, results: Results, at: float) -> Record:
    """Return the record of a finished operation."""
    name = operation.id.split("/", 1)[1]
    op = _OPS.get(type(operation), "upload")
    result: dict[str, Any] = {**DEFAULTS.get(op, {})}
    if isinstance(operation, Collect):
        result = {"types": ["directory"] * len(operation.sources), "count": 3, "bytes": 99}
    if isinstance(operation, SwitchNetwork):
        result = {"boot": "b", "refused": []}
    if isinstance(operation, AwaitVerifierPod):
        result = {"workdir": "/judge"}
    if isinstance(operation, Checkpoint):
        result = {"digest": f"digest of {name}", "bytes": 5, "entries": 2, "processes": 0, "sharedMemory": False}
    if name.endswith("/verifier"):
        result |= ONE
    if isinstance(operation, HostCall):
        result |= outcome()
    return Record(operation.id, op, "done", at, at + 1, acknowledged=True, result={**result, **results.get(name, {})})


_OPS = {
    Start: "start",
    Healthcheck: "healthcheck",
    Launch: "note",
    ServiceHook: "note",
    Reset: "reset",
    Note: "note",
    Collect: "note",
    AwaitVerifierPod: "note",
    Release: "note",
    Admit: "admit",
    Dismiss: "dismiss",
    HostCall: "start",
    CloseModelAccess: "note",
    SwitchNetwork: "note",
    Checkpoint: "note",
    Restore: "restore",
    Baseline: "baseline",
    Inspect: "inspect",
}
