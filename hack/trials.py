"""The Makefile's targets that run trials: `demo`, `run` (the operator on the host), `bench`, `chaos` and `conformance`."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hack import agent_demo, deployment, image, peers, python_env
from hack.deployment import Cluster
from hack.lanes import PYTEST, environment
from hack.paths import ROOT, VENV
from hack.stages import Failure, print_line, stage
from localkube import targets
from localkube.commands import capture
from localkube.config import load_config
from localkube.targets import Current

_EXAMPLE = "examples/hello-multi-step-advanced"
_DEMO_RESULTS = "out/demo"
_MEASURES = "measures"  # name of a section of `make bench` and of the pytest mark that selects its tests


def demo() -> None:
    """Deploy the operator and run an example until it finishes. The environment variable AGENT names the agent (default: oracle).

    The oracle runs as a trial. Another agent runs as a sweep of one trial, because only a sweep has a report.
    """
    agent = os.environ.get("AGENT") or "oracle"
    wanted = [image.OPERATOR]
    if agent != "oracle":
        agent_demo.check(targets.choose(load_config()), agent)
        wanted.append(image.AGENT_HOST)
    with ThreadPoolExecutor(1) as thread:  # only the command line needs the Python environment
        python = thread.submit(python_env.ensure)
        cluster = deployment.deploy(wanted=wanted, with_base=False)
        python.result()
    shutil.rmtree(ROOT / _DEMO_RESULTS, ignore_errors=True)  # results of an earlier demo
    if agent == "oracle":
        _multistep(cluster, "run", _EXAMPLE, "--agent", agent, "--results", _DEMO_RESULTS, *_example_image(cluster))
    else:
        with agent_demo.prepared(cluster, agent) as options:
            _run_sweep(cluster, options)
    print_line(_next_steps(cluster))


def _example_image(cluster: Cluster) -> list[str]:
    """Return the option that names the example's image, if the nodes pull images from a registry. Otherwise return no option,
    because `multistep run` loads the image."""
    if not isinstance(cluster.target, Current):
        return []
    name = image.ensure(cluster.target, image.EXAMPLE)
    image.deliver(cluster.target, name)
    return ["--image", name]


def _run_sweep(cluster: Cluster, options: Sequence[str]) -> None:
    """Run the example task for agents as a sweep, fetch the sweep's results and write its report."""
    sweep, report = f"demo-{secrets.token_hex(3)}", f"{_DEMO_RESULTS}/report.html"
    _multistep(cluster, "sweep", "run", agent_demo.TASK, *options, "--name", sweep)
    _multistep(cluster, "sweep", "results", sweep, _DEMO_RESULTS)
    _multistep(cluster, "sweep", "report", sweep, "-o", "table", "-o", report)
    print_line(f"report: {ROOT / report}; `multistep open {sweep}` opens it in a browser")


def _multistep(cluster: Cluster, *arguments: str) -> None:
    command = ["multistep", *arguments]
    with stage(" ".join(command)):
        _run(command, cluster)


def run() -> None:
    """Run this checkout's operator on the host until Ctrl-C."""
    cluster = deployment.ensure_cluster()
    names = image.in_cluster(cluster.target, image.ensure_all(cluster.target))
    if deployment.stop_operator(cluster):
        print_line("scaled the operator in the cluster to 0; `make deploy` restores it")
    deployment.apply_crds(cluster)
    deployment.ensure_namespace(cluster)
    with tempfile.TemporaryDirectory(prefix="multistep-results-") as results, _free_port() as port:
        settings = _host_settings(names, Path(results), port)
        print_line(f"operator on http://127.0.0.1:{port}, results in {results} (deleted at exit); stop with Ctrl-C")
        with subprocess.Popen([str(VENV / "bin" / "python"), "-m", "multistep"], env=cluster.environment | settings):
            # Ctrl-C also reaches the operator. Wait until the operator has released its lease and exited.
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def bench() -> None:
    """Run the benchmarks. `make bench SECTIONS="trials measures"` runs only these two sections.

    The image of the example task contains the runner, like the images that `multistep run` builds.
    """
    cluster = deployment.deploy()
    with stage(f"multistep build {_EXAMPLE}"):
        example = capture([str(VENV / "bin" / "multistep"), "build", _EXAMPLE], env=cluster.environment, cwd=ROOT).strip()
    images = ["--image", example, "--operator-image", image.name_of(image.OPERATOR)]
    images += ["--agent-host-image", image.name_of(image.AGENT_HOST)]
    command = ["python", "-m", "tests.bench", *images, "--runner-in-image"]
    sections = os.environ.get("SECTIONS", "").split()
    only = [word for name in sections if name != _MEASURES for word in ("--only", name)]
    if only or not sections:
        _run([*command, *only], cluster, PATH=peers.path(cluster.environment))
    if _MEASURES in sections or not sections:
        _run(["python", *PYTEST[1:], "tests/e2e", "-m", _MEASURES, "-v", "-rP"], cluster, **environment(cluster.environment))


def chaos() -> None:
    """Deploy the operator, and run trials while faults are injected."""
    _run(["python", "-m", "tests.chaos"], deployment.deploy())


def conformance() -> None:
    """Run the conformance cases in the directory CASES and compare their outcomes with Harbor's."""
    cases = os.environ.get("CASES")
    if not cases:
        raise Failure("CASES is not set; run: make conformance CASES=DIR")
    _run(["python", "-m", "tests.conformance", str(Path(cases).resolve())], deployment.deploy())


def _host_settings(names: Mapping[image.Image, str], results: Path, port: int) -> dict[str, str]:
    return {
        "MULTISTEP_OPERATOR_IMAGE": names[image.OPERATOR],
        "MULTISTEP_AGENT_HOST_IMAGE": names[image.AGENT_HOST],
        "MULTISTEP_BUILDS": json.dumps({"image": names[image.BUILDER]}),
        "MULTISTEP_LISTEN_HOST": "127.0.0.1",
        "MULTISTEP_RESULTS_PORT": str(port),
        "MULTISTEP_METRICS_PORT": "0",
        "MULTISTEP_LEASE_NAMESPACE": deployment.NAMESPACE,  # the lease of the cluster's operator, so that only one of them leads
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
    """Run a program of .venv with additional environment variables."""
    program = [str(VENV / "bin" / command[0]), *command[1:]]
    code = subprocess.run(program, env=cluster.environment | variables, cwd=ROOT, check=False).returncode
    if code:
        raise Failure(f"`{' '.join(command)}` ended with exit code {code}")


def _next_steps(cluster: Cluster) -> str:
    path = os.pathsep.join([str(VENV / "bin"), str(Path(cluster.kubectl).parent)])
    return f"""
The results are in {_DEMO_RESULTS}. Next steps:

  export KUBECONFIG={cluster.kubeconfig} PATH={path}:$PATH
  kubectl get mst                       the trials
  kubectl describe mst NAME             one trial, with its Events
  multistep results NAME out/again      fetch its results again
  multistep run {_EXAMPLE} --agent nop
                                        an agent that does nothing: the first gate stops it
  make cluster-down                     stop and delete the cluster
"""
