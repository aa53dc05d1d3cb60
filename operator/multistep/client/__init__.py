"""The Python client: run sweeps from notebooks, scripts and training loops (docs/how-to/python.md)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multistep.client.async_client import AsyncClient
    from multistep.client.blocking import Client, Run
    from multistep.client.run import AsyncRun, Rollout, Step

__all__ = ["AsyncClient", "AsyncRun", "Client", "Rollout", "Run", "Step"]
_MODULES = {
    "AsyncClient": "async_client",
    "AsyncRun": "run",
    "Client": "blocking",
    "Rollout": "run",
    "Run": "blocking",
    "Step": "run",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name, and return its object with this name: the command line needs only parts of the client."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
