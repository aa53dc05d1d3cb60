"""Follows a trial until it finishes: watches it and describes its changes in progress lines."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

from multistep.api.trial.status import PhaseSeconds, StepStatus, TrialStatus, holds, is_finished
from multistep.api.trial.trial import parse_status
from multistep.cli.exit_codes import Exit, exit_of_outcome
from multistep.cli.terminal import print_json, print_out, rewards_text, seconds_text
from multistep.cli.trial.trial_view import Progress, attempt_text, status_document, trial_view
from multistep.client.connection import Cluster
from multistep.client.outcome import brief, outcome, words
from multistep.client.watch import beside, versions
from multistep.errors import Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import TRIALS

STILL_SECONDS = 60.0


async def show_trial(cluster: Cluster, trial: Object, *, until_finished: bool, as_json: bool) -> Exit:
    """Print a trial's status. until_finished: first follow the trial until it finishes, and return the exit code of its outcome."""
    namespace, name = trial["metadata"]["namespace"], trial["metadata"]["name"]
    status = parse_status(trial)
    if until_finished:
        with Progress(name) as progress:
            status = await follow(cluster, namespace, name, progress)
    if as_json:
        print_json(status_document(namespace, name, status))
    else:
        print_out(trial_view(name, status, namespace=namespace))
    return exit_of_outcome(outcome(status)) if until_finished else Exit.OK


async def follow(cluster: Cluster, namespace: str, name: str, progress: Progress) -> TrialStatus:
    """Follow the trial, show its progress and return its final status. Every STILL_SECONDS, show that a phase continues.

    Raises Gone if the trial is deleted, Unavailable if the API server does not answer (the trial continues), and ClusterError.
    """
    status: TrialStatus | None = None
    waits: set[str] = set()  # lines shown until the pod runs: a failing image pull alternates between two reasons

    async def repeat() -> None:
        while True:
            await asyncio.sleep(STILL_SECONDS)
            if status is not None and (line := still(status, datetime.now(UTC))):
                progress.line(line)

    async with beside(repeat()), aclosing(versions(cluster, TRIALS, namespace, name, progress.note)) as found:
        async for each in found:
            newer = parse_status(each)
            lines = [line for line in describe(status, newer) if line not in waits]
            progress.show(newer, lines)
            waits = waits.union(lines) if newer.phase == "Pending" else set()
            status = newer
            if is_finished(newer):
                return newer
    raise Unavailable(f"the API server ended the watch of trial {name}")  # unexpected: a watch ends only with an exception


def describe(old: TrialStatus | None, new: TrialStatus) -> list[str]:
    """Return progress lines for the changes between two statuses. old: None if ``new`` is the first status."""
    before = old or TrialStatus()
    lines = _attempt_lines(before, new)
    restarted = len(new.attempts) > len(before.attempts)
    for index, step in enumerate(new.steps):
        if index < new.kept_steps and old is not None:
            continue  # the step's lines were printed when an earlier attempt ran it
        former = before.steps[index] if index < len(before.steps) and not restarted else None
        lines += _step_lines(index, former, step)
    return lines + _phase_lines(before, new)


def still(status: TrialStatus, now: datetime) -> str:
    """Return a progress line for a phase that continues, with its duration; "" if no step runs, or the trial is suspended."""
    step = status.steps[-1] if status.steps else StepStatus(name="")
    started = step.phase_start_time or step.start_time
    if status.phase != "Running" or started is None or step.completion_time is not None:
        return ""
    return f"step {len(status.steps)} {step.name}: {step.phase} for {seconds_text((now - started).total_seconds())}"


def _attempt_lines(before: TrialStatus, new: TrialStatus) -> list[str]:
    lost = new.attempts[len(before.attempts) :]
    return [attempt_text(each).removesuffix(f": {each.message}") for each in lost]


def _step_lines(index: int, former: StepStatus | None, step: StepStatus) -> list[str]:
    label = f"step {index + 1} {step.name}"
    if step.completion_time is None:
        return [f"{label}: {step.phase}"] if former is None or former.phase != step.phase else []
    if former is not None and former.completion_time is not None:
        return []
    seconds = step.phase_seconds or PhaseSeconds()
    spent = {"agent": seconds.agent, "verifier": seconds.verifier}
    times = [f"{phase} {seconds_text(seconds)}" for phase, seconds in spent.items() if seconds is not None]
    other = [f"run by trial {step.trial}"] if step.trial else []
    parts = [f"reward {rewards_text(step.rewards)}", *other, *times, *_brief_faults(step)]
    return [f"{label}: {step.phase}, {', '.join(parts)}"]


def _brief_faults(step: StepStatus) -> list[str]:
    """Return a step's faults without messages: the final output has the messages."""
    return [*([step.exception.type] if step.exception else []), *(["gate not met"] if step.gate is False else [])]


def _phase_lines(before: TrialStatus, new: TrialStatus) -> list[str]:
    """Return a line with the reason why a trial waits, or with its outcome; [] if unchanged, or while a step runs (_step_lines)."""
    was, now = outcome(before), outcome(new)
    running = holds(new, "Reconciling") and new.phase == "Running" and new.steps
    if (was.phase, was.why) == (now.phase, now.why) or running or (is_finished(new) and is_finished(before)):
        return []
    return [": ".join(filter(None, (now.phase, words(new), brief(new))))]
