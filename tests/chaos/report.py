"""Format the results of a chaos run: the faults, the trials, and all details of trials with problems."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.outside import OutsideLog
from tests.e2e.given import Given, Object

LOG_LINES = 40


@dataclass
class Outcome:
    """The results of a run. wrong: all problems; empty if the run passed."""

    seconds: float = 0.0
    faults: Mapping[str, int] = field(default_factory=dict)
    cuts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    execs: int = 0
    lines: int = 0
    ended: Sequence[Object] = ()
    wrong: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return a summary of the run."""
        phases = Counter(each["status"]["phase"] for each in self.ended)
        failed = Counter(each["reason"] for each in self._failed())
        summary = [
            f"{len(self.ended)} trials in {self.seconds:.0f} s: {_counted(phases)}",
            f"failed attempts: {sum(failed.values())} ({_counted(failed) or 'none'}); {self.resumed} continued after a checkpoint",
            f"faults: {sum(self.faults.values())} ({_counted(self.faults)})",
            f"cuts: {sum(self.cuts.values())}, with {self.execs} exec connections",
            *(f"  {what:<14} {_counted(moments)}" for what, moments in sorted(self._moments().items())),
            f"the log outside has {self.lines} lines",
        ]
        if self.wrong:
            return "\n".join([*summary, f"{len(self.wrong)} WRONG:", *(f"  {each}" for each in self.wrong)])
        return "\n".join(
            [*summary, "every reward is right, every phase started once, every failed attempt has its reason, no pod is left"]
        )

    @property
    def resumed(self) -> int:
        """Return how many attempts continued after a checkpoint."""
        return sum("resumed" in each for each in [*self._failed(), *(found["status"] for found in self.ended)])

    def _failed(self) -> list[Object]:
        return [each for found in self.ended for each in found["status"].get("attempts") or []]

    def _moments(self) -> dict[str, Counter[str]]:
        found: dict[str, Counter[str]] = {}
        for (what, moment), count in self.cuts.items():
            found.setdefault(what, Counter())[moment] += count
        return found


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {count}" for what, count in sorted(counts.items()))


async def describe(given: Given, found: Object, log: OutsideLog) -> str:
    """Return all details of one trial: its status, Events, pods, and lines in the log outside of the pods."""
    name, status = found["metadata"]["name"], found.get("status") or {}
    shown = {
        key: status.get(key) for key in ("phase", "conditions", "attempt", "podName", "attempts", "steps", "rewards", "exception")
    }
    events = [f"{each.get('eventTime')} {each['reason']}: {each.get('note')}" for each in await given.events(name)]
    lines = [f"{line.pod} {line.step} {line.phase}" for line in log.lines if line.pod.startswith(f"{name}-")]
    pods = [f"{pod['metadata']['name']}: {json.dumps(pod['status'])}" for pod in await given.pods(name)]
    parts = {"status": [json.dumps(shown, indent=1)], "events": events, "log outside": lines, "pods": pods}
    return "\n".join([f"== {name}", *(f"-- {what}\n" + "\n".join(text) for what, text in parts.items())])


def last_log_lines(log: Path, name: str) -> str:
    """Return the last lines of the log, and its last lines about one trial. log: file with the logs of all operator processes."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    about = [line for line in lines if f"/{name}:" in line or line.startswith("----")]
    return "\n".join([f"-- the operator of {name}", *about[-LOG_LINES:], f"-- its last lines ({log} has all)", *lines[-LOG_LINES:]])
