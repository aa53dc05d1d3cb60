"""The chart limits who may connect to whom."""

from __future__ import annotations

from multistep.pods import identity
from tests.unit.chart.conftest import Object, Render, the

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
