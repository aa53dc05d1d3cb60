"""Checkpoints on the real cluster: a new attempt continues after the last finished step, from its files."""

from __future__ import annotations

from collections import Counter

import pytest

from multistep.kube.resources import PODS
from tests.e2e.given import Given, Step, condition, finished, in_agent, trial
from tests.e2e.test_agents import ledger
from tests.support import servers

NAMES = [f"s{number}" for number in range(1, 7)]
# Tells the server outside of the cluster that a step began, changes files, and in the first pod's fifth step works for ever.
WORK = """#!/bin/bash
set -e
body='{{"model": "m", "messages": [{{"role": "user", "content": "{name}"}}]}}'
exec 3<>/dev/tcp/{host}/{port}
printf 'POST /v1/chat/completions HTTP/1.0\\r\\nContent-Length: %d\\r\\n\\r\\n%s' ${{#body}} "$body" >&3
cat <&3 > /dev/null
echo {name} >> /app/steps
mkdir -p /srv/{name} && echo new > "/srv/{name}/a file" && ln -sf "a file" /srv/{name}/link && chmod 4711 "/srv/{name}/a file"
rm -rf /srv/before && cp -r /srv/{name} /srv/before
rm -f /etc/issue
case {name}-$POD_NAME in s5-*-1) touch /app/unfinished; sleep 600 ;; esac
"""
TEST = """#!/bin/bash
cat /app/steps; ls -lR /srv
[ "$(echo $(cat /app/steps))" = "{steps}" ] && [ ! -e /app/unfinished ] && [ ! -e /etc/issue ] &&
  [ "$(cat /srv/before/link)" = new ] && [ "$(stat -c %a "/srv/{name}/a file")" = 4711 ] &&
  echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
"""


def step(number: int, model: servers.Server) -> Step:
    name, (host, port) = NAMES[number], model.host.split(":")
    work = WORK.format(name=name, host=host, port=port)
    return Step(name, solve=work, test=TEST.format(steps=" ".join(NAMES[: number + 1]), name=name))


async def test_a_lost_pod_costs_only_the_step_in_which_it_was_lost(given: Given, model: servers.Server) -> None:
    config = {"environment": {"workdir": "/app"}}
    made = trial(*(step(number, model) for number in range(6)), config=config, checkpoints={"policy": "AfterStep"})
    name = (await given.applied(made))["metadata"]["name"]
    await given.until(name, lambda each: in_agent(each) and each["status"]["currentStep"] == "s5")
    await given.in_pod(name, "sh", "-c", "until [ -e /app/unfinished ]; do sleep 0.05; done")
    [pod] = await given.pods(name)
    await given.client.delete(PODS, given.namespace, pod["metadata"]["name"], uid=pod["metadata"]["uid"])
    found = await given.until(name, finished)
    status = found["status"]
    assert condition(found, "Complete")["status"] == "True" and status["rewards"] == {"reward": 1.0}, status
    assert [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 6
    assert status.get("resumed", {}).get("attempts") == [1, 1, 1, 1], status
    assert [each["checkpoint"]["entries"] > 0 for each in status["steps"][:5]] == [True] * 5
    began = Counter(name for entry in await ledger(model) for name in NAMES if f'"{name}"' in entry["body"])
    assert began == {name: 2 if name == "s5" else 1 for name in NAMES}


@pytest.mark.parametrize("policy", ["AfterStep", "Never"])
async def test_a_checkpoint_changes_no_result(policy: str, given: Given, model: servers.Server) -> None:
    config = {"environment": {"workdir": "/app"}}
    found = await given.ended(trial(*(step(number, model) for number in range(3)), config=config, checkpoints={"policy": policy}))
    assert found["status"]["rewards"] == {"reward": 1.0}
    assert [("checkpoint" in each) for each in found["status"]["steps"]] == [policy == "AfterStep"] * 2 + [False]
