"""Multistep: a Kubernetes operator that runs multi-step agent evaluation trials.

``from multistep import Client, AsyncClient`` imports the Python client (docs/how-to/python.md). It is loaded at its first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from multistep.version import __version__

if TYPE_CHECKING:
    from multistep.client import AsyncClient, AsyncRun, Client, JudgeOptions, Rollout, Run, Step

__all__ = ["AsyncClient", "AsyncRun", "Client", "JudgeOptions", "Rollout", "Run", "Step", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the Python client, and return its class with this name."""
    if name in __all__:
        return getattr(import_module("multistep.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
