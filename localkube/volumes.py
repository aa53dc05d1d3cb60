"""Provide storage for PersistentVolumeClaims, with a default StorageClass `local` and a few volumes, which are directories of the
node."""

import shutil
from typing import Any

from localkube.api import Api
from localkube.config import Config

STORAGE_CLASS = "local"
_NODE_DIRECTORY = "/var/lib/localkube-volumes"


def ensure_volumes(config: Config, api: Api) -> None:
    """Create the StorageClass and missing volumes. Empty each volume whose claim was deleted, and make it available again."""
    api.apply(f"/apis/storage.k8s.io/v1/storageclasses/{STORAGE_CLASS}", storage_class())
    phases = _phases(api)
    for number in range(config.volume_count):
        name = f"local-{number}"
        directory = config.paths.node_var_lib(config.first) / "localkube-volumes" / name
        if phases.get(name) == "Released":
            shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, exist_ok=True)
        if phases.get(name) == "Released":
            api.merge(f"/api/v1/persistentvolumes/{name}", {"spec": {"claimRef": None}})
        if name not in phases:
            api.apply(f"/api/v1/persistentvolumes/{name}", volume(name, config.volume_gibibytes, config.first.name))


def storage_class() -> dict[str, Any]:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def volume(name: str, gibibytes: int, node: str) -> dict[str, Any]:
    """Return a volume's manifest. Its size is not enforced."""
    on_node = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": STORAGE_CLASS,
            "capacity": {"storage": f"{gibibytes}Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            # `local` instead of `hostPath`, because the kubelet applies the pod's fsGroup only to `local`.
            "local": {"path": f"{_NODE_DIRECTORY}/{name}"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [on_node]}]}},
        },
    }


def _phases(api: Api) -> dict[str, str]:
    volumes = api.get("/api/v1/persistentvolumes")["items"]
    return {each["metadata"]["name"]: each["status"].get("phase", "") for each in volumes}
