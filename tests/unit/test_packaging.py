"""`pip install multistep` installs the command line and the Python client; the extra `operator` installs the rest."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import files, packages_distributions
from pathlib import Path

PROJECT = tomllib.loads(Path("pyproject.toml").read_text())["project"]
RUN_NOT_IMPORTED = {"harbor"}  # `multistep view` runs its program
IMPORT_ALL = """
import importlib, json, pkgutil, sys
for name in json.loads(sys.argv[1]):
    sys.modules[name] = None  # an import of it fails
import multistep.cli, multistep.client
for package in (multistep.cli, multistep.client):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith(("__main__", "verifiers_env")):  # its users have the package verifiers
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


def imported() -> set[str]:
    """Return the dotted names of all modules, and of what is imported from them, that the package imports anywhere."""
    found: set[str] = set()
    for file in Path("operator/multistep").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
    return found


def modules_in(package: str) -> set[str]:
    """Return the dotted names of the modules of an installed package."""
    modules = (file.with_name(file.name.partition(".")[0]) for file in files(package) or () if file.suffix in (".py", ".so"))
    return {".".join(each.parent.parts if each.name == "__init__" else each.parts) for each in modules}


def test_each_dependency_is_imported() -> None:
    listed = [*PROJECT["dependencies"], *(each for extra in PROJECT["optional-dependencies"].values() for each in extra)]
    names, used = set(map(normal, listed)) - RUN_NOT_IMPORTED, imported()
    assert {each for each in names if not modules_in(each) & used} == set()
