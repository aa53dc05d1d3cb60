"""Check the cluster's health, which requires that every process runs and each component reports that it is ready."""

from typing import Any

from localkube import components, node
from localkube.api import Api
from localkube.config import Config, Node
from localkube.containerd import Containerd
from localkube.errors import ApiError, Unreachable
from localkube.pki import Pki


def connect(config: Config) -> Api:
    return Api(config.network, Pki(config.paths.pki))


def problems(config: Config) -> list[str]:
    """Return the problems as text, or [] if the cluster accepts pods."""
    if not node.is_up(config, config.first):
        return ["the node's network or namespaces are not there"]
    dead = [f"{component.name} is not running" for component in components.dead(config)]
    return dead or unready(config)


def unready(config: Config) -> list[str]:
    """Return a text for each component or node that is not ready. The caller has checked that every process runs."""
    api = connect(config)
    if not api.answers_ok("/readyz"):
        return ["apiserver is not ready"]
    nodes = [problem for each in config.nodes for problem in _unready_node(api, config, each)]
    return nodes or _unready_services(api, config)


def _unready_node(api: Api, config: Config, node: Node) -> list[str]:
    if not Containerd.of(config, node).answers():
        return [f"containerd of {node.name} does not answer"]
    try:
        found = api.get(f"/api/v1/nodes/{node.name}")
    except (ApiError, Unreachable) as error:
        return [str(error)]
    if not takes_pods(found):
        return [f"node {node.name} does not take pods yet"]
    if not api.answers_ok(f"/api/v1/nodes/{node.name}/proxy/healthz"):
        return [f"kubelet of {node.name} does not answer the apiserver"]
    return []


def _unready_services(api: Api, config: Config) -> list[str]:
    try:
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except (ApiError, Unreachable) as error:
        return [str(error)]
    if not api.answers_ok(f"/api/v1/nodes/http:{config.first.name}:{config.network.dns_ready_port}/proxy/ready"):
        return ["dns is not ready"]
    return []


def takes_pods(found: dict[str, Any]) -> bool:
    """Return whether pods can be scheduled on the node. A new node is Ready about a second before it loses its taint not-ready."""
    conditions = found.get("status", {}).get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not found["spec"].get("taints") and not found["spec"].get("unschedulable")
