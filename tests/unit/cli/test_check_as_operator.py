"""`multistep check` refuses what the operator does not load, with the operator's own words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from multistep.errors import InvalidTask, MultistepError
from multistep.sources.reader import accept_task
from multistep.sources.reader.read_task import TaskReader
from multistep.sources.task.bundle import digest_of, pack_directory
from tests.support.reading import read_here

from .conftest import TASK_TOML, Invoke
from .test_check import write


def refused_by_the_operator(task: Path, tmp_path: Path) -> str:
    """Return why the operator does not load the task; "" if it does."""
    packed = pack_directory(task)
    file = tmp_path / "bundle"
    file.write_bytes(packed)
    read = TaskReader(tmp_path, read_here).file("bundle", file, digest_of(packed), verification=True, oracle=False)
    try:
        asyncio.run(read)
    except MultistepError as error:
        return str(error).removeprefix(f"{error.field}: ") if isinstance(error, InvalidTask) else str(error)
    return ""


def many_steps(task: Path, number: int) -> None:
    steps = "".join(f"[[steps]]\nname = 's{index}'\n" for index in range(number))
    write(task, {"task.toml": TASK_TOML + steps, "tests/test.sh": "#!/bin/sh\n"})
    write(task, {f"steps/s{index}/instruction.md": "go" for index in range(number)})


def test_more_steps_than_the_operator_loads(task: Path, tmp_path: Path, invoke: Invoke) -> None:
    many_steps(task, 1000)
    agreed(task, tmp_path, invoke, "1001 steps are more than the limit of 1000")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, ""),
        ({"steps/a/instruction.md": "x" * 2_400_000}, "task.toml and the instructions have 24"),
        ({"task.toml": f"source = '{'y' * (300 << 10)}'\n{TASK_TOML}"}, "task.toml has 30"),
        ({"steps/a/tests/test.sh": ""}, ""),
        ({"task.toml": TASK_TOML.replace('"a"', '"b"')}, "is missing: each step has a directory"),
    ],
)
def test_check_and_operator_agree(task: Path, tmp_path: Path, invoke: Invoke, files: dict[str, str], reason: str) -> None:
    write(task, files)
    agreed(task, tmp_path, invoke, reason)


def test_check_and_operator_agree_on_the_size_of_uploads(
    task: Path, tmp_path: Path, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept_task, "CONTENTS_BYTES", 1 << 20)
    write(task, {"steps/a/workdir/data": "x" * (1 << 20)})
    agreed(task, tmp_path, invoke, "the task's uploads have more than 1048576 bytes")


def agreed(task: Path, tmp_path: Path, invoke: Invoke, reason: str) -> None:
    """Assert that check and the operator give the same reason; "" if both accept the task."""
    refused, result = refused_by_the_operator(task, tmp_path), invoke("check", task)
    assert reason in refused and bool(reason) == bool(refused)
    assert (result.exit_code, refused in result.stdout) == (2 if reason else 0, True), result.stdout
