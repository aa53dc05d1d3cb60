"""The script of a trial: its operations in their order (Harbor 0.25, multi-step trial; docs/semantics.md).

Generators that yield an operation and receive its record. They decide by records alone and touch nothing else, so
``replay`` can run them again and again. What happened is written to the journal as it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ..api.content import Content
from ..api.records import Fault, Fields, HealthcheckResult, PhaseResult, Record
from ..api.task import HealthcheckConfig
from .journal import AGENT, ARTIFACTS, HEALTHCHECK, SETUP, VERIFIER, Collected, Journal, StepRun
from .operations import (
    LOGS_AGENT,
    LOGS_ARTIFACTS,
    LOGS_VERIFIER,
    TESTS,
    Collect,
    Directory,
    Healthcheck,
    Note,
    Reset,
    Script,
    Source,
    Start,
    Upload,
)
from .plan import StepPlan, TrialPlan, VerifierPlan
from .rewards import (
    REWARD_JSON,
    REWARD_TXT,
    RewardError,
    StepException,
    gate_failure,
    parse_reward_files,
    trial_rewards,
)
from .templates import Unresolved


@dataclass(frozen=True)
class Scope:
    """Where a script is: plan and step, and how ids are made. workdir: the environment's, as the runner told it.

    isolated: no agent can be the verifier's user or root, so that verdicts can be kept from it.
    """

    plan: TrialPlan
    attempt: int
    workdir: str
    runtime_dir: str
    isolated: bool = False
    step: StepPlan | None = None

    def id(self, operation: str) -> str:
        """The id of an operation here."""
        return f"{self.attempt}/{self.step.name if self.step else ''}/{operation}"


class AgentScript(Protocol):
    """The agent's phase of a step: what it runs, and the exception it ends with, if any."""

    def __call__(self, scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]: ...


class TrialError(Exception):
    """The environment does not let the trial go on. It has no reward; what earlier steps had stays on record."""

    def __init__(self, exception: StepException) -> None:
        super().__init__(exception.message)
        self.exception = exception


def trial(scope: Scope, agent: AgentScript, journal: Journal) -> Script[None]:
    """A whole trial: environment, steps in order, the trial's reward."""
    try:
        yield from _prepare(scope, journal)
        verified = False
        for step in scope.plan.steps:
            run = StepRun(name=step.name)
            journal.steps.append(run)
            here = replace(scope, step=step)
            yield from _step(here, step, run, agent, verified=verified)
            journal.completed_at = run.completed_at
            verified = VERIFIER in run.timings
            if not goes_on(scope.plan, step, run):
                break
        journal.all_steps = len(journal.steps) == len(scope.plan.steps)
        aggregate(scope.plan, journal)
    except TrialError as error:
        journal.exception = error.exception
        journal.broken = True
    if scope.plan.single:
        lift(journal)
    journal.finished = True


def goes_on(plan: TrialPlan, step: StepPlan, run: StepRun) -> bool:
    """Whether a further step may follow this one."""
    if run.exception is not None and (run.rewards is None or plan.abort_on_agent_error):
        return False
    if step.verifier is None:
        return True
    run.gate_failure = gate_failure(step.min_reward, run.rewards)
    run.gate_passed = None if step.min_reward is None else run.gate_failure is None
    return run.gate_failure is None


def _prepare(scope: Scope, journal: Journal) -> Script[None]:
    record = yield Reset(
        scope.id("prepare"), tuple(Directory(path, keep=True) for path in (LOGS_AGENT, LOGS_VERIFIER, LOGS_ARTIFACTS))
    )
    journal.started_at = record.started_at
    _require(record, "making /logs")
    if scope.plan.environment_files:
        record = yield Upload(scope.id("environment"), scope.workdir, Content("environment"))
        _require(record, "uploading environment/")
    if scope.plan.healthcheck is not None:
        record = yield _healthcheck(scope, "healthcheck", scope.plan.healthcheck, user="")
        if failure := healthcheck_failure(record):
            raise TrialError(StepException("HealthcheckError", f"environment.healthcheck: {failure}", HEALTHCHECK))


def _step(scope: Scope, step: StepPlan, run: StepRun, agent: AgentScript, *, verified: bool) -> Script[None]:
    record = yield Reset(scope.id("begin"), _step_directories(verified))
    run.started_at = record.started_at
    _require(record, "emptying /logs/agent")
    yield from _stage(scope, step, run)
    if run.exception is None:
        run.phase = AGENT
        run.fail((yield from _run_agent(scope, step, run, agent)))
        yield from _collect_hooks(scope, step, run)
        if step.verifier is not None and not _skips_verifier(scope.plan, run):
            run.phase = VERIFIER
            yield from _verify(scope, step, step.verifier, run)
        run.phase = ARTIFACTS
        yield from _collect(scope, step, run)
    record = yield Note(scope.id("end"))
    run.completed_at = record.started_at


def _step_directories(verified: bool) -> tuple[Directory, ...]:
    """What a step finds empty: tests and verdicts only after a verification, so that an image's own /tests lives till then."""
    return (Directory(LOGS_AGENT), *((Directory(LOGS_VERIFIER), Directory(TESTS)) if verified else ()))


def _stage(scope: Scope, step: StepPlan, run: StepRun) -> Script[None]:
    """Upload the step's workdir, run its setup.sh and its healthcheck."""
    if step.workdir:
        record = yield Upload(scope.id("workdir"), scope.workdir, Content("workdir", step.directory))
        _require(record, "uploading workdir/")
    if step.setup:
        record = yield _setup(scope, step)
        run.timed(SETUP, record)
        run.fail(_setup_exception(PhaseResult.from_record(record)))
    if step.healthcheck is not None and run.exception is None:
        run.phase = HEALTHCHECK
        record = yield _healthcheck(scope, "healthcheck", step.healthcheck, user=step.agent_user)
        run.timed(HEALTHCHECK, record)
        if failure := healthcheck_failure(record):
            run.fail(StepException("HealthcheckError", failure, HEALTHCHECK))


def _setup(scope: Scope, step: StepPlan) -> Start:
    script = f"{scope.workdir.rstrip('/')}/setup.sh"
    return Start(scope.id("setup"), ("bash", script), user=step.agent_user, env=scope.plan.environment_env)


def _setup_exception(result: PhaseResult) -> StepException | None:
    if result.exit_code == 0:
        return None
    return StepException("RuntimeError", f"setup.sh {ending(result)}", SETUP)


def _healthcheck(scope: Scope, name: str, config: HealthcheckConfig, *, user: str) -> Healthcheck:
    return Healthcheck(
        scope.id(name),
        ("bash", "-c", config.command),
        user=user,
        env=scope.plan.environment_env,
        interval=config.interval_sec,
        timeout=config.timeout_sec,
        start_period=config.start_period_sec,
        start_interval=config.start_interval_sec,
        retries=config.retries,
    )


def healthcheck_failure(record: Record) -> str | None:
    """Why a healthcheck failed, or None if it did not."""
    result = HealthcheckResult.from_record(record)
    if result.healthy:
        return None
    last = _ending(result.exit_code, None, result.timed_out, result.error, result.tail)
    return f"failed after {result.attempts} attempts; the last one {last}"


def _run_agent(scope: Scope, step: StepPlan, run: StepRun, agent: AgentScript) -> Script[StepException | None]:
    if step.instruction is None:  # possible with verification disabled only; else the task is refused
        return StepException("FileNotFoundError", "the step has no instruction.md", AGENT)
    if step.agent_timeout is not None and step.agent_timeout <= 0:
        run.timed(AGENT, (yield Note(scope.id("agent"))))
        return StepException("AgentTimeoutError", f"the agent was not started: its limit is {step.agent_timeout:g} s", AGENT)
    return (yield from agent(scope, step, run))


def _collect_hooks(scope: Scope, step: StepPlan, run: StepRun) -> Script[None]:
    for number, hook in enumerate(step.hooks):
        run.phase = ARTIFACTS
        yield Start(
            scope.id(f"collect-hook-{number}"),
            ("bash", "-c", hook.command),
            user=hook.user,
            env=scope.plan.environment_env,
            timeout=hook.timeout,
        )


def _skips_verifier(plan: TrialPlan, run: StepRun) -> bool:
    """A single-step trial is verified after a time limit or a failed command of its agent, but after no other error."""
    expected = ("AgentTimeoutError", "NonZeroAgentExitCodeError")
    return plan.single and run.exception is not None and run.exception.type not in expected


def _verify(scope: Scope, step: StepPlan, verifier: VerifierPlan, run: StepRun) -> Script[None]:
    yield from _clean_for_verification(scope, verifier, run)
    failure = yield from _upload_tests(scope, step, verifier, run)
    if failure is not None:
        run.fail(StepException("AddTestsDirError", failure, VERIFIER))
    elif isinstance(verifier.env, Unresolved):
        run.fail(StepException("ValueError", f"verifier.env: {verifier.env}", VERIFIER))
    else:
        record = yield _run_tests(scope, verifier, verifier.env)
        run.timed(VERIFIER, record)
        _read_rewards(verifier, PhaseResult.from_record(record), run)


def _clean_for_verification(scope: Scope, verifier: VerifierPlan, run: StepRun) -> Script[None]:
    """Nothing that the agent left may pass for tests or rewards (a single-step trial clears reward files only)."""
    record = yield Reset(scope.id("verify"), _verdict_directories(scope, verifier))
    run.timed(VERIFIER, record)
    _require(record, "emptying /logs/verifier and /tests")


def _verdict_directories(scope: Scope, verifier: VerifierPlan) -> tuple[Directory, ...]:
    """As open as Harbor's, unless agent and verifier are different users: then only the verifier may write its verdict."""
    if scope.plan.single:
        return (Directory(LOGS_VERIFIER, keep=True), Directory(TESTS, mode=0o755, keep=True))
    if scope.isolated:
        return (Directory(LOGS_VERIFIER, mode=0o755, user=verifier.user), Directory(TESTS, mode=0o755))
    return (Directory(LOGS_VERIFIER), Directory(TESTS))


def _upload_tests(scope: Scope, step: StepPlan, verifier: VerifierPlan, run: StepRun) -> Script[str | None]:
    """Shared tests first, the step's own over them. Returns why it failed, None if it did not."""
    for there, name, directory in (
        (verifier.task_tests, "tests", None),
        (verifier.step_tests, "step-tests", step.directory),
    ):
        if there:
            record = yield Upload(scope.id(name), TESTS, Content("tests", directory))
            run.timed(VERIFIER, record)
            if fault := failed(record):
                return f"uploading tests/: {fault.message}"
    return None


def _run_tests(scope: Scope, verifier: VerifierPlan, env: Mapping[str, str]) -> Start:
    return Start(
        scope.id("verifier"),
        (f"{TESTS}/test.sh",),
        user=verifier.user,
        env={**scope.plan.environment_env, **env},
        timeout=verifier.timeout,
        make_executable=f"{TESTS}/test.sh",
        remove=(REWARD_TXT, REWARD_JSON),
        output=f"{LOGS_VERIFIER}/test-stdout.txt",
        captures=(REWARD_JSON, REWARD_TXT),
        kill_at_end=True,
    )


def _read_rewards(verifier: VerifierPlan, result: PhaseResult, run: StepRun) -> None:
    """A reward counts only if the verifier ended by itself, whatever its status; one written before a time limit does not."""
    if result.timed_out:
        return run.fail(StepException("VerifierTimeoutError", f"the verifier was stopped {at_limit(verifier.timeout)}", VERIFIER))
    try:
        run.rewards = parse_reward_files(_captured(result, REWARD_JSON), _captured(result, REWARD_TXT))
    except RewardError as error:
        run.fail(StepException(error.type, f"{error}; test.sh {ending(result)}", VERIFIER))


def _captured(result: PhaseResult, path: str) -> bytes | None:
    capture = result.captures.get(path)
    if capture is None:
        return None
    if capture.truncated:
        raise RewardError("VerifierOutputParseError", f"{path} has {capture.size} bytes, which is too large for a reward")
    return capture.data


def _collect(scope: Scope, step: StepPlan, run: StepRun) -> Script[None]:
    """Bring logs and artifacts to the results store: /logs/agent, /logs/verifier, then the artifact entries in order."""
    logs = (Source(LOGS_AGENT), Source(LOGS_VERIFIER))
    entries = tuple(Source(entry.source, tuple(entry.exclude)) for entry in step.artifacts)
    record = yield Collect(scope.id("collect"), step.index, logs + entries)
    run.timed(ARTIFACTS, record)
    found = Fields(record.result, "collect")
    run.collected = Collected(found.texts("types", 10_000)[len(logs) :], found.integer("count"), found.integer("bytes"))


def failed(record: Record) -> Fault | None:
    """The fault of a reset or an upload, if any."""
    return Fields(record.result, f"result of {record.id}").optional_fault("error")


def _require(record: Record, what: str) -> None:
    """Without this the trial itself cannot go on (Harbor 0.25: a trial error)."""
    if fault := failed(record):
        raise TrialError(StepException("RuntimeError", f"{what}: {fault.message}"))


def ending(result: PhaseResult) -> str:
    """How a phase ended, as the rest of a sentence."""
    text = _ending(result.exit_code, result.signal, result.timed_out, result.error, result.tail)
    return f"{text} (the container ran out of memory meanwhile)" if result.oom_kills else text


def at_limit(seconds: float | None) -> str:
    """When a phase was stopped; a runner may tell so of one that had no limit."""
    return "at its limit" if seconds is None else f"after its limit of {seconds:g} s"


def _ending(exit_code: int | None, signal: int | None, timed_out: bool, error: Fault | None, tail: str) -> str:
    said = f": {tail.strip()[-500:]}" if tail.strip() else ""
    if error is not None:
        return f"could not be started: {error.message}"
    if timed_out:
        return f"was stopped at its time limit{said}"
    if signal is not None:
        return f"was ended by signal {signal}{said}"
    return f"exited with status {exit_code}{said}"


def aggregate(plan: TrialPlan, journal: Journal) -> None:
    """The trial's rewards from those of its steps."""
    try:
        journal.rewards = trial_rewards(plan.strategy, [run.rewards for run in journal.steps])
    except OverflowError as error:
        journal.exception = StepException("OverflowError", f"the trial's reward: {error}")


def lift(journal: Journal) -> None:
    """A single-step trial's error is the trial's (Harbor 0.25, single-step trial)."""
    for run in journal.steps:
        journal.exception = journal.exception or run.exception
