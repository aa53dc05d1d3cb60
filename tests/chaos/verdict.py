"""What is wrong after a storm: pure, from the trials as they ended, the log outside, and which pods were taken."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tests.chaos.outside import OutsideLog
from tests.chaos.storm import Taken
from tests.chaos.trials import NAMES, PHASES, retries_of, reward_of
from tests.e2e.given import Object, condition, holds

Told = list[tuple[str, str]]
_UNSEEN = "status 255 (Unknown)"  # of a container whose end nobody saw, as containerd, which each storm restarts, was away
_REACHED = {"Setup": "setup", "Agent": "agent", "Verifier": "verifier"}


@dataclass(frozen=True)
class Evidence:
    """What a verdict rests on. taken: the attempts whose pods were deleted; killed: names of pods that the kubelet said it ends."""

    log: OutsideLog
    taken: Set[Taken]
    killed: Set[str] = frozenset()


def wrongs(found: Object, evidence: Evidence) -> list[str]:
    """Everything that is wrong with a finished trial; nothing if all is right."""
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
    """Only a trial that lost all its attempts may be Failed, for the reason of the last, and without any reward."""
    status, failed = found["status"], condition(found, "Failed")
    lost = status.get("attempts") or []
    if "rewards" in status or "reward" in status:
        yield f"Failed, and has rewards {status.get('rewards')}"
    if len(lost) != retries_of(found["metadata"]["name"]) + 1 or failed["reason"] != lost[-1]["reason"]:
        yield f"Failed with {failed['reason']} ({failed['message']}) after {[each['reason'] for each in lost]}"


def _losses(found: Object, evidence: Evidence) -> Iterator[str]:
    """An attempt is lost only when one of its pods was deleted, ended by the kubelet, or was not seen to end while the runner was
    brought into it; and that is what is said of it."""
    for lost in found["status"].get("attempts") or []:
        name, number = found["metadata"]["name"], lost["number"]
        said = f"attempt {number} was lost: {lost['reason']} ({lost['message']})"
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
    """Each attempt told the log its phases in their order, each once: all of them, or up to where it was lost."""
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
    """Number and steps of each attempt, and whether it was carried through."""
    lost = status.get("attempts") or []
    yield from ((each["number"], each.get("steps") or [], False) for each in lost)
    if status["attempt"] not in [each["number"] for each in lost]:
        yield status["attempt"], status["steps"], True


def _least(steps: list[Any]) -> int:
    """How many phases have begun for certain, by the status of an attempt: those before the one that is shown."""
    ended = sum("completionTime" in step for step in steps)
    if ended == len(steps):
        return ended * 3
    shown = _REACHED.get(steps[-1].get("phase") or "")
    return ended * 3 + [phase for _, phase in PHASES[:3]].index(shown) if shown else ended * 3


def _pods(trial: str, attempt: int, log: OutsideLog) -> set[str]:
    """Names of an attempt's pods, the agent's and those of verifiers, that told anything."""
    return {line.pod for line in log.lines if _is_of(line.pod, trial, attempt)}


def _is_of(pod: str, trial: str, attempt: int) -> bool:
    """Whether that is a pod of an attempt, by its name."""
    return pod == f"{trial}-{attempt}" or pod.startswith(f"{trial}-{attempt}-v")


def _trial(pod: str) -> str:
    return "-".join(pod.split("-")[:2])
