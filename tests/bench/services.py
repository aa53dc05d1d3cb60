"""Compare trials whose task has two services with pods that have the same containers and stay idle."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from multistep.api.task.task_toml import parse_task
from multistep.api.trial.trial import parse_trial
from multistep.engine.plan.plan_services import plan_services
from multistep.pods import pod_manifest as pods
from multistep.settings import Settings
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.read_compose import read_services
from tests.bench import trials
from tests.bench.example import EXAMPLE, Example
from tests.bench.trials import Comparison, Manifests, line, spread

COUNTS: Final = (1, 8)
MAX_RATIO: Final = 1.3  # maximum wall time of trials, relative to pods with the same containers
_COMPOSE: Final = "environment/docker-compose.yaml"
# SIGTERM terminates PID 1 only if the process handles it.
_SERVICE: Final = """\
  {0}:
    image: debian:bookworm-slim
    command: [perl, -e, '$$SIG{{TERM}} = sub {{ exit }}; sleep']
"""

Object = dict[str, Any]


async def measure(example: Example, settings: Settings) -> list[Comparison]:
    """Run the measurements."""
    trial = await example.trial("services", _add_services)
    shape = _shape(trial, example.image, settings)
    task = parse_task((EXAMPLE / "task.toml").read_text())
    manifests = Manifests(trial, shape, _bare(shape), len(task.steps or []))
    return [await trials.compare(example.client, example.namespace, manifests, count) for count in COUNTS]


def _add_services(directory: Path) -> None:
    (directory / _COMPOSE).write_text("services:\n" + "".join(_SERVICE.format(each) for each in ("db", "web")))


def _shape(trial: Object, image: str, settings: Settings) -> Object:
    """Return the manifest of a pod that is built like the trial's, but stays idle."""
    task = parse_task((EXAMPLE / "task.toml").read_text())
    with tempfile.TemporaryDirectory() as made:
        (Path(made) / _COMPOSE).parent.mkdir()
        _add_services(Path(made))
        bundle = Bundle.from_directory(Path(made))
    services = plan_services(read_services(bundle, "environment", task.environment), image, {}, {})
    parsed = parse_trial({**trial, "status": {"podName": "idle", "attempt": 1}})
    pod = pods.pod_manifest(pods.PodRequest(parsed, task.environment, image, "bench", settings, services=services))
    pod["metadata"] = {"name": "idle", "labels": {"bench": "idle"}}
    return pod


def _bare(shape: Object) -> Object:
    """Return the manifest of a pod with the same containers, all started at once: no init container, no probe, no grace period."""
    given = [each for each in shape["spec"]["initContainers"] if each.get("restartPolicy") == "Always"]
    main = {**shape["spec"]["containers"][0], "command": ["sleep", "3600"]}
    kept = ("name", "image", "command", "args", "resources")
    containers = [{name: each[name] for name in kept if name in each} for each in (main, *given)]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": shape["metadata"], "spec": spec}


def judgement(found: Sequence[Comparison]) -> Sequence[str]:
    """Return one line per number of trials. A slow run does not fail the bench, because times depend on the machine.

    The limit is for the ratio to idle pods of the trials' shape. In both, the kubelet starts native sidecars one after the other.
    The ratio to bare pods, which start all containers at once, is only reported.
    """
    words = "trials take {} times as long as idle pods of the same containers, at most {:g}"
    return [
        line(median(each.of_shape) <= MAX_RATIO, f"{each.count} {words.format(spread(each.of_shape, 2), MAX_RATIO)}")
        for each in found
    ]
