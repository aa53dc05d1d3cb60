"""Test the chart's network policies: allowed connections to and from the operator, the model gateway and the trials."""

from __future__ import annotations

from multistep.api.common import labels
from multistep.pods import pod_identity
from tests.unit.chart.conftest import Object, Render, only

# -- network policies


TESTER = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "multistep-test", "app.kubernetes.io/instance": "multistep"}}}


def test_by_default_any_client_reaches_the_results_and_none_the_metrics(render: Render) -> None:
    """Any client may connect to the results port, because no policy can select the API server's proxy. Reads need a token.

    Only the pod of `helm test` may connect to the metrics port.
    """
    objects = render()
    policy = only(objects, "NetworkPolicy")["spec"]
    results, metrics = policy["ingress"]
    assert policy["policyTypes"] == ["Ingress"]
    assert results == {"ports": [{"port": "results", "protocol": "TCP"}]}
    assert metrics == {"ports": [{"port": "metrics", "protocol": "TCP"}], "from": [TESTER]}
    assert policy["podSelector"]["matchLabels"].items() <= _labels(only(objects, "Deployment")).items()
    assert TESTER["podSelector"]["matchLabels"].items() <= only(objects, "Pod")["metadata"]["labels"].items()


def test_the_namespaces_of_the_monitoring_reach_the_metrics(render: Render) -> None:
    values = {"networkPolicy": {"metricsNamespaces": ["monitoring"], "resultsFrom": [{"namespaceSelector": {}}]}}
    results, metrics = only(render(values), "NetworkPolicy")["spec"]["ingress"]
    named = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["monitoring"]}
    assert metrics["from"] == [TESTER, {"namespaceSelector": {"matchExpressions": [named]}}]
    assert results["from"] == [{"namespaceSelector": {}}]


def test_the_policy_can_be_left_out(render: Render) -> None:
    assert "NetworkPolicy" not in {each["kind"] for each in render({"networkPolicy": {"enabled": False}})}


def test_egress_is_limited_to_dns_the_api_server_and_what_the_values_set(render: Render) -> None:
    stores = {"ports": [{"port": 9000}]}
    egress = {"enabled": True, "apiServer": {"ports": [6443], "cidrs": ["10.0.0.1/32"]}, "to": [stores]}
    values = {"networkPolicy": {"enabled": False, "egress": egress}, "gateway": {"enabled": False}}
    policy = only(render(values), "NetworkPolicy")["spec"]
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
        "matchLabels": dict(labels.MANAGED),
        "matchExpressions": [{"key": pod_identity.LABEL_NETWORK, "operator": "DoesNotExist"}],
    }
    assert spec["policyTypes"] == ["Egress"]
    blocks = [each["ipBlock"] for rule in spec["egress"] for each in rule.get("to", []) if "ipBlock" in each]
    assert {"169.254.0.0/16", "10.0.0.0/8"} <= set(blocks[0]["except"]) and len(blocks) == 2


def _labels(deployment: Object) -> dict[str, str]:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])


# -- network policies of the model gateway


OPERATOR, GATEWAY = (
    {"podSelector": {"matchLabels": {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": "multistep"}}}
    for name in ("multistep", "multistep-gateway")
)


def test_pods_of_trials_reach_the_gateway_and_the_operator_its_admin_port(render: Render) -> None:
    objects = render()
    policy = only(objects, "NetworkPolicy", gateway=True)["spec"]
    ours = {"podSelector": {"matchLabels": dict(labels.MANAGED)}}
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [
        {"ports": [{"port": "public", "protocol": "TCP"}], "from": [{**ours, "namespaceSelector": {}}]},
        {"ports": [{"port": "admin", "protocol": "TCP"}], "from": [OPERATOR]},
    ]
    assert OPERATOR["podSelector"]["matchLabels"].items() <= _labels(only(objects, "Deployment")).items()


def test_only_pods_of_the_operators_namespaces_reach_the_gateway(render: Render) -> None:
    public, admin = only(
        render({"namespaces": ["a"], "networkPolicy": {"metricsNamespaces": ["monitoring"]}}), "NetworkPolicy", gateway=True
    )["spec"]["ingress"]
    named = {"key": "kubernetes.io/metadata.name", "operator": "In"}
    assert public["from"][0]["namespaceSelector"] == {"matchExpressions": [{**named, "values": ["a"]}]}
    assert admin["from"][1] == {"namespaceSelector": {"matchExpressions": [{**named, "values": ["monitoring"]}]}}


def test_limited_egress_leads_the_operator_to_the_gateway_and_the_gateway_to_the_providers(render: Render) -> None:
    objects = render({"networkPolicy": {"enabled": False, "egress": {"enabled": True}}})
    assert {"ports": [{"port": 8081, "protocol": "TCP"}], "to": [GATEWAY]} in only(objects, "NetworkPolicy")["spec"]["egress"]
    policy = only(objects, "NetworkPolicy", gateway=True)["spec"]
    dns, providers = policy["egress"]
    assert policy["policyTypes"] == ["Egress"] and "ingress" not in policy
    assert [each["port"] for each in dns["ports"]] == [53, 53]
    assert [each["port"] for each in providers["ports"]] == [443]
    assert "169.254.0.0/16" in providers["to"][0]["ipBlock"]["except"]
    own = {"ports": [{"port": 3128}]}
    changed = render({"networkPolicy": {"egress": {"enabled": True, "providers": [own]}}})
    assert only(changed, "NetworkPolicy", gateway=True)["spec"]["egress"] == [dns, own]


def test_limited_egress_of_trials_leads_to_the_gateway(render: Render) -> None:
    objects = render({"namespaces": ["a"], "trials": {"egressPolicy": {"enabled": True, "allow": []}}})
    [policy] = [each for each in objects if each["kind"] == "NetworkPolicy" and each["metadata"]["namespace"] == "a"]
    home = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "multistep-system"}}}
    assert policy["spec"]["egress"] == [{"ports": [{"port": 8080, "protocol": "TCP"}], "to": [{**home, **GATEWAY}]}]
    assert GATEWAY["podSelector"]["matchLabels"].items() <= only(objects, "StatefulSet", gateway=True)["metadata"]["labels"].items()


# -- the policy that admits egress sidecars


def test_the_policy_of_one_release_admits_the_sidecars_of_another(render: Render) -> None:
    """All releases' admission policies apply to a pod. Each pins its own sidecars' image and admits other releases' sidecars."""
    values = {"trials": {"egress": "Sidecar"}, "image": {"repository": "r/i", "tag": "1"}}
    variables = {
        each["name"]: each["expression"]
        for each in only(render(values, release="other"), "ValidatingAdmissionPolicy")["spec"]["variables"]
    }
    own = "'system:serviceaccount:multistep-system:other-multistep'"
    assert f"request.userInfo.username == {own}" in variables["fromOperator"]
    assert variables["fromOther"] == (
        f"request.userInfo.username.startsWith('system:serviceaccount:') && request.userInfo.username != {own} && "
        "authorizer.group('multistep.dev').resource('multisteptrials').subresource('status').namespace(request.namespace) "
        ".check('patch').allowed()"
    )
    assert "((variables.fromOperator && c.image in variables.images) || variables.fromOther) &&" in variables["sidecar"]
    assert "['r/i:1']" in variables["images"]
    # Else a user's template could run another program of the operator's image with NET_ADMIN.
    program = "c.?command.orValue([]).size() > 1 && c.command[0] == '/multistep/egress' && c.command[1] == 'serve' &&"
    assert f"{program} c.?args.orValue([]).size() == 0 &&" in variables["sidecar"]
    assert list(variables).index("fromOther") < list(variables).index("sidecar")  # a variable may use only those before it
