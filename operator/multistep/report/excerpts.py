"""Excerpts of a trial's files for the report page: ends of outputs and failing tests. No IO. The files are untrusted: an agent
can write them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final
from xml.etree import ElementTree

from multistep.logs import escaped

TEST_FILES: Final = ("ctrf.json", "junit.xml")
"""Files in which verifiers leave the outcome of each test: the Common Test Report Format, and JUnit's."""
MAX_TESTS: Final = 20
_NAME_CHARACTERS, _MESSAGE_CHARACTERS = 200, 500
_COLOURS: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # other escape sequences are escaped, not removed


@dataclass(frozen=True, slots=True)
class FailingTest:
    """A test that failed."""

    step: str
    """Name of the step."""
    name: str
    message: str
    """The test's message, truncated."""


@dataclass(frozen=True, slots=True)
class Excerpts:
    """Parts of a trial's files."""

    tails: tuple[tuple[str, str], ...] = ()
    """Ends of outputs, each with a title."""
    tests: tuple[FailingTest, ...] = ()


def visible_text(data: bytes, *, cut: bool = False) -> str:
    """Return output as harmless text: without colours, and with other control characters escaped. cut: whether ``data`` starts in
    the middle of a line; that line is omitted if others follow."""
    if cut:
        data = data.partition(b"\n")[2] or data
    text = _COLOURS.sub("", data.decode(errors="replace")).replace("\r\n", "\n")
    return "\n".join(map(escaped, text.rstrip().split("\n")))


def failing_tests(step: str, file: str, data: bytes) -> list[FailingTest]:
    """Return the first failing tests in a verifier's file, at most MAX_TESTS; [] if it is malformed. file: one of TEST_FILES."""
    try:
        failures = _of_ctrf(json.loads(data)) if file.endswith(".json") else _of_junit(data.decode())
        return [_test(step, name, message) for name, message in islice(failures, MAX_TESTS)]
    except (ValueError, RecursionError, ElementTree.ParseError):
        return []


def _test(step: str, name: str, message: str) -> FailingTest:
    return FailingTest(step, visible_text(name.encode(errors="replace"))[:_NAME_CHARACTERS], _shortened(message))


def _shortened(message: str) -> str:
    text = visible_text(message[: 4 * _MESSAGE_CHARACTERS].encode(errors="replace"))
    return text if len(text) <= _MESSAGE_CHARACTERS else f"{text[:_MESSAGE_CHARACTERS]} ..."


def _of_ctrf(document: Any) -> Iterator[tuple[str, str]]:
    results = document.get("results") if isinstance(document, Mapping) else None
    tests = results.get("tests") if isinstance(results, Mapping) else None
    for test in tests if isinstance(tests, list) else ():
        if isinstance(test, Mapping) and test.get("status") == "failed":
            yield str(test.get("name") or "unnamed"), str(test.get("message") or test.get("trace") or "")


def _of_junit(text: str) -> Iterator[tuple[str, str]]:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:  # entities could expand to far more than the file
        raise ValueError("a document type is refused")
    for case in ElementTree.fromstring(text).iter("testcase"):
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            name = "::".join(filter(None, (case.get("classname"), case.get("name")))) or "unnamed"
            yield name, failure.get("message") or failure.text or ""
