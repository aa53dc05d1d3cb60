"""The image of a container in a pod's manifest. Pure."""

from __future__ import annotations


def container_image(image: str, policy: str | None) -> dict[str, str]:
    """Return a container's fields with its image and pull policy. policy: "" or None for Kubernetes' default."""
    return {"image": image, **({"imagePullPolicy": policy} if policy else {})}
