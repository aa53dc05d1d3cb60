"""The example task of the bench, unchanged or modified."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from multistep.client.reconnecting_watch import WatchingClient
from multistep.client.submit.manifests import TrialImage, bundle_config_maps, bundle_source, environment, placed, trial_manifest
from multistep.sources.task.bundle import digest_of, pack_directory

EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "hello-multi-step-advanced"

Object = dict[str, Any]
Change = Callable[[Path], None]


@dataclass(frozen=True)
class Example:
    """The example task in a namespace, with the image that `multistep build` made. runner_in_image: whether the image contains the
    runner."""

    client: WatchingClient
    namespace: str
    image: str
    runner_in_image: bool

    async def trial(self, name: str = "bench", change: Change = lambda _: None) -> Object:
        """Create the task's ConfigMaps, and return a trial's manifest. change: changes a copy of the task's directory."""
        with tempfile.TemporaryDirectory() as made:
            directory = Path(made) / "task"
            shutil.copytree(EXAMPLE, directory)
            change(directory)
            packed = pack_directory(directory)
        digest = digest_of(packed)
        maps = bundle_config_maps(packed, name, digest)
        for config_map in maps:
            await self.client.create(placed(config_map, self.namespace))
        task = {"name": "bench", **bundle_source(maps, digest)}
        image = environment(TrialImage(self.image, runner=self.runner_in_image))
        return trial_manifest(name, {"task": task, "agent": {"name": "oracle"}, "environment": image}, digest)
