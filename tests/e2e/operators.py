"""Read or reconfigure the deployed operator, scale it down, or run an operator on this machine in its place."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from multistep.client.reconnecting_watch import WatchingClient
from tests.e2e.given import DEADLINE_SECONDS

SYSTEM = os.environ.get("MULTISTEP_TEST_NAMESPACE", "multistep-system")
RELEASE = "multistep"
DEPLOYMENT = f"deployment/{RELEASE}"
CHART = Path(__file__).parents[2] / "charts" / "multistep"
_PATIENCE = f"--timeout={DEADLINE_SECONDS:.0f}s"
PROCESS = b"python\0-m\0multistep\0"  # start of the operator's command line, as in /proc/PID/cmdline
SERVICE = f"/api/v1/namespaces/{SYSTEM}/services/{RELEASE}"
METRICS = f"{SERVICE}:metrics/proxy/metrics"


def require_alone() -> None:
    """Assert that tests run one at a time, so that no other test uses the deployed operator."""
    assert "PYTEST_XDIST_WORKER" not in os.environ, "other tests use the operator at the same time: give this one the mark `alone`"


@contextmanager
def without_deployed() -> Iterator[None]:
    """Scale the deployed operator down during the context, so that no operator reconciles."""
    require_alone()
    _stop()
    try:
        yield
    finally:
        _kubectl("scale", DEPLOYMENT, "--replicas=1")
        _kubectl("rollout", "status", DEPLOYMENT, _PATIENCE)


def _stop() -> None:
    _kubectl("scale", DEPLOYMENT, "--replicas=0")
    _kubectl("wait", "pod", "--for=delete", "-l", "app.kubernetes.io/name=multistep", _PATIENCE)


@contextmanager
def with_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Add environment variables to the deployed operator during the context."""
    require_alone()
    _set_variables(*(f"{name}={value}" for name, value in variables.items()))
    try:
        yield
    finally:
        _set_variables(*(f"{name}-" for name in variables))


def _set_variables(*variables: str) -> None:
    _kubectl("set", "env", DEPLOYMENT, *variables)
    _kubectl("rollout", "status", DEPLOYMENT, _PATIENCE)


async def samples(client: WatchingClient, path: str = METRICS) -> dict[str, float]:
    """Return metric values by name with labels. path: API server path of the metrics; default: the deployed operator's."""
    text = b"".join([chunk async for chunk in client.raw_stream(path)]).decode()
    pairs = [line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


@asynccontextmanager
async def with_values(*values: str) -> AsyncIterator[None]:
    """Upgrade the deployed operator with other chart values (``NAME=VALUE``), and restore them afterwards.

    The operator is stopped while its permissions change, because tests/rights reports each denied request of the operator.
    """
    require_alone()
    settings = [word for value in values for word in ("--set", value)]
    _stop()
    await _helm("upgrade", RELEASE, str(CHART), "--reset-then-reuse-values", *settings)
    try:
        yield
    finally:
        _stop()
        await _helm("rollback", RELEASE)


@asynccontextmanager
async def on_this_machine(namespace: str, directory: Path, *, api: str) -> AsyncIterator[None]:
    """Run the operator of this checkout for one namespace.

    Args:
        directory: Where the operator writes its files.
        api: URL of the API server.
    """
    kubeconfig = directory / "kubeconfig"
    await asyncio.to_thread(_write_kubeconfig, kubeconfig, api)
    settings = {
        "KUBECONFIG": str(kubeconfig),
        "MULTISTEP_NAMESPACES": json.dumps([namespace]),
        "MULTISTEP_OPERATOR_IMAGE": os.environ["MULTISTEP_TEST_IMAGE"],
        "MULTISTEP_LISTEN_HOST": "127.0.0.1",
        "MULTISTEP_RESULTS_PORT": "0",
        "MULTISTEP_METRICS_PORT": "0",
        "MULTISTEP_RESULTS_DIR": str(directory / "results"),
    }
    with (directory / "operator.log").open("wb") as log:
        operator = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "multistep", env=os.environ | settings, stdout=log, stderr=log
        )
        try:
            yield
        finally:
            operator.terminate()
            await operator.wait()


def _write_kubeconfig(file: Path, api: str) -> None:
    file.write_text(_kubectl("config", "view", "--raw", "--minify", "--flatten"))
    cluster = _kubectl("config", "view", "--minify", "--output=jsonpath={.clusters[0].name}")
    _kubectl("config", "--kubeconfig", str(file), "set-cluster", cluster, f"--server={api}")


def kubectl(*arguments: str, fails: bool = False) -> str:
    """Run kubectl and return its output. Assert that kubectl succeeds, unless `fails` is set."""
    done = subprocess.run(["kubectl", *arguments], check=False, capture_output=True, text=True)
    assert fails or done.returncode == 0, done.stderr
    return done.stdout


def _kubectl(*arguments: str) -> str:
    return kubectl("--namespace", SYSTEM, *arguments)


async def _helm(*arguments: str) -> None:
    """Run helm for the suite's operator. --force-conflicts: kubectl owns the replicas, which it scaled to 0."""
    waiting = ("--namespace", SYSTEM, "--wait", _PATIENCE, "--force-conflicts")
    process = await asyncio.create_subprocess_exec(
        "helm", *arguments, *waiting, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
