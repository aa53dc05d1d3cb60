"""``python -m tests.training``: run TRL's GRPOTrainer on the cluster of $KUBECONFIG with 256 rollouts in groups of 8, and check
them.

The first run installs TRL in the cache (6 GB, because PyTorch includes CUDA). A quarter of the tasks has an image that no node
can pull: their rollouts must be masked. At the end no pod may be left.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import NAMESPACES, PODS
from tests.support.waiting import eventually
from tests.training.environment import python_with

TRL = "trl==1.16.0"
ROLLOUTS, GROUP, LOST = 256, 8, "task-3"
NAMESPACE = "training"


def check(found: dict[str, Any]) -> None:
    """Check the rollouts of a training run."""
    rollouts, rewards = found["rollouts"], found["rewards"]
    assert len(rollouts) == ROLLOUTS and len({each["name"] for each in rollouts}) == ROLLOUTS, "each rollout is a trial of its own"
    for each in rollouts:
        masked = each["task"] == LOST
        assert (each["reward"] is None) == masked == (each["outcome"] == "Excluded"), each
        assert masked or (each["reward"] == 1) == (each["outcome"] == "Passed"), each
    assert all(count % GROUP == 0 for count in Counter(each["task"] for each in rollouts).values())
    assert rewards[-1] > rewards[0], "the policy learns from the rewards"


def train(python: Path) -> dict[str, Any]:
    """Run grpo.py; return the rollouts and rewards that it prints as JSON."""
    command = [str(python), str(Path(__file__).with_name("grpo.py")), NAMESPACE]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


async def run(python: Path) -> None:
    """Train, check, and wait until no pod is left."""
    async with await WatchingClient.connect() as client:
        await client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        started = time.monotonic()
        try:
            found = await asyncio.to_thread(train, python)
            seconds = time.monotonic() - started
            check(found)

            async def no_pods() -> bool:
                return not await client.list_all(PODS, NAMESPACE)

            await eventually(no_pods)
        finally:
            await client.delete(NAMESPACES, None, NAMESPACE)
    masked = sum(each["reward"] is None for each in found["rollouts"])
    means = ", ".join(f"{each:.2f}" for each in found["rewards"])
    print(f"{len(found['rollouts'])} rollouts in {seconds:.0f} s, {masked} masked; mean reward by step: {means}; no pod left")


if __name__ == "__main__":
    asyncio.run(run(python_with(TRL)))
