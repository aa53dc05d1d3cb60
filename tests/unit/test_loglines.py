"""The operator's log: lines parse, name their object, contain no terminal escapes and reveal no secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import kopf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.logs import MAX_TEXT_CHARACTERS, JsonFormatter, TextFormatter, about, also_about
from multistep.reconcile.queue.work_queue import Requeue, WorkQueue


class Lines(logging.Handler):
    """Records the lines that a logger writes."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))

    @property
    def reported(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(JsonFormatter()), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


def record(message: str, *arguments: object, **extra: object) -> logging.LogRecord:
    found = logging.LogRecord("x", logging.INFO, "f", 1, message, arguments, None)
    vars(found).update(extra)
    return found


def test_a_line_shows_what_it_is_about(lines: Lines) -> None:
    with about(namespace="n", trial="t", reconcile="r1"):
        also_about(uid="u", attempt=2, step="a")
        logging.getLogger("multistep.x").info("made %d", 3)
    logging.getLogger("multistep.x").info("nothing")
    first, second = lines.reported
    assert {key: first[key] for key in first if key != "time"} == {
        **{"level": "INFO", "logger": "multistep.x", "message": "made 3"},
        **{"namespace": "n", "trial": "t", "uid": "u", "attempt": 2, "step": "a", "reconcile": "r1"},
    }
    assert first["time"].endswith("Z") and second.keys() == {"time", "level", "logger", "message"}


async def test_the_queue_shows_of_which_trial_its_work_is_and_reconciles_are_distinguished(lines: Lines) -> None:
    async def work(key: tuple[str, str]) -> Requeue:
        logging.getLogger("multistep.work").info("first")
        await asyncio.sleep(0)
        also_about(step=key[1].upper())
        raise ValueError(key[1])

    queue = WorkQueue(work, workers=2)
    queue.start()
    queue.add(("n", "a"))
    queue.add(("n", "b"))
    while len(lines.reported) < 4:
        await asyncio.sleep(0)
    await queue.stop()
    found = sorted((each["trial"], each.get("step", ""), "error" in each) for each in lines.reported)
    assert found == [("a", "", False), ("a", "A", True), ("b", "", False), ("b", "B", True)]
    assert len({each["reconcile"] for each in lines.reported}) == 2 and all(each["namespace"] == "n" for each in lines.reported)


def test_kopfs_own_lines_have_it_too(lines: Lines) -> None:
    body = kopf.Body({"kind": "MultiStepTrial", "metadata": {"namespace": "n", "name": "t", "uid": "u"}})
    reported = {"kind": body["kind"], "namespace": "n", "name": "t", "uid": "u"}
    logging.getLogger("kopf.objects").warning("it is so", extra={"k8s_ref": reported})
    (line,) = lines.reported
    assert (line["namespace"], line["trial"], line["uid"], line["logger"]) == ("n", "t", "u", "kopf.objects")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
@given(text=st.text(max_size=200))
def test_any_log_record_is_one_line_of_plain_text(formatter: logging.Formatter, text: str) -> None:
    with about(trial=text, namespace=text):
        line = formatter.format(record("%s", text))
    assert all(char.isprintable() or char == "\t" for char in line)
    if isinstance(formatter, JsonFormatter):
        assert json.loads(line)["message"] == text


def test_a_giant_message_is_cut() -> None:
    assert len(JsonFormatter().format(record("x" * 10_000_000))) < MAX_TEXT_CHARACTERS + 300


@pytest.mark.parametrize(
    "text",
    [
        "GET http://op:8080/results/ns/t/5d2f-11/0123456789abcdef0123456789abcdef: 404",
        "clone https://user:0123456789abcdef@git.example/x.git",
        "Authorization: Bearer 0123456789abcdef.x",
        "PUT https://s3/b/k?X-Amz-Signature=0123456789abcdef&X-Amz-Date=1",
        "GET https://a/b?sig=0123456789abcdef",
    ],
)
def test_secrets_of_addresses_are_not_logged(text: str) -> None:
    for formatter in (JsonFormatter(), TextFormatter()):
        output = formatter.format(record("%s", text))
        assert "0123456789abcdef" not in output and "[REDACTED]" in output


def test_a_line_for_people_has_the_trial_and_the_trace() -> None:
    try:
        raise ValueError("broken \x1b[2J")
    except ValueError:
        found = record("it failed", exc_info=sys.exc_info())
    with about(namespace="n", trial="t", uid="u", step="a"):
        first, *trace = TextFormatter().format(found).split("\n")
    assert first.endswith("INFO x: it failed (trial=n/t step=a)") and trace[-1] == "ValueError: broken ^[[2J"


def test_an_argument_that_does_not_fit_loses_no_line() -> None:
    assert "%d" in json.loads(JsonFormatter().format(record("%d", "x")))["message"]


@pytest.mark.parametrize(("form", "is_json"), [("auto", True), ("json", True), ("text", False)])
def test_a_process_that_ends_with_an_error_logs_it(form: str, is_json: bool) -> None:
    program = f"import warnings; from multistep.logs import set_up; set_up('INFO', {form!r}); warnings.warn('old'); 1/0"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    if is_json:
        warned, ended = map(json.loads, done.stderr.splitlines())
        assert "old" in warned["message"] and (ended["level"], ended["message"]) == (
            "CRITICAL",
            "uncaught exception; the operator exits",
        )
