"""Test limited networks of trials on the real cluster, in a namespace where the chart's policy enforces Pod Security baseline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from multistep.errors import ClusterError
from multistep.kube.resources import PODS
from tests.e2e.given import IMAGE, STAYS_IN_FIRST_POD, Given, Object, Step, condition, finished, holds, in_agent, trial
from tests.e2e.operators import kubectl
from tests.e2e.test_agents import agent, step
from tests.e2e.test_cli import multistep
from tests.support import egress_paths, servers
from tests.support.machine import kill, processes

pytestmark = pytest.mark.xdist_group("egress")  # one worker runs these tests: the target servers have fixed addresses

CLOSED = {"network_mode": "no-network"}
OPEN = {"network_mode": "public"}
TRIES = f"#!/bin/bash\n{egress_paths.TRY} > /tmp/tried.json\n"
# A test that repeats the agent's connection attempts in the verifier's network, and stores the results of agent and verifier.
TRIES_AGAIN = f"""#!/bin/bash
cp /tmp/tried.json /logs/verifier/agent.json
EGRESS_TEST_PATIENCE=20s {egress_paths.TRY} > /logs/verifier/verifier.json
echo 1 > /logs/verifier/reward.txt
"""
ASKS = f"""
exec 3<>/dev/tcp/{egress_paths.GOOD_NAME}/80
printf 'GET / HTTP/1.0\\r\\nHost: {egress_paths.GOOD_NAME}\\r\\n\\r\\n' >&3
cat <&3 > /tmp/answer
"""
ANSWERED = f"""#!/bin/bash
grep -q '^{egress_paths.GOOD} host={egress_paths.GOOD_NAME}' /tmp/answer
echo $((! $?)) > /logs/verifier/reward.txt
"""


@pytest.fixture
async def limited(given: Given) -> Given:
    """Give the test's namespace the labels that docs/how-to/egress.md prescribes."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged", "multistep.dev/pod-security": "baseline"}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": given.namespace, "labels": labels}}
    await given.client.apply(manifest, field_manager="e2e")
    return given


@pytest.fixture
async def targets() -> AsyncIterator[None]:
    async with egress_paths.targets():
        yield


def tried(*steps: Step, environment: Object | None = None, **spec: Any) -> Object:
    """Return a trial. While its network is public, its pods reach the target servers in every way that `egress_paths` tries."""
    template = {"image": IMAGE, "podTemplate": {"spec": egress_paths.POD}}
    return trial(*steps, config={"environment": environment or {}}, environment=template, **spec)


def refused(step: Object) -> set[tuple[str, str, int | None]]:
    return {(each["protocol"], each["host"], each.get("port")) for each in step["egress"]["refused"]}


@pytest.mark.long
async def test_root_gets_out_by_no_way_while_the_same_ways_lead_out_for_the_setup_and_the_verifier(
    limited: Given, targets: None, tmp_path: Path
) -> None:
    allowed = {"network_mode": "allowlist", "allowed_hosts": [egress_paths.GOOD_NAME]}
    none = Step("none", setup=f"#!/bin/bash\n{egress_paths.GET}\n", solve=TRIES, test=TRIES_AGAIN, config={"agent": CLOSED})
    listed = Step("allowlist", solve=TRIES, test=TRIES_AGAIN, config={"agent": allowed})
    asked = Step("allowed", solve=f"#!/bin/bash{ASKS}", test=ANSWERED, config={"agent": allowed})
    done = await limited.ended(tried(none, listed, asked))
    assert holds(done, "Complete"), done["status"]
    code, _, err = await multistep("results", done["metadata"]["name"], str(tmp_path / "out"), "-n", limited.namespace)
    assert code == 0, err
    for each in ("none", "allowlist"):
        directory = tmp_path / "out" / "steps" / each / "verifier"
        agents, verifiers = (egress_paths.reached((directory / f"{who}.json").read_text()) for who in ("agent", "verifier"))
        assert len(agents) - len(egress_paths.UNREACHABLE) >= 40 and not any(agents.values()), (each, agents)
        assert {name for name, out in verifiers.items() if not out} == egress_paths.UNREACHABLE, (each, verifiers)
    by_name = {each["name"]: each for each in done["status"]["steps"]}
    assert by_name["allowed"]["rewards"] == {"reward": 1.0} and not refused(by_name["allowed"]), by_name
    assert ("tcp", egress_paths.EVIL, 7001) in refused(by_name["none"]) & refused(by_name["allowlist"]), by_name
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert egress_paths.EVIL in json.dumps(result), result.keys()


async def killed_sidecar(given: Given, name: str) -> str:
    """Wait until the trial's agent runs, kill the sidecar of its pod, and return the pod's name."""
    found = await given.until(name, in_agent)
    pod = await given.client.get(PODS, given.namespace, found["status"]["podName"])
    assert kill(processes(pod, b"/multistep/egress\0serve", "egress")) == 1
    return str(pod["metadata"]["name"])


@pytest.mark.long
async def test_a_killed_sidecar_never_opens_and_is_an_infrastructure_failure(limited: Given, targets: None) -> None:
    fetch = Step("fetch", test=f"#!/bin/bash\n{egress_paths.GET}\necho 1 > /logs/verifier/reward.txt\n", config={"verifier": OPEN})
    works = Step("works", solve="#!/bin/sh\nsleep 600\n")
    made = tried(fetch, works, environment=CLOSED, infrastructureRetries=0, podCleanup="Never")
    name = (await limited.applied(made))["metadata"]["name"]
    await limited.until(name, lambda each: in_agent(each) and each["status"]["currentStep"] == "works")
    pod = await killed_sidecar(limited, name)
    done = await limited.until(name, finished)
    assert condition(done, "Failed")["reason"] == "EgressEnded" and done["status"]["failure"]["class"] == "Infrastructure", done
    assert not {"rewards", "score"} & done["status"].keys(), done["status"]
    for _ in range(2):  # the kubelet restarts the sidecar at once the first time, and after ten seconds the second time
        shown = await asyncio.to_thread(
            kubectl, "exec", "-n", limited.namespace, pod, "-c", "main", "--", "bash", "-c", egress_paths.TRY
        )
        results = egress_paths.reached(shown)
        assert len(results) >= 40 and not any(results.values()), results
        kill(processes(await limited.client.get(PODS, limited.namespace, pod), b"/multistep/egress\0serve", "egress"))


@pytest.mark.long
async def test_a_trial_whose_sidecar_was_killed_starts_again_in_a_new_pod(limited: Given) -> None:
    made = trial(Step("a", solve=STAYS_IN_FIRST_POD), config={"environment": CLOSED})
    name = (await limited.applied(made))["metadata"]["name"]
    await killed_sidecar(limited, name)
    status = (await limited.until(name, finished))["status"]
    assert [each["reason"] for each in status["attempts"]] == ["EgressEnded"] and status["rewards"] == {"reward": 1.0}, status


async def test_an_agent_with_a_model_works_without_a_network(limited: Given, model: servers.Server) -> None:
    asks = f"exec 3<>/dev/tcp/{model.host.replace(':', '/')}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; grep -q HTTP <&3"
    look = step("look", f"({asks}) && touch /tmp/out")
    shut = Step("shut", test="#!/bin/sh\n[ ! -e /tmp/out ]\necho $((! $?)) > /logs/verifier/reward.txt\n")
    spec = await agent(limited, model)
    status = (await limited.ended(trial(look, shut, config={"environment": CLOSED}, **spec)))["status"]
    assert [each["rewards"] for each in status["steps"]] == [{"reward": 1.0}] * 2, status
    address, _, port = model.host.partition(":")
    assert refused(status["steps"][0]) == {("http", address, int(port))}, status["steps"]


async def test_only_the_operators_sidecar_may_have_power_over_the_network(limited: Given) -> None:
    container = {"name": "egress", "image": IMAGE, "restartPolicy": "Always"}
    power: Object = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}
    spec = {"containers": [{"name": "main", "image": IMAGE}], "initContainers": [{**container, "securityContext": power}]}
    for manifest, why in [
        (spec, "only the operator's egress sidecar may add NET_ADMIN"),
        ({"containers": [{"name": "main", "image": IMAGE, "securityContext": {"privileged": True}}]}, "privileged containers"),
    ]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other", "namespace": limited.namespace}, "spec": manifest}
        with pytest.raises(ClusterError, match=why):
            await limited.client.create(pod)
