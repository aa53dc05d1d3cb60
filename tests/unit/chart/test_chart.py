"""The chart gives the operator all that it needs, and no more."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack.generate import chart as chart_reference
from multistep.api.trial import parse_trial
from multistep.pods import identity
from multistep.settings import Settings
from tests.unit.chart.conftest import CHART, ROOT, Object, Render, the


def container_of(objects: list[Object]) -> Object:
    [container] = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(container)


def variables_of(objects: list[Object]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container_of(objects)["env"] if "value" in each}


def granted(role: Object) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def operator_role(objects: list[Object], kind: str) -> Object:
    others = (":view", ":edit", ":lease", "-test")
    [role] = [each for each in objects if each["kind"] == kind and not each["metadata"]["name"].endswith(others)]
    return role


# -- the CRD


def test_the_charts_crds_are_those_of_the_repository() -> None:
    ours = {file.name: file.read_text() for file in (ROOT / "crds").glob("*.yaml")}
    assert ours == {file.name: file.read_text() for file in (CHART / "files" / "crds").glob("*.yaml")}, "run: make generate"


def test_the_crds_are_rendered_whole_and_outlive_the_release(render: Render) -> None:
    rendered = [each for each in render() if each["kind"] == "CustomResourceDefinition"]
    assert {each["metadata"]["annotations"]["helm.sh/resource-policy"] for each in rendered} == {"keep"}
    files = [yaml.safe_load(file.read_text()) for file in (ROOT / "crds").glob("*.yaml")]
    assert {each["metadata"]["name"]: each["spec"] for each in rendered} == {
        each["metadata"]["name"]: each["spec"] for each in files
    }


def test_the_crd_can_be_left_to_others(render: Render) -> None:
    assert not [each for each in render({"crds": {"install": False}}) if each["kind"] == "CustomResourceDefinition"]


# -- the pod


def test_the_pod_is_restricted(render: Render) -> None:
    """The pod satisfies the `restricted` Pod Security Standard and has a read-only root filesystem."""
    pod = the(render(), "Deployment")["spec"]["template"]["spec"]
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
    assert mounted == {"/var/lib/multistep", "/var/cache/multistep", "/tmp"}


def test_there_is_one_operator_at_a_time(render: Render) -> None:
    spec = the(render(), "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_of_several_replicas_one_goes_at_a_time(render: Render) -> None:
    spec = the(render({"replicas": 2}), "Deployment")["spec"]
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    assert (spec["replicas"], spec["strategy"]) == (2, rolling)


def test_several_replicas_without_a_volume_of_all_are_refused(render: Render) -> None:
    with pytest.raises(ValueError, match=r"replicas: more than 1 need results\.persistence\.enabled"):
        render({"replicas": 2, "results": {"persistence": {"enabled": False}}})


def test_results_may_be_kept_in_the_pod_only(render: Render) -> None:
    objects = render({"results": {"persistence": {"enabled": False}}})
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}
    assert {"name": "results", "emptyDir": {}} in the(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]


def test_a_claim_that_exists_is_used(render: Render) -> None:
    objects = render({"results": {"persistence": {"existingClaim": "mine"}}})
    assert "PersistentVolumeClaim" not in {each["kind"] for each in objects}
    volumes = the(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": "results", "persistentVolumeClaim": {"claimName": "mine"}} in volumes


# -- settings


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
    service = the(objects, "Service")
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
    assert {each["targetPort"] for each in the(objects, "Service")["spec"]["ports"]} == set(ports)


def test_other_settings_become_variables(render: Render) -> None:
    variables = variables_of(render({"settings": {"pollSeconds": 2.5, "logLevel": "DEBUG", "execSessions": 3000000}}))
    assert (variables["MULTISTEP_POLL_SECONDS"], variables["MULTISTEP_LOG_LEVEL"]) == ("2.5", "DEBUG")
    assert variables["MULTISTEP_EXEC_SESSIONS"] == "3000000"  # not 3e+06


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
    [volume] = [each for each in the(objects, "Deployment")["spec"]["template"]["spec"]["volumes"] if each["name"] == mount["name"]]
    assert volume["configMap"] == {"name": "ca", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


def test_without_an_object_store_none_is_mentioned(render: Render) -> None:
    objects = render()
    assert not [name for name in variables_of(objects) if "STORE" in name or name.startswith("AWS")]
    assert "envFrom" not in container_of(objects) and "results-store" not in json.dumps(the(objects, "Deployment"))


@pytest.mark.parametrize(
    ("values", "output"),
    [
        ({"replicas": "two"}, "at '/replicas': got string, want integer"),
        ({"replicas": -1}, "at '/replicas': minimum: got -1, want 0"),
        ({"image": {"repository": ""}}, "at '/image/repository'"),
        ({"drain": "Never"}, "at '/drain': value must be one of 'Move', 'Wait'"),
        ({"results": {"retentionSeconds": "30d"}}, "retentionSeconds': got string, want (number or null|null or number)"),
        ({"namespaces": ["Upper"]}, r'namespaces\[0\]: "Upper" is not a valid namespace: use lower-case letters'),
        ({"results": {"persistence": {"size": "much"}}}, 'results.persistence.size: "much" is not a quantity: .* such as 10Gi'),
        ({"tmp": {"sizeLimit": "1 GB"}}, 'tmp.sizeLimit: "1 GB" is not a quantity'),
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
        ({"trials": {"egressPolicy": {"enabled": True}}}, "trials.egressPolicy.enabled: `namespaces` is empty: list"),
    ],
)
def test_values_that_mean_nothing_are_refused_with_what_would_be_right(render: Render, values: Object, output: str) -> None:
    with pytest.raises(ValueError) as refused:
        render(values)
    assert re.search(output, str(refused.value), re.DOTALL), refused.value


@pytest.mark.parametrize(
    "path",
    [
        ["replica"],
        ["settings", "otlpEndpont"],
        ["podDisruptionBudget", "maxUnavailble"],
        ["results", "store", "endpont"],
        ["metrics", "podMonitor", "enable"],
        ["networkPolicy", "egress", "apiServer", "port"],
    ],
    ids=".".join,
)
def test_an_unknown_key_is_reported_at_its_place(render: Render, path: list[str]) -> None:
    """Helm's JSON schema library reports `propertyNames` errors at a random location."""
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
    assert chart_reference.page(chart_reference.DOCS.read_text()) == chart_reference.DOCS.read_text(), "run: make generate"


def keys(schema: Object, values: object) -> Iterator[tuple[list[str], list[str]]]:
    """Yield the keys in the schema and the keys in the values of each of the chart's own tables."""
    if "properties" in schema and isinstance(values, dict):
        yield list(schema["properties"]), list(values)
        for key, below in schema["properties"].items():
            yield from keys(below, values.get(key))


def test_every_value_of_the_schema_has_a_default_and_the_other_way_round() -> None:
    whole = json.loads(chart_reference.SCHEMA.read_text())
    places = list(keys(whole, yaml.safe_load((CHART / "values.yaml").read_text())))
    optional = {"global", "claims", *chart_reference.settings()}
    assert len(places) > 15
    assert [(known, given) for known, given in places if set(known) - optional != set(given)] == []


def test_every_value_is_explained() -> None:
    rows = re.findall(r"^\| `([^`]+)` \| .*? \| (.*) \|$", chart_reference.DOCS.read_text(), re.MULTILINE)
    explained = {name for name, meaning in rows if meaning}
    obvious = {"service.type", "serviceAccount.name"}
    lost = {name for name, _ in rows} - explained - obvious
    assert len(rows) > 70 and {name for name in lost if not name.endswith((".annotations", ".enabled"))} == set()


def test_the_setting_of_enforced_network_policies_is_passed_with_the_right_to_create_them(render: Render) -> None:
    assert variables_of(render())["MULTISTEP_NETWORK_POLICY_ENFORCED"] == "false"
    enforced = render({"trials": {"networkPolicyEnforced": True}})
    assert variables_of(enforced)["MULTISTEP_NETWORK_POLICY_ENFORCED"] == "true"
    more = granted(operator_role(enforced, "ClusterRole")) - granted(operator_role(render(), "ClusterRole"))
    assert more == {("networking.k8s.io", "networkpolicies", verb) for verb in ("get", "create")}


def test_waiting_drains_set_a_variable_and_need_more_rights(render: Render) -> None:
    assert variables_of(render())["MULTISTEP_DRAIN"] == "Move"
    waiting = render({"drain": "Wait"})
    assert variables_of(waiting)["MULTISTEP_DRAIN"] == "Wait"
    more = granted(operator_role(waiting, "ClusterRole")) - granted(operator_role(render(), "ClusterRole"))
    assert more == {("policy", "poddisruptionbudgets", verb) for verb in ("create", "delete")}


# -- rights


def test_the_operator_has_these_rights_and_no_others(render: Render) -> None:
    assert granted(operator_role(render(), "ClusterRole")) == {
        *(("multistep.dev", "multisteptrials", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
        *(("multistep.dev", "trialsweeps", verb) for verb in ("get", "list", "watch", "delete")),
        ("multistep.dev", "multisteptrials/status", "patch"),
        ("multistep.dev", "trialsweeps/status", "patch"),
        *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
        ("", "pods/exec", "get"),
        ("", "pods/exec", "create"),
        ("", "configmaps", "get"),
        ("", "configmaps", "create"),
        ("", "secrets", "get"),
        ("events.k8s.io", "events", "create"),
    }


@pytest.mark.parametrize("values", [{}, {"namespaces": ["a"]}])
def test_the_lease_is_in_its_own_namespace_where_it_may_write_that_one_alone(render: Render, values: Object) -> None:
    objects = render(values, release="other")
    [role] = [each for each in objects if each["kind"] == "Role" and each["metadata"]["name"].endswith(":lease")]
    variables = variables_of(objects)
    assert variables["MULTISTEP_LEASE_NAMESPACE"] == role["metadata"]["namespace"] == "multistep-system"
    create, change = role["rules"]
    assert (create["resources"], create["verbs"]) == (["leases"], ["create"])
    assert change["resourceNames"] == [variables["MULTISTEP_LEASE_NAME"]] == ["other-multistep"]
    assert (change["resources"], change["verbs"]) == (["leases"], ["get", "update"])
    [binding] = [each for each in objects if each["kind"] == "RoleBinding" and each["metadata"]["name"].endswith(":lease")]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "other-multistep", "namespace": "multistep-system"}]


def test_a_replica_knows_its_pod(render: Render) -> None:
    fields = {
        each["name"]: each["valueFrom"]["fieldRef"]["fieldPath"] for each in container_of(render())["env"] if "valueFrom" in each
    }
    assert fields == {"MULTISTEP_POD_NAME": "metadata.name", "MULTISTEP_POD_UID": "metadata.uid"}


def test_secrets_can_be_kept_from_it(render: Render) -> None:
    role = operator_role(render({"rbac": {"secrets": False}}), "ClusterRole")
    assert ("", "secrets", "get") not in granted(role)


def test_with_namespaces_it_has_rights_only_there(render: Render) -> None:
    objects = render({"namespaces": ["a", "b"], "rbac": {"aggregate": False}})
    kinds = [each["kind"] for each in objects]
    assert "ClusterRole" not in kinds and "ClusterRoleBinding" not in kinds
    for kind in ("Role", "RoleBinding"):
        made = [
            each["metadata"]
            for each in objects
            if each["kind"] == kind and not each["metadata"]["name"].endswith((":lease", "-test"))
        ]
        assert [each["namespace"] for each in made] == ["a", "b"]


def test_the_binding_names_the_account_of_the_pod(render: Render) -> None:
    objects = render({"test": {"trial": False}}, release="other")
    account = the(objects, "ServiceAccount")["metadata"]["name"]
    assert the(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    [subject] = the(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": "multistep-system"}


# -- node placement and disruption budgets


def placed(objects: list[Object]) -> tuple[Any, Any]:
    pod = the(objects, "Deployment")["spec"]["template"]["spec"]
    return pod.get("affinity"), pod.get("topologySpreadConstraints")


def test_one_replica_goes_anywhere_and_holds_up_no_drain(render: Render) -> None:
    assert placed(render()) == (None, None)
    assert "PodDisruptionBudget" not in {each["kind"] for each in render()}


def test_several_replicas_spread_if_their_volume_lets_them_else_stay_on_its_node(render: Render) -> None:
    labels = {"matchLabels": {"app.kubernetes.io/name": "multistep", "app.kubernetes.io/instance": "multistep"}}
    together, unset = placed(render({"replicas": 2}))
    [term] = together["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (term, unset) == ({"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}, None)
    shared = {"replicas": 2, "results": {"persistence": {"accessModes": ["ReadWriteMany"]}}}
    unset, [spread] = placed(render(shared))
    assert (unset, spread["whenUnsatisfiable"], spread["labelSelector"]) == (None, "ScheduleAnyway", labels)


def test_what_the_values_set_stands_alone(render: Render) -> None:
    own: Object = {"nodeAffinity": {}}
    constraint = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    objects = render({"replicas": 2, "affinity": own, "topologySpreadConstraints": [constraint]})
    assert placed(objects) == (own, [constraint])


def test_of_several_replicas_a_drain_takes_one_at_a_time(render: Render) -> None:
    objects = render({"replicas": 3})
    budget = the(objects, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1 and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"] == the(objects, "Deployment")["spec"]["selector"]
    off = render({"replicas": 3, "podDisruptionBudget": {"enabled": False}})
    assert "PodDisruptionBudget" not in {each["kind"] for each in off}


def test_a_pod_can_have_more_volumes_labels_and_another_user(render: Render) -> None:
    volume, mount = {"name": "ca", "configMap": {"name": "ca"}}, {"name": "ca", "mountPath": "/ca"}
    values = {
        "extraVolumes": [volume],
        "extraVolumeMounts": [mount],
        "commonLabels": {"team": "a"},
        "podLabels": {"x": "y"},
        "priorityClassName": "high",
        "podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None},
    }
    objects = render(values)
    template = the(objects, "Deployment")["spec"]["template"]
    assert volume in template["spec"]["volumes"] and mount in container_of(objects)["volumeMounts"]
    assert template["metadata"]["labels"].items() >= {"team": "a", "x": "y"}.items()
    assert template["spec"]["priorityClassName"] == "high"
    assert template["spec"]["securityContext"].keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}
    assert all(each["metadata"]["labels"]["team"] == "a" for each in objects)


# -- monitoring


def test_nothing_is_created_for_monitoring_unless_asked(render: Render) -> None:
    assert {"PodMonitor", "PrometheusRule", "ConfigMap"}.isdisjoint(each["kind"] for each in render())


def test_a_pod_monitor_scrapes_every_replica_and_has_the_labels_that_prometheus_selects(render: Render) -> None:
    values = {"metrics": {"podMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}}}}
    objects = render(values)
    monitor = the(objects, "PodMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"] == the(objects, "Deployment")["spec"]["selector"]
    assert monitor["spec"]["podMetricsEndpoints"] == [{"port": "metrics", "path": "/metrics", "interval": "15s"}]
    assert "metrics" in {port["name"] for port in container_of(objects)["ports"]}


def test_the_rules_are_those_that_promtool_has_tried(render: Render) -> None:
    rule = the(render({"metrics": {"rules": {"enabled": True, "labels": {"release": "prometheus"}}}}), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "prometheus"
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    assert "{{ $value" in str(rule)  # the placeholder is Prometheus', not Helm's


def test_the_dashboard_is_brought_to_grafana_as_it_is(render: Render) -> None:
    config = the(render({"metrics": {"dashboard": {"enabled": True}}}), "ConfigMap")
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert config["data"] == {"multistep.json": (CHART / "files" / "dashboard.json").read_text()}


# -- helm test


def test_the_test_is_no_part_of_what_the_service_and_the_policies_select(render: Render) -> None:
    objects = render()
    made = [each for each in objects if "helm.sh/hook" in (each["metadata"].get("annotations") or {})]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in made} == {"test"}
    assert [each["kind"] for each in made] == ["ServiceAccount", "Role", "RoleBinding", "Pod"]
    selected = the(objects, "Service")["spec"]["selector"].items()
    assert not [each for each in made if selected <= each["metadata"]["labels"].items()]


def test_the_tests_trial_is_in_a_namespace_that_the_operator_watches(render: Render) -> None:
    def trial(values: Object) -> Object:
        pod = the(render(values), "Pod")
        [given] = [each["value"] for each in pod["spec"]["containers"][0]["env"] if each["name"] == "TRIAL"]
        return dict(json.loads(given))

    assert trial({})["metadata"]["namespace"] == "multistep-system"
    assert trial({"namespaces": ["b", "a"]})["metadata"]["namespace"] == "b"
    parse_trial(trial({}))


def test_the_test_can_do_without_a_trial_and_then_has_no_rights(render: Render) -> None:
    objects = render({"test": {"trial": False}, "rbac": {"aggregate": False}})
    assert the(objects, "Pod")["spec"]["automountServiceAccountToken"] is False
    assert not [each for each in objects if each["metadata"]["name"] == "multistep-test" and each["kind"] == "Role"]


# -- network policies


TESTER = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "multistep-test", "app.kubernetes.io/instance": "multistep"}}}


def test_by_default_everybody_reaches_the_results_and_nobody_the_metrics(render: Render) -> None:
    """A token protects the results, and no policy can select the API server's proxy. `helm test` requests the metrics."""
    objects = render()
    policy = the(objects, "NetworkPolicy")["spec"]
    results, metrics = policy["ingress"]
    assert policy["policyTypes"] == ["Ingress"]
    assert results == {"ports": [{"port": "results", "protocol": "TCP"}]}
    assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [TESTER]}
    assert policy["podSelector"]["matchLabels"].items() <= _labels(the(objects, "Deployment")).items()
    assert TESTER["podSelector"]["matchLabels"].items() <= the(objects, "Pod")["metadata"]["labels"].items()


def test_the_namespaces_of_the_monitoring_reach_the_metrics(render: Render) -> None:
    values = {"networkPolicy": {"metricsNamespaces": ["monitoring"], "resultsFrom": [{"namespaceSelector": {}}]}}
    results, metrics = the(render(values), "NetworkPolicy")["spec"]["ingress"]
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["monitoring"]}
    assert metrics["from"] == [TESTER, {"namespaceSelector": {"matchExpressions": [named]}}]
    assert results["from"] == [{"namespaceSelector": {}}]


def test_the_policy_can_be_left_out(render: Render) -> None:
    assert "NetworkPolicy" not in {each["kind"] for each in render({"networkPolicy": {"enabled": False}})}


def test_egress_is_limited_to_dns_the_api_server_and_what_the_values_set(render: Render) -> None:
    stores = {"ports": [{"port": 9000}]}
    egress = {"enabled": True, "apiServer": {"ports": [6443], "cidrs": ["10.0.0.1/32"]}, "to": [stores]}
    policy = the(render({"networkPolicy": {"enabled": False, "egress": egress}}), "NetworkPolicy")["spec"]
    dns = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    api = {"ports": [{"port": 6443, "protocol": "TCP"}], "to": [{"ipBlock": {"cidr": "10.0.0.1/32"}}]}
    assert (policy["policyTypes"], policy["egress"]) == (["Egress"], [dns, api, stores])
    assert "ingress" not in policy


def test_trials_get_a_policy_in_each_namespace_that_leaves_out_those_with_their_own(render: Render) -> None:
    objects = render({"namespaces": ["a", "b"], "trials": {"egressPolicy": {"enabled": True}}})
    policies = [each for each in objects if each["kind"] == "NetworkPolicy" and each["metadata"]["namespace"] != "multistep-system"]
    assert [each["metadata"]["namespace"] for each in policies] == ["a", "b"]
    spec = policies[0]["spec"]
    assert spec["podSelector"] == {
        "matchLabels": dict([identity.OURS.split("=")]),
        "matchExpressions": [{"key": identity.LABEL_NETWORK, "operator": "DoesNotExist"}],
    }
    assert spec["policyTypes"] == ["Egress"]
    blocks = [each["ipBlock"] for rule in spec["egress"] for each in rule.get("to", [])]
    assert {"169.254.0.0/16", "10.0.0.0/8"} <= set(blocks[0]["except"]) and len(blocks) == 2


def _labels(deployment: Object) -> dict[str, str]:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])
