"""Run the bench's trials with Harbor's own driver, on the same cluster. Harbor's environment "ack" accepts any kubeconfig.

A copy of the task names the image that the cluster has, because Harbor would otherwise build one and push it to a registry.
The job gives Harbor's pods the resource requests of Multistep's pods, because by default they request a whole CPU or none.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from multistep.client.reconnecting_watch import WatchingClient
from tests.bench.measure import api_server_execs, time_pods, until_without_pods
from tests.bench.trials import Comparison, Manifests, spread

HOW_TO = (
    "Harbor's own driver: not measured. To have it, with Python 3.12 or newer: "
    "python3 -m venv harbor && harbor/bin/pip install 'harbor[gke]==0.26.0' && make bench HARBOR=harbor/bin/harbor"
)
_LOG_CHARACTERS = 2000


@dataclass(frozen=True)
class Harbor:
    """Cost of the trials with Harbor's driver. seconds: duration of Harbor's job, without the start of Python.

    bare: wall times in seconds of the same number of bare pods, measured before and after the trials; execs, cpu_seconds: totals
    of all trials; wrong: number of failed trials.
    """

    version: str
    seconds: float
    bare: tuple[float, float]
    execs: float
    cpu_seconds: float
    wrong: int


def program(variables: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of `harbor`, or None if it is missing."""
    found = shutil.which(variables.get("HARBOR") or "harbor", path=variables.get("PATH"))
    return Path(found) if found else None


async def measure(client: WatchingClient, namespace: str, harbor: Path, task: Path, manifests: Manifests, count: int) -> Harbor:
    """Run `count` trials of the task concurrently. Raise RuntimeError if `harbor` fails."""
    print(f"bench: {count} trials by {harbor} ...", file=sys.stderr, flush=True)
    version = (await _run(harbor, "--version")).strip()
    before = await time_pods(client, namespace, manifests.bare, count)
    with tempfile.TemporaryDirectory(prefix="multistep-bench-") as directory:
        top = Path(directory)
        container = manifests.bare["spec"]["containers"][0]
        _copy_with_image(task, top / "task", container["image"])
        (top / "job.json").write_text(json.dumps(_job(top, namespace, container, count)))
        execs, cpu = await api_server_execs(client), _cpu_seconds()
        await _run(harbor, "run", "--config", str(top / "job.json"), "--yes")
        cpu, execs = _cpu_seconds() - cpu, await api_server_execs(client) - execs
        await until_without_pods(client, namespace, "app=sandbox")
        job = json.loads((top / "jobs" / "bench" / "result.json").read_text())
    after = await time_pods(client, namespace, manifests.bare, count)
    started, ended = [datetime.fromisoformat(job[name]) for name in ("started_at", "finished_at")]
    wrong = count - job["stats"]["n_completed_trials"] + job["stats"]["n_errored_trials"]
    return Harbor(version, (ended - started).total_seconds(), (before, after), execs, cpu, wrong)


def table(found: Harbor, ours: Comparison) -> Table:
    """Return a table that compares the operator with Harbor's driver."""
    titles = ("driver", "trials", "s", "ratio to bare", "execs / trial", "driver's CPU s / trial", "went wrong")
    made = Table(*titles, title="Harbor's own driver and this operator")
    count = ours.count
    costs = [each.cost for each in ours.rounds]
    execs, cpu = [sum(getattr(each, name) for each in costs) / len(costs) / count for name in ("execs", "cpu_seconds")]
    made.add_row("operator", str(count), spread(ours.seconds), spread(ours.of_bare), f"{execs:.1f}", f"{cpu:.3f}", "0")
    ratio = found.seconds / (sum(found.bare) / len(found.bare))
    name, reported = f"Harbor {found.version}", [f"{found.execs / count:.1f}", f"{found.cpu_seconds / count:.3f}", str(found.wrong)]
    made.add_row(name, str(count), f"{found.seconds:.1f}", f"{ratio:.1f}", *reported)
    return made


def _copy_with_image(task: Path, copy: Path, image: str) -> None:
    shutil.copytree(task, copy)
    file = copy / "task.toml"
    heading = "[environment]\n"
    text = file.read_text()
    if text.count(heading) != 1:
        raise RuntimeError(f"{task}/task.toml should have one line {heading.strip()}, for the image to be named below it")
    file.write_text(text.replace(heading, f'{heading}docker_image = "{image}"\n'))


def _job(top: Path, namespace: str, container: Mapping[str, Any], count: int) -> dict[str, Any]:
    requests = {"cpu": "0", "memory": "0", "ephemeral-storage": "0", **container["resources"].get("requests", {})}
    asked = {"imagePullPolicy": "IfNotPresent", "resources": {"requests": requests}}
    environment = {"namespace": namespace, "pod_overrides": {"spec": {"containers": [asked]}}}
    if "KUBECONFIG" in os.environ:
        environment["kubeconfig"] = os.environ["KUBECONFIG"]
    return {
        "job_name": "bench",
        "jobs_dir": str(top / "jobs"),
        "n_attempts": count,
        "n_concurrent_trials": count,
        "quiet": True,
        "environment": {"type": "ack", "kwargs": environment},
        "agents": [{"name": "oracle"}],
        "tasks": [{"path": str(top / "task")}],
    }


async def _run(*command: str | Path) -> str:
    variables = os.environ | {"HARBOR_TELEMETRY": "0"}
    process = await asyncio.create_subprocess_exec(
        *command, env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output = (await process.communicate())[0].decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with exit code {process.returncode}:\n{output[-_LOG_CHARACTERS:]}")
    return output


def _cpu_seconds() -> float:
    """Return the total CPU seconds of this process's exited child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
