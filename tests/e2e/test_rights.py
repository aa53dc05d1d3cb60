"""The least rights are enough, and each of them is needed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from multistep.cluster.client import Client
from multistep.cluster.pods import LABEL_TRIAL
from multistep.cluster.resources import NETWORK_POLICIES, TRIALS
from multistep.errors import ClusterError
from tests.e2e.given import IMAGE, Given, Object, Step, finished, holds, trial
from tests.e2e.operators import SYSTEM, kubectl, with_values

ACCOUNT = f"system:serviceaccount:{SYSTEM}:multistep"
KEEPS_WORD = '#!/bin/sh\nprintf %s "$WORD" > /tmp/word\n'
KNOWS_WORD = '#!/bin/sh\n[ "$(cat /tmp/word)" = sesame ] && echo 0.5 > /logs/verifier/reward.txt\n'
WORD = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word"}, "stringData": {"word": "sesame"}}
WORD_FOR_AGENT = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}]
NO_NETWORK = {"environment": {"network_mode": "no-network"}}


@pytest.fixture
async def limited(given: Given) -> AsyncIterator[None]:
    """The deployed operator works in this namespace only, with every optional feature on."""
    async with with_values(f"namespaces={{{given.namespace}}}", "networkPolicies.enforced=true", "drain=Wait"):
        yield


@pytest.mark.alone
async def test_limited_to_a_namespace_it_runs_trials_there_and_can_do_nothing_elsewhere(given: Given, limited: None) -> None:
    elsewhere = trial(Step("a"), name=given.namespace)
    await given.client.apply({**elsewhere, "metadata": {**elsewhere["metadata"], "namespace": "default"}})
    await given.applied(WORD)
    step, agent = Step("a", solve=KEEPS_WORD, test=KNOWS_WORD), {"name": "oracle", "env": WORD_FOR_AGENT}
    made = await given.applied(trial(step, name="here", config=NO_NETWORK, agent=agent, suspend=True))
    await given.until("here", lambda found: holds(found, "Suspended"))
    await given.applied(policy_of(made, "here-1"))  # as by an operator that died right after it
    await given.client.patch(TRIALS, given.namespace, "here", {"spec": {"suspend": False}})
    done = await given.until("here", finished)
    assert (done["status"]["phase"], done["status"]["rewards"]) == ("Complete", {"reward": 0.5})
    assert not (await given.client.get_trial("default", elsewhere["metadata"]["name"]))["status"].get("conditions")
    await given.client.delete_trial("default", elsewhere["metadata"]["name"])
    assert not [
        each for each in ("pods", "secrets", "multisteptrials") if may("list", each, "default") or may("get", each, "default")
    ]


def policy_of(owner: Object, pod: str) -> Object:
    """The NetworkPolicy of a trial's pod, as its operator makes it."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata = {"name": pod, "ownerReferences": [{**reference, "controller": True}]}
    selector = {"matchLabels": {LABEL_TRIAL: owner["metadata"]["name"]}}
    spec = {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]}
    return {"apiVersion": NETWORK_POLICIES.api_version, "kind": NETWORK_POLICIES.kind, "metadata": metadata, "spec": spec}


def may(verb: str, resource: str, namespace: str) -> bool:
    """Whether the operator may do that."""
    answer = kubectl("auth", "can-i", verb, resource, "--namespace", namespace, "--as", ACCOUNT, fails=True).strip()
    assert answer in ("yes", "no")
    return answer == "yes"


@pytest.mark.parametrize("verbs", [("get",), ("create",), ("get", "create")], ids="+".join)
async def test_an_exec_needs_both_verbs(given: Given, tmp_path: Path, verbs: Sequence[str]) -> None:
    """An audit log tells of get only: the API server itself asks for the other, and refuses without a word about it."""
    pod = {"containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "600"], "imagePullPolicy": "IfNotPresent"}]}
    await given.applied(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asleep"}, "spec": {"terminationGracePeriodSeconds": 0, **pod}}
    )
    run = partial(kubectl, "--namespace", given.namespace)
    run("create", "serviceaccount", "caller")
    run("create", "role", "caller", "--resource=pods/exec", *(f"--verb={verb}" for verb in verbs))
    run("create", "rolebinding", "caller", "--role=caller", f"--serviceaccount={given.namespace}:caller")
    run("wait", "--for=condition=Ready", "pod/asleep", "--timeout=120s")
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(run("config", "view", "--raw", "--minify", "--flatten"))
    run("config", "--kubeconfig", str(kubeconfig), "set-credentials", "caller", f"--token={run('create', 'token', 'caller')}")
    run("config", "--kubeconfig", str(kubeconfig), "set-context", "--current", "--user=caller")
    async with await Client.connect(kubeconfig=str(kubeconfig)) as client:
        if verbs == ("get", "create"):
            stream = await client.open_exec(given.namespace, "asleep", "main", ["echo", "hello"])
            assert await stream.receive() == b"hello\n"
            await stream.close()
        else:
            with pytest.raises(ClusterError, match='"asleep" is forbidden') as error:
                await client.open_exec(given.namespace, "asleep", "main", ["true"])
            assert error.value.status == 403
