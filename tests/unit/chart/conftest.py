"""Fixtures that render the chart with Helm."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.tools import helm

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "multistep"

Object = dict[str, Any]
Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def program() -> str:
    """Return the path of Helm; build it if it is missing."""
    return str(helm())


@pytest.fixture
def render(program: str, tmp_path: Path) -> Render:
    """Return a function that renders the chart with the given values, and without CRDs unless the values install them: these
    are nine tenths of the output. The function returns the objects. If Helm fails, it raises ValueError with Helm's message."""

    def run(values: Object | None = None, *, release: str = "multistep", arguments: Sequence[str] = ()) -> list[Object]:
        file = tmp_path / "values.json"
        file.write_text(json.dumps({"crds": {"install": False}} | (values or {})))
        command = [program, "template", release, str(CHART), "--namespace", "multistep-system", "--values", str(file), *arguments]
        env = os.environ | {"KUBECONFIG": os.devnull}  # Helm uses no cluster unless the arguments name one
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
        return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]  # parses in C: several times as fast

    return run


def only(objects: list[Object], kind: str, *, gateway: bool = False) -> Object:
    """Return the only object of this kind. gateway: search only the model gateway's objects if true, else only other objects."""
    [found] = [each for each in objects if each["kind"] == kind and gateway is of_gateway(each)]
    return found


def of_gateway(each: Object) -> bool:
    """Return whether an object belongs to the model gateway."""
    return bool(each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "gateway")
