"""Python environments with a training framework and this checkout's Multistep, in the cache."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from hack.paths import cached
from hack.python_env import build_wheel
from tests.harbor.environment import find_python


def python_with(framework: str) -> Path:
    """Return the path of a Python that has a framework, such as trl==1.16.0, and this checkout's Multistep. Raises RuntimeError if
    no Python 3.12 or newer is found."""
    if (python := find_python()) is None:
        raise RuntimeError(f"the packages of {framework} need Python 3.12 or newer, which was not found")

    def install(directory: Path) -> None:
        subprocess.run([str(python), "-m", "venv", "--copies", str(directory)], check=True)
        subprocess.run([str(directory / "bin/python"), "-m", "pip", "install", "--quiet", framework], check=True)

    home = cached("training", framework.replace("==", "-").replace(".", "-"), install)
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet"]
    with tempfile.TemporaryDirectory() as directory:
        build_wheel(Path(directory))
        wheel = str(next(Path(directory).glob("*.whl")))
        subprocess.run([*pip, wheel], check=True)
        # reinstalls a changed wheel of the same version
        subprocess.run([*pip, "--force-reinstall", "--no-deps", wheel], check=True)
    return home / "bin/python"
