"""Targets that run trials: the demo, the operator on the host, and the programs that need a deployed operator."""

import contextlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hack import deployment, image
from hack.deployment import Cluster
from hack.places import ROOT, VENV
from hack.stages import Failure, say, stage

_DEMO_TASK = "examples/hello-multi-step-advanced"
_DEMO_RESULTS = "out/demo"


def demo() -> None:
    """Everything from nothing to a finished trial."""
    cluster = deployment.deploy()
    with stage(f"multistep run {_DEMO_TASK}"):
        command = ["run", _DEMO_TASK, "--agent", "oracle", "--results", _DEMO_RESULTS]
        _run([str(VENV / "bin" / "multistep"), *command], cluster)
    say(_next_steps(cluster))


def run() -> None:
    """The operator of this checkout on the host; ends with Ctrl-C."""
    cluster = deployment.ensure_cluster()
    name = image.ensure(cluster.target)
    image.deliver(cluster.target, name)
    if deployment.stop_operator(cluster):
        say("the operator in the cluster is scaled to 0; `make deploy` brings it back")
    deployment.apply_crds(cluster)
    with tempfile.TemporaryDirectory(prefix="multistep-results-") as results, _free_port() as port:
        settings = _host_settings(name, Path(results), port)
        say(f"operator on http://127.0.0.1:{port}, results in {results} until it ends; Ctrl-C ends it")
        with contextlib.suppress(KeyboardInterrupt):
            subprocess.run([str(VENV / "bin" / "python"), "-m", "multistep"], env=cluster.environment | settings, check=False)


def program(module: str, arguments: Sequence[str] = ()) -> None:
    """Run one of our programs (bench, chaos, conformance) against a deployed operator."""
    if not any((ROOT / module.replace(".", "/")).with_suffix(end).exists() for end in ("", ".py")):
        raise Failure(f"there is no {module.replace('.', '/')} in this checkout")
    cluster = deployment.deploy()
    _run([str(VENV / "bin" / "python"), "-m", module, *arguments], cluster)


def _host_settings(image_name: str, results: Path, port: int) -> dict[str, str]:
    return {
        "MULTISTEP_OPERATOR_IMAGE": image_name,
        "MULTISTEP_HTTP_HOST": "127.0.0.1",
        "MULTISTEP_HTTP_PORT": str(port),
        "MULTISTEP_RESULTS_DIR": str(results),
        "MULTISTEP_RESULTS_URL": f"http://127.0.0.1:{port}",
    }


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    yield port


def _run(command: Sequence[str], cluster: Cluster) -> None:
    code = subprocess.run(command, env=cluster.environment, cwd=ROOT, check=False).returncode
    if code:
        raise Failure(f"`{' '.join(command)}` ended with exit code {code}")


def _next_steps(cluster: Cluster) -> str:
    path = os.pathsep.join([str(VENV / "bin"), str(Path(cluster.kubectl).parent)])
    return f"""
The results are in {_DEMO_RESULTS}. What to try next:

  export KUBECONFIG={cluster.kubeconfig} PATH={path}:$PATH
  kubectl get mst                       the trials
  kubectl describe mst NAME             one trial, with its Events
  multistep results NAME out/again      its results once more
  multistep run {_DEMO_TASK} --agent nop
                                        an agent that does nothing: the first gate stops it
  make cluster-down                     stop the cluster and remove it
"""
