"""Find the problems after a chaos run, from the finished trials, the outside log and the deleted pods. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tests.chaos.outside import OutsideLog
from tests.chaos.storm import Taken
from tests.chaos.trials import NAMES, PHASES, retries_of, reward_of
from tests.e2e.given import Object, condition, holds

Told = list[tuple[str, str]]
_UNSEEN = "status 255 (Unknown)"  # exit status of a container that exited while containerd was restarting
_REACHED = {"Setup": "setup", "Agent": "agent", "Verifier": "verifier"}


@dataclass(frozen=True)
class Evidence:
    """Data for a verdict. taken: attempts whose pods were deleted; killed: names of pods that the kubelet reported as killed."""

    log: OutsideLog
    taken: Set[Taken]
    killed: Set[str] = frozenset()


def wrongs(found: Object, evidence: Evidence) -> list[str]:
    """Return all problems of a finished trial."""
    name = found["metadata"]["name"]
    problems = [*_ending(found), *_losses(found, evidence), *_side_effects(found, evidence.log)]
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
    """Yield problems of a Failed trial: all attempts must have failed, with the last one's reason, and no reward may exist."""
    status, failed = found["status"], condition(found, "Failed")
    lost = status.get("attempts") or []
    if "rewards" in status or "reward" in status:
        yield f"Failed, and has rewards {status.get('rewards')}"
    if len(lost) != retries_of(found["metadata"]["name"]) + 1 or failed["reason"] != lost[-1]["reason"]:
        yield f"Failed with {failed['reason']} ({failed['message']}) after {[each['reason'] for each in lost]}"


def _losses(found: Object, evidence: Evidence) -> Iterator[str]:
    """Yield problems of failed attempts.

    An attempt may fail only if one of its pods was deleted, was killed by the kubelet, or had an unobserved exit while the runner
    was installed. The recorded reason must match.
    """
    for lost in found["status"].get("attempts") or []:
        name, number = found["metadata"]["name"], lost["number"]
        said = f"attempt {number} failed: {lost['reason']} ({lost['message']})"
        match lost["reason"]:
            case "PodDeleted" if Taken(name, number) not in evidence.taken:
                yield f"{said}, but nobody deleted a pod of it"
            case "ContainerEnded" if not any(_is_of(pod, name, number) for pod in evidence.killed):
                yield f"{said}, but the kubelet ended none of its pods"
            case "PodDeleted" | "ContainerEnded":
                pass
            case "RunnerInstallFailed" if _UNSEEN in lost["message"]:
                pass
            case _:
                yield f"{said}, for which there is no cause"


def _side_effects(found: Object, log: OutsideLog) -> Iterator[str]:
    """Yield problems of the outside log: each attempt logs each phase once and in order, up to its failure if it failed."""
    known: set[str] = set()
    for number, steps, whole in _attempts(found["status"]):
        pods = _pods(found["metadata"]["name"], number, log)
        known |= pods
        told = log.of(pods)
        if told != list(PHASES[: len(told)]):
            yield f"attempt {number} told the log outside {told}"
        elif len(told) < _least(steps) or (whole and len(told) < len(PHASES)):
            yield f"attempt {number} told the log outside no more than {told}, but its status has {steps}"
    if strangers := {line.pod for line in log.lines if _trial(line.pod) == found["metadata"]["name"]} - known:
        yield f"pods of no attempt told the log outside something: {strangers}"


def _attempts(status: Object) -> Iterator[tuple[int, list[Any], bool]]:
    """Yield number and steps of each attempt, and whether it ran to its end."""
    lost = status.get("attempts") or []
    yield from ((each["number"], each.get("steps") or [], False) for each in lost)
    if status["attempt"] not in [each["number"] for each in lost]:
        yield status["attempt"], status["steps"], True


def _least(steps: list[Any]) -> int:
    """Return how many phases of an attempt started for certain: those before the phase in its status."""
    ended = sum("completionTime" in step for step in steps)
    if ended == len(steps):
        return ended * 3
    shown = _REACHED.get(steps[-1].get("phase") or "")
    return ended * 3 + [phase for _, phase in PHASES[:3]].index(shown) if shown else ended * 3


def _pods(trial: str, attempt: int, log: OutsideLog) -> set[str]:
    """Return the names of an attempt's pods, including verifier pods, that logged anything."""
    return {line.pod for line in log.lines if _is_of(line.pod, trial, attempt)}


def _is_of(pod: str, trial: str, attempt: int) -> bool:
    """Return whether the pod belongs to an attempt, by its name."""
    return pod == f"{trial}-{attempt}" or pod.startswith(f"{trial}-{attempt}-v")


def _trial(pod: str) -> str:
    return "-".join(pod.split("-")[:2])
