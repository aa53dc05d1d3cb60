"""Test the RBAC rules that the chart grants the operator, for different values."""

from __future__ import annotations

import pytest

from multistep.cli.doctor.permissions import OPERATOR_PERMISSIONS
from tests.unit.chart.chart_objects import container_of, granted, operator_role, variables_of
from tests.unit.chart.conftest import Object, Render, only

# -- RBAC rules


def test_the_operator_has_these_rights_and_no_others(render: Render) -> None:
    assert granted(operator_role(render(), "ClusterRole")) == {
        *(("multistep.dev", "multisteptrials", verb) for verb in ("get", "list", "watch", "create", "patch", "delete")),
        *(("multistep.dev", "trialsweeps", verb) for verb in ("get", "list", "watch", "delete")),
        ("multistep.dev", "multisteptrials/status", "patch"),
        ("multistep.dev", "trialsweeps/status", "patch"),
        *(("", "pods", verb) for verb in ("get", "list", "watch", "create", "delete")),
        ("", "pods/exec", "get"),
        ("", "pods/exec", "create"),
        ("", "pods/log", "get"),
        ("", "configmaps", "get"),
        ("", "configmaps", "create"),
        ("", "secrets", "get"),
        ("events.k8s.io", "events", "create"),
    }


def test_doctor_checks_all_rights_but_that_to_read_secrets_which_some_do_without(render: Render) -> None:
    checked = {(each.group, each.resource, each.verb) for each in OPERATOR_PERMISSIONS}
    assert checked == granted(operator_role(render({"rbac": {"secrets": False}}), "ClusterRole"))


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
    account = only(objects, "ServiceAccount")["metadata"]["name"]
    assert only(objects, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account
    [subject] = only(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": account, "namespace": "multistep-system"}
