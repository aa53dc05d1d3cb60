"""The trials of a course: each step counts its own runs in the pod and tells them to a log outside of it.

A trial's reward is its number if each step ran once in this pod; anything else makes it -1 or none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.e2e.given import Object, Step, trial

NAMES = ("one", "two", "three")
PHASES = tuple((step, phase) for step in NAMES for phase in ("setup", "agent", "verifier"))  # in the order in which they run
RETRIES = 4
UNLUCKY, UNLUCKY_RETRIES = "chaos-1", 1  # whose pods are deleted before those of others, so that one has to be Failed
APART_EVERY = 4  # each fourth trial is verified in pods of its own
AGENT_SECONDS = (0.5, 6.0)


@dataclass(frozen=True)
class Course:
    """What all trials of one course have in common. log: address and port, in the cluster, of the log outside."""

    trials: int
    log: tuple[str, int]
    seed: int

    @property
    def names(self) -> list[str]:
        return [f"chaos-{number}" for number in range(1, self.trials + 1)]


def reward_of(name: str) -> int:
    """What a trial has to give, if it is Complete: never 0, which is what a fault may look like elsewhere."""
    return int(name.rpartition("-")[2])


def retries_of(name: str) -> int:
    """How often a trial begins anew."""
    return UNLUCKY_RETRIES if name == UNLUCKY else RETRIES


def manifest(course: Course, name: str) -> Object:
    """One trial of the course."""
    chance = random.Random(f"{course.seed}/{name}")
    config = {} if reward_of(name) % APART_EVERY else {"verifier": {"environment_mode": "separate"}}
    steps = [_step(course, step, reward_of(name), chance.uniform(*AGENT_SECONDS)) for step in NAMES]
    return trial(*steps, name=name, config=config, infrastructureRetries=retries_of(name))


def _step(course: Course, name: str, reward: int, seconds: float) -> Step:
    """The count is an artifact, too, so that a verifier in another pod has it."""
    count = f"/tmp/{name}.count"
    solve = f"echo run >> {count}\nsleep {seconds:.1f}\n"
    test = f"[ $(wc -l < {count}) = 1 ] && reward={reward} || reward=-1\necho $reward > /logs/verifier/reward.txt\n"
    return Step(
        name,
        setup=_script(course, name, "setup", ""),
        solve=_script(course, name, "agent", solve),
        test=_script(course, name, "verifier", test),
        config={"artifacts": [count], "healthcheck": {"command": "true"}},
    )


def _script(course: Course, step: str, phase: str, then: str) -> str:
    """One line to the log outside, once, and only if that was taken down, the phase's work."""
    address, port = course.log
    tell = f'exec 3<>/dev/tcp/{address}/{port}\necho "$HOSTNAME {step} {phase}" >&3\nread -r noted <&3\n[ "$noted" = noted ]\n'
    return f"#!/bin/bash\nset -e\n{tell}set +e\n{then}"
