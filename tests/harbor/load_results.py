"""Load trial directories with Harbor 0.26's own models and its viewer, and print the result as JSON.

Run it with the Python of an environment that has Harbor (environment.py): ``python load_results.py JOBS_DIR``.
JOBS_DIR/job/ contains the trial directories.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from harbor.models.job.lock import TrialLock
from harbor.models.trial.artifact_manifest import ArtifactManifestEntry
from harbor.models.trial.config import TrialConfig
from harbor.models.trial.paths import TrialPaths
from harbor.models.trial.result import TrialResult
from harbor.viewer.server import create_app

JOB = "job"


def main(jobs: Path) -> None:
    viewer = TestClient(create_app(jobs))
    trials = {path.name: load(path, viewer) for path in sorted((jobs / JOB).iterdir())}
    print(json.dumps(trials))


def load(path: Path, viewer: TestClient) -> dict[str, Any]:
    """Return what Harbor reads from one trial directory. Propagate all errors."""
    paths = TrialPaths(path)
    result = TrialResult.model_validate_json(paths.result_path.read_text())
    config = TrialConfig.model_validate_json(paths.config_path.read_text())
    TrialLock.model_validate_json(paths.lock_path.read_text())
    steps = [step.step_name for step in result.step_results or []]
    return {
        "result": json.loads(result.model_dump_json()),
        "same_config": config == result.config,
        "task_name_of_config": config.task.get_task_id().get_name(),
        "reward_valid": result.reward_valid,
        "written": _written(json.loads(paths.result_path.read_text())),
        "computed": _written(json.loads(result.model_dump_json())),
        "exception_txt": paths.exception_message_path.exists(),
        "manifests": [_manifest(each) for each in _manifests(paths, steps)],
        "viewer": [_view(viewer, path.name, step) for step in steps or [None]],
    }


def _written(result: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of result.json that Harbor computes from the others: whether the reward is valid, and policies."""
    steps = [step["exception_info"] for step in result["step_results"] or []]
    shown = [each and {key: each.get(key) for key in ("policy", "policy_override")} for each in (result["exception_info"], *steps)]
    return {"schema_version": result["schema_version"], "reward_valid": result["reward_valid"], "policies": shown}


def _manifests(paths: TrialPaths, steps: list[str]) -> list[Path]:
    found = [paths.step_artifacts_manifest_path(step) for step in steps] if steps else [paths.artifacts_manifest_path]
    return [path for path in found if path.exists()]


def _manifest(path: Path) -> list[dict[str, Any]]:
    return [ArtifactManifestEntry.model_validate(entry).model_dump() for entry in json.loads(path.read_text())]


def _view(viewer: TestClient, trial: str, step: str | None) -> dict[str, Any]:
    base = f"/api/jobs/{JOB}/trials/{trial}"
    shown = {"trial": viewer.get(base)}
    for page in ("verifier-output", "artifacts", "files", "agent-logs"):
        shown[page] = viewer.get(f"{base}/{page}", params={"step": step} if step else {})
    for response in shown.values():
        response.raise_for_status()
    return {page: response.json() for page, response in shown.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
