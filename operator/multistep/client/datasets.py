"""Reads datasets: a registry.json from a URL or a file, and the tasks that it lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multistep.errors import SourceError, Unavailable, UsageError
from multistep.sources.fetch.fetch_messages import FetchRequest, FetchRules
from multistep.sources.task.harbor_registry import (
    HUB,
    REGISTRY_BYTES,
    Dataset,
    DatasetTask,
    Selection,
    choose,
    distinct_names,
    find_dataset,
    parse_registry,
    select_tasks,
)

if TYPE_CHECKING:
    from multistep.client.task.task_directory import TaskDirectory

_FILE = "registry.json"


@dataclass(frozen=True)
class Registry:
    """A registry.json."""

    place: str
    """URL or path of the file."""
    datasets: Sequence[Dataset]

    @classmethod
    def read(cls, place: str) -> Registry:
        """Read a registry from a URL, a file, or the registry.json in a directory. Raises UsageError if the file cannot be read or
        is too large, Unavailable if the URL does not answer, SourceError if the registry is invalid."""
        return cls(place, parse_registry(_fetched(place) if _is_url(place) else _bytes(Path(place)), place))

    @property
    def is_url(self) -> bool:
        """Report whether the registry has a URL. The operator can read a URL, but not a file of this machine."""
        return _is_url(self.place)

    def select(self, selection: Selection) -> Selected:
        """Return the selected tasks of a dataset. Raises SourceError if the registry lacks the dataset or a selected task."""
        dataset = find_dataset(self.datasets, selection, self.place)
        tasks = select_tasks(dataset, selection, self.place, _local_name)
        return Selected(self, dataset, replace(selection, version=dataset.version), tasks)


@dataclass(frozen=True)
class Selected:
    """The selected tasks of a dataset."""

    registry: Registry
    dataset: Dataset
    selection: Selection
    """The user's options, with the version of the dataset that was found."""
    tasks: Sequence[DatasetTask]

    @property
    def source(self) -> dict[str, Any] | None:
        """Return the sweep's spec.tasksFrom.dataset; None if only this machine can read the registry or a task."""
        if not self.registry.is_url or any(each.url is None for each in self.tasks):
            return None
        return {"registry": self.registry.place, **{name: value for name, value in asdict(self.selection).items() if value}}


@dataclass(frozen=True)
class DatasetOptions:
    """The options --dataset, --registry, --task, --exclude and --limit."""

    dataset: str | None = None
    registry: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    limit: int | None = None

    def selected(self) -> Selected:
        """Return the selected tasks. Raises UsageError if an option is invalid, and the errors of ``Registry.read`` and
        ``Registry.select``."""
        name, separator, version = (self.dataset or "").partition("@")
        if not name or (separator and not version):
            raise UsageError(f"--dataset {self.dataset}: must be NAME or NAME@VERSION")
        if "/" in name:
            raise UsageError(f"dataset {name!r} {HUB.format(name=self.dataset)}")
        selection = Selection(name, version, list(self.include), list(self.exclude), self.limit)
        return Registry.read(required(self.registry, name)).select(selection)

    def of_directories(self, tasks: Sequence[TaskDirectory], where: str) -> list[TaskDirectory]:
        """Return those of the tasks whose directories the patterns and the limit select. Raises SourceError if no task is left."""
        selection = Selection("", "", list(self.include), list(self.exclude), self.limit)
        return choose(tasks, selection, where, lambda each: each.directory_name)


def required(place: str | None, name: str = "NAME") -> str:
    """Return ``place``, the value of --registry. Raises UsageError if it is empty. name: the dataset, for the message."""
    if not place:
        raise UsageError(f"name the registry.json in --registry; without one, a dataset {HUB.format(name=name)}")
    return place


def open_tasks(selected: Selected) -> list[TaskDirectory | dict[str, Any]]:
    """Return each task as a directory, or as an entry of spec.tasks with a commit. Raises UsageError or SourceError if a task does
    not exist, Unavailable if its repository does not answer."""
    from multistep.client.task.task_directory import TaskDirectory
    from multistep.sources.fetch.dataset import check_task, pin

    names = distinct_names(selected.tasks)
    for task in selected.tasks:
        if task.url is not None:
            check_task(task, selected.registry.place)
    requests = [FetchRequest("git", task.url, ref=task.ref, path=task.path) for task in selected.tasks if task.url is not None]
    with _reaching_out():
        pinned = iter(pin(requests, FetchRules()))
    return [
        TaskDirectory.open(Path(task.path).expanduser()) if task.url is None else _entry(name, next(pinned))
        for name, task in zip(names, selected.tasks, strict=True)
    ]


def _entry(name: str, request: FetchRequest) -> dict[str, Any]:
    path = {"path": request.path} if request.path else {}
    return {"name": name, "git": {"url": request.location, "ref": request.revision, **path}}


@contextmanager
def _reaching_out() -> Iterator[None]:
    """Turn a transient SourceError of the ``with`` block into Unavailable."""
    try:
        yield
    except SourceError as error:
        if error.transient:
            raise Unavailable(str(error)) from error
        raise


def _is_url(place: str) -> bool:
    return place.startswith(("https://", "http://"))


def _bytes(path: Path) -> bytes:
    file = path / _FILE if path.is_dir() else path
    try:
        with file.open("rb") as stream:
            data = stream.read(REGISTRY_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--registry {path}: {error.strerror}") from error
    if len(data) > REGISTRY_BYTES:
        raise UsageError(f"--registry {path}: has more than {REGISTRY_BYTES} bytes, which is the limit")
    return data


def _fetched(url: str) -> bytes:
    from multistep.sources.fetch.dataset import registry

    with _reaching_out():
        return registry(FetchRequest("dataset", url), FetchRules())


def _local_name(path: str) -> str:
    try:
        return Path(path).expanduser().resolve().name
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"the path {path!r} of a task cannot be read: {error}") from error
