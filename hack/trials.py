"""Targets that run trials: the demo, the operator on the host, and the programs that need a deployed operator."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from hack import deployment, image, peers
from hack.deployment import Cluster
from hack.lanes import PYTEST, environment
from hack.places import ROOT, VENV
from hack.stages import Failure, say, stage
from localkube.commands import capture
from localkube.targets import Local

_EXAMPLE = "examples/hello-multi-step-advanced"
_DEMO_RESULTS = "out/demo"
_MEASURES = "measures"  # a section of `make bench`, and the mark of its tests


def demo() -> None:
    """Everything from nothing to a finished trial."""
    cluster = deployment.deploy()
    shutil.rmtree(ROOT / _DEMO_RESULTS, ignore_errors=True)  # of an earlier demo
    with stage(f"multistep run {_EXAMPLE} --agent oracle"):
        _run(["multistep", "run", _EXAMPLE, "--agent", "oracle", "--results", _DEMO_RESULTS], cluster)
    say(_next_steps(cluster))


def run() -> None:
    """The operator of this checkout on the host; ends with Ctrl-C."""
    cluster = deployment.ensure_cluster()
    name = image.ensure(cluster.target)
    image.deliver(cluster.target, name)
    if deployment.stop_operator(cluster):
        say("the operator in the cluster is scaled to 0; `make deploy` brings it back")
    deployment.apply_crds(cluster)
    deployment.ensure_namespace(cluster)
    with tempfile.TemporaryDirectory(prefix="multistep-results-") as results, _free_port() as port:
        settings = _host_settings(name, Path(results), port)
        say(f"operator on http://127.0.0.1:{port}, results in {results} until it ends; Ctrl-C ends it")
        with subprocess.Popen([str(VENV / "bin" / "python"), "-m", "multistep"], env=cluster.environment | settings):
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it gets Ctrl-C, too: time for it to release its lease


def bench() -> None:
    """Measure what trials cost. `make bench SECTIONS="trials measures"` runs only these sections.

    The example's image is built as `multistep run` builds it: the runner is in it.
    """
    cluster = deployment.deploy()
    with stage(f"multistep build {_EXAMPLE}"):
        example = capture([str(VENV / "bin" / "multistep"), "build", _EXAMPLE], env=cluster.environment, cwd=ROOT).strip()
    operator = f"{image.repository()}:{image.tag()}"
    command = ["python", "-m", "tests.bench", "--image", example, "--runner-in-image", "--operator-image", operator]
    sections = os.environ.get("SECTIONS", "").split()
    simulated = peers.simulated_nodes() if isinstance(cluster.target, Local) else {}
    only = [word for name in sections if name != _MEASURES for word in ("--only", name)]
    if only or not sections:
        _run([*command, *only], cluster, PATH=peers.path(cluster.environment), **simulated)
    if _MEASURES in sections or not sections:
        _run(["python", *PYTEST[1:], "tests/e2e", "-m", _MEASURES, "-v", "-rP"], cluster, **environment(cluster.environment))


def chaos() -> None:
    """Trials while things break."""
    _run(["python", "-m", "tests.chaos"], deployment.deploy())


def conformance() -> None:
    """A directory of cases, compared."""
    cases = os.environ.get("CASES")
    if not cases:
        raise Failure("name a directory of cases: make conformance CASES=DIR")
    _run(["python", "-m", "tests.conformance", str(Path(cases).resolve())], deployment.deploy())


def _host_settings(image_name: str, results: Path, port: int) -> dict[str, str]:
    return {
        "MULTISTEP_OPERATOR_IMAGE": image_name,
        "MULTISTEP_LISTEN_HOST": "127.0.0.1",
        "MULTISTEP_RESULTS_PORT": str(port),
        "MULTISTEP_METRICS_PORT": "0",
        "MULTISTEP_LEASE_NAMESPACE": deployment.NAMESPACE,  # the same as the deployed one's: never both at once
        "MULTISTEP_LEASE_NAME": deployment.RELEASE,
        "MULTISTEP_RESULTS_DIR": str(results),
        "MULTISTEP_RESULTS_URL": f"http://127.0.0.1:{port}",
    }


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    yield port


def _run(command: Sequence[str], cluster: Cluster, **variables: str) -> None:
    """Run one of the programs of .venv. variables: more of the environment."""
    program = [str(VENV / "bin" / command[0]), *command[1:]]
    code = subprocess.run(program, env=cluster.environment | variables, cwd=ROOT, check=False).returncode
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
  multistep run {_EXAMPLE} --agent nop
                                        an agent that does nothing: the first gate stops it
  make cluster-down                     stop the cluster and remove it
"""
