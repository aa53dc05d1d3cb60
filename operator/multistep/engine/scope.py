"""What all parts of the script share: where they are, the environment's own error, and how endings are put into words."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from ..api.records import DISK_FULL, Fault, Fields, HealthcheckResult, PhaseResult, Record
from ..api.task import HealthcheckConfig
from .operations import Healthcheck, Place
from .plan import StepPlan, TrialPlan
from .rewards import StepException

_MOST_SAID = 500  # characters of a phase's output in a message


@dataclass(frozen=True)
class Scope:
    """Where a script is: plan and step, whose pod, and how ids are made. workdir: the environment's, as the runner told it.

    isolated: no agent can be the verifier's user or root, so that verdicts can be kept from it.
    """

    plan: TrialPlan
    attempt: int
    workdir: str
    runtime_dir: str
    isolated: bool = False
    step: StepPlan | None = None
    where: Place = "agent"

    def id(self, operation: str) -> str:
        """The id of an operation here."""
        place = "verifier/" if self.where == "verifier" else ""
        return f"{self.attempt}/{self.step.name if self.step else ''}/{place}{operation}"

    def healthcheck(self, config: HealthcheckConfig, env: Mapping[str, str], *, user: str) -> Healthcheck:
        """The healthcheck of the environment or the step."""
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
    """The environment does not let the trial go on. It has no reward; what earlier steps had stays on record."""

    def __init__(self, exception: StepException) -> None:
        super().__init__(exception.message)
        self.exception = exception


class DiskFilled(Exception):
    """What a step needs found no space. What ran in the pod filled it: the step's exception, not the environment's fault."""

    def __init__(self, exception: StepException) -> None:
        super().__init__(exception.message)
        self.exception = exception


def require(record: Record, what: str, phase: str = "") -> None:
    """Without this the trial itself cannot go on (Harbor 0.25: a trial error). phase: of the step that needs it, if one does."""
    fault = failed(record)
    if fault is not None and fault.code == DISK_FULL and phase:
        raise DiskFilled(StepException("OutOfDiskError", f"{what}: {fault.message}", phase))
    if fault is not None:
        raise TrialError(StepException("RuntimeError", f"{what}: {fault.message}"))


def fault_type(fault: Fault, usual: str) -> str:
    """The exception's class for something that the environment did not take."""
    return "OutOfDiskError" if fault.code == DISK_FULL else usual


def failed(record: Record) -> Fault | None:
    """The fault of a reset or an upload, if any."""
    return Fields(record.result, f"result of {record.id}").optional_fault("error")


def healthcheck_failure(record: Record) -> str | None:
    """Why a healthcheck failed, or None if it did not."""
    result = HealthcheckResult.from_record(record)
    if result.healthy:
        return None
    last = _ending(result.exit_code, None, result.timed_out, result.error, result.tail)
    return f"failed after {result.attempts} attempts; the last one {last}"


def ending(result: PhaseResult, *, output: bool = True) -> str:
    """How a phase ended, as the rest of a sentence. output: with what it printed last; not of an agent, as it may print keys."""
    text = _ending(result.exit_code, result.signal, result.timed_out, result.error, result.tail if output else "")
    limit = f"; its limit is {result.memory_limit / 2**20:g}Mi" if result.memory_limit else ""
    return f"{text} (the container ran out of memory meanwhile{limit})" if result.oom_kills else text


def killed_for_memory(result: PhaseResult) -> bool:
    """Whether the kernel ended the phase's own process because the container was out of memory."""
    return bool(result.oom_kills) and result.signal == signal.SIGKILL


def at_limit(seconds: float | None) -> str:
    """When a phase was stopped; a runner may tell so of one that had no limit."""
    return "at its limit" if seconds is None else f"after its limit of {seconds:g} s"


def _said(tail: str) -> str:
    """The last lines of the output, each whole unless it is too long by itself; several start on a line of their own."""
    text = tail[-_MOST_SAID:]
    if len(tail) > _MOST_SAID and tail[-_MOST_SAID - 1] != "\n":
        text = text.partition("\n")[2] or text
    return f":{chr(10) if chr(10) in text else ' '}{text}" if text else ""


def _ending(exit_code: int | None, signal: int | None, timed_out: bool, error: Fault | None, tail: str) -> str:
    said = _said(tail.strip())
    if error is not None:
        return f"could not be started: {error.message}"
    if timed_out:
        return f"was stopped at its time limit{said}"
    if signal is not None:
        return f"was ended by signal {signal}{said}"
    return f"exited with status {exit_code}{said}"
