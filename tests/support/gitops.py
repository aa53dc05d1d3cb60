"""Evaluate a resource's health as GitOps tools do: by kstatus' rules (Flux, kpt, helm) and Argo CD's script in a real Lua."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml

ROOT = Path(__file__).parents[2]
ARGO_CONFIG = ROOT / "docs" / "how-to" / "gitops" / "argocd-cm.yaml"
_KEY = "resource.customizations.health.multistep.dev_"

Kstatus = Literal["InProgress", "Failed", "Current", "Terminating"]
Object = Mapping[str, Any]


def kstatus(obj: Object) -> Kstatus:
    """Return the status of a custom resource by the rules that kstatus documents, in their order.

    The order is: deletion, observedGeneration, Reconciling, Stalled, Ready. A resource without conditions is Current.
    """
    metadata, status = obj["metadata"], obj.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        return "InProgress"
    holds = {each["type"]: each["status"] for each in status.get("conditions") or []}
    if holds.get("Reconciling") == "True":
        return "InProgress"
    if holds.get("Stalled") == "True":
        return "Failed"
    return "Current" if holds.get("Ready", "True") == "True" else "InProgress"


def argo_health(obj: Object, kind: str = "MultiStepTrial") -> tuple[str, str]:
    """Return health and message by the Lua script in docs/how-to/gitops/argocd-cm.yaml. Raises CalledProcessError if it fails."""
    script = yaml.safe_load(ARGO_CONFIG.read_text())["data"][_KEY + kind]
    program = f'obj = {_lua(obj)}\nlocal health = (function()\n{script}\nend)()\nio.write(health.status, "\\n", health.message)\n'
    done = subprocess.run(["lua5.4", "-"], input=program.encode(), check=True, capture_output=True)
    status, _, message = done.stdout.decode().partition("\n")
    return status, message


async def judged(obj: Object) -> tuple[Kstatus, str]:
    """Return an object's status by kstatus and its health by Argo CD."""
    return kstatus(obj), (await asyncio.to_thread(argo_health, obj))[0]


def _lua(value: object) -> str:
    """Return a value as a Lua expression; null becomes nil, as in Argo CD."""
    match value:
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return '"' + "".join(f"\\{byte:03d}" for byte in value.encode(errors="replace")) + '"'
        case Mapping():
            return "{" + ", ".join(f"[{_lua(key)}] = {_lua(each)}" for key, each in value.items()) + "}"
        case Sequence():
            return "{" + ", ".join(map(_lua, value)) + "}"
    raise TypeError(f"{value!r} is not of JSON")
