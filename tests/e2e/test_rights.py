"""Test that minimal permissions of the operator and of users are sufficient, and that each of them is needed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, NotFound
from multistep.kube.resources import NETWORK_POLICIES, TRIALS
from multistep.pods.pod_identity import LABEL_TRIAL
from tests.e2e.given import DEADLINE_SECONDS, IMAGE, Given, Object, Step, condition, finished, granted, holds, trial
from tests.e2e.operators import SERVICE, SYSTEM, kubectl, samples, with_values
from tests.e2e.test_cli import multistep
from tests.support.rights import of_rules
from tests.support.whole_status import whole

ACCOUNT = f"system:serviceaccount:{SYSTEM}:multistep"
KEEPS_WORD = '#!/bin/sh\nprintf %s "$WORD" > /tmp/word\n'
KNOWS_WORD = '#!/bin/sh\n[ "$(cat /tmp/word)" = sesame ] && echo 0.5 > /logs/verifier/reward.txt\n'
WORD = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "word"}, "stringData": {"word": "sesame"}}
WORD_FOR_AGENT = [{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "word", "key": "word"}}}]
NO_NETWORK = {"environment": {"network_mode": "no-network"}}


@pytest.fixture
async def limited(given: Given) -> AsyncIterator[None]:
    """Limit the deployed operator to this namespace, with every optional feature enabled."""
    async with with_values(f"namespaces={{{given.namespace}}}", "trials.egress=NetworkPolicy", "drain=Wait"):
        yield


@pytest.mark.alone
async def test_limited_to_a_namespace_it_runs_trials_there_and_can_do_nothing_elsewhere(given: Given, limited: None) -> None:
    kubectl("label", "namespace", given.namespace, "pod-security.kubernetes.io/enforce=baseline")
    elsewhere = trial(Step("a"), name=given.namespace)
    await given.client.apply({**elsewhere, "metadata": {**elsewhere["metadata"], "namespace": "default"}})
    await given.applied(WORD)
    step, agent = Step("a", solve=KEEPS_WORD, test=KNOWS_WORD), {"name": "oracle", "env": WORD_FOR_AGENT}
    made = await given.applied(trial(step, name="here", config=NO_NETWORK, agent=agent, suspend=True))
    await given.until("here", lambda found: holds(found, "Suspended"))
    await given.applied(policy_of(made, "here-1"))  # as if the operator had died right after creating this NetworkPolicy
    await given.client.patch(TRIALS, given.namespace, "here", {"spec": {"suspend": False}})
    done = await given.until("here", finished)
    assert (done["status"]["phase"], done["status"]["rewards"]) == ("Complete", {"reward": 0.5})
    unseen = await given.client.get(TRIALS, "default", elsewhere["metadata"]["name"])
    assert condition(unseen, "Ready")["reason"] == "NotSeen"
    await given.client.delete(TRIALS, "default", elsewhere["metadata"]["name"])
    assert not [
        each for each in ("pods", "secrets", "multisteptrials") if may("list", each, "default") or may("get", each, "default")
    ]


def policy_of(owner: Object, pod: str) -> Object:
    """Return the NetworkPolicy of a trial's pod as the operator creates it."""
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {key: owner["metadata"][key] for key in ("name", "uid")}
    metadata = {"name": pod, "ownerReferences": [{**reference, "controller": True}]}
    selector = {"matchLabels": {LABEL_TRIAL: owner["metadata"]["name"]}}
    spec = {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]}
    return {"apiVersion": NETWORK_POLICIES.api_version, "kind": NETWORK_POLICIES.kind, "metadata": metadata, "spec": spec}


def may(verb: str, resource: str, namespace: str) -> bool:
    """Return whether the operator has this permission."""
    answer = kubectl("auth", "can-i", verb, resource, "--namespace", namespace, "--as", ACCOUNT, fails=True).strip()
    assert answer in ("yes", "no")
    return answer == "yes"


@pytest.mark.parametrize("verbs", [("get",), ("create",), ("get", "create")], ids="+".join)
async def test_an_exec_needs_both_verbs(given: Given, tmp_path: Path, verbs: Sequence[str]) -> None:
    """An exec needs `get` and `create` on pods/exec, although the audit log shows it as `get` only."""
    pod = {"containers": [{"name": "main", "image": IMAGE, "command": ["sleep", "600"], "imagePullPolicy": "IfNotPresent"}]}
    await given.applied(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asleep"}, "spec": {"terminationGracePeriodSeconds": 0, **pod}}
    )
    run = partial(kubectl, "--namespace", given.namespace)
    run("create", "serviceaccount", "caller")
    run("create", "role", "caller", "--resource=pods/exec", *(f"--verb={verb}" for verb in verbs))
    run("create", "rolebinding", "caller", "--role=caller", f"--serviceaccount={given.namespace}:caller")
    run("wait", "--for=condition=Ready", "pod/asleep", f"--timeout={DEADLINE_SECONDS:.0f}s")
    for verb in verbs:
        await granted(given.client, f"system:serviceaccount:{given.namespace}:caller", verb, "pods/exec", given.namespace)
    async with await WatchingClient.connect(kubeconfig=kubeconfig_of("caller", given.namespace, tmp_path)) as client:
        if verbs == ("get", "create"):
            stream = await client.open_exec(given.namespace, "asleep", "main", ["echo", "hello"])
            assert await stream.receive() == b"hello\n"
            await stream.close()
        else:
            with pytest.raises(ClusterError, match='"asleep" is forbidden') as error:
                await client.open_exec(given.namespace, "asleep", "main", ["true"])
            assert error.value.status == 403


def kubeconfig_of(account: str, namespace: str, directory: Path) -> str:
    """Write a kubeconfig for a service account and return its path."""
    file = directory / "kubeconfig"
    file.write_text(kubectl("config", "view", "--raw", "--minify", "--flatten"))
    token = kubectl("create", "token", account, "--namespace", namespace)
    kubectl("config", "--kubeconfig", str(file), "set-credentials", account, f"--token={token}")
    kubectl("config", "--kubeconfig", str(file), "set-context", "--current", f"--user={account}")
    return str(file)


# -- users


@pytest.fixture
def viewer(given: Given, tmp_path: Path) -> Iterator[str]:
    """Yield the kubeconfig of a user who has the ClusterRole `view` in the namespace, and may read results."""
    run, account = partial(kubectl, "--namespace", given.namespace), f"--serviceaccount={given.namespace}:viewer"
    run("create", "serviceaccount", "viewer")
    run("create", "rolebinding", "viewer", "--clusterrole=view", account)
    served = partial(kubectl, "--namespace", SYSTEM)
    served("create", "role", given.namespace, "--verb=get", "--resource=services/proxy", "--resource-name=multistep:results")
    served("create", "rolebinding", given.namespace, f"--role={given.namespace}", account)
    yield kubeconfig_of("viewer", given.namespace, tmp_path)
    served("delete", "role,rolebinding", given.namespace)


async def test_who_may_view_trials_may_read_their_results_and_change_nothing(
    given: Given, viewer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await given.ended(trial(Step("a"), name="seen"))
    await granted(given.client, f"system:serviceaccount:{given.namespace}:viewer", "get", "multisteptrials", given.namespace)
    async with await WatchingClient.connect(kubeconfig=viewer) as client:
        assert whole(await client.get(TRIALS, given.namespace, "seen"))["status"] == done["status"]
        with pytest.raises(ClusterError, match="forbidden"):
            await samples(client)  # permission to read results does not include metrics
        for change in (client.delete(TRIALS, given.namespace, "seen"), client.patch(TRIALS, given.namespace, "seen", {"spec": {}})):
            with pytest.raises(ClusterError, match="forbidden"):
                await change
    monkeypatch.setenv("KUBECONFIG", viewer)
    code, _, err = await multistep("results", "seen", str(tmp_path / "results"), "-n", given.namespace)
    assert code == 0, err
    assert (tmp_path / "results" / "steps" / "a" / "verifier" / "reward.txt").read_text() == "1\n"


async def test_the_results_port_serves_no_metrics_and_the_metrics_port_no_results(given: Given) -> None:
    done = await given.ended(trial(Step("a"), name="stored"))
    stored = done["status"]["results"].partition(":results/")[2]
    found = dict[tuple[str, str], int]()
    for port in ("results", "metrics"):
        for path in ("metrics", "healthz", "readyz", stored):
            try:
                size = sum([len(chunk) async for chunk in given.client.raw_stream(f"{SERVICE}:{port}/proxy/{path}")])
            except NotFound:
                size = 0
            found[port, path] = size
    assert {place for place, size in found.items() if size} == {
        ("results", stored),
        ("metrics", "metrics"),
        ("metrics", "healthz"),
        ("metrics", "readyz"),
    }


@pytest.mark.parametrize("role", ["edit", "admin"])
def test_who_may_edit_trials_may_not_write_their_status(role: str) -> None:
    rules = json.loads(kubectl("get", "clusterrole", role, "-o", "json"))["rules"]
    of_trials = {right for right in of_rules(each for each in rules if "resources" in each) if right.group == "multistep.dev"}
    assert {right.resource for right in of_trials} == {"multisteptrials", "trialsweeps"}
    assert {right.verb for right in of_trials} >= {"get", "list", "watch", "create", "update", "patch", "delete"}
