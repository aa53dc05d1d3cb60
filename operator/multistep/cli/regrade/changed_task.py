"""The task of a regrade: the source's task, optionally with other tests, or another version of the whole task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multistep.cli.cluster import Cluster
from multistep.cli.task.task_directory import TaskDirectory
from multistep.cli.trial.run.manifests import Manifest, bundle_config_maps
from multistep.errors import NotFound, UsageError
from multistep.kube.resources import CONFIG_MAPS
from multistep.sources.task import configmaps
from multistep.sources.task.bundle import Bundle, Entry, digest_of, packed

_TESTS = "tests"


@dataclass(frozen=True)
class TaskOf:
    """Builds spec.task for a new trial or sweep. namespace: of the new objects; name: prefix of the new ConfigMaps' names."""

    cluster: Cluster
    namespace: str
    name: str

    async def same(self, task: Manifest, tests: Path | None) -> tuple[Manifest, Sequence[Manifest]]:
        """Return spec.task of the regrade, and its ConfigMaps to create. A bundle gets new ConfigMaps, because the old ones are
        deleted with the source trial or sweep.

        task: spec.task of the source; tests: directory whose tests replace the task's tests. Raises UsageError if the ConfigMaps
        were deleted, or if the tests cannot be replaced.
        """
        if "bundle" in task:
            bundle = task["bundle"]
            data = await self._joined(bundle["configMaps"], bundle["digest"])
            return self._bundled(task, data if tests is None else _with_tests(data, tests))
        if tests is None:
            return task, ()
        if "inline" in task:
            inline = task["inline"]
            return {**task, "inline": {**inline, "files": _inline_files(inline.get("files", {}), tests)}}, ()
        (kind,) = set(task) & {"oci", "git", "url"}
        raise UsageError(f"--tests: the task comes from {kind}: name the directory of the whole task with --task instead")

    def other(self, task: Manifest, directory: TaskDirectory) -> tuple[Manifest, Sequence[Manifest]]:
        """Return a spec.task for a directory, and the ConfigMaps of its bundle. task: the spec.task that the new one replaces, and
        whose name and environment it keeps, if set."""
        kept = {key: value for key, value in task.items() if key in ("name", "environment")}
        return self._bundled({"name": directory.directory_name, **kept}, directory.packed)

    def _bundled(self, task: Manifest, data: bytes) -> tuple[Manifest, Sequence[Manifest]]:
        digest = digest_of(data)
        parts = bundle_config_maps(data, self.name, digest, self.namespace)
        return {**task, "bundle": {"configMaps": [each["metadata"]["name"] for each in parts], "digest": digest}}, parts

    async def _joined(self, names: Iterable[str], digest: str) -> bytes:
        try:
            return configmaps.join([await self.cluster.get(CONFIG_MAPS, self.namespace, each) for each in names], digest)
        except NotFound as error:
            raise UsageError(f"the ConfigMaps of the source's task were deleted ({error}): name the task with --task") from error


def _with_tests(data: bytes, tests: Path) -> bytes:
    """Return the packed task with its tests replaced by those in a directory."""
    entries = Bundle.open(data, digest_of(data)).entries
    given = Bundle.from_directory(tests).entries
    replaced = _replaced(tests, entries, given)
    kept = {path: each for path, each in entries.items() if not _is_below(path, replaced)}
    return packed({**kept, **{path: each for path, each in given.items() if _is_below(path, replaced)}})


def _inline_files(files: Mapping[str, str], tests: Path) -> dict[str, str]:
    """Return the files of the inline task with its tests replaced by those in a directory."""
    given = Bundle.from_directory(tests).entries
    replaced = _replaced(tests, files, given)
    kept = {path: text for path, text in files.items() if not _is_below(path, replaced)}
    return {**kept, **{path: _text(path, each) for path, each in given.items() if _is_below(path, replaced) and each.kind != "dir"}}


def _text(path: str, entry: Entry) -> str:
    try:
        if entry.kind == "file":
            return bytes(entry.data).decode()
    except UnicodeDecodeError:
        pass
    raise UsageError(f"--tests: {path} is not UTF-8 text, and the task is inline: name the directory of the whole task with --task")


def _replaced(tests: Path, task: Mapping[str, Any], given: Mapping[str, Entry]) -> Sequence[str]:
    """Return the directories of tests in ``given``: tests and steps/NAME/tests.

    Raises UsageError if ``given`` has none, or has tests of a step that the task lacks.
    """
    parts = [path.split("/") for path, each in given.items() if each.kind == "dir"]
    steps = [each[1] for each in parts if len(each) == 3 and (each[0], each[2]) == ("steps", _TESTS)]
    found = [*([_TESTS] if [_TESTS] in parts else []), *(f"steps/{each}/{_TESTS}" for each in steps)]
    if not found:
        raise UsageError(f"{tests} has neither tests/ nor steps/NAME/tests/: --tests needs the layout of a task's directory")
    for step in steps:
        if not any(path.startswith(f"steps/{step}/") for path in task):
            raise UsageError(f"--tests: {tests}/steps/{step}: the task has no such step")
    return found


def _is_below(path: str, directories: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in directories)
