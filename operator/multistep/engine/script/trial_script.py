"""The script of a trial, which yields its operations in order.

They are the operations of Harbor 0.26's multi-step trial, except where docs/reference/semantics.md names a difference. The script
consists of generators that yield operations and receive their records. The generators depend only on the records and change only
the journal, so ``replay`` can run them any number of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from multistep.api.task.layout import MAIN
from multistep.api.trial.content_references import Content
from multistep.api.trial.error_policy import policy_of
from multistep.api.trial.runner_records import Fields, HealthcheckResult, PhaseResult
from multistep.api.trial.status import CheckpointStatus, StepStatus, Usage
from multistep.api.trial.values import AGENT, AGENT_SETUP, ARTIFACTS, HEALTHCHECK, SETUP, VERIFIER
from multistep.engine.journal.journal import Collected, Journal, StepException, StepRun
from multistep.engine.journal.operations import (
    LOGS,
    LOGS_AGENT,
    LOGS_VERIFIER,
    TESTS,
    Collect,
    Note,
    Part,
    Reset,
    ResetDirectory,
    Script,
    Source,
    Start,
    Upload,
)
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.engine.plan.select_artifacts import LOGS_ARTIFACTS
from multistep.engine.score.rewards import gate_failure, trial_rewards
from multistep.engine.score.trial_score import rule_of
from multistep.engine.score.usage_totals import usage_of_step
from multistep.engine.script.checkpoint_operations import (
    RESUME_SECONDS,
    lost_after_restore,
    restore_checkpoint,
    resume_steps,
    store_checkpoint,
    store_files_for_verifier,
)
from multistep.engine.script.compare_verdicts import store_files_for_comparison, verify_again
from multistep.engine.script.inspect_environment import inspect_environment, record_baseline
from multistep.engine.script.named_users import named_users, require_users
from multistep.engine.script.network_switch import enter_environment, enter_phase, leave_step
from multistep.engine.script.operation_scope import DiskFilled, Scope, TrialError, healthcheck_failure, how_it_ended, require
from multistep.engine.script.service_operations import artifact_source, service_hooks, start_main
from multistep.engine.script.verify_step import verify, verify_apart
from multistep.engine.status.trial_status import step_run


class AgentRun(Protocol):
    """The agent's phase of a step. Yields its operations, and returns its exception, or None."""

    def __call__(self, scope: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]: ...


class AgentSetup(Protocol):
    """The agent's setup before step 1. Yields its operations. Sets ``journal.lost`` on a failure, or raises TrialError."""

    def __call__(self, scope: Scope, journal: Journal) -> Script[None]: ...


def _no_setup(scope: Scope, journal: Journal) -> Script[None]:  # noqa: ARG001 - an agent's signature
    yield from ()


@dataclass(frozen=True)
class AgentScript:
    """The agent's part of a trial's script: its setup before step 1, and its run in each step."""

    run: AgentRun
    setup: AgentSetup = _no_setup


def trial_script(scope: Scope, agent: AgentScript, journal: Journal) -> Script[None]:
    """Prepare the environment, run the steps in order, and compute the trial's rewards."""
    steps = _Steps(scope, agent, journal)
    try:
        yield from steps.run(scope.plan.steps[: len(scope.kept)])  # steps that an earlier attempt or another trial ran
        yield from _start(scope, agent, journal)
        if journal.lost is None:
            yield from steps.run(scope.plan.steps[len(scope.kept) :])
        if journal.lost is not None:
            return
        journal.all_steps = len(journal.steps) == len(scope.plan.steps)
        add_trial_rewards(scope.plan, journal)
    except TrialError as error:
        by_setup = error.exception.phase == AGENT_SETUP and not scope.has_own_files
        if scope.kept and len(journal.steps) == len(scope.kept) and not by_setup:
            journal.lost = lost_after_restore(str(error))
            return
        journal.exception = error.exception
        journal.broken = True
    if scope.plan.single:
        copy_exception_to_trial(journal)
    journal.finished = True


def _start(scope: Scope, agent: AgentScript, journal: Journal) -> Script[None]:
    """Restore or prepare the environment and set up the agent, before the attempt's first own step.

    A failed setup of the agent after a restore counts as a failure of the checkpoint if this trial's agent may have changed the
    restored files. If only other trials changed them, it has the same failure class as a failed setup before step 1, because a
    custom agent class could fail on purpose.
    """
    if scope.kept and not (yield from restore_checkpoint(scope, journal)):
        return
    yield from _prepare(scope, journal)
    if not scope.has_own_files:
        journal.lost = yield from require_users(scope, named_users(scope.plan))
    if journal.lost is None:
        yield from agent.setup(scope, journal)


@dataclass
class _Steps:
    """Runs steps in order, and keeps the facts about the last step that the next one needs."""

    scope: Scope
    agent: AgentScript
    journal: Journal
    verified: bool = False
    """Whether the last step's verification left files in the environment."""
    counted: Usage | None = None
    """The usage that the agent reported after the last step."""
    attempt: int = 0
    """Number of the attempt that ran the last step."""

    def run(self, steps: Sequence[StepPlan]) -> Script[None]:
        """Run the steps until one of them ends the trial or the attempt fails."""
        plan = self.scope.plan
        for step in steps:
            kept = self.scope.kept[step.index] if step.index < len(self.scope.kept) else None
            if kept is not None and kept.reported is not None:
                self._add_reported(kept.reported, kept.checkpoint)
                continue
            run = StepRun(name=step.name)
            self.journal.steps.append(run)
            here = replace(self.scope, step=step, attempt=kept.attempt if kept else self.scope.attempt)
            yield from _step(here, step, run, self.agent, verified=self.verified, first=here.attempt != self.attempt)
            self.attempt = here.attempt
            self.journal.lost = run.lost
            if run.lost is not None:
                return
            self.journal.completed_at = run.completed_at
            if plan.hosted is not None and plan.hosted.resume:
                run.usage, self.counted = usage_of_step(run.usage, self.counted), run.usage or self.counted
            self.verified = VERIFIER in run.timings and not step.verified_apart
            last = not goes_on(plan, step, run) or step is plan.steps[-1]
            if kept is not None:
                run.checkpoint = kept.checkpoint
            elif (spec := plan.checkpoints) is not None and (not last or spec.keep == "WithResults"):
                run.checkpoint = yield from store_checkpoint(here, step, spec, final=last)
            if last:
                return

    def _add_reported(self, reported: StepStatus, checkpoint: CheckpointStatus) -> None:
        """Add a step that another trial ran to the journal. It is read from that trial's status, as this trial has no records of
        it."""
        run = replace(step_run(reported), checkpoint=checkpoint)
        self.journal.steps.append(run)
        self.journal.completed_at = run.completed_at
        seconds = reported.phase_seconds  # None in a checkpoint of an earlier release, where the step may have been verified
        self.verified = (seconds is None or seconds.verifier is not None) and reported.verifier_image_id is None


def goes_on(plan: TrialPlan, step: StepPlan, run: StepRun) -> bool:
    """Return whether the next step runs after this one. Also set the result of the gate in ``run``."""
    if run.exception is not None and run.rewards is None:
        return False
    if step.verifier is not None:
        run.gate_failure = gate_failure(step.min_reward, run.rewards)
        run.gate_passed = None if step.min_reward is None else run.gate_failure is None
    return run.gate_failure is None and not (run.exception is not None and plan.abort_on_agent_error)


def _prepare(scope: Scope, journal: Journal) -> Script[None]:
    record = yield Reset(
        scope.id("prepare"), tuple(ResetDirectory(path, keep=True) for path in (LOGS_AGENT, LOGS_VERIFIER, LOGS_ARTIFACTS))
    )
    journal.started_at = record.started_at
    require(record, "creating /logs")
    yield from enter_environment(scope)
    if scope.plan.environment_files and not scope.kept:
        record = yield Upload(scope.id("environment"), scope.workdir, Content("environment"))
        require(record, "uploading environment/")
    if unhealthy := (yield from start_main(scope, scope.plan.services, scope.plan.environment_env)):
        raise TrialError(StepException("HealthcheckError", unhealthy, HEALTHCHECK))
    yield from resume_steps(scope, scope.plan.steps[: len(scope.kept)], RESUME_SECONDS)
    if scope.plan.healthcheck is not None:
        record = yield scope.healthcheck(scope.plan.healthcheck, scope.plan.environment_env, user="")
        if failure := healthcheck_failure(record, scope.plan.healthcheck.command):
            raise TrialError(StepException("HealthcheckError", f"environment.healthcheck: {failure}", HEALTHCHECK))


def _step(scope: Scope, step: StepPlan, run: StepRun, agent: AgentScript, *, verified: bool, first: bool) -> Script[None]:
    """Run a step: its setup, its agent, its verifier and the collection of its outputs.

    ``verified`` is whether the previous step was verified in this environment, and ``first`` whether this is the attempt's first
    step.
    """
    record = yield Reset(scope.id("begin"), _step_directories(scope.plan, step, verified=verified))
    run.started_at = record.started_at
    try:
        require(record, "emptying /logs/agent", SETUP)
        yield from _stage(scope, step, run)
    except DiskFilled as error:
        run.fail(error.exception)
    if run.exception is None:
        run.phase = AGENT
        if first:
            yield from record_baseline(scope, step)
        yield from enter_phase(scope, run, AGENT, step.network)
        run.fail((yield from _run_agent(scope, step, run, agent)))
        if run.lost is not None:
            return
        yield from _collect_hooks(scope, step, run)
        yield from _verify_and_collect(scope, step, run)
    yield from leave_step(scope, run)
    record = yield Note(scope.id("end"))
    run.completed_at = record.started_at


def _verify_and_collect(scope: Scope, step: StepPlan, run: StepRun) -> Script[None]:
    """Verify the step and collect its outputs.

    A separate verifier runs after the collection, because it gets the collected files. A second verification, in a pod of its own
    (verifier.second_environment), also runs after the collection.
    """
    verifier = None if skips_verifier(scope.plan, run) else step.verifier
    apart, second = (verifier.environment, verifier.second_environment) if verifier else (None, None)
    kept, judged = second is not None and (yield from store_files_for_comparison(scope, step, run)), False
    if verifier is not None and apart is None:
        run.phase = VERIFIER
        yield from enter_phase(scope, run, VERIFIER, verifier.network)
        judged = yield from verify(scope, step, verifier, run)
    run.phase = ARTIFACTS
    yield from _collect(scope, step, run, "agent" if apart else "all")
    if verifier is not None and second is not None and kept:
        yield from verify_again(scope, step, verifier, second, run, judged=judged)
    if verifier is not None and apart is not None:
        run.phase = VERIFIER
        if apart.restored is not None:
            yield from inspect_environment(scope, verifier, run)
        if apart.restored is None or (yield from store_files_for_verifier(scope, step, run)):
            yield from verify_apart(scope, step, verifier, apart, run)


def _step_directories(plan: TrialPlan, step: StepPlan, *, verified: bool) -> tuple[ResetDirectory, ...]:
    """Return the directories to empty before a step, as in Harbor 0.26.

    The image's /tests is kept until the first verification. The agent's logs are kept if the agent resumes its trajectory, because
    it reads the trajectory from these logs.
    """
    resumed = plan.hosted is not None and plan.hosted.resumes(step.index)
    return (
        ResetDirectory(LOGS_AGENT, keep=resumed),
        *((ResetDirectory(LOGS_VERIFIER), ResetDirectory(TESTS)) if verified else ()),
    )


def _stage(scope: Scope, step: StepPlan, run: StepRun) -> Script[None]:
    """Upload the step's workdir, then run its setup.sh and its healthcheck."""
    if step.workdir:
        record = yield Upload(scope.id("workdir"), scope.workdir, Content("workdir", step.directory))
        require(record, "uploading workdir/", SETUP)
    if step.setup:
        record = yield _setup(scope, step)
        run.timed(SETUP, record)
        result = PhaseResult.from_record(record)
        run.printed[SETUP] = result.tail
        run.fail(_setup_exception(result))
    if step.healthcheck is not None and run.exception is None:
        run.phase = HEALTHCHECK
        record = yield scope.healthcheck(step.healthcheck, scope.plan.environment_env, user=step.agent_user)
        run.timed(HEALTHCHECK, record)
        run.printed[HEALTHCHECK] = HealthcheckResult.from_record(record).tail
        if failure := healthcheck_failure(record, step.healthcheck.command):
            run.fail(StepException("HealthcheckError", failure, HEALTHCHECK))


def _setup(scope: Scope, step: StepPlan) -> Start:
    script = f"{scope.workdir.rstrip('/')}/setup.sh"
    return Start(scope.id("setup"), ("bash", script), user=step.agent_user, env=scope.plan.environment_env)


def _setup_exception(result: PhaseResult) -> StepException | None:
    if result.exit_code == 0:
        return None
    return StepException("RuntimeError", f"setup.sh {how_it_ended(result)}", SETUP)


def _run_agent(scope: Scope, step: StepPlan, run: StepRun, agent: AgentScript) -> Script[StepException | None]:
    if step.instruction is None:  # possible only if verification is disabled, because the task is rejected in all other cases
        return StepException("FileNotFoundError", "the step has no instruction.md", AGENT)
    if step.agent_timeout is not None and step.agent_timeout <= 0:
        run.timed(AGENT, (yield Note(scope.id("agent"))))
        return StepException("AgentTimeoutError", f"the agent was not started: its timeout is {step.agent_timeout:g} s", AGENT)
    return (yield from agent.run(scope, step, run))


def _collect_hooks(scope: Scope, step: StepPlan, run: StepRun) -> Script[None]:
    """Run the step's collect hooks, first those in main, then those in other services."""
    if step.hooks:
        yield from enter_phase(scope, run, "hooks", scope.plan.network)
    for number, hook in enumerate(step.hooks):
        if hook.service != MAIN:
            continue
        run.phase = ARTIFACTS
        yield Start(
            scope.id(f"collect-hook-{number}"),
            ("bash", "-c", hook.command),
            user=hook.user,
            env=scope.plan.environment_env,
            timeout=hook.timeout,
        )
    if scope.plan.services is not None:
        yield from service_hooks(scope, scope.plan.services, step, run)


def skips_verifier(plan: TrialPlan, run: StepRun) -> bool:
    """Return whether the step is not verified because of the type of its agent's exception, as in Harbor 0.26.

    For example, a program without a valid key did no work. The step then has no result, which counts 0, because the agent, or what
    its program prints, may have chosen the type.
    """
    return run.exception is not None and not policy_of(run.exception.type, plan.error_policy).grade


def _collect(scope: Scope, step: StepPlan, run: StepRun, part: Part) -> Script[None]:
    """Collect the step's log directories for ``part``, then its artifact entries in order."""
    logs = tuple(Source(path) for path in LOGS[part])
    entries = tuple(artifact_source(scope, entry) for entry in step.artifacts)
    record = yield Collect(scope.id("collect"), step.index, logs + entries, part)
    result = Fields(record.result, "collect")
    run.timed(ARTIFACTS, replace(record, started_at=record.started_at - (result.optional_number("seconds") or 0.0)))
    run.collected = Collected(
        types=result.texts("types", 10_000)[len(logs) :],
        count=result.integer("count"),
        bytes=result.integer("bytes"),
        incomplete=result.texts("incomplete", 10_000),
    )


def add_trial_rewards(plan: TrialPlan, journal: Journal) -> None:
    """Set the trial's score rule in the journal, and its rewards, which are computed from the rewards of its steps."""
    journal.score_rule = rule_of(plan, journal.steps)
    try:
        journal.rewards = trial_rewards(plan.strategy, [run.rewards for run in journal.steps])
    except OverflowError as error:
        journal.exception = StepException("OverflowError", f"the trial's reward: {error}")


def copy_exception_to_trial(journal: Journal) -> None:
    """Copy the step's exception of a single-step trial to the trial, as Harbor 0.26 does."""
    for run in journal.steps:
        journal.exception = journal.exception or run.exception
