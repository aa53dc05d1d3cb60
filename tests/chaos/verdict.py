"""Find the problems after a chaos run, from the finished trials, the outside log and the deleted pods, without I/O."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tests.chaos.injector import DeletedPod
from tests.chaos.outside import OutsideLog
from tests.chaos.trials import NAMES, PHASES, retries_of, reward_of
from tests.e2e.given import Object, condition, holds

_UNSEEN = "status 255 (Unknown)"  # exit status of a container that exited while containerd was restarting
_REACHED = {"Setup": "setup", "Agent": "agent", "Verifier": "verifier"}


@dataclass(frozen=True)
class Evidence:
    """Data for a verdict. deleted: attempts whose pods were deleted; killed: names of pods that the kubelet reported as killed."""

    log: OutsideLog
    deleted: Set[DeletedPod]
    killed: Set[str] = frozenset()


def problems_of(found: Object, evidence: Evidence) -> list[str]:
    """Return all problems of a finished trial."""
    name = found["metadata"]["name"]
    problems = [*_ending(found), *_failed_attempts(found, evidence), *_side_effects(found, evidence.log)]
    return [f"{name}: {problem}" for problem in problems]


def _ending(found: Object) -> Iterator[str]:
    name, status = found["metadata"]["name"], found["status"]
    if holds(found, "Failed"):
        yield from _too_often(found)
        return
    wanted = {"reward": float(reward_of(name))}
    if status.get("rewards") != wanted:
        yield f"Complete with {status.get('rewards')}, not {wanted}"
    if [(step["name"], step.get("rewards")) for step in status["steps"]] != [(step, wanted) for step in NAMES]:
        yield f"Complete with steps {status['steps']}"


def _too_often(found: Object) -> Iterator[str]:
    """Yield problems of a Failed trial: it must have used all attempts, have the last attempt's reason, and have no reward."""
    status, failed = found["status"], condition(found, "Failed")
    attempts = status.get("attempts") or []
    if "rewards" in status:
        yield f"Failed, and has rewards {status.get('rewards')}"
    if len(attempts) != retries_of(found["metadata"]["name"]) + 1 or failed["reason"] != attempts[-1]["reason"]:
        yield f"Failed with {failed['reason']} ({failed['message']}) after {[each['reason'] for each in attempts]}"


def _failed_attempts(found: Object, evidence: Evidence) -> Iterator[str]:
    """Yield problems of failed attempts.

    An attempt may fail only if one of its pods was deleted, was killed by the kubelet, or exited while it installed the runner
    and containerd was restarting. The recorded reason must match.
    """
    for attempt in found["status"].get("attempts") or []:
        name, number = found["metadata"]["name"], attempt["number"]
        text = f"attempt {number} failed: {attempt['reason']} ({attempt['message']})"
        match attempt["reason"]:
            case "PodDeleted" if DeletedPod(name, number) not in evidence.deleted:
                yield f"{text}, but none of its pods was deleted"
            case "ContainerEnded" if not any(_is_of(pod, name, number) for pod in evidence.killed):
                yield f"{text}, but the kubelet ended none of its pods"
            case "PodDeleted" | "ContainerEnded":
                pass
            case "RunnerInstallFailed" if _UNSEEN in attempt["message"]:
                pass
            case _:
                yield f"{text}, without a cause"


def _side_effects(found: Object, log: OutsideLog) -> Iterator[str]:
    """Yield problems of the outside log. An attempt must log each phase of the steps that it ran, once and in order; a failed
    attempt, those before its failure. A kept step is restored from a checkpoint of an earlier attempt, which must have logged all
    phases of the step."""
    name, known = found["metadata"]["name"], set[str]()
    for attempt in _attempts(found["status"]):
        pods = _pods(name, attempt.number, log)
        known |= pods
        logged, own = log.of(pods), list(PHASES[3 * len(attempt.kept) :])
        if logged != own[: len(logged)]:
            yield f"attempt {attempt.number} logged {logged}"
        elif len(logged) < _least(attempt.steps) - 3 * len(attempt.kept) or (attempt.completed and len(logged) < len(own)):
            yield f"attempt {attempt.number} logged only {logged}, but its status has {attempt.steps}"
        for index, runner in enumerate(attempt.kept):
            if not set(PHASES[3 * index : 3 * index + 3]) <= set(log.of(_pods(name, runner, log))):
                yield f"attempt {attempt.number} kept step {NAMES[index]}, which attempt {runner} did not finish"
    if strangers := {line.pod for line in log.lines if _trial(line.pod) == name} - known:
        yield f"pods of no attempt logged phases: {strangers}"


@dataclass(frozen=True)
class _Attempt:
    """An attempt of a trial's status. kept: for each step that was restored from a checkpoint, the number of the attempt that ran
    it."""

    number: int
    steps: list[Any]
    kept: list[int]
    completed: bool = False


def _attempts(status: Object) -> Iterator[_Attempt]:
    former = status.get("attempts") or []
    yield from (_Attempt(each["number"], each.get("steps") or [], _kept(each)) for each in former)
    if status["attempt"] not in [each["number"] for each in former]:
        yield _Attempt(status["attempt"], status["steps"], _kept(status), completed=True)


def _kept(attempt: Object) -> list[int]:
    return (attempt.get("resumed") or {}).get("attempts") or []


def _least(steps: list[Any]) -> int:
    """Return the minimum number of phases that an attempt started or restored: all phases before the one that its status shows."""
    ended = sum("completionTime" in step for step in steps)
    if ended == len(steps):
        return ended * 3
    shown = _REACHED.get(steps[-1].get("phase") or "")
    return ended * 3 + [phase for _, phase in PHASES[:3]].index(shown) if shown else ended * 3


def _pods(trial: str, attempt: int, log: OutsideLog) -> set[str]:
    """Return the names of an attempt's pods, including verifier pods, that logged anything."""
    return {line.pod for line in log.lines if _is_of(line.pod, trial, attempt)}


def _is_of(pod: str, trial: str, attempt: int) -> bool:
    """Return whether `pod` is the name of a pod of this attempt."""
    return pod == f"{trial}-{attempt}" or pod.startswith(f"{trial}-{attempt}-v")


def _trial(pod: str) -> str:
    return "-".join(pod.split("-")[:2])
