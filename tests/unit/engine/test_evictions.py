from __future__ import annotations

import pytest

from multistep.engine.lifecycle.failure_causes import own_usage_exception


def low(resource: str, use: str, container: str = "main") -> str:
    """Return the eviction message of kubelet 1.35."""
    return (
        f"The node was low on resource: {resource}. Threshold quantity: 100Mi, available: 90Mi. "
        f"Container {container} was using {use}, has larger consumption of {resource}. "
    )


@pytest.mark.parametrize(
    ("message", "disrupted", "wanted"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ", False, "OutOfDiskError"),
        ('Container main exceeded its local ephemeral storage limit "1Gi". ', False, "OutOfDiskError"),
        ('Usage of EmptyDir volume "x" exceeds the limit "1Gi". ', False, "OutOfDiskError"),
        ('Usage of EmptyDir volume "x" exceeds the limit "1Gi". ', True, None),  # disrupted: the node was short of space
        (low("ephemeral-storage", "1048576Ki, request is 0"), True, "OutOfDiskError"),
        (low("ephemeral-storage", "1048576Ki, request is 0"), False, "OutOfDiskError"),
        (low("ephemeral-storage", "1048575Ki, request is 0"), True, None),  # used < 1 GiB: maybe another pod filled the disk
        (low("ephemeral-storage", "3Gi, request is 2Gi"), True, "OutOfDiskError"),
        (low("ephemeral-storage", "3Gi, request is 2049Mi"), True, None),
        (low("memory", "5Gi, request is 512Mi"), True, "OutOfMemoryError"),
        (low("memory", "5Gi, request is 512Mi", container="sidecar"), True, None),
        (low("ephemeral-storage", "5Gi, request is 0", container="svc-db"), True, "OutOfDiskError"),
        (low("memory", "600Mi, request is 0") + "Container svc-db was using 500Mi, request is 0. ", True, "OutOfMemoryError"),
        (low("memory", "600Mi, request is 0") + "Container svc-db was using 500Mi, request is 400Mi. ", True, None),
        (low("memory", "600Mi, request is 0") + "Container svc-db was using 1Gi, request is 9Gi. ", True, None),
        (low("inodes", "5Gi, request is 0"), True, None),
        ("The node was low on resource: memory. ", True, None),
        ("", True, None),
    ],
)
def test_who_ran_the_node_low(message: str, disrupted: bool, wanted: str | None) -> None:
    assert own_usage_exception(message, disrupted=disrupted) == wanted
