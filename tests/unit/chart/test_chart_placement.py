"""Test the operator's node placement, PodDisruptionBudget and other fields of its pod."""

from __future__ import annotations

from typing import Any

from tests.unit.chart.chart_objects import container_of
from tests.unit.chart.conftest import Object, Render, only

# -- node placement and disruption budgets


def placed(objects: list[Object]) -> tuple[Any, Any]:
    pod = only(objects, "Deployment")["spec"]["template"]["spec"]
    return pod.get("affinity"), pod.get("topologySpreadConstraints")


def test_one_replica_goes_anywhere_and_holds_up_no_drain(render: Render) -> None:
    assert placed(render()) == (None, None)
    assert "PodDisruptionBudget" not in {each["kind"] for each in render()}


def test_several_replicas_spread_if_their_volume_lets_them_else_stay_on_its_node(render: Render) -> None:
    labels = {"matchLabels": {"app.kubernetes.io/name": "multistep", "app.kubernetes.io/instance": "multistep"}}
    together, unset = placed(render({"replicaCount": 2}))
    [term] = together["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert (term, unset) == ({"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}, None)
    shared = {"replicaCount": 2, "results": {"persistence": {"accessModes": ["ReadWriteMany"]}}}
    unset, [spread] = placed(render(shared))
    assert (unset, spread["whenUnsatisfiable"], spread["labelSelector"]) == (None, "ScheduleAnyway", labels)


def test_what_the_values_set_stands_alone(render: Render) -> None:
    own: Object = {"nodeAffinity": {}}
    constraint = {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    objects = render({"replicaCount": 2, "affinity": own, "topologySpreadConstraints": [constraint]})
    assert placed(objects) == (own, [constraint])


def test_of_several_replicas_a_drain_takes_one_at_a_time(render: Render) -> None:
    objects = render({"replicaCount": 3})
    budget = only(objects, "PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1 and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    assert budget["selector"] == only(objects, "Deployment")["spec"]["selector"]
    off = render({"replicaCount": 3, "podDisruptionBudget": {"enabled": False}})
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
    template = only(objects, "Deployment")["spec"]["template"]
    assert volume in template["spec"]["volumes"] and mount in container_of(objects)["volumeMounts"]
    assert template["metadata"]["labels"].items() >= {"team": "a", "x": "y"}.items()
    assert template["spec"]["priorityClassName"] == "high"
    assert template["spec"]["securityContext"].keys() == {"runAsNonRoot", "fsGroupChangePolicy", "seccompProfile"}
    assert all(each["metadata"]["labels"]["team"] == "a" for each in objects)
