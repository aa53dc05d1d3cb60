"""`multistep doctor` finds faults that are planted in the cluster, and names the fix of each."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from multistep.kube.resources import NAMESPACES, PODS
from tests.e2e.given import Given, Object, Step, made_namespace, trial
from tests.e2e.test_cli import multistep


def installation() -> list[Object]:
    """Return the objects of a faulty installation: its storage class does not exist, its version is not that of the command
    line, it has no permissions, no gateway and no leader, and it watches another namespace."""
    labels = {"app.kubernetes.io/name": "planted", "app.kubernetes.io/version": "9.9.9"}
    env = {
        "MULTISTEP_OPERATOR_IMAGE": "localhost/none:1",
        "MULTISTEP_NAMESPACES": '["elsewhere"]',
        "MULTISTEP_GATEWAY_URL": "http://planted-gateway:8080",
        "MULTISTEP_LEASE_NAME": "planted",
    }
    container = {"name": "operator", "image": "localhost/none:1", "env": [{"name": k, "value": v} for k, v in env.items()]}
    volume = {"name": "results", "persistentVolumeClaim": {"claimName": "planted-results"}}
    claim = {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": [volume]}}
    return [
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "planted-results"}, "spec": claim},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "planted", "labels": labels},
            "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": "planted"}}, "template": pod},
        },
    ]


@pytest.fixture
async def planted(given: Given) -> AsyncIterator[str]:
    """Yield a namespace with the faulty installation."""
    name = f"e2e-{secrets.token_hex(4)}"
    await made_namespace(given.client, name)
    for each in installation():
        await given.client.apply({**each, "metadata": {**each["metadata"], "namespace": name}}, field_manager="e2e")
    yield name
    await given.client.delete(NAMESPACES, None, name)


async def faults(*arguments: str) -> dict[str, Any]:
    """Return the faults that doctor finds, by check; each must name a fix."""
    code, out, err = await multistep("doctor", "-o", "json", *arguments)
    assert code in (0, 1), err
    found = {each["check"]: each for each in json.loads(out)["checks"] if each["verdict"] == "fault"}
    assert code == (1 if found else 0)
    assert all(each["fix"] for each in found.values())
    return found


async def test_a_sound_installation_has_no_faults(given: Given) -> None:
    assert await faults("-n", given.namespace, "--operator-namespace", "multistep-system") == {}


async def test_faults_of_an_installation_and_a_namespace_are_found_with_their_fixes(given: Given, planted: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await given.applied(quota)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    await given.client.patch(NAMESPACES, None, given.namespace, {"metadata": {"labels": labels}})

    async def counted() -> bool:
        return "quota" in await faults("-n", given.namespace, "--operator-namespace", planted)

    await given.when(counted)  # wait until a controller has written the quota's status
    found = await faults("-n", given.namespace, "--operator-namespace", planted)
    expected = {
        "operator": ("has no ready replica", "kubectl describe pod"),
        "version": ("9.9.9", "helm upgrade"),
        "leader": ("its Lease does not exist", "kubectl logs"),
        "operator's rights": ("ServiceAccount default may not", "rbac.create=true"),
        "results volume": ("is Pending, of storage class none", "results.persistence.storageClass"),
        "gateway": ("no model gateway is ready", "kubectl describe statefulset"),
        "namespace": ("elsewhere", "`namespaces` of the chart's values"),
        "quota": ("0 of 0 pods", "kubectl edit resourcequota"),
        "pod security": ("restricted", "pod-security.kubernetes.io/enforce=baseline"),
    }
    assert found.keys() == expected.keys()
    for check, (text, fix) in expected.items():
        assert text in found[check]["message"] and fix in found[check]["fix"], found[check]


@pytest.mark.long
async def test_an_image_that_cannot_be_pulled_is_found(given: Given) -> None:
    manifest = trial(Step("a"))
    manifest["spec"]["environment"] = {"image": "localhost/none:1", "imagePullPolicy": "Never"}
    await given.applied(manifest)
    name = manifest["metadata"]["name"]

    async def waiting() -> Object | None:
        return (await faults("-n", given.namespace, "--operator-namespace", "multistep-system")).get("image pull")

    await given.until(name, lambda each: (each.get("status") or {}).get("podName") is not None)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stuck", "labels": {"app.kubernetes.io/managed-by": "multistep"}},
    }
    container = {"name": "main", "image": "localhost/none:1", "imagePullPolicy": "Never"}
    # Doctor checks this separate pod with the same image, because the operator soon deletes the trial's pod.
    await given.applied({**pod, "spec": {"containers": [container]}})
    found = await given.when(waiting)
    assert found is not None
    assert "localhost/none:1" in found["message"] and "imagePullSecrets" in found["fix"]
    await given.client.delete(PODS, given.namespace, "stuck")


@pytest.mark.long
async def test_a_missing_namespace_and_a_leader_that_is_gone_are_found(given: Given, planted: str) -> None:
    times = {"renewTime": "2026-01-01T00:00:00.000000Z", "acquireTime": "2026-01-01T00:00:00.000000Z"}
    spec = {"holderIdentity": "gone", "leaseDurationSeconds": 15, **times}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "planted", "namespace": planted}}
    await given.client.apply({**lease, "spec": spec}, field_manager="e2e")
    found = await faults("-n", "no-such-namespace", "--operator-namespace", planted)
    assert "gone renewed the operator's Lease last" in found["leader"]["message"]
    code, out, _ = await multistep("doctor", "-n", "no-such-namespace", "--operator-namespace", planted)
    assert code == 1 and "fix: kubectl create namespace no-such-namespace" in out


@pytest.mark.long
async def test_a_cluster_that_does_not_answer_is_exit_code_4(tmp_path: Path) -> None:
    cluster = {"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
    config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context], "current-context": "c"}
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump({**config, "users": [{"name": "u", "user": {"token": "t"}}]}))
    code, _, err = await multistep("doctor", "--kubeconfig", str(file))
    assert code == 4 and "127.0.0.1" in err
