"""What makes a cluster healthy: every process alive, and each part saying so when asked."""

from typing import Any

from localkube import components, node
from localkube.api import Api
from localkube.config import Config
from localkube.containerd import Containerd
from localkube.errors import ApiError, Unreachable
from localkube.pki import Pki


def connect(config: Config) -> Api:
    return Api(config.network, Pki(config.paths.pki))


def problems(config: Config) -> list[str]:
    """What is wrong, in words; empty if the cluster can take pods."""
    if not node.is_up(config):
        return ["the node's network or namespaces are not there"]
    dead = [f"{component.name} is not running" for component in components.dead(config)]
    return dead or unready(config)


def unready(config: Config) -> list[str]:
    """What does not say that it is ready, of a cluster whose processes all run."""
    api = connect(config)
    if not Containerd(config.paths.containerd_socket).answers():
        return ["containerd does not answer"]
    if not api.says_ok("/readyz"):
        return ["apiserver is not ready"]
    return _unready_node(api, config)


def _unready_node(api: Api, config: Config) -> list[str]:
    name = config.node_name
    try:
        found = api.get(f"/api/v1/nodes/{name}")
        api.get("/api/v1/namespaces/default/serviceaccounts/default")
    except (ApiError, Unreachable) as error:
        return [str(error)]
    if not takes_pods(found):
        return [f"node {name} does not take pods yet"]
    if not api.says_ok(f"/api/v1/nodes/{name}/proxy/healthz"):
        return ["kubelet does not answer the apiserver"]
    if not api.says_ok(f"/api/v1/nodes/http:{config.node_name}:{config.network.dns_ready_port}/proxy/ready"):
        return ["dns is not ready"]
    return []


def takes_pods(found: dict[str, Any]) -> bool:
    """Ready, and without a taint: a new node keeps its not-ready taint for about a second."""
    conditions = found.get("status", {}).get("conditions", [])
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and not found["spec"].get("taints") and not found["spec"].get("unschedulable")
