"""The Python client: run sweeps from notebooks, scripts and training loops (docs/how-to/python.md)."""

from multistep.client.async_client import AsyncClient
from multistep.client.blocking import Client, Run
from multistep.client.run import AsyncRun, Rollout, Step

__all__ = ["AsyncClient", "AsyncRun", "Client", "Rollout", "Run", "Step"]
