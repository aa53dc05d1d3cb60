"""The ConfigMap with which the operator publishes the address of a namespace's history. It has no owner, so that it stays when all
trials are deleted."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from multistep.api.common.base_model import GROUP
from multistep.api.common.labels import MANAGED

LABEL: Final = f"{GROUP}/history"
KEY: Final = "url"


def config_map(namespace: str, url: str) -> dict[str, Any]:
    """Return the ConfigMap. Its name depends on the address, because several operators may have a history of the namespace."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"multistep-history-{hashlib.sha256(url.encode()).hexdigest()[:12]}",
            "namespace": namespace,
            "labels": {**MANAGED, LABEL: "true"},
        },
        "immutable": True,
        "data": {KEY: url},
    }
