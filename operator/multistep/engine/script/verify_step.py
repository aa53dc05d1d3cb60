"""The operations that verify a step in the agent's environment or in a separate one, as in Harbor 0.26."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

from multistep.api.trial.content_references import Content
from multistep.api.trial.failure_table import VERIFIER_ENVIRONMENT_FAILED
from multistep.api.trial.runner_records import Fault, Fields, PhaseResult, Record
from multistep.api.trial.values import VERIFIER
from multistep.engine.journal.journal import AttemptLost, StepException, StepRun
from multistep.engine.journal.operations import (
    LOGS,
    LOGS_AGENT,
    LOGS_VERIFIER,
    TESTS,
    AwaitVerifierPod,
    CloseModelAccess,
    Collect,
    Note,
    Operation,
    Part,
    Release,
    Reset,
    ResetDirectory,
    Restore,
    Script,
    Source,
    Start,
    Transfer,
    Upload,
)
from multistep.engine.plan.judge_plan import access_name
from multistep.engine.plan.plan import StepPlan, VerifierPlan
from multistep.engine.plan.resolve_templates import Unresolved
from multistep.engine.plan.select_artifacts import LOGS_ARTIFACTS
from multistep.engine.plan.verifier_environment import VerifierEnvironment
from multistep.engine.score.rewards import REWARD_JSON, REWARD_TXT, RewardError, parse_reward_files
from multistep.engine.score.usage_totals import total_usage
from multistep.engine.script.checkpoint_operations import resume_steps
from multistep.engine.script.inspect_environment import inspect_environment
from multistep.engine.script.judge_requests import Doubt, JudgeReport, parse_judge_report
from multistep.engine.script.named_users import require_users, verifiers_user
from multistep.engine.script.network_switch import enter_verification, enter_verifiers_pod, leave_verifiers_pod
from multistep.engine.script.operation_scope import (
    DiskFilled,
    Scope,
    TrialError,
    at_timeout,
    fault_of,
    fault_type,
    healthcheck_failure,
    how_it_ended,
    killed_for_memory,
    require,
)
from multistep.engine.script.service_operations import start_main


def verify(scope: Scope, step: StepPlan, verifier: VerifierPlan, run: StepRun) -> Script[bool]:
    """Verify the step in the agent's environment. Return whether the tests ran and their verdict counts."""
    yield from inspect_environment(scope, verifier, run)
    try:
        yield from _clean_for_verification(scope, verifier, run)
    except DiskFilled as error:
        run.fail(error.exception)
        return False
    failure = yield from _upload_tests(scope, step, verifier, run)
    return (yield from _judge(scope, verifier, scope.plan.environment_env, failure, run))


def _judge(
    scope: Scope, verifier: VerifierPlan, env: Mapping[str, str], failure: StepException | None, run: StepRun
) -> Script[bool]:
    """Run the tests and read the rewards, unless the preparation failed. Return whether the tests ran and their verdict counts.

    ``failure`` is the exception of the preparation, None if it succeeded.
    """
    if failure is None and isinstance(verifier.env, Unresolved):
        failure = StepException("ValueError", f"verifier.env: {verifier.env}", VERIFIER)
    if failure is not None or isinstance(verifier.env, Unresolved):
        run.fail(failure)
        return False
    env = {**env, **verifier.env}
    record = yield _run_tests(scope, verifier, env)
    run.timed(VERIFIER, record)
    lost: tuple[str, ...] = ()
    doubt: Doubt | None = None
    while (report := (yield from _end_access(scope, run, record, lost))) is not None and report.doubt is not None:
        doubt = report.doubt.after(doubt)
        if not report.doubt.repeats(scope.run):
            suspect = bool(run.findings) and not scope.isolated
            _leave_verdict(verifier, doubt.end(suspect=suspect), PhaseResult.from_record(record), run)
            return False
        if report.doubt.by_others:
            lost += (_access_name(scope),)
            del run.timings[VERIFIER]  # else an outage would count as time that the agent used of the trial's deadline
        yield Note(scope.id("judge-pause"), {}, report.next_run(scope.run), report.doubt.message, where=scope.where)
        scope = replace(scope, run=scope.run + 1)
        if (failure := (yield from _prepare_again(scope, verifier, run))) is not None:
            run.fail(failure)
            return False
        record = yield _run_tests(scope, verifier, env)
        run.timed(VERIFIER, record)
    _read_rewards(verifier, PhaseResult.from_record(record), run)
    return True


def _prepare_again(scope: Scope, verifier: VerifierPlan, run: StepRun) -> Script[StepException | None]:
    """Empty the directory of verdicts, and that of tests if the operator uploads all of them, and upload the tests. Return the
    exception if that failed, else None."""
    assert scope.step is not None  # a verification is that of a step
    apart = scope.step.verifiers_environment if scope.where == "verifier" else None
    directories = _verdict_directories(scope, verifier) if apart is None else (ResetDirectory(LOGS_VERIFIER),)
    if fault := (yield from _timed(Reset(scope.id("verify"), directories, where=scope.where), run)):
        return _not_taken(fault, "emptying /logs/verifier")
    return (yield from _upload_tests(scope, scope.step, verifier, run))


def _leave_verdict(verifier: VerifierPlan, end: AttemptLost | StepException, result: PhaseResult, run: StepRun) -> None:
    """Record what becomes of a step whose verdict does not count."""
    if isinstance(end, AttemptLost):
        run.lost = end
        return
    if result.timed_out or killed_for_memory(result):
        _read_rewards(verifier, result, run)  # which records this end of the phase
    run.fail(end)


def verify_apart(
    scope: Scope, step: StepPlan, verifier: VerifierPlan, environment: VerifierEnvironment, run: StepRun
) -> Script[None]:
    """Verify the step in a separate environment, and collect the verifier's logs.

    A failure to prepare this environment is an exception of the step.
    """
    yield from verify_there(scope, step, verifier, environment, run)
    there = replace(scope, where="verifier")
    record = yield Collect(there.id("collect"), step.index, _sources("verifier"), part="verifier", where="verifier")
    assert run.collected is not None  # _verify_and_collect collects before a separate verification
    missed = Fields(record.result, "collect").texts("incomplete", 10_000)
    run.collected = replace(run.collected, incomplete=(*run.collected.incomplete, *missed))
    yield Release(scope.id("release"), step.index)


def verify_there(
    scope: Scope, step: StepPlan, verifier: VerifierPlan, environment: VerifierEnvironment, run: StepRun
) -> Script[bool]:
    """Verify the step in the verifier's own pod. Return whether the tests ran and their verdict counts."""
    there = replace(scope, where="verifier")
    run.untouched = True
    record = yield AwaitVerifierPod(there.id("environment"), step.index)
    run.timed(VERIFIER, record)
    environment_facts = Fields(record.result, "environment")
    run.verifier_image_id = environment_facts.optional_text("imageID")
    there = replace(there, workdir=environment_facts.absolute_path("workdir"))
    yield from enter_verifiers_pod(there, environment, run)
    failure = yield from _furnish(there, step, verifier, environment, run)
    yield from enter_verification(there, verifier, environment, run)
    judged = yield from _judge(there, verifier, environment.env, failure, run)
    yield from leave_verifiers_pod(there, environment, run)
    return judged


def _sources(part: Part) -> tuple[Source, ...]:
    return tuple(Source(path) for path in LOGS[part])


def _furnish(
    there: Scope, step: StepPlan, verifier: VerifierPlan, environment: VerifierEnvironment, run: StepRun
) -> Script[StepException | None]:
    """Prepare the verifier's environment for its tests. Return an exception if that failed, else None."""
    directories = (
        ResetDirectory(LOGS_AGENT, keep=True),
        ResetDirectory(LOGS_VERIFIER),
        ResetDirectory(LOGS_ARTIFACTS, keep=True),
    )
    if fault := (yield from _timed(Reset(there.id("prepare"), directories, where="verifier"), run)):
        return _not_taken(fault, "creating /logs")
    if environment.own_image or there.plan.regrade:
        run.lost = yield from require_users(there, {verifier.user: verifiers_user(step.name)})
        if run.lost is not None:
            return StepException("RuntimeError", run.lost.message, VERIFIER)
    if environment.files:
        upload = Upload(there.id("files"), there.workdir, Content("environment"), where="verifier")
        if fault := (yield from _timed(upload, run)):
            return _not_taken(fault, "uploading environment/")
    if unwell := (yield from start_main(there, environment.services, environment.env)):
        return StepException("HealthcheckError", unwell, VERIFIER)
    if environment.healthcheck is not None:
        record = yield there.healthcheck(environment.healthcheck, environment.env, user="")
        run.timed(VERIFIER, record)
        if unhealthy := healthcheck_failure(record, environment.healthcheck.command):
            return StepException("HealthcheckError", f"verifier.environment.healthcheck: {unhealthy}", VERIFIER)
    run.untouched = False
    if environment.restored is None:
        failure = yield from _hand_over(there, step, run)
    else:
        failure = yield from _restore(there, step, verifier, environment.restored, run)
    return failure or (yield from _upload_tests(there, step, verifier, run))


def _restore(
    there: Scope, step: StepPlan, verifier: VerifierPlan, paths: tuple[str, ...], run: StepRun
) -> Script[StepException | None]:
    """Restore the agent's environment in the verifier's pod. Return an exception if that failed, else None.

    This runs resume.sh of all steps up to this step, and empties the directories of tests and verdicts.
    """
    record = yield Restore(there.id("restore"), step.index, paths, where="verifier")
    run.timed(VERIFIER, record)
    result = Fields(record.result, "restore")
    if (refused := result.optional_text("error")) is not None:
        if not result.boolean("byAgent"):
            run.lost = AttemptLost(VERIFIER_ENVIRONMENT_FAILED, refused)
        return StepException("RuntimeError", f"restoring the environment for the verifier: {refused}", VERIFIER)
    try:
        yield from resume_steps(there, there.plan.steps[: step.index + 1], verifier.timeout)
    except TrialError as error:
        return replace(error.exception, phase=VERIFIER)
    directories = (ResetDirectory(LOGS_VERIFIER), ResetDirectory(TESTS))
    if fault := (yield from _timed(Reset(there.id("verify"), directories, where="verifier"), run)):
        return _not_taken(fault, "emptying /logs/verifier and /tests")
    return None


def _not_taken(fault: Fault, what: str, usual: str = "RuntimeError") -> StepException:
    return StepException(fault_type(fault, usual), f"{what}: {fault.message}", VERIFIER)


def _hand_over(there: Scope, step: StepPlan, run: StepRun) -> Script[StepException | None]:
    """Upload the agent's collected files to the same paths in the verifier's environment. Return an exception if that failed, else
    None.

    Each collected directory is first emptied there.
    """
    assert run.collected is not None  # _verify_and_collect collects before a separate verification
    types = run.collected.types
    collected = [(number, PurePosixPath(there.workdir, step.artifacts[number].source), kind) for number, kind in enumerate(types)]
    directories = [ResetDirectory(str(path)) for _, path, kind in collected if kind == "directory" and path.name]
    if directories:
        reset = Reset(there.id("artifacts"), tuple(dict.fromkeys(directories)), where="verifier")
        if fault := (yield from _timed(reset, run)):
            return _not_taken(fault, "uploading artifacts")
    for number, path, kind in collected:
        if kind in ("directory", "file"):
            target = path if kind == "directory" else path.parent
            if fault := (yield from _timed(Transfer(there.id(f"artifact-{number}"), str(target), step.index, number), run)):
                return _not_taken(fault, f"uploading artifacts: {path}")
    return None


def _timed(operation: Operation, run: StepRun) -> Script[Fault | None]:
    """Run the operation and add its time to the phase "verifier". Return its error, None if it succeeded."""
    record = yield operation
    run.timed(VERIFIER, record)
    return fault_of(record)


def _clean_for_verification(scope: Scope, verifier: VerifierPlan, run: StepRun) -> Script[None]:
    """Empty the directories of tests and verdicts, so that files of the agent are not mistaken for tests or rewards.

    In a single-step trial the directories are not emptied. There, only the reward files are deleted when test.sh starts.
    """
    record = yield Reset(scope.id("verify"), _verdict_directories(scope, verifier))
    run.timed(VERIFIER, record)
    require(record, "emptying /logs/verifier and /tests", VERIFIER)


def _verdict_directories(scope: Scope, verifier: VerifierPlan) -> tuple[ResetDirectory, ...]:
    """Return the directories of tests and verdicts, with their permissions.

    As in Harbor, all users may write verdicts and, in a multi-step trial, tests. But if file permissions can protect verdicts from
    agents (Scope.isolated), agents may not write verdicts. In a multi-step trial they may then not read the tests either, because a
    later step may use the same tests.
    """
    verdicts, tests = ResetDirectory(LOGS_VERIFIER), ResetDirectory(TESTS)
    if scope.isolated:
        verdicts = ResetDirectory(LOGS_VERIFIER, mode=0o755, user=verifier.user)
        tests = ResetDirectory(TESTS, mode=0o700, user=verifier.user)
    if scope.plan.single:
        return (replace(verdicts, keep=True), ResetDirectory(TESTS, mode=0o755, user=verifier.user, keep=True))
    return (verdicts, tests)


def _upload_tests(scope: Scope, step: StepPlan, verifier: VerifierPlan, run: StepRun) -> Script[StepException | None]:
    """Upload the task's tests, then the step's tests, which overwrite files of the same name.

    Return an exception if an upload failed, else None.
    """
    for there, name, directory in (
        (verifier.task_tests, "tests", None),
        (verifier.step_tests, "step-tests", step.directory),
    ):
        if there:
            upload = Upload(scope.id(name), TESTS, Content("tests", directory), where=scope.where)
            if fault := (yield from _timed(upload, run)):
                return _not_taken(fault, "uploading tests/", "AddTestsDirError")
    return None


def _end_access(scope: Scope, run: StepRun, tests: Record, lost: tuple[str, ...]) -> Script[JudgeReport | None]:
    """Block the token of the judge, and record what its requests used. Return the gateway's report; None without a judge.

    tests: record of the verifier's phase; lost: as in CloseModelAccess.
    """
    name = _access_name(scope)
    if not name:
        return None
    record = yield CloseModelAccess(scope.id("judge-usage"), name, "judge", lost, where=scope.where)
    report = parse_judge_report(record.result, tests.ended_at or tests.started_at)
    run.judge_usage = total_usage([run.judge_usage, report.usage])
    return report


def _access_name(scope: Scope) -> str:
    """Return the name of the judge's access in this verification; "" without a judge."""
    if scope.plan.judge is None or scope.step is None:
        return ""
    return access_name(scope.step.name, apart=scope.where == "verifier", run=scope.run)


def _run_tests(scope: Scope, verifier: VerifierPlan, env: Mapping[str, str]) -> Start:
    return Start(
        scope.id("verifier"),
        (f"{TESTS}/test.sh",),
        user=verifier.user,
        env=env,
        timeout=verifier.timeout,
        make_executable=f"{TESTS}/test.sh",
        remove=(REWARD_TXT, REWARD_JSON),
        output=f"{LOGS_VERIFIER}/test-stdout.txt",
        captures=(REWARD_JSON, REWARD_TXT),
        kill_at_end=True,
        model_access=_access_name(scope),
        judge_variables=verifier.judge_variables,
        where=scope.where,
    )


def _read_rewards(verifier: VerifierPlan, result: PhaseResult, run: StepRun) -> None:
    """Set the step's rewards from the verifier's reward files, whatever the verifier's exit status is.

    Set an exception instead if the verifier was stopped at its timeout, killed by the OOM killer, or not started, because an agent
    may then have written the files.
    """
    if result.timed_out:
        return run.fail(StepException("VerifierTimeoutError", f"the verifier was stopped {at_timeout(verifier.timeout)}", VERIFIER))
    if killed_for_memory(result):
        return run.fail(StepException("OutOfMemoryError", f"test.sh {how_it_ended(result)}", VERIFIER))
    try:
        run.rewards = parse_reward_files(_captured(result, REWARD_JSON), _captured(result, REWARD_TXT))
    except RewardError as error:
        run.fail(StepException(error.type, f"{error}; test.sh {how_it_ended(result)}", VERIFIER))


def _captured(result: PhaseResult, path: str) -> bytes | None:
    capture = result.captures.get(path) if result.started else None
    if capture is None:
        return None
    if capture.changed:
        raise RewardError("VerifierOutputParseError", f"{path} changed while it was read, so it is not a reward")
    if capture.truncated:
        raise RewardError("VerifierOutputParseError", f"{path} has {capture.size} bytes, which is too large for a reward")
    return capture.data
