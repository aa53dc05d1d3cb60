"""Helpers of a trial's script: the scope of operations, errors of the environment, and messages about finished phases."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from multistep.api.common.plural import plural
from multistep.api.common.problems import shown
from multistep.api.task.task_toml import HealthcheckConfig
from multistep.api.trial.regrade import RegradeStatus
from multistep.api.trial.runner_records import DISK_FULL, Fault, Fields, HealthcheckResult, PhaseResult, Record
from multistep.api.trial.status import CheckpointStatus, StepStatus
from multistep.engine.journal.journal import StepException
from multistep.engine.journal.operations import Healthcheck, Place, operation_id
from multistep.engine.plan.plan import StepPlan, TrialPlan

_MAX_OUTPUT_CHARACTERS = 500  # maximum length of a phase's output in a message


@dataclass(frozen=True)
class KeptStep:
    """A finished step that the attempt does not run again."""

    attempt: int
    """Number of the attempt that ran the step."""
    checkpoint: CheckpointStatus
    reported: StepStatus | None = None
    """The step's status in the trial that ran it. None if this trial ran it, because the script then replays the step's records."""


@dataclass(frozen=True)
class Scope:
    """The plan, attempt, step and pod for which a script yields operations."""

    plan: TrialPlan
    attempt: int
    workdir: str
    """The environment's working directory, as the runner reported it."""
    runtime_dir: str
    """The runner's own directory in the container."""
    trial_uid: str = ""
    """UID of the trial. Agents get it instead of the trial's name, which could reveal facts about the trial."""
    isolated: bool = False
    """Whether no agent can be the verifier's user or root, so that file permissions can protect verdicts from agents."""
    step: StepPlan | None = None
    where: Place = "agent"
    run: int = 1
    """Number of the verification's run: later runs repeat it, because requests of the judge failed."""
    kept: tuple[KeptStep, ...] = ()
    """The steps that the attempt does not run again, in order."""
    source: RegradeStatus | None = None
    """The trial whose steps a regrade verifies again."""

    @property
    def has_own_files(self) -> bool:
        """Return whether the attempt restores files that an earlier attempt of this trial, and not only another trial, changed."""
        return bool(self.kept) and self.kept[-1].reported is None

    def id(self, operation: str) -> str:
        """Return the id of an operation in this scope."""
        name = operation if self.run == 1 else f"{operation}-{self.run}"
        return operation_id(self.attempt, self.step.name if self.step else "", self.where, name)

    def healthcheck(self, config: HealthcheckConfig, env: Mapping[str, str], *, user: str) -> Healthcheck:
        """Return the operation that runs a healthcheck of the environment or the step."""
        return Healthcheck(
            self.id("healthcheck"),
            ("bash", "-c", config.command),
            user=user,
            env=env,
            interval=config.interval_sec,
            timeout=config.timeout_sec,
            start_period=config.start_period_sec,
            start_interval=config.start_interval_sec,
            retries=config.retries,
            where=self.where,
        )


class TrialError(Exception):
    """The environment failed and the trial cannot continue. The trial has no reward, but keeps the results of earlier steps."""

    def __init__(self, exception: StepException) -> None:
        super().__init__(exception.message)
        self.exception = exception


class DiskFilled(Exception):
    """An operation of a step failed because the disk is full.

    This is an exception of the step and not of the trial, because the pod's own processes filled the disk.
    """

    def __init__(self, exception: StepException) -> None:
        super().__init__(exception.message)
        self.exception = exception


def require(record: Record, what: str, phase: str = "") -> None:
    """Raise TrialError if the operation failed, as Harbor 0.26 does. Raise DiskFilled if a full disk made it fail in a step's
    phase.

    ``what`` describes the operation, for the message. ``phase`` is the step's phase that needs the operation, "" if the trial needs
    it.
    """
    fault = fault_of(record)
    if fault is not None and fault.code == DISK_FULL and phase:
        raise DiskFilled(StepException("OutOfDiskError", f"{what}: {fault.message}", phase))
    if fault is not None:
        raise TrialError(StepException("RuntimeError", f"{what}: {fault.message}"))


def fault_type(fault: Fault, usual: str) -> str:
    """Return the exception's class name for an operation that failed, which is OutOfDiskError for a full disk, else ``usual``."""
    return "OutOfDiskError" if fault.code == DISK_FULL else usual


def fault_of(record: Record) -> Fault | None:
    """Return the error in the record of an operation, None if the operation succeeded."""
    return Fields(record.result, f"result of {record.id}").optional_fault("error")


def healthcheck_failure(record: Record, command: str) -> str | None:
    """Return which command of a healthcheck failed and how, None if the healthcheck succeeded."""
    result = HealthcheckResult.from_record(record)
    if result.healthy:
        return None
    last = _ending(result.exit_code, None, result.timed_out, result.error, result.tail)
    return f"{shown(command)} failed after {plural(result.attempts, 'attempt')}; the last one {last}"


def how_it_ended(result: PhaseResult, *, output: bool = True) -> str:
    """Return how a phase ended, e.g. "exited with status 1".

    ``output`` adds the end of the phase's output. It is False for agents, because they may print secrets.
    """
    text = _ending(result.exit_code, result.signal, result.timed_out, result.error, result.tail if output else "")
    limit = f"; its limit is {result.memory_limit / 2**20:g}Mi" if result.memory_limit else ""
    return f"{text} (the container ran out of memory meanwhile{limit})" if result.oom_kills else text


def killed_for_memory(result: PhaseResult) -> bool:
    """Return whether the kernel killed the phase's own process because the container ran out of memory."""
    return bool(result.oom_kills) and result.signal == signal.SIGKILL


def at_timeout(seconds: float | None) -> str:
    """Return when a phase was stopped, for a message, e.g. "after its timeout of 5 s".

    ``seconds`` is None if no timeout was set, but the runner reported one.
    """
    return "at its timeout" if seconds is None else f"after its timeout of {seconds:g} s"


def _last_output(tail: str) -> str:
    """Return a colon and the last complete lines of an output, "" if there is none.

    A line break follows the colon if there are several lines. A single long line is cut at its start.
    """
    text = tail[-_MAX_OUTPUT_CHARACTERS:]
    if len(tail) > _MAX_OUTPUT_CHARACTERS and tail[-_MAX_OUTPUT_CHARACTERS - 1] != "\n":
        text = text.partition("\n")[2] or text
    return f":{chr(10) if chr(10) in text else ' '}{text}" if text else ""


def _ending(exit_code: int | None, signal: int | None, timed_out: bool, error: Fault | None, tail: str) -> str:
    output = _last_output(tail.strip())
    if error is not None:
        return f"could not be started: {error.message}"
    if timed_out:
        return f"was stopped at its timeout{output}"
    if signal is not None:
        return f"was killed by signal {signal}{output}"
    return f"exited with status {exit_code}{output}"
