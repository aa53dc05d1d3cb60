"""``python -m tests.training.run_token_rows``: train with TRL on the tokens of trials. The first run installs TRL in the cache."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.training.__main__ import TRL
from tests.training.environment import python_with

if __name__ == "__main__":
    subprocess.run([str(python_with(TRL)), str(Path(__file__).with_name("token_rows.py"))], check=True)
