"""``python -m tests.training.run_episodes``: run episodes of verifiers whose trials have known tokens and rewards, and check them.

The first run installs verifiers in the cache.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.training.environment import python_with

VERIFIERS = "verifiers==0.4.0"
TASKSET = """from multistep.client.verifiers_env import TrialEnv, TrialTaskset

__all__ = ["TrialEnv", "TrialTaskset"]
"""


def main() -> None:
    """Run episodes.py, with a module for verifiers as the documents show it."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "my_tasks.py").write_text(TASKSET)
        script = Path(__file__).with_name("episodes.py")
        subprocess.run([str(python_with(VERIFIERS)), str(script)], env={**os.environ, "PYTHONPATH": directory}, check=True)


if __name__ == "__main__":
    main()
