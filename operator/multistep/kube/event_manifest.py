"""Builds Events (events.k8s.io/v1) about an object."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

from multistep.api.common.base_model import GROUP
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import EVENTS
from multistep.timestamps import rfc3339

MAX_NOTE_BYTES: Final = 1024  # the API server rejects longer notes
REPORTER: Final = "multistep"


def event_manifest(
    regarding: Mapping[str, Any],
    *,
    reason: str,
    message: str,
    type: Literal["Normal", "Warning"] = "Normal",
) -> Object:
    """Return an Event's manifest; long messages are cut. regarding: the object, or a reference to it."""
    reference = _reference(regarding)
    name = f"{reference['name'][:200].rstrip('.-')}.{secrets.token_hex(8)}"
    return {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": reference.get("namespace") or "default"},
        "eventTime": rfc3339(time.time(), "microseconds"),
        "reportingController": f"{GROUP}/{REPORTER}",
        "reportingInstance": REPORTER,
        "type": type,
        "reason": reason[:128],
        "action": "Reconcile",
        "note": cut_bytes(message, MAX_NOTE_BYTES),
        "regarding": reference,
    }


def cut_bytes(text: str, limit: int) -> str:
    """Return text, cut to at most limit bytes of UTF-8, with an ellipsis at the cut."""
    data = text.encode()
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"


def _reference(regarding: Mapping[str, Any]) -> dict[str, str]:
    """Return an ObjectReference, without resourceVersion: with it, equal Events would not be merged."""
    names = regarding.get("metadata") or regarding
    kind = {key: regarding.get(key) for key in ("apiVersion", "kind")}
    reference = {**kind, **{key: names.get(key) for key in ("name", "namespace", "uid")}}
    return {key: str(value) for key, value in reference.items() if value}
