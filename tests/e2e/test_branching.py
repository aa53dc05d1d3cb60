"""Test that a trial starts from exactly the files that the oracle leaves, on the real cluster."""

from __future__ import annotations

import asyncio

import pytest

from tests.e2e.given import Given, Step, trial

CONFIG = {"environment": {"workdir": "/app"}}
# A test that writes two digests of the environment's files: one without and one with modification times. These times
# differ after each run of a solution. The digests exclude the runner's files, the directories of agents and verifiers, and mounts.
LIST = r"""#!/bin/bash
left_out=(-path /proc)
for each in /sys /dev /tmp /logs /run /tests /solution /multistep /etc/hosts /etc/hostname /etc/resolv.conf; do
  left_out+=(-o -path $each)
done
list() {
  find / -xdev \( "${left_out[@]}" \) -prune -o -type d -printf '%p %y %m %U %G\n' \
    -o -printf "%p %y %m %U %G %s %l %n $1\n" | LC_ALL=C sort
  find / -xdev \( "${left_out[@]}" \) -prune -o -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
}
digest() { echo $((16#$(list "$1" | sha256sum | cut -c 1-13))); }
echo "{\"reward\": 1, \"files\": $(digest), \"timed\": $(digest %T@)}" > /logs/verifier/reward.json
"""


@pytest.mark.long
async def test_the_reference_state_is_what_the_oracle_leaves(given: Given) -> None:
    made = trial(
        Step("one", solve="#!/bin/sh\nmkdir /srv/a && cp -r /usr/share/base-files /srv/a && rm /etc/issue\n", test=LIST),
        Step("two", solve="#!/bin/sh\nmv /srv/a /srv/b && ln -s b /srv/a && chmod 4711 /srv/b\n", test=LIST),
        Step("three", solve="#!/bin/sh\ntrue\n", test=LIST),
        config=CONFIG,
    )
    oracle = await given.ended({**made, "spec": {**made["spec"], "toStep": "two"}})
    nop = {**made["spec"], "agent": {"name": "nop"}, "fromStep": "three"}
    found = await asyncio.gather(
        *(given.ended({**made, "metadata": {"name": f"start-{number}"}, "spec": nop}) for number in range(2))
    )
    left = oracle["status"]["steps"][-1]["rewards"]["files"]
    for each in found:
        steps = each["status"]["steps"]
        assert [step["rewards"]["files"] for step in steps[1:]] == [left, left], each["status"]
        assert steps[2]["rewards"]["timed"] == steps[1]["rewards"]["timed"], "restored, and not played again"
        assert [step.get("trial") for step in steps] == [each["status"]["startedFrom"]["trial"]] * 2 + [None]
