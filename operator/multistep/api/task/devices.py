"""Types of accelerators in task.toml, and the labels of the nodes that have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GPU_RESOURCE: Final = "nvidia.com/gpu"
TPU_RESOURCE: Final = "google.com/tpu"
TPU_TYPE_LABEL: Final = "cloud.google.com/gke-tpu-accelerator"
TPU_TOPOLOGY_LABEL: Final = "cloud.google.com/gke-tpu-topology"

# Labels of NVIDIA's GPU feature discovery, of GKE and of Karpenter on AWS.
_PRODUCT, _GKE, _KARPENTER = "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "karpenter.k8s.aws/instance-gpu-name"

GpuLabels = Mapping[str, Mapping[str, tuple[str, ...]]]

GPU_TYPES: Final[GpuLabels] = {
    "t4": {_PRODUCT: ("Tesla-T4",), _GKE: ("nvidia-tesla-t4",), _KARPENTER: ("t4",)},
    "v100": {
        _PRODUCT: ("Tesla-V100-SXM2-16GB", "Tesla-V100-SXM2-32GB", "Tesla-V100-PCIE-16GB", "Tesla-V100-PCIE-32GB"),
        _GKE: ("nvidia-tesla-v100",),
        _KARPENTER: ("v100",),
    },
    "l4": {_PRODUCT: ("NVIDIA-L4",), _GKE: ("nvidia-l4",), _KARPENTER: ("l4",)},
    "l40s": {_PRODUCT: ("NVIDIA-L40S",), _KARPENTER: ("l40s",)},
    "a10g": {_PRODUCT: ("NVIDIA-A10G",), _KARPENTER: ("a10g",)},
    "a100": {
        _PRODUCT: (
            "NVIDIA-A100-SXM4-40GB",
            "NVIDIA-A100-PCIE-40GB",
            "NVIDIA-A100-SXM4-80GB",
            "NVIDIA-A100-80GB-PCIe",
        ),
        _GKE: ("nvidia-tesla-a100", "nvidia-a100-80gb"),
        _KARPENTER: ("a100",),
    },
    "a100-40gb": {_PRODUCT: ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-PCIE-40GB"), _GKE: ("nvidia-tesla-a100",)},
    "a100-80gb": {_PRODUCT: ("NVIDIA-A100-SXM4-80GB", "NVIDIA-A100-80GB-PCIe"), _GKE: ("nvidia-a100-80gb",)},
    "h100": {
        _PRODUCT: ("NVIDIA-H100-80GB-HBM3", "NVIDIA-H100-PCIe", "NVIDIA-H100-NVL"),
        _GKE: ("nvidia-h100-80gb", "nvidia-h100-mega-80gb"),
        _KARPENTER: ("h100",),
    },
    "h200": {_PRODUCT: ("NVIDIA-H200",), _GKE: ("nvidia-h200-141gb",), _KARPENTER: ("h200",)},
    "b200": {_PRODUCT: ("NVIDIA-B200",), _GKE: ("nvidia-b200",), _KARPENTER: ("b200",)},
}
"""Node labels and their values, by GPU type in lower case. A node has the type if one of the labels has one of its values."""

TPU_TYPES: Final[Mapping[str, str]] = {
    "v3": "tpu-v3-slice",
    "v3-device": "tpu-v3-device",
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "trillium": "tpu-v6e-slice",
    "v7": "tpu7x",
    "ironwood": "tpu7x",
}
"""GKE's names of TPU types, by their aliases (Harbor 0.25, GKE environment)."""
