"""Load a jobs directory with Harbor 0.26's own models, start its viewer on it, and print what the viewer's API returns as JSON.

Run it with the Python of an environment that has Harbor (environment.py): ``python load_job.py JOBS_DIR``.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock, TrialLock
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.result import TrialResult

_HOST = "127.8.7.6"  # an address without other servers and connections, so that a free port stays free until the viewer listens
_RETRIES = 8  # httpx waits 0, 0.5, 1, 2 ... 32 s before these retries: about a minute in all


def main(jobs: Path) -> None:
    with viewing(jobs) as viewer:
        summaries = {each["name"]: each for each in _get(viewer, "/api/jobs?page_size=100")["items"]}
        print(json.dumps({path.name: load(path, viewer, summaries[path.name]) for path in sorted(jobs.iterdir())}))


@contextmanager
def viewing(jobs: Path) -> Iterator[httpx.Client]:
    """Run `harbor view` and yield a client of its HTTP API."""
    with socket.create_server((_HOST, 0)) as free:
        port = free.getsockname()[1]
    command = [str(Path(sys.executable).with_name("harbor")), "view", str(jobs), "--jobs", "--host", _HOST, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    try:
        transport = httpx.HTTPTransport(retries=_RETRIES)  # retries the connection until the viewer listens
        with httpx.Client(base_url=f"http://{_HOST}:{port}", transport=transport, timeout=60) as viewer:
            yield viewer
    finally:
        process.terminate()
        process.wait()


def load(path: Path, viewer: httpx.Client, summary: dict[str, Any]) -> dict[str, Any]:
    """Return what Harbor reads from one job directory. Propagate all errors."""
    config = JobConfig.model_validate_json((path / "config.json").read_text())
    JobResult.model_validate_json((path / "result.json").read_text())
    lock = JobLock.model_validate_json((path / "lock.json").read_text())
    trials = [each for each in sorted(path.iterdir()) if each.is_dir()]
    results = [TrialResult.model_validate_json((each / "result.json").read_text()) for each in trials]
    for each in trials:
        TrialConfig.model_validate_json((each / "config.json").read_text())
    assert lock.trials == [TrialLock.model_validate_json((each / "lock.json").read_text()) for each in trials]
    job = f"/api/jobs/{path.name}"
    return {
        "summary": summary,
        "job": _get(viewer, job),
        "tasks": _get(viewer, f"{job}/tasks?page_size=100")["items"],
        "trials": _get(viewer, f"{job}/trials?page_size=100")["items"],
        "harbors": JobStats.from_trial_results(results).model_dump(mode="json"),
        "attempts": config.n_attempts,
        "task_names": [each.get_task_id().get_name() for each in config.tasks],
    }


def _get(viewer: httpx.Client, path: str) -> Any:
    response = viewer.get(path)
    response.raise_for_status()
    return response.json()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
