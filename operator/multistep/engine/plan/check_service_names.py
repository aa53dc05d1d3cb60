"""Checks that the services named in task.toml exist, as in Harbor 0.25 (trial: _validate_artifacts)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from multistep.api.task.compose_services import MAIN
from multistep.api.task.layout import TaskLayout
from multistep.api.task.task_toml import ArtifactConfig, CollectConfig, TaskConfig
from multistep.errors import InvalidTask


def check_services(config: TaskConfig, layout: TaskLayout) -> None:
    """Raise InvalidTask, with all faults, if an artifact or a collect hook names a service that the task's compose file does not
    have, or that ends before the first step."""
    if faults := [*_faults(config, layout)]:
        raise InvalidTask.joined(faults)


def _faults(config: TaskConfig, layout: TaskLayout) -> Iterator[InvalidTask]:
    known = [MAIN, *(each.name for each in layout.compose.others)] if layout.compose else [MAIN]
    for field, entry in _entries(config):
        if entry.service not in (None, *known):
            where = (
                "is not a service of environment/docker-compose.yaml" if layout.compose else "needs environment/docker-compose.yaml"
            )
            text = f"{entry.service!r} {where}; must be one of {', '.join(map(repr, known))}"
            yield InvalidTask(text, kind="ValueError", field=f"{field}.service")
        elif layout.compose and entry.service in layout.compose.jobs:
            text = f"{entry.service!r} ends before the first step, as others await it with service_completed_successfully: "
            yield InvalidTask(f"{text}share its files with main in a volume", kind="ValueError", field=f"{field}.service")


def _entries(config: TaskConfig) -> Iterator[tuple[str, ArtifactConfig | CollectConfig]]:
    places: list[tuple[str, Sequence[ArtifactConfig | CollectConfig]]] = [
        ("artifacts", config.artifacts),
        ("verifier.collect", config.verifier.collect),
    ]
    for index, step in enumerate(config.steps or []):
        places += [(f"steps[{index}].artifacts", step.artifacts), (f"steps[{index}].verifier.collect", step.verifier.collect)]
    for field, entries in places:
        for number, entry in enumerate(entries):
            yield f"{field}[{number}]", entry
