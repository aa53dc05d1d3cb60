"""Test the chart's objects for the operator (CRDs, pod, settings, monitoring, `helm test`) and the errors for invalid values."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.generate import chart as chart_reference
from multistep.api.trial.trial import parse_trial
from multistep.settings import Settings
from tests.unit.chart.chart_objects import container_of, granted, operator_role, variables_of
from tests.unit.chart.conftest import CHART, ROOT, Object, Render, only

# -- the custom resource definitions


def test_the_charts_crds_are_those_of_the_repository() -> None:
    ours = {file.name: file.read_text() for file in (ROOT / "crds").glob("*.yaml")}
    assert ours == {file.name: file.read_text() for file in (CHART / "files" / "crds").glob("*.yaml")}, "run: make generate"


def test_the_crds_are_rendered_whole_and_outlive_the_release(render: Render) -> None:
    rendered = [each for each in render({"crds": {"install": True}}) if each["kind"] == "CustomResourceDefinition"]
    assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in rendered} == {"keep"}
    files = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    assert {each["metadata"]["name"]: each["spec"] for each in rendered} == {
        each["metadata"]["name"]: each["spec"] for each in files
    }


def test_the_crd_can_be_left_to_others(render: Render) -> None:
    assert not [each for each in render({"crds": {"install": False}}) if each["kind"] == "CustomResourceDefinition"]


# -- the operator's pod


def test_the_pod_is_restricted(render: Render) -> None:
    """The pod meets the Pod Security Standard `restricted` and has a read-only root filesystem."""
    pod = only(render(), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {"hostNetwork", "hostPID", "hostIPC"}.isdisjoint(pod)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]


def test_everything_that_is_written_is_a_volume(render: Render) -> None:
    mounted = {each["mountPath"] for each in container_of(render())["volumeMounts"]}
    assert mounted == {"/var/lib/multistep", "/var/cache/multistep", "/tmp", "/etc/multistep/gateway"}


def test_there_is_one_operator_at_a_time(render: Render) -> None:
    spec = only(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_of_several_replicas_one_goes_at_a_time(render: Render) -> None:
    spec = only(render({"replicaCount": 2}), "Deployment")["spec"]
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert (spec["replicas"], spec["strategy"]) == (2, rolling)


def test_several_replicas_without_a_volume_of_all_are_refused(render: Render) -> None:
    with pytest.raises(ValueError, match=r"replicaCount: more than 1 needs results\.persistence\.enabled"):
        render({"replicaCount": 2, "results": {"persistence": {"enabled": False}}})


def test_results_may_be_kept_in_the_pod_only(render: Render) -> None:
    objects = render({"results": {"persistence": {"enabled": False}}})
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}
    assert {"name": "results", "emptyDir": {}} in only(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]


def test_a_claim_that_exists_is_used(render: Render) -> None:
    objects = render({"results": {"persistence": {"existingClaim": "mine"}}})
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}
    volumes = only(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "results", "persistentVolumeClaim": {"claimName": "mine"}} in volumes


# -- the operator's settings


def test_the_variables_are_settings_with_these_meanings(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = variables_of(render({"namespaces": ["a", "b"], "image": {"repository": "r/i", "tag": "1"}}))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert set(variables) <= {f"MULTISTEP_{field.upper()}" for field in Settings.model_fields}
    assert settings.namespaces == ["a", "b"]
    assert settings.operator_image == "r/i:1"
    assert settings.results_url == "service://multistep-system/multistep:results"
    assert (str(settings.results_dir), settings.results_port, settings.metrics_port) == ("/var/lib/multistep", 8080, 8081)


def test_a_service_has_the_name_and_the_port_of_the_results_url(render: Render) -> None:
    objects = render(release="other")
    service = only(objects, "Service")
    results, metrics = service["spec"]["ports"]
    name = service["metadata"]["name"]
    assert variables_of(objects)["MULTISTEP_RESULTS_URL"] == f"service://multistep-system/{name}:{results['name']}"
    assert (results["name"], results["port"], metrics["name"], metrics["port"]) == ("results", 8080, "metrics", 8081)


def test_the_named_ports_are_those_that_the_operator_listens_on(render: Render) -> None:
    objects = render()
    variables, ports = variables_of(objects), {each["name"]: str(each["containerPort"]) for each in container_of(objects)["ports"]}
    assert ports == {"results": variables["MULTISTEP_RESULTS_PORT"], "metrics": variables["MULTISTEP_METRICS_PORT"]}
    probes = [container_of(objects)[each]["httpGet"]["port"] for each in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert probes == ["metrics"] * 3
    assert {each["targetPort"] for each in only(objects, "Service")["spec"]["ports"]} == set(ports)


def test_other_settings_become_variables(render: Render) -> None:
    variables = variables_of(render({"settings": {"pollSeconds": 2.5, "logLevel": "DEBUG", "execSessions": 3000000}}))
    assert (variables["MULTISTEP_POLL_SECONDS"], variables["MULTISTEP_LOG_LEVEL"]) == ("2.5", "DEBUG")
    assert variables["MULTISTEP_EXEC_SESSIONS"] == "3000000"  # an integer, not 3e+06


def test_results_are_kept_for_ever_or_for_as_long_as_the_values_set(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MULTISTEP_RESULTS_RETENTION_SECONDS"
    assert name not in variables_of(render()) and Settings().results_retention_seconds is None
    for seconds in (0, 2592000):
        monkeypatch.setenv(name, variables_of(render({"results": {"retentionSeconds": seconds}}))[name])
        assert Settings().results_retention_seconds == seconds


def test_an_object_store_gets_its_credentials_and_certificates(render: Render) -> None:
    store = {"url": "s3://b/p", "credentialsSecret": "keys", "endpoint": "https://s3:9000", "region": "r", "caConfigMap": "ca"}
    objects = render({"results": {"store": store}})
    variables, container = variables_of(objects), container_of(objects)
    assert (variables["MULTISTEP_RESULTS_STORE"], variables["AWS_ENDPOINT_URL"], variables["AWS_REGION"]) == (
        "s3://b/p",
        "https://s3:9000",
        "r",
    )
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "results-store-ca"]
    assert variables["MULTISTEP_RESULTS_STORE_CA_FILE"] == f"{mount['mountPath']}/ca.crt" and mount["readOnly"]
    [volume] = [
        each for each in only(objects, "Deployment")["spec"]["template"]["spec"]["volumes"] if each["name"] == mount["name"]
    ]
    assert volume["configMap"] == {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_the_key_that_signs_evidence_is_mounted_from_a_secret(render: Render) -> None:
    assert "signing-key" not in json.dumps(render())
    objects = render({"results": {"signingKeySecret": "evidence"}})
    [mount] = [each for each in container_of(objects)["volumeMounts"] if each["name"] == "signing-key"]
    file = variables_of(objects)["MULTISTEP_RESULTS_SIGNING_KEY_FILE"]
    assert file == f"{mount['mountPath']}/signing-key.pem" and mount["readOnly"]
    [volume] = [
        each for each in only(objects, "Deployment")["spec"]["template"]["spec"]["volumes"] if each["name"] == "signing-key"
    ]
    assert volume["secret"] == {"secretName": "evidence", "items": [{"key": "signing-key.pem", "path": "signing-key.pem"}]}


def test_without_an_object_store_none_is_mentioned(render: Render) -> None:
    objects = render()
    assert not [name for name in variables_of(objects) if "STORE" in name or name.startswith("AWS")]
    assert "envFrom" not in container_of(objects) and "results-store" not in json.dumps(only(objects, "Deployment"))


@pytest.mark.parametrize(
    ("values", "output"),
    [
        ({"replicaCount": "two"}, "at '/replicaCount': got string, want integer"),
        ({"replicaCount": -1}, "at '/replicaCount': minimum: got -1, want 0"),
        ({"image": {"repository": ""}}, "at '/image/repository'"),
        ({"drain": "Never"}, "at '/drain': value must be one of 'Move', 'Wait'"),
        ({"results": {"retentionSeconds": "30d"}}, "retentionSeconds': got string, want (number or null|null or number)"),
        ({"namespaces": ["Upper"]}, r'namespaces\[0\]: "Upper" is not a valid namespace: use lower-case letters'),
        ({"results": {"persistence": {"size": "much"}}}, 'results.persistence.size: "much" is not a quantity: .* such as 10Gi'),
        ({"tmp": {"sizeLimit": "1 GB"}}, 'tmp.sizeLimit: "1 GB" is not a quantity'),
        ({"tasks": {"sizeLimit": "8GB"}}, 'tasks.sizeLimit: "8GB" is not a quantity'),
        ({"builds": {"storage": "20GB"}}, 'builds.storage: "20GB" is not a quantity'),
        ({"metrics": {"podMonitor": {"interval": "30"}}}, 'interval: "30" is not a duration: write 30s'),
        (
            {"results": {"store": {"url": "http://minio/b"}}},
            'store.url: "http://minio/b" is not an object store: write s3://BUCKET',
        ),
        (
            {"results": {"store": {"url": "s3://b", "endpoint": "minio:9000"}}},
            'endpoint: "minio:9000" is not a URL: write https://',
        ),
        ({"results": {"store": {"credentialsSecret": "s"}}}, "credentialsSecret: results.store.url is empty: set it"),
        (
            {"results": {"store": {"url": "gs://b", "region": "r"}}},
            'region: only s3:// stores have it, but results.store.url is "gs://b"',
        ),
        ({"settings": {"resultsStore": "s3://b"}}, "at '/settings': additional properties 'resultsStore' not allowed"),
        ({"gateway": {"persistence": {"size": "much"}}}, 'gateway.persistence.size: "much" is not a quantity'),
        ({"builds": {"registry": "https://registry.example/builds"}}, "at '/builds/registry': .* does not match pattern"),
        ({"settings": {"shard": "team a"}}, "at '/settings/shard': 'team a' does not match pattern"),
        ({"gateway": {"settings": {"logLevel": "debug"}}}, "at '/gateway/settings/logLevel': value must be one of 'DEBUG', 'INFO'"),
        ({"gateway": {"settings": {"port": 1}}}, "at '/gateway/settings': additional properties 'port' not allowed"),
        ({"gateway": {"settings": {"holdSeconds": 0}}}, "at '/gateway/settings/holdSeconds': exclusiveMinimum: got 0, want 0"),
        (
            {"gateway": {"baseURLs": {"openai": "http://vllm/v1"}}},
            'gateway.baseURLs.openai: "http://vllm/v1" is not a URL with TLS: write https://',
        ),
        ({"trials": {"egressPolicy": {"enabled": True}}}, "trials.egressPolicy.enabled: `namespaces` is empty: list"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_what_would_be_right(render: Render, values: Object, output: str) -> None:
    with pytest.raises(ValueError) as refused:
        render(values)
    assert re.search(output, str(refused.value), re.DOTALL), refused.value


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "runs the trials of all namespaces.\n"),
        ({"settings": {"shard": "blue"}}, "of all namespaces, but only those with the label multistep.dev/shard: blue.\n"),
        ({"namespaces": ["a", "b"], "settings": {"shard": "blue"}}, "of the namespaces a, b, but only those with the label"),
    ],
)
def test_the_notes_name_the_trials_that_the_operator_runs(program: str, tmp_path: Path, values: Object, text: str) -> None:
    file = tmp_path / "values.json"
    file.write_text(json.dumps({"crds": {"install": False}, **values}))
    command = [program, "install", "x", str(CHART), "--dry-run=client", "--values", str(file)]
    done = subprocess.run(command, env=os.environ | {"KUBECONFIG": os.devnull}, capture_output=True, text=True, check=True)
    assert text in done.stdout.partition("NOTES:")[2]


@pytest.mark.parametrize(
    "path",
    [
        ["replica"],
        ["settings", "otlpEndpont"],
        ["podDisruptionBudget", "maxUnavailble"],
        ["results", "store", "endpont"],
        ["metrics", "podMonitor", "enable"],
        ["networkPolicy", "egress", "apiServer", "port"],
        ["gateway", "baseURLs", "mistral"],
    ],
    ids=".".join,
)
def test_an_unknown_key_is_reported_at_its_place(render: Render, path: list[str]) -> None:
    """The schema does not use `propertyNames`, because Helm's JSON schema library reports its errors at a random path."""
    values: Any = "x"
    for key in reversed(path):
        values = {key: values}
    place = "".join(f"/{each}" for each in path[:-1])
    for _ in range(4):
        with pytest.raises(ValueError) as refused:
            render(values)
        [line] = [each for each in str(refused.value).splitlines() if each.startswith("-")]
        assert line == f"- at '{place}': additional properties '{path[-1]}' not allowed"


def test_several_unknown_keys_are_reported_each_at_its_place(render: Render) -> None:
    values = {"settings": {"a": 1}, "image": {"tags": "1"}, "metrics": {"rules": {"on": True}}}
    with pytest.raises(ValueError) as refused:
        render(values)
    lines = {each.strip() for each in str(refused.value).splitlines() if "additional properties" in each}
    assert lines == {
        "- at '/settings': additional properties 'a' not allowed",
        "- at '/image': additional properties 'tags' not allowed",
        "- at '/metrics/rules': additional properties 'on' not allowed",
    }


def test_the_schema_and_the_page_about_the_chart_are_what_settings_and_values_make_of_them() -> None:
    assert chart_reference.schema(chart_reference.SCHEMA.read_text()) == chart_reference.SCHEMA.read_text(), "run: make generate"
    assert chart_reference.values(chart_reference.VALUES.read_text()) == chart_reference.VALUES.read_text(), "run: make generate"
    assert chart_reference.page(chart_reference.DOCS.read_text()) == chart_reference.DOCS.read_text(), "run: make generate"


def keys(schema: Object, values: object) -> Iterator[tuple[list[str], list[str]]]:
    """Yield, for each mapping in values.yaml, the keys that the schema knows and the keys that values.yaml has."""
    if "properties" in schema and isinstance(values, dict):
        yield list(schema["properties"]), list(values)
        for key, below in schema["properties"].items():
            yield from keys(below, values.get(key))


def test_every_value_of_the_schema_has_a_default_and_the_other_way_round() -> None:
    whole = json.loads(chart_reference.SCHEMA.read_text())
    places = list(keys(whole, yaml.safe_load((CHART / "values.yaml").read_text())))
    optional = {"global", "claims", *chart_reference.OPERATOR.settings(), *chart_reference.GATEWAY.settings()}
    assert len(places) > 15
    assert [(known, given) for known, given in places if set(known) - optional != set(given)] == []


def test_every_value_is_explained() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| .*? \| (.*) \|$", chart_reference.DOCS.read_text(), re.MULTILINE)
    explained = {name for name, meaning in rows if meaning}
    obvious = {"service.type", "serviceAccount.name"}
    lost = {name for name, _ in rows} - explained - obvious
    assert len(rows) > 70 and {name for name in lost if not name.endswith((".annotations", ".enabled"))} == set()


def test_the_setting_of_enforced_network_policies_is_passed_with_the_right_to_create_them(render: Render) -> None:
    assert variables_of(render())["MULTISTEP_EGRESS"] == "Disabled"
    enforced = render({"trials": {"egress": "NetworkPolicy"}})
    assert variables_of(enforced)["MULTISTEP_EGRESS"] == "NetworkPolicy"
    more = granted(operator_role(enforced, "ClusterRole")) - granted(operator_role(render(), "ClusterRole"))
    assert more == {("networking.k8s.io", "networkpolicies", verb) for verb in ("get", "create")}


def test_waiting_drains_set_a_variable_and_need_more_rights(render: Render) -> None:
    assert variables_of(render())["MULTISTEP_DRAIN"] == "Move"
    waiting = render({"drain": "Wait"})
    assert variables_of(waiting)["MULTISTEP_DRAIN"] == "Wait"
    more = granted(operator_role(waiting, "ClusterRole")) - granted(operator_role(render(), "ClusterRole"))
    assert more == {("policy", "poddisruptionbudgets", verb) for verb in ("create", "delete")}


# -- monitoring


def test_nothing_is_created_for_monitoring_unless_asked(render: Render) -> None:
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"}.isdisjoint(each["kind"] for each in render())


def test_a_pod_monitor_scrapes_every_replica_and_has_the_labels_that_prometheus_selects(render: Render) -> None:
    values = {"metrics": {"podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}}}}
    objects = render(values)
    monitor = only(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"] == only(objects, "Deployment")["spec"]["selector"]
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "15s"}]
    assert "metrics" in {port["name"] for port in container_of(objects)["ports"]}


def test_the_rules_are_those_that_promtool_has_tried(render: Render) -> None:
    rule = only(render({"metrics": {"rules": {"enabled": True, "labels": {"release": "prometheus"}}}}), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert "{{ $value" in str(rule)  # Prometheus replaces this placeholder, so Helm must not


def test_the_dashboard_is_brought_to_grafana_as_it_is(render: Render) -> None:
    config = only(render({"metrics": {"dashboard": {"enabled": True}}}), "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["data"] == {"multistep.json": (CHART / "files" / "dashboard.json").read_text()}


# -- helm test


def test_the_test_is_no_part_of_what_the_service_and_the_policies_select(render: Render) -> None:
    objects = render()
    made = [each for each in objects if "helm.sh/hook" in (each["metadata"].get("annotations") or {})]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in made} == {"test"}
    assert [each["kind"] for each in made] == ["ServiceAccount", "Role", "RoleBinding", "Pod"]
    selected = only(objects, "Service")["spec"]["selector"].items()
    assert not [each for each in made if selected <= each["metadata"]["labels"].items()]


def test_the_tests_trial_is_in_a_namespace_that_the_operator_watches(render: Render) -> None:
    def trial(values: Object) -> Object:
        pod = only(render(values), "Pod")
        [given] = [each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "TRIAL"]
        return dict(json.loads(given))

    assert trial({})["metadata"]["namespace"] == "multistep-system"
    assert trial({"namespaces": ["b", "a"]})["metadata"]["namespace"] == "b"
    parse_trial(trial({}))


def test_the_test_can_do_without_a_trial_and_then_has_no_rights(render: Render) -> None:
    objects = render({"test": {"trial": False}, "rbac": {"aggregate": False}})
    assert only(objects, "Pod")["spec"]["automountServiceAccountToken"] is False
    assert not [each for each in objects if each["metadata"]["name"] == "multistep-test" and each["kind"] == "Role"]
