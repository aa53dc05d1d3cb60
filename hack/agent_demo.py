"""`make demo AGENT=claude-code`: a real agent's program, with a provider's model, or with a scripted one where there is no key."""

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
from hack.places import ROOT, VENV
from hack.stages import Failure, print_line, stage
from localkube import targets
from localkube.commands import capture
from localkube.config import load_config

TASK = "examples/scripted-model"
_SECRET_KEY = "key"
_LISTENING = "listening on port "  # what the scripted model prints once it can be called


@dataclass(frozen=True)
class Model:
    """The model of an agent. key_variable: this machine's variable with the provider's key; path: of the provider's API at the
    scripted model."""

    name: str
    key_variable: str
    path: str = ""


MODELS: Mapping[str, Model] = {
    "claude-code": Model("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
    "codex": Model("openai/gpt-5", "OPENAI_API_KEY", "/v1"),
}
"""The agents of the demo, and the models that they use."""


@contextmanager
def prepared(cluster: Cluster, agent: str) -> Iterator[list[str]]:
    """Build the image of the agent's program, and yield the options with which `multistep sweep run` runs it.

    Meanwhile the key is in a Secret of the cluster, and the scripted model runs if there is no key.
    """
    if agent not in MODELS:
        raise Failure(f"AGENT={agent}: the demo has {', '.join(MODELS)}; `multistep agent list` lists all agents")
    if isinstance(cluster.target, targets.Current):
        raise Failure("CLUSTER=current has no access to the image of the demo: push one, as docs/how-to/agents/programs.md shows")
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
    """Return the options of `multistep sweep run`.

    agent: program and model; image: of the program; secret: with the key; url: of the model's API, "" for the provider's own.
    """
    found = ["--agent", agent, "--agent-image", image, "--key-from-secret", f"{secret}:{_SECRET_KEY}"]
    return [*found, *(["--base-url", url] if url else [])]


@contextmanager
def _scripted_model(cluster: Cluster, model: Model) -> Iterator[str]:
    """Run the scripted model on the node of localkube's cluster, where pods reach it, and yield the URL of its API."""
    if not isinstance(cluster.target, targets.Local):
        raise Failure(
            f"{model.key_variable} is not set, and only pods of localkube's cluster (CLUSTER=local) reach a scripted model"
        )
    print_line(f"{model.key_variable} is not set: a scripted model answers instead of the provider's")
    address = load_config(cluster.variables).network.api_address
    server = ["-m", "tests.support.fake_model", "--host", address, "--port", "0"]
    python = str(VENV / "bin" / "python")
    # PYTHONPATH, as a program in the node's namespaces starts in /.
    command = [sys.executable, "-m", "localkube", "node", "env", f"PYTHONPATH={ROOT}", python, *server]
    with subprocess.Popen(command, env=dict(cluster.variables), cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://{address}:{_port(process)}{model.path}"
        finally:
            process.terminate()


def _port(process: subprocess.Popen[str]) -> int:
    """Return the port on which the scripted model listens, once it does."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(_LISTENING):
            return int(line.removeprefix(_LISTENING))
    raise Failure("the scripted model ended before it listened; its output is above")


@contextmanager
def _secret(cluster: Cluster, key: str) -> Iterator[str]:
    """Keep the key in a Secret, and yield its name, which is random: demos may run at the same time.

    The key is passed by stdin, because every user of this machine can read a program's arguments.
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
