"""Reads a task and limits its size, for the operator and for `multistep check`, so that both accept the same tasks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from multistep.api.task.layout import StepLayout
from multistep.api.task.task_toml import TaskConfig
from multistep.api.trial.content_references import Content
from multistep.api.trial.values import TOO_LARGE
from multistep.errors import SourceError
from multistep.sources.reader.read_messages import ContentKey, ReadAnswer, Span
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.read_limits import ANSWER_BYTES, CONFIG_BYTES, CONTENTS_BYTES
from multistep.sources.task.task import Task, config_table, load_task

Write = Callable[[bytes], object]
_STEPS: Final = 1000
_ITEMS: Final = 50_000


@dataclass(frozen=True)
class AcceptedTask:
    """A task that the operator accepts."""

    task: Task
    answer: bytes
    """The message (JSON) with the task for the operator."""


def accept_task(bundle: Bundle, *, verification: bool, oracle: bool, write: Write = len) -> AcceptedTask:
    """Load a task (task.load_task), and write the tar stream of each upload. Raises InvalidTask, and SourceError if the task is too
    large."""
    task = load_task(bundle, verification=verification, oracle=oracle)
    table = config_table(bundle)
    _check_size(task.config, len(json.dumps(table, default=str)))
    answer = ReadAnswer(bundle.digest, table, task.layout, tuple(task.unknown), _write_contents(task, write)).to_json()
    if len(answer) > ANSWER_BYTES:
        text = f"task.toml and the instructions have {len(answer)} bytes together, more than the limit of {ANSWER_BYTES}"
        raise SourceError(text, reason=TOO_LARGE)
    return AcceptedTask(task, answer)


def _write_contents(task: Task, write: Write) -> Mapping[ContentKey, Span]:
    """Write the tar stream of each upload, and return the streams' offsets and sizes. Uploads of the same files share one
    stream."""
    spans: dict[ContentKey, Span] = {}
    written: dict[tuple[str, str], Span] = {}
    end = 0
    for ref in _references(task):
        real, paths = task.selection(ref)
        key = real, hashlib.sha256("\0".join(paths).encode(errors="surrogateescape")).hexdigest()
        if key not in written:
            start = end
            for chunk in task.content(ref):
                write(chunk)
                end += len(chunk)
                if end > CONTENTS_BYTES:
                    text = f"the task's uploads have more than {CONTENTS_BYTES} bytes, which is the limit"
                    raise SourceError(text, reason=TOO_LARGE)
            written[key] = start, end - start
        spans[ref.kind, ref.step] = written[key]
    return spans


def _references(task: Task) -> Iterator[Content]:
    directories: list[tuple[str | None, StepLayout]] = [(None, task.layout.root), *task.layout.steps.items()]
    for step, layout in directories:
        if layout.workdir:
            yield Content("workdir", step)
        if layout.tests:
            yield Content("tests", step)
        if layout.tests_dockerfile or layout.tests_compose:
            yield Content("verifier", step)
        if layout.solution:
            yield Content("solution", step)
    if task.layout.environment_files:
        yield Content("environment")


def _check_size(config: TaskConfig, table_bytes: int) -> None:
    """Raise SourceError if the task's plan would be too large. The operator computes plans in its own process, without the child's
    limits."""
    if table_bytes > CONFIG_BYTES:
        raise SourceError(f"task.toml has {table_bytes} bytes as JSON, more than the limit of {CONFIG_BYTES}", reason=TOO_LARGE)
    steps = len(config.steps or [None])
    if steps > _STEPS:
        raise SourceError(f"task.toml: {steps} steps are more than the limit of {_STEPS}", reason=TOO_LARGE)
    verifier = config.verifier
    environment = verifier.environment.env if verifier.environment else {}
    each_step = len(config.artifacts) + len(verifier.collect) + len(verifier.env) + len(environment)
    if steps * each_step > _ITEMS:
        text = f"task.toml: {steps} steps, each with {each_step} artifacts, hooks and variables of the whole task"
        raise SourceError(f"{text}, are more than {_ITEMS} items, which is the limit", reason=TOO_LARGE)
