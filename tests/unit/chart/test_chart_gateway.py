"""Test that the chart installs the model gateway, and that gateway and operator mount the same Secret."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import pytest

from multistep.gateway.http.servers import MIN_TOKEN_BYTES
from multistep.gateway.keys.tokens import read_signing_keys
from multistep.gateway.model_api.routes import BASE_URLS
from multistep.gateway.settings import GatewaySettings
from multistep.settings import Settings
from tests.unit.chart import secrets_api
from tests.unit.chart.chart_objects import container_of, variables_of
from tests.unit.chart.conftest import Object, Render, of_gateway, only


def pod_of(objects: list[Object]) -> Object:
    """Return the spec of the gateway's pod."""
    return dict(only(objects, "StatefulSet", gateway=True)["spec"]["template"]["spec"])


def gateway_variables(objects: list[Object]) -> dict[str, str]:
    [container] = pod_of(objects)["containers"]
    return {each["name"]: each["value"] for each in container["env"]}


def secret_of(objects: list[Object]) -> dict[str, str]:
    """Return the decoded values of the gateway's Secret, by key."""
    return {key: b64decode(value).decode() for key, value in only(objects, "Secret", gateway=True)["data"].items()}


def secrets_at(pod: Object, container: Object) -> dict[str, str]:
    """Return the names of the Secrets that the container mounts with all their keys, by the mount's path."""
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    secrets = {each["name"]: each["secret"] for each in pod["volumes"] if "secret" in each}
    return {mounts[name]: secret["secretName"] for name, secret in secrets.items() if secret.keys() == {"secretName"}}


# -- the gateway's pod


def test_the_pod_of_the_gateway_is_restricted(render: Render) -> None:
    """The pod meets the Pod Security Standard `restricted`, and has no token for the API server."""
    objects = render()
    pod, operator = pod_of(objects), only(objects, "Deployment")["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False and "serviceAccountName" not in pod
    assert pod["securityContext"] == operator["securityContext"]
    [container] = pod["containers"]
    assert container["securityContext"] == container_of(objects)["securityContext"]
    assert not [volume for volume in pod["volumes"] if volume.keys().isdisjoint({"emptyDir", "secret"})]


def test_it_runs_the_gateway_of_the_operators_image(render: Render) -> None:
    objects = render({"image": {"repository": "r/i", "tag": "1"}})
    [container] = pod_of(objects)["containers"]
    assert (container["image"], container["command"]) == ("r/i:1", ["python", "-m", "multistep.gateway"])


def test_the_variables_are_the_gateways_settings(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render({"gateway": {"settings": {"holdSeconds": 30, "bodyBytes": 3000000, "plainUpstreams": True}}})
    variables = gateway_variables(objects)
    assert set(variables) <= {f"MULTISTEP_GATEWAY_{field.upper()}" for field in GatewaySettings.model_fields}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = GatewaySettings()
    assert (settings.hold_seconds, settings.body_bytes, settings.plain_upstreams) == (30, 3000000, True)
    assert settings.base_urls == BASE_URLS
    ports = {each["name"]: each["containerPort"] for each in pod_of(objects)["containers"][0]["ports"]}
    assert ports == {"public": settings.port, "admin": settings.admin_port, "probes": settings.probe_port}


def test_service_links_cannot_replace_the_port(render: Render) -> None:
    """With service links enabled, Kubernetes would set MULTISTEP_GATEWAY_PORT to tcp://... because of the gateway's Service."""
    objects = render()
    assert only(objects, "Service", gateway=True)["metadata"]["name"].upper().replace("-", "_") == "MULTISTEP_GATEWAY"
    assert pod_of(objects)["enableServiceLinks"] is False


def test_it_has_longer_to_stop_than_its_requests_have_to_finish_and_to_be_drained(render: Render) -> None:
    assert pod_of(render())["terminationGracePeriodSeconds"] > 2 * GatewaySettings.model_fields["stop_seconds"].default


def test_providers_may_be_services_of_others(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "https://models.example.com/v1"
    found = json.loads(gateway_variables(render({"gateway": {"baseURLs": {"openai": own}}}))["MULTISTEP_GATEWAY_BASE_URLS"])
    assert found == {**BASE_URLS, "openai": own}
    plain = {"baseURLs": {"openai": "http://vllm/v1"}, "settings": {"plainUpstreams": True}}
    assert "http://vllm/v1" in gateway_variables(render({"gateway": plain}))["MULTISTEP_GATEWAY_BASE_URLS"]


def test_its_pod_is_placed_by_its_own_values(render: Render) -> None:
    own: Object = {
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
    }
    labels = {"podLabels": {"x": "y"}, "podAnnotations": {"a": "b"}}
    objects = render({"gateway": own | labels, "imagePullSecrets": [{"name": "pull"}]})
    pod, operator = pod_of(objects), only(objects, "Deployment")["spec"]["template"]["spec"]
    assert {name: pod[name] for name in own} == own and own.keys().isdisjoint(operator)
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    metadata = only(objects, "StatefulSet", gateway=True)["spec"]["template"]["metadata"]
    assert metadata["labels"]["x"] == "y" and metadata["annotations"] == {"a": "b"}


def test_it_can_have_a_proxy_and_its_certificates(render: Render) -> None:
    proxy = {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    volume, mount = {"name": "ca", "configMap": {"name": "ca"}}, {"name": "ca", "mountPath": "/ca"}
    pod = pod_of(render({"gateway": {"extraEnv": [proxy], "extraVolumes": [volume], "extraVolumeMounts": [mount]}}))
    [container] = pod["containers"]
    assert proxy in container["env"] and mount in container["volumeMounts"] and volume in pod["volumes"]


# -- the volume claim of the gateway's ledger


def test_the_ledger_is_on_a_claim_that_outlives_the_release(render: Render) -> None:
    objects = render({"gateway": {"persistence": {"storageClass": "fast", "size": "2Gi"}}, "commonLabels": {"team": "a"}})
    spec = only(objects, "StatefulSet", gateway=True)["spec"]
    [claim] = spec["volumeClaimTemplates"]
    [mount] = [each for each in pod_of(objects)["containers"][0]["volumeMounts"] if each["name"] == claim["metadata"]["name"]]
    assert Path(gateway_variables(objects)["MULTISTEP_GATEWAY_LEDGER_FILE"]).parent == Path(mount["mountPath"])
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "2Gi"}},
    }
    # The claim template has no version label: Kubernetes rejects an upgrade that changes the template.
    assert claim["metadata"]["labels"] == spec["selector"]["matchLabels"]
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_the_ledgers_claim_can_go_with_the_release(render: Render) -> None:
    spec = only(render({"gateway": {"persistence": {"keep": False}}}), "StatefulSet", gateway=True)["spec"]
    assert spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"


def test_the_ledger_may_be_kept_in_the_pod_only(render: Render) -> None:
    objects = render({"gateway": {"persistence": {"enabled": False}}})
    assert (
        only(objects, "StatefulSet", gateway=True)["spec"]
        .keys()
        .isdisjoint({"volumeClaimTemplates", "persistentVolumeClaimRetentionPolicy"})
    )
    assert {"name": "ledger", "emptyDir": {"sizeLimit": "1Gi"}} in pod_of(objects)["volumes"]


# -- the Secret that gateway and operator share


def test_the_secret_has_keys_that_the_gateway_accepts(render: Render, tmp_path: Path) -> None:
    secret = secret_of(render())
    assert secret.keys() == {"k1", "admin-token"} and secret["k1"] != secret["admin-token"]
    directory = tmp_path / "keys"
    directory.mkdir()
    (directory / "k1").write_text(secret["k1"])
    assert read_signing_keys(directory) == {"k1": secret["k1"].encode()}
    assert len(secret["admin-token"]) >= MIN_TOKEN_BYTES and secret["admin-token"].isalnum()
    assert secret_of(render())["k1"] != secret["k1"]


AS_UPGRADE = ("--dry-run=server", "--disable-openapi-validation")  # reads the cluster, as `helm upgrade` does


@pytest.mark.parametrize("kept", [{"k1", "admin-token"}, {"k1"}, {"k2", "k10", "admin-token"}, set()])
def test_an_upgrade_keeps_what_the_secret_has(render: Render, kept: set[str]) -> None:
    """During an upgrade, the chart reads the existing Secret from the cluster and keeps its values. It creates missing keys, except
    `k1` if the Secret has another signing key after a rotation."""
    data = {key: b64encode(f"{key} of before".encode()).decode() for key in kept}
    with secrets_api.serving({"multistep-system/multistep-gateway": data}, render()) as url:
        objects = render(arguments=[*AS_UPGRADE, "--kube-apiserver", url])
    secret = secret_of(objects)
    assert {key: secret[key] for key in kept} == {key: f"{key} of before" for key in kept}
    needed = {"admin-token"} if kept & {"k1", "k2"} else {"k1", "admin-token"}
    assert {key for key, value in secret.items() if value.isalnum()} == needed - kept


def test_an_installation_creates_the_secret(render: Render) -> None:
    with secrets_api.serving({}, render()) as url:
        assert secret_of(render(arguments=[*AS_UPGRADE, "--kube-apiserver", url]))["k1"].isalnum()


@pytest.mark.parametrize("existing", ["", "mine"])
def test_gateway_and_operator_mount_all_keys_of_the_same_secret(render: Render, existing: str) -> None:
    objects = render({"gateway": {"existingSecret": existing}})
    pod, variables = pod_of(objects), gateway_variables(objects)
    keys, token = variables["MULTISTEP_GATEWAY_SIGNING_KEYS_DIR"], variables["MULTISTEP_GATEWAY_ADMIN_TOKEN_FILE"]
    name = existing or only(objects, "Secret", gateway=True)["metadata"]["name"]
    assert secrets_at(pod, pod["containers"][0]) == {keys: name} and token == f"{keys}/admin-token"
    shared, operator = (
        variables_of(objects)["MULTISTEP_GATEWAY_SECRET_DIR"],
        only(objects, "Deployment")["spec"]["template"]["spec"],
    )
    assert secrets_at(operator, container_of(objects)).get(shared) == name
    assert [each["kind"] for each in objects if each["kind"] == "Secret"] == ([] if existing else ["Secret"])


# -- the operator's settings for the gateway


def test_the_operator_knows_the_gateways_urls(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render(release="other")
    for name, value in variables_of(objects).items():
        monkeypatch.setenv(name, value)
    settings, service = Settings(), only(objects, "Service", gateway=True)
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    ports = {each["targetPort"]: each["port"] for each in service["spec"]["ports"]}
    assert settings.gateway_url == f"http://{host}:{ports['public']}" == "http://other-multistep-gateway.multistep-system.svc:8080"
    assert settings.gateway_admin_url == f"http://{host}:{ports['admin']}"
    assert settings.gateway_secret_dir == Path("/etc/multistep/gateway")


def test_without_the_gateway_none_of_it_is_created_or_mentioned(render: Render) -> None:
    values: Object = {
        "gateway": {"enabled": False},
        "metrics": {"podMonitor": {"enabled": True}},
        "networkPolicy": {"egress": {"enabled": True}},
        "namespaces": ["a"],
        "trials": {"egressPolicy": {"enabled": True}},
    }
    objects = render(values)
    assert not [each for each in objects if of_gateway(each)] and "gateway" not in json.dumps(objects).lower()


# -- names and labels of the gateway's objects


def test_no_selector_of_the_operator_selects_the_gateway_nor_the_other_way_round(render: Render) -> None:
    objects = render({"metrics": {"podMonitor": {"enabled": True}}})

    def selectors(*, gateway: bool) -> list[dict[str, str]]:
        ours: list[Any] = [only(objects, "Service", gateway=gateway)["spec"]["selector"]]
        ours += [only(objects, "NetworkPolicy", gateway=gateway)["spec"]["podSelector"]["matchLabels"]]
        ours += [only(objects, "PodMonitor", gateway=gateway)["spec"]["selector"]["matchLabels"]]
        kind = "StatefulSet" if gateway else "Deployment"
        return [*ours, only(objects, kind, gateway=gateway)["spec"]["selector"]["matchLabels"]]

    for gateway, kind in ((True, "StatefulSet"), (False, "Deployment")):
        labels = only(objects, kind, gateway=gateway)["spec"]["template"]["metadata"]["labels"].items()
        assert all(each.items() <= labels for each in selectors(gateway=gateway))
        assert not any(each.items() <= labels for each in selectors(gateway=not gateway))


def test_names_stay_short_enough_for_a_statefulset(render: Render) -> None:
    """A label's value has at most 63 characters. The longest label value of a StatefulSet's pods is its name, a hyphen and 10
    characters."""
    objects = render({"fullnameOverride": "f" * 63, "nameOverride": "n" * 63})
    stateful = only(objects, "StatefulSet", gateway=True)
    name = stateful["metadata"]["name"]
    assert len(name) == 52
    assert max(len(value) for value in stateful["spec"]["template"]["metadata"]["labels"].values()) <= 63
    assert only(objects, "Service", gateway=True)["metadata"]["name"] == stateful["spec"]["serviceName"] == name


def test_its_metrics_are_scraped_from_the_admin_port(render: Render) -> None:
    values = {"metrics": {"podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}}}}
    objects = render(values)
    monitor = only(objects, "PodMonitor", gateway=True)
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "admin", "path": "/metrics", "interval": "15s"}]
