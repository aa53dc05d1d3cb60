"""Create the API objects of a new cluster: RBAC, DNS and volumes."""

from typing import Any

from localkube import volumes
from localkube.api import Api
from localkube.config import Config, Network

Manifest = dict[str, Any]
_RBAC = "rbac.authorization.k8s.io"
_DNS_NAME = "kube-dns"


def ensure_objects(config: Config, api: Api) -> None:
    """Create the objects, or reset existing objects to their manifests."""
    cluster_roles, bindings = f"/apis/{_RBAC}/v1/clusterroles", f"/apis/{_RBAC}/v1/clusterrolebindings"
    system = "namespaces/kube-system"
    api.apply(f"{cluster_roles}/{DNS_ROLE['metadata']['name']}", DNS_ROLE)
    for each in (KUBELET_ACCESS, DNS_ACCESS):
        api.apply(f"{bindings}/{each['metadata']['name']}", each)
    api.apply(f"/api/v1/{system}/services/{_DNS_NAME}", dns_service(config.network))
    api.apply(f"/apis/discovery.k8s.io/v1/{system}/endpointslices/{_DNS_NAME}", dns_endpoints(config.network))
    volumes.ensure_volumes(config, api)


def forget_node(api: Api, name: str) -> None:
    """Delete the API objects of a removed node and of its pods, because no kubelet reports that the pods have stopped."""
    on_node = api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{name}")["items"]
    api.delete(f"/api/v1/nodes/{name}")
    for pod in on_node:
        metadata = pod["metadata"]
        api.delete(f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}?gracePeriodSeconds=0")


def dns_service(network: Network) -> Manifest:
    """Return the Service of the DNS server. It has no selector, because the server is a process of the node, not a pod."""
    ports = [_dns_port("UDP") | {"targetPort": 53}, _dns_port("TCP") | {"targetPort": 53}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _DNS_NAME, "labels": {"k8s-app": _DNS_NAME, "kubernetes.io/name": "CoreDNS"}},
        "spec": {"clusterIP": network.dns_address, "ports": ports},
    }


def dns_endpoints(network: Network) -> Manifest:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": _DNS_NAME, "labels": {"kubernetes.io/service-name": _DNS_NAME}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [network.node_address], "conditions": {"ready": True}}],
        "ports": [_dns_port("UDP"), _dns_port("TCP")],
    }


def _dns_port(protocol: str) -> Manifest:
    return {"name": f"dns-{protocol.lower()}", "protocol": protocol, "port": 53}


def _cluster_role_binding(name: str, role: str, user: str) -> Manifest:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": _RBAC, "kind": "User", "name": user}],
    }


DNS_ROLE: Manifest = {
    "apiVersion": f"{_RBAC}/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "localkube:dns"},
    "rules": [
        {"apiGroups": [""], "resources": ["namespaces", "services"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ],
}
DNS_ACCESS = _cluster_role_binding("localkube:dns", "localkube:dns", "system:dns")
KUBELET_ACCESS = _cluster_role_binding(
    "localkube:apiserver-to-kubelet", "system:kubelet-api-admin", "kube-apiserver-kubelet-client"
)
