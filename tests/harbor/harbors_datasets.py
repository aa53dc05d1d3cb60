"""Print the tasks that Harbor 0.26's own client finds for the selections in DIRECTORY/selections.json, as JSON.

Run it with the Python of an environment that has Harbor (environment.py): ``python harbors_datasets.py DIRECTORY``.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from harbor.models.job.config import DatasetConfig
from harbor.registry.client.factory import RegistryClientFactory


async def tasks(registry: Path, selection: dict[str, Any]) -> list[list[str | None]] | None:
    """Return the repository, commit and path of each task; None if Harbor rejects the selection."""
    config = DatasetConfig(
        name=selection["name"],
        version=selection.get("version"),
        registry_path=registry,
        task_names=selection.get("include"),
        exclude_task_names=selection.get("exclude"),
        n_tasks=selection.get("limit"),
    )
    try:
        found = await config.get_task_configs()
    except ValueError:
        return None
    return [[each.git_url, each.git_commit_id, each.path.as_posix()] for each in found]


async def main(directory: Path) -> None:
    registry = directory / "registry.json"
    listed = await RegistryClientFactory.create(registry_path=registry).list_datasets()
    found = [await tasks(registry, each) for each in json.loads((directory / "selections.json").read_text())]
    print(json.dumps({"datasets": [[each.name, each.version, each.task_count] for each in listed], "tasks": found}))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
