"""Run a real agent's program for `make demo AGENT=claude-code`, with a provider's model or, without a key, a scripted model."""

import base64
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from hack.deployment import Cluster
from hack.paths import ROOT, VENV
from hack.stages import Failure, print_line, stage
from localkube import targets
from localkube.commands import capture
from localkube.config import load_config

TASK = "examples/scripted-model"
_SECRET_KEY = "key"
_LISTENING = "listening on port "  # the scripted model prints this when it accepts connections


@dataclass(frozen=True)
class Model:
    """The model of an agent."""

    name: str
    key_variable: str
    """Environment variable with the provider's key."""
    path: str = ""
    """Path of the provider's API in the scripted model's URL."""


MODELS: Mapping[str, Model] = {
    "claude-code": Model("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    "codex": Model("openai/gpt-5", "OPENAI_API_KEY", "/v1"),
}
"""The agents of the demo, and the models that they use."""


def check(target: targets.Target, agent: str) -> None:
    """Raise Failure if the demo cannot run this agent on this cluster."""
    if agent not in MODELS:
        raise Failure(f"AGENT={agent}: the demo has {', '.join(MODELS)}; `multistep agent list` lists all agents")
    if isinstance(target, targets.Current):
        raise Failure(
            f"the cluster of {target.kubeconfig()} has no access to the image of the demo's agent: push one, as "
            "docs/how-to/agents/programs.md shows; or run the demo on a cluster of its own with CLUSTER=local"
        )
    variable = MODELS[agent].key_variable
    if not isinstance(target, targets.Local) and not os.environ.get(variable):
        raise Failure(f"{variable} is not set, and only pods of localkube's cluster (CLUSTER=local) reach a scripted model")


@contextmanager
def prepared(cluster: Cluster, agent: str) -> Iterator[list[str]]:
    """Build the image of the agent's program, and yield the options for `multistep sweep run`.

    During the ``with`` block, a Secret contains the key. If no key is set, the scripted model runs. Call `check` before.
    """
    model = MODELS[agent]
    key = os.environ.get(model.key_variable, "")
    with ExitStack() as stack:
        url = "" if key else stack.enter_context(_scripted_model(cluster, model))
        secret = stack.enter_context(_secret(cluster, key or "none"))
        with stage(f"multistep agent build {agent}"):
            program = [str(VENV / "bin" / "multistep"), "agent", "build", agent]
            image = capture(program, env=cluster.environment, cwd=ROOT).strip()
        yield options(f"{agent}@{model.name}", image, secret, url)


def options(agent: str, image: str, secret: str, url: str) -> list[str]:
    """Return the options for `multistep sweep run`.

    Args:
        agent: AGENT@MODEL.
        image: Image of the agent's program.
        secret: Name of the Secret with the key.
        url: URL of the model's API, "" for the provider's API.
    """
    found = ["--agent", agent, "--agent-image", image, "--key-from-secret", f"{secret}:{_SECRET_KEY}"]
    return [*found, *(["--base-url", url] if url else [])]


@contextmanager
def _scripted_model(cluster: Cluster, model: Model) -> Iterator[str]:
    """Run the scripted model on the node of localkube's cluster, where pods can reach it, and yield the URL of its API."""
    print_line(f"{model.key_variable} is not set: a scripted model answers instead of the provider's")
    address = load_config(cluster.variables).network.api_address
    server = ["-m", "tests.support.fake_model", "--host", address, "--port", "0"]
    python = str(VENV / "bin" / "python")
    # Set PYTHONPATH, because a program in the node's namespaces starts in /.
    command = [sys.executable, "-m", "localkube", "node", "env", f"PYTHONPATH={ROOT}", python, *server]
    with subprocess.Popen(command, env=dict(cluster.variables), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://{address}:{_port(process)}{model.path}"
        finally:
            process.terminate()


def _port(process: subprocess.Popen[str]) -> int:
    """Wait until the scripted model listens, and return its port. Raises Failure if it exits first."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_LISTENING):
            return int(line.removeprefix(_LISTENING))
    raise Failure("the scripted model ended before it listened; its output is above")


@contextmanager
def _secret(cluster: Cluster, key: str) -> Iterator[str]:
    """Store the key in a Secret during the ``with`` block, and yield the Secret's name. It is random, because demos may run in
    parallel.

    kubectl reads the key from stdin, because every user of this machine can read a program's arguments.
    """
    name = f"multistep-demo-{secrets.token_hex(3)}"
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "data": {_SECRET_KEY: base64.b64encode(key.encode()).decode()},
    }
    kubectl = [cluster.kubectl, "--kubeconfig", str(cluster.kubeconfig)]
    capture([*kubectl, "apply", "--server-side", "-f", "-"], stdin=json.dumps(secret))
    try:
        yield name
    finally:
        capture([*kubectl, "delete", "secret", name, "--ignore-not-found"])
