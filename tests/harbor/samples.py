"""Write sample trials, one for each kind of outcome, to a results volume with the operator's own code."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import TaskConfig, task_from_dict
from multistep.api.trial.status import Usage
from multistep.api.trial.trial import MultiStepTrial, parse_trial
from multistep.engine.journal.journal import AgentInfo, Journal, StepException, StepRun
from multistep.engine.plan.make_plan import make_plan
from multistep.engine.plan.plan import TrialEnv, TrialPlan
from multistep.reconcile.trial.complete_results import Sign
from multistep.store.evidence import statement
from multistep.store.files.trial_key import TrialKey
from multistep.store.harbor import secret_variables, trial_files
from multistep.store.results_volume import ResultsVolume

BEGIN = 1_800_000_000.0
DIGEST = "sha256:" + "ab" * 32
TESTS = "cd" * 32
SECRET = "hunter2-hunter2"
SPEC: dict[str, Any] = {
    "task": {"bundle": {"configMaps": ["t"], "digest": DIGEST}},
    "environment": {"env": [{"name": "LANG", "value": "C"}]},
    "agent": {
        "name": "command",
        "command": ["/bin/true"],
        "env": [
            {"name": "API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "AUTH", "value": SECRET},
            {"name": "MODE", "value": "fast"},
        ],
        "timeoutSeconds": 5,
        "timeoutMultiplier": 2,
    },
    "verifier": {"env": [{"name": "TOKEN", "value": SECRET}], "maxTimeoutSeconds": 60},
    "artifacts": [{"source": "/app/out", "destination": "out", "exclude": ["*.log"]}],
    "extraInstructions": ["Be quick."],
}
HOSTED: dict[str, Any] = {
    **SPEC,
    "agent": {
        "name": "claude-code",
        "model": "anthropic/claude-sonnet-4-5",
        "kwargs": {"max_turns": 3},
        "credentials": [{"name": "ANTHROPIC_API_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
    },
}
LAYOUT = StepLayout(instruction="do it", tests=True, test_script=True)


@dataclass(frozen=True)
class Sample:
    """One finished trial. steps: names of its task's steps."""

    name: str
    journal: Journal
    steps: tuple[str, ...] = ("scaffold", "it's done $HOME ü")
    failure: StepException | None = None
    spec: Mapping[str, Any] = field(default_factory=lambda: SPEC)
    attempts: tuple[Mapping[str, Any], ...] = ()
    status: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> TaskConfig:
        steps = [{"name": name, "artifacts": ["/app/greet.sh"]} for name in self.steps]
        return task_from_dict({"environment": {"docker_image": "i"}, "steps": steps, "task": {"name": "org/sample"}})

    @property
    def env(self) -> TrialEnv:
        return TrialEnv(agent={"API_KEY": SECRET, "AUTH": SECRET, "MODE": "fast"}, verifier={"TOKEN": SECRET})

    def plan(self) -> TrialPlan:
        layout = TaskLayout(steps={step.name: LAYOUT for step in self.config.steps or ()}, root=LAYOUT)
        return make_plan(self.config, layout, self.trial().spec, self.env, name="sample")

    @property
    def key(self) -> TrialKey:
        return TrialKey.of(self.trial())

    def trial(self) -> MultiStepTrial:
        number = sum(self.name.encode())
        uid = f"00000000-0000-4000-8000-{number:012d}"
        return parse_trial(
            {
                "metadata": {"name": self.name, "namespace": "default", "uid": uid},
                "spec": self.spec,
                "status": {"startTime": "2027-01-15T07:59:00Z", "attempts": list(self.attempts), **self.status},
            }
        )


def run(name: str, start: float, **changes: Any) -> StepRun:
    """Return the record of a step that ran for 10 s. changes: fields to override."""
    timings = {"agent": (start + 1, start + 5), "verifier": (start + 5, start + 8), "artifacts": (start + 8, start + 9)}
    return StepRun(**{"name": name, "started_at": start, "completed_at": start + 10, "timings": timings, **changes})


def journal(*steps: StepRun, **changes: Any) -> Journal:
    """Return the journal of a finished trial with these steps. changes: further fields of the journal."""
    return Journal(**{"steps": list(steps), "started_at": BEGIN, "finished": True, **changes})


TIMEOUT = StepException("AgentTimeoutError", "the agent was stopped after its timeout of 5 s", "agent")
NO_REWARD = StepException("RewardFileNotFoundError", "the verifier wrote neither", "verifier")
UNHEALTHY = StepException("HealthcheckError", "environment.healthcheck: failed after 3 attempts", "healthcheck")
SETUP = StepException("RuntimeError", "setup.sh exited with status 1", "setup")
LIMITED = StepException("ApiRateLimitError", "429: slow down", "agent")
OVERRIDES: dict[str, Any] = {**SPEC, "scoring": {"overrideErrorPolicy": {"ApiRateLimitError": {"valid": True}}}}
FIRST, SECOND = "scaffold", "it's done $HOME ü"
REGRADED: dict[str, Any] = {
    "trial": "rewards",
    "uid": "u-1",
    "taskDigest": DIGEST,
    "agent": {"name": "claude-code", "version": "2.1", "model": "anthropic/claude-sonnet-4-5"},
    "steps": [
        {
            "name": FIRST,
            "checkpoint": "12" * 32,
            "exception": {"type": "AgentTimeoutError", "phase": "agent", "message": "too slow"},
            "tests": {"tests": TESTS},
        },
        {"name": SECOND},
    ],
}

SAMPLES = (
    Sample(
        "rewards",
        journal(
            run(FIRST, BEGIN, rewards={"reward": 1, "style": 0.5}), run(SECOND, BEGIN + 10, rewards={}), rewards={"reward": 0.5}
        ),
    ),
    Sample("exceptions", journal(run(FIRST, BEGIN, rewards={"reward": 0.0}, exception=TIMEOUT), rewards={"reward": 0.0})),
    Sample("no-reward", journal(run(FIRST, BEGIN, exception=NO_REWARD))),
    Sample("early-stop", journal(run(FIRST, BEGIN, rewards={"reward": 0}, gate_failure="reward is 0"), rewards={"reward": 0})),
    Sample("setup", journal(run(FIRST, BEGIN, timings={"setup": (BEGIN, BEGIN + 1)}, exception=SETUP))),
    Sample("single-step", journal(run("task", BEGIN, rewards={"reward": 1.0}), rewards={"reward": 1.0}), steps=()),
    Sample("single-step-timeout", journal(run("task", BEGIN, exception=TIMEOUT), exception=TIMEOUT), steps=()),
    Sample("environment", journal(exception=UNHEALTHY, broken=True)),
    Sample(
        "failed",
        Journal(),
        failure=StepException("EnvironmentStartTimeoutError", "pod p did not start within 600 s"),
        attempts=({"number": 1, "reason": "NodeLost", "message": "gone", "completionTime": "2027-01-15T07:59:30Z"},),
    ),
    Sample("huge", journal(run(FIRST, BEGIN, rewards={"reward": 10**40, "\ud800": -1e300}), rewards={"reward": 10**40})),
    Sample(
        "hosted",
        journal(
            run(
                FIRST,
                BEGIN,
                rewards={"reward": 1.0},
                usage=Usage(input_tokens=120, cached_tokens=20, output_tokens=7, cost_usd=0.25),
            ),
            run(SECOND, BEGIN + 10, rewards={"reward": 1.0}, metadata={"turns": 3}),
            rewards={"reward": 1.0},
            agent=AgentInfo("claude-code", "2.1.197", "claude-sonnet-4-5", "anthropic"),
            agent_setup=(BEGIN - 20, BEGIN),
        ),
        spec=HOSTED,
    ),
    Sample(
        "regraded",
        journal(
            run(FIRST, BEGIN, rewards={"reward": 0.5}, exception=TIMEOUT),
            run(SECOND, BEGIN + 10, rewards={"reward": 1}),
            rewards={"reward": 0.75},
        ),
        spec={**SPEC, "agent": {"name": "nop"}, "regrade": {"trial": "rewards"}},
        status={"regraded": REGRADED},
    ),
    Sample("limited", journal(run(FIRST, BEGIN, rewards={"reward": 0.5}, exception=LIMITED), rewards={"reward": 0.5})),
    Sample(
        "overridden",
        journal(run(FIRST, BEGIN, rewards={"reward": 0.5}, exception=LIMITED), rewards={"reward": 0.5}),
        spec=OVERRIDES,
    ),
    Sample("inline", journal(), spec={"task": {"inline": {"config": {}}}, "verifier": {"disable": True}}),
)


def make_results(root: Path, sign: Sign | None = None) -> dict[str, Path]:
    """Write all samples to a new volume and return their directories by name. sign: returns a statement's signature."""
    volume = ResultsVolume(root, 2)
    try:
        return asyncio.run(_make_all(volume, sign))
    finally:
        volume.close()


async def _make_all(volume: ResultsVolume, sign: Sign | None) -> dict[str, Path]:
    return {sample.name: await _make(volume, sample, sign) for sample in SAMPLES}


async def _make(volume: ResultsVolume, sample: Sample, sign: Sign | None) -> Path:
    plan = sample.plan()
    await volume.start_attempt(sample.key, len(sample.attempts) + 1)
    for step in plan.steps:
        for done in sample.journal.steps:
            if done.name == step.name and "artifacts" in done.timings:
                async with volume.collections.spool(sample.key) as spool:
                    await spool.write(_download())
                    types = ["directory"] * 3 + ["missing"] * (len(step.artifacts) - 1)
                    attempt = len(sample.attempts) + 1
                    done.collected = await volume.collections.store_step(sample.key, spool, attempt=attempt, step=step, types=types)
    return await finish(volume, sample, sign)


async def finish(volume: ResultsVolume, sample: Sample, sign: Sign | None = None) -> Path:
    """Write the files that a finished trial has in addition to those of its steps, and return its directory. sign: returns a
    statement's signature."""
    plan, trial, key = sample.plan(), sample.trial(), sample.key
    written = trial_files.trial_files(plan, trial, sample.journal, BEGIN + 30, failure=sample.failure)
    await volume.finish(key, written, trial_files.step_directories(plan, sample.journal))
    secrets = secret_variables.secret_values(sample.env, sample.config)
    await volume.redact(key, secrets)
    tests = dict.fromkeys(statement.test_uploads(plan, sample.journal), TESTS)
    files = await volume.evidence.list_files(key)
    text = statement.evidence_statement(statement.FinishedTrial(plan, trial, sample.journal, files, tests, sample.failure, secrets))
    await volume.evidence.write(key, text, sign(text) if sign else None)
    return volume.root / str(key)


def _download() -> bytes:
    files = {"0/command.txt": f"said {SECRET}", "1/test-stdout.txt": "1 passed", "1/reward.json": '{"reward": 1}', "2/x": "data"}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()
