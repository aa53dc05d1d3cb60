"""The chart gives the operator what it needs and no more."""

from __future__ import annotations

import re

import pytest
import yaml

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
    others = (":view", ":edit", ":lease")
    [role] = [each for each in objects if each["kind"] == kind and not each["metadata"]["name"].endswith(others)]
    return role


# -- the CRD


def test_the_charts_crds_are_those_of_the_repository() -> None:
    ours = {file.name: file.read_text() for file in (ROOT / "crds").glob("*.yaml")}
    assert ours == {file.name: file.read_text() for file in (CHART / "files" / "crds").glob("*.yaml")}, "run: make generate"


def test_the_crd_is_rendered_whole_and_outlives_the_release(render: Render) -> None:
    rendered = the(render(), "CustomResourceDefinition")
    assert rendered["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    [file] = (ROOT / "crds").glob("*.yaml")
    assert rendered["spec"] == yaml.safe_load(file.read_text())["spec"]


def test_the_crd_can_be_left_to_others(render: Render) -> None:
    assert not [each for each in render({"crds": {"install": False}}) if each["kind"] == "CustomResourceDefinition"]


# -- the pod


def test_the_pod_is_restricted(render: Render) -> None:
    """The `restricted` Pod Security Standard, and a read-only root filesystem."""
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
    assert mounted == {"/var/lib/multistep", "/tmp"}


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


def test_the_variables_are_settings_and_mean_what_they_say(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = variables_of(render({"namespaces": ["a", "b"], "image": {"repository": "r/i", "tag": "1"}}))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert set(variables) <= {f"MULTISTEP_{field.upper()}" for field in Settings.model_fields}
    assert settings.namespaces == ["a", "b"]
    assert settings.operator_image == "r/i:1"
    assert settings.results_url == "service://multistep-system/multistep:http"
    assert (str(settings.results_dir), settings.http_port) == ("/var/lib/multistep", 8080)


def test_a_service_has_the_name_and_the_port_of_the_results_url(render: Render) -> None:
    objects = render(release="other")
    service = the(objects, "Service")
    [port] = service["spec"]["ports"]
    assert (
        variables_of(objects)["MULTISTEP_RESULTS_URL"] == f"service://multistep-system/{service['metadata']['name']}:{port['name']}"
    )


def test_every_setting_that_values_may_have_exists() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())  # JSON is YAML
    names = {re.sub("([A-Z])", r"_\1", name).lower() for name in schema["properties"]["settings"]["properties"]}
    assert names <= set(Settings.model_fields)


def test_other_settings_become_variables(render: Render) -> None:
    variables = variables_of(render({"settings": {"pollSeconds": 2.5, "logLevel": "DEBUG"}}))
    assert (variables["MULTISTEP_POLL_SECONDS"], variables["MULTISTEP_LOG_LEVEL"]) == ("2.5", "DEBUG")


def test_results_are_kept_for_ever_or_for_as_long_as_the_values_say(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "MULTISTEP_RESULTS_RETENTION_SECONDS"
    assert name not in variables_of(render()) and Settings().results_retention_seconds is None
    for seconds in (0, 2592000):
        monkeypatch.setenv(name, variables_of(render({"results": {"retentionSeconds": seconds}}))[name])
        assert Settings().results_retention_seconds == seconds


@pytest.mark.parametrize(
    "values",
    [
        {"settings": {"pollSecond": 1}},
        {"namespaces": ["Upper"]},
        {"image": {"repository": ""}},
        {"replicas": -1},
        {"drain": "Never"},
        {"results": {"persistence": {"size": "much"}}},
        {"results": {"retentionSeconds": "30d"}},
    ],
)
def test_values_that_mean_nothing_are_refused(render: Render, values: Object) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications"):
        render(values)


def test_whether_network_policies_are_enforced_is_told_and_lets_it_make_some(render: Render) -> None:
    assert variables_of(render())["MULTISTEP_NETWORK_POLICIES_ENFORCED"] == "false"
    enforced = render({"networkPolicies": {"enforced": True}})
    assert variables_of(enforced)["MULTISTEP_NETWORK_POLICIES_ENFORCED"] == "true"
    more = granted(operator_role(enforced, "ClusterRole")) - granted(operator_role(render(), "ClusterRole"))
    assert more == {("networking.k8s.io", "networkpolicies", verb) for verb in ("get", "create")}


def test_drains_that_wait_are_told_and_need_more_rights(render: Render) -> None:
    assert variables_of(render())["MULTISTEP_DRAIN"] == "Move"
    waiting = render({"drain": "Wait"})
    assert variables_of(waiting)["MULTISTEP_DRAIN"] == "Wait"
    more = granted(operator_role(waiting, "ClusterRole")) - granted(operator_role(render(), "ClusterRole"))
    assert more == {("policy", "poddisruptionbudgets", verb) for verb in ("create", "delete")}


# -- rights


def test_the_operator_has_these_rights_and_no_others(render: Render) -> None:
    assert granted(operator_role(render(), "ClusterRole")) == {
        *(("multistep.dev", "multisteptrials", verb) for verb in ("get", "list", "watch", "delete")),
        ("multistep.dev", "multisteptrials/status", "patch"),
        *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
        ("", "pods/exec", "get"),
        ("", "pods/exec", "create"),
        ("", "configmaps", "get"),
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
        made = [each["metadata"] for each in objects if each["kind"] == kind and not each["metadata"]["name"].endswith(":lease")]
        assert [each["namespace"] for each in made] == ["a", "b"]


def test_the_binding_names_the_account_of_the_pod(render: Render) -> None:
    objects = render(release="other")
    account = the(objects, "ServiceAccount")["metadata"]["name"]
    assert the(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    [subject] = the(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": "multistep-system"}


def test_a_network_policy_lets_in_the_http_port_alone(render: Render) -> None:
    policy = the(render({"networkPolicy": {"enabled": True}}), "NetworkPolicy")
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert policy["spec"]["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= _labels(the(render(), "Deployment")).items()


def _labels(deployment: Object) -> dict[str, str]:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])
