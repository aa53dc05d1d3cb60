"""Load the results of a trial with Harbor 0.26's own models, and print the paths of the trajectories among them as JSON.

Run it with the Python of an environment that has Harbor (environment.py): ``python load_trial.py RESULTS_DIR``.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import json
import sys
from pathlib import Path

from harbor.models.trajectories import Trajectory
from harbor.models.trial.result import TrialResult


def main(results: Path) -> None:
    TrialResult.model_validate_json((results / "result.json").read_text())
    trajectories = sorted(results.rglob("trajectory.json"))
    for each in trajectories:
        Trajectory.model_validate_json(each.read_text())
    print(json.dumps([str(each.relative_to(results)) for each in trajectories]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
