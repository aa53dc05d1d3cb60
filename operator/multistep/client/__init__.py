"""The library below the command line: connects, validates, submits, watches, fetches. It imports no click and prints nothing.

For users it is the Python client (docs/how-to/python.md): ``Client`` and ``AsyncClient`` run sweeps from notebooks, scripts and
training loops. The command line calls the other modules. Open async_client.py first.

async_client, blocking    the Python client, asynchronous and blocking; the sweeps that it submits
rollouts/                 training samples of a trial
run                       a sweep that it created, and its trials as they finish
verifiers_env             a taskset and an environment for verifiers
trl                       a reward function and a rollout_func for TRL
connection, kubeconfig    the connection; the kubeconfig's current cluster
objects                   finds trials and sweeps by name, stops them
watch                     watches one trial or sweep until it has finished
reconnecting_watch        watches objects of the API server, and reconnects
sweep_trials, retry       the trials of a sweep; runs trials without a score again
datasets                  datasets of a registry.json
outcome                   the outcome of a trial or a sweep, from its status
options                   the cluster, and the models of agent and judge, as users choose them
task/                     checks a task's directory
submit/                   manifests; creates trials and sweeps
results/                  reads results
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multistep.client.async_client import AsyncClient
    from multistep.client.blocking import Client, Run
    from multistep.client.options import JudgeOptions
    from multistep.client.run import AsyncRun, Rollout, Step

__all__ = ["AsyncClient", "AsyncRun", "Client", "JudgeOptions", "Rollout", "Run", "Step"]
_MODULES = {
    "AsyncClient": "async_client",
    "AsyncRun": "run",
    "Client": "blocking",
    "JudgeOptions": "options",
    "Rollout": "run",
    "Run": "blocking",
    "Step": "run",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name, and return its object with this name: the command line needs only parts of the client."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
