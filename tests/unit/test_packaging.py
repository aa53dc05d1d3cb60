"""`pip install multistep` installs the command line and the Python client; the extra `operator` installs the rest."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
IMPORT_ALL = """
import importlib, json, pkgutil, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # an import of it fails
import multistep.cli, multistep.client
for package in (multistep.cli, multistep.client):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
"""


def normal(package: str) -> str:
    """Return the normal form of a package's name (PEP 503), without its version."""
    return re.split(r"[>=<; ]", package)[0].lower().replace("_", "-")


def modules_of(extra: str) -> list[str]:
    """Return the installed modules that only packages of an extra provide."""
    names = set(map(normal, PROJECT["optional-dependencies"][extra]))
    return [module for module, found in packages_distributions().items() if set(map(normal, found)) <= names]


def test_command_line_and_client_need_no_package_of_the_operator() -> None:
    without = modules_of("operator")
    assert {"kopf", "prometheus_client", "uvloop"} <= set(without)
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, json.dumps(without)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_client_needs_none_of_the_report_either() -> None:
    code = "import json, sys\nfor name in json.loads(sys.argv[1]): sys.modules[name] = None\nfrom multistep import Client\n"
    code += "import multistep.client.trl, multistep.cli.sweep.sweep_results"
    without = [*modules_of("operator"), *modules_of("report")]
    done = subprocess.run([sys.executable, "-c", code, json.dumps(without)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
