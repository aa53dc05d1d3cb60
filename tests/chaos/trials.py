"""The trials of a run. Each step counts its runs in the pod, and each phase sends a line to the log outside of the pods.

A trial `chaos-N` has the reward N if each step's count is 1 in the trial's last pod: the step ran once there, or once in an earlier
pod whose files were restored. If not, the reward is -1 or missing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.e2e.given import Object, Step, trial

NAMES = ("one", "two", "three")
PHASES = tuple((step, phase) for step in NAMES for phase in ("setup", "agent", "verifier"))  # in execution order
RETRIES = 4
FIRST_TARGET, FIRST_TARGET_RETRIES = "chaos-1", 1  # pods of this trial are deleted first, so that one trial fails
SEPARATE_VERIFIER_EVERY = 4  # each fourth trial has a separate verifier
NO_CHECKPOINTS_EVERY = 3  # each third trial has no checkpoints, so that each attempt starts at step 1
AGENT_SECONDS = (0.5, 6.0)


@dataclass(frozen=True)
class RunConfig:
    """The common configuration of a run's trials. log: address and port of the log outside of the pods."""

    trials: int
    log: tuple[str, int]
    seed: int

    @property
    def names(self) -> list[str]:
        return [f"chaos-{number}" for number in range(1, self.trials + 1)]


def reward_of(name: str) -> int:
    """Return the expected reward of a Complete trial. It is never 0, which could also be the result of a fault."""
    return int(name.rpartition("-")[2])


def retries_of(name: str) -> int:
    """Return how often a trial may be retried."""
    return FIRST_TARGET_RETRIES if name == FIRST_TARGET else RETRIES


def manifest(run_config: RunConfig, name: str) -> Object:
    """Return the manifest of one trial."""
    chance = random.Random(f"{run_config.seed}/{name}")
    config = {} if reward_of(name) % SEPARATE_VERIFIER_EVERY else {"verifier": {"environment_mode": "separate"}}
    steps = [_step(run_config, step, reward_of(name), chance.uniform(*AGENT_SECONDS)) for step in NAMES]
    checkpoints = {"policy": "AfterStep" if reward_of(name) % NO_CHECKPOINTS_EVERY else "Never"}
    return trial(*steps, name=name, config=config, infrastructureRetries=retries_of(name), checkpoints=checkpoints)


def _step(run_config: RunConfig, name: str, reward: int, seconds: float) -> Step:
    """Return a step that counts its runs in a file. The file is an artifact, so that a separate verifier receives it."""
    count = f"/tmp/{name}.count"
    solve = f"echo run >> {count}\nsleep {seconds:.1f}\n"
    test = f"[ $(wc -l < {count}) = 1 ] && reward={reward} || reward=-1\necho $reward > /logs/verifier/reward.txt\n"
    return Step(
        name,
        setup=_script(run_config, name, "setup", ""),
        solve=_script(run_config, name, "agent", solve),
        test=_script(run_config, name, "verifier", test),
        config={"artifacts": [count], "healthcheck": {"command": "true"}},
    )


def _script(run_config: RunConfig, step: str, phase: str, then: str) -> str:
    """Return a script that sends one line to the outside log, and runs `then` only if the log acknowledged the line."""
    address, port = run_config.log
    log = f'exec 3<>/dev/tcp/{address}/{port}\necho "$POD_NAME {step} {phase}" >&3\nread -r answer <&3\n[ "$answer" = ok ]\n'
    return f"#!/bin/bash\nset -e\n{log}set +e\n{then}"
