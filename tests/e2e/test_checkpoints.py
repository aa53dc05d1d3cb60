"""Checkpoints on the real cluster: the operator dies while the runner sends one."""

from __future__ import annotations

import pytest

from tests.e2e.given import WAITS, Given, Step, finished, in_agent, in_shard, reward_for_text, trial
from tests.support.simulation.operator import Operator, Shard

# A script that waits until some process is stopped (state T). It uses shell builtins only: child processes would be stopped, too.
UNTIL_STOPPED = r"""
while true; do
  for each in /proc/[0-9]*/stat; do
    read -r state < $each && [[ $state == *") T "* ]] && exit 0
  done
done 2> /dev/null
"""


@pytest.mark.long
async def test_an_operator_that_dies_while_a_checkpoint_is_sent_costs_no_step(given: Given, shard: Shard) -> None:
    large = f"{WAITS}echo ran >> /srv/runs\nhead -c 400M /dev/urandom > /srv/large\nsleep 1000 > /dev/null 2>&1 &\n"
    made = trial(
        Step("large", solve=large),
        Step("check", test=reward_for_text("/srv/runs", "ran")),
        checkpoints={"policy": "AfterStep"},
    )
    async with Operator(shard) as operator:
        name = (await given.applied(in_shard(shard.name, made)))["metadata"]["name"]
        await given.until(name, in_agent)
        # The environment's processes are stopped while the checkpoint is packed. The agent works only once the script looks for
        # that.
        await given.in_pod(name, "bash", "-c", f": > /tmp/go{UNTIL_STOPPED}")
        await operator.kill()
        await operator.start()
        status = (await given.until(name, finished))["status"]
        assert [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 2 and status.get("attempts", []) == [], status
        assert status["steps"][0]["checkpoint"].get("bytes", 0) > 400 * 2**20, status
