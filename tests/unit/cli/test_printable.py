"""Whatever tasks, agents and clusters call things, the commands print printable characters only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text

from multistep.cli import terminal
from multistep.cli.doctor import command as doctor
from multistep.cli.doctor.observe import Finding
from multistep.client.submit.manifests import to_yaml

from .conftest import Invoke
from .fakes import CliCluster, status, step
from .test_list import put

HOSTILE = "x\x1b]0;t\x07\x9b31m\u202ey\rz"
TEXTS = st.text(st.characters(), max_size=40)
AS_GIVEN = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def is_printable(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@AS_GIVEN
@given(TEXTS)
def test_no_text_that_is_printed_has_a_control_character(capsys: pytest.CaptureFixture[str], text: str) -> None:
    table = terminal.table("A")
    table.add_row(text.replace("\t", " "))
    terminal.print_out(text, Text(text), table)
    for write in (terminal.print_line, terminal.print_err, terminal.print_text, terminal.print_json):
        write(text)
    printed = capsys.readouterr()
    assert is_printable(printed.out.replace("\t", "").replace("\r\n", "\n")) and is_printable(printed.err)


@AS_GIVEN
@given(st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_json_is_the_same_document(capsys: pytest.CaptureFixture[str], document: dict[str, str]) -> None:
    terminal.print_json(document)
    assert json.loads(capsys.readouterr().out) == document


@given(TEXTS.filter(lambda text: not any("\ud800" <= char <= "\udfff" for char in text)))
def test_a_manifest_is_the_same_document(text: str) -> None:
    import yaml

    made = to_yaml([{"kind": text}])
    assert is_printable(made) and yaml.safe_load(made) == {"kind": text}


@pytest.mark.parametrize(
    "command",
    [("list",), ("list", "-o", "wide"), ("list", "-o", "json"), ("show", "t"), ("show", "t", "-o", "json"), ("logs", "t")],
)
def test_hostile_names_of_a_trial_are_printable_and_short(invoke: Invoke, cluster: CliCluster, command: tuple[str, ...]) -> None:
    of_step = step(HOSTILE, "Failed", exception={"type": HOSTILE, "message": HOSTILE, "phase": "agent"}, rewards={HOSTILE: 1})
    ended: dict[str, Any] = status("Complete", of_step, reason=HOSTILE, message=HOSTILE, task=HOSTILE + "n" * 100_000)
    put(cluster, "t", {**ended, "reward": HOSTILE, "podName": HOSTILE, "nodeName": HOSTILE})
    result = invoke(*command)
    assert is_printable(result.stdout) and is_printable(result.stderr) and result.exit_code in (0, 1)
    if command[:1] == ("list",) and "json" not in command:
        assert len(result.stdout) < 5_000


def test_hostile_names_in_a_check_of_the_cluster_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    found = [Finding(HOSTILE, "fault", HOSTILE, HOSTILE)]
    for as_json in (False, True):
        doctor._print(found, as_json=as_json)
    assert is_printable(capsys.readouterr().out)


def test_a_hostile_task_directory_is_printable(invoke: Invoke, task: Path) -> None:
    (task / f"steps/{HOSTILE}").mkdir()
    for output in ("table", "json"):
        assert is_printable(invoke("check", task, "-o", output).stdout)
