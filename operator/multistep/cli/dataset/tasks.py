"""Converts the tasks of a dataset into local directories and entries of spec.tasks, if spec.tasksFrom cannot name the dataset."""

from __future__ import annotations

from pathlib import Path

from multistep.cli.dataset.registry import Selected, reaching_out
from multistep.cli.task.task_directory import TaskDirectory
from multistep.cli.trial.run.manifests import Manifest
from multistep.sources.fetch.dataset import check_task, pin
from multistep.sources.fetch.fetch_messages import Request, Rules
from multistep.sources.task.harbor_registry import distinct_names


def open_tasks(selected: Selected) -> list[TaskDirectory | Manifest]:
    """Return each task as a directory, or as an entry of spec.tasks with a commit. Raises UsageError or SourceError if a task does
    not exist, Unavailable if its repository does not answer."""
    names = distinct_names(selected.tasks)
    for task in selected.tasks:
        if task.url is not None:
            check_task(task, selected.registry.place)
    requests = [Request("git", task.url, ref=task.ref, path=task.path) for task in selected.tasks if task.url is not None]
    with reaching_out():
        pinned = iter(pin(requests, Rules()))
    return [
        TaskDirectory.open(Path(task.path).expanduser()) if task.url is None else _entry(name, next(pinned))
        for name, task in zip(names, selected.tasks, strict=True)
    ]


def _entry(name: str, request: Request) -> Manifest:
    path = {"path": request.path} if request.path else {}
    return {"name": name, "git": {"url": request.location, "ref": request.revision, **path}}
