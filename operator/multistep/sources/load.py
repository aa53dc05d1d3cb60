"""The bundle of a task that is in the cluster."""

from __future__ import annotations

from ..api.task_source import TaskSource
from ..errors import InvalidSpec
from .bundle import Bundle
from .configmaps import GetConfigMap, fetch
from .inline import inline_bundle


async def load_bundle(source: TaskSource, get_config_map: GetConfigMap) -> Bundle:
    """The bundle that spec.task names. get_config_map: reads a ConfigMap of the trial's namespace, or raises NotFound."""
    if source.inline is not None:
        return inline_bundle(source.inline)
    if source.bundle is None:
        raise InvalidSpec("spec.task: neither bundle nor inline")
    data = await fetch(get_config_map, source.bundle.config_maps, source.bundle.digest)
    return Bundle.open(data, source.bundle.digest)
