"""Excerpts of trials' files: bounded, readable, and harmless whatever an agent wrote."""

from __future__ import annotations

import json

import pytest

from multistep.report.excerpts import MAX_TESTS, FailingTest, failing_tests, visible_text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"one\r\ntwo\n\n", "one\ntwo"),
        (b"\x1b[31mred\x1b[0m and \x1b[1;4mbold\x1b[m\n", "red and bold"),
        (b"\x1b]0;title\x07\x1b[2J\x00\x08", "^[]0;title^G^@^H"),
        ("\u202egnp\u2066".encode(), "<U+202E>gnp<U+2066>"),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"", ""),
    ],
)
def test_output_is_text_that_commands_nothing(data: bytes, text: str) -> None:
    assert visible_text(data) == text


def test_a_line_that_was_cut_is_left_out_unless_it_is_the_only_one() -> None:
    assert visible_text(b"rest of a line\nwhole\n", cut=True) == "whole"
    assert visible_text(b"one long line", cut=True) == "one long line"
    assert visible_text(b"one long line\n", cut=True) == "one long line"


def ctrf(*tests: object) -> bytes:
    return json.dumps({"results": {"tool": {"name": "pytest"}, "tests": tests}}).encode()


def test_failing_tests_are_those_that_a_verifier_reports() -> None:
    data = ctrf(
        {"name": "a", "status": "passed"},
        {"name": "b", "status": "failed", "message": "assert 1 == 2"},
        {"name": "c", "status": "failed", "trace": "Traceback"},
        {"status": "failed"},
    )
    assert failing_tests("s", "ctrf.json", data) == [
        FailingTest("s", "b", "assert 1 == 2"),
        FailingTest("s", "c", "Traceback"),
        FailingTest("s", "unnamed", ""),
    ]
    junit = b"""<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
      <testcase classname="test_x" name="a"/><testcase classname="test_x" name="b"><failure message="no">trace</failure></testcase>
      <testcase name="c"><error>trace</error></testcase><testcase name="d"><skipped/></testcase></testsuite></testsuites>"""
    assert failing_tests("s", "junit.xml", junit) == [FailingTest("s", "test_x::b", "no"), FailingTest("s", "c", "trace")]


def test_failing_tests_are_bounded_in_number_and_length() -> None:
    data = ctrf(*({"name": "n" * 9999, "status": "failed", "message": "\x1b[31mx" * 9999} for _ in range(999)))
    found = failing_tests("s", "ctrf.json", data)
    assert len(found) == MAX_TESTS
    assert {len(each.name) for each in found} == {200} and all(len(each.message) < 600 for each in found)
    assert "\x1b" not in str(found[0].message)


BOMB = (
    '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    '<testsuite><testcase name="x"><failure>&b;</failure></testcase></testsuite>'
)


@pytest.mark.parametrize(
    ("file", "data"),
    [
        *(
            ("ctrf.json", each)
            for each in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"results": []}', b'{"results": {"tests": 3}}')
        ),
        ("ctrf.json", ctrf(None, 3, "failed", [])),
        *(("junit.xml", each.encode()) for each in ("", "<a>", BOMB, "<a/>", "<a>" * 50_000)),
        ("junit.xml", BOMB.encode("utf-16")),
        ("junit.xml", b'<?xml version="1.0" encoding="nonsense"?><a/>'),
    ],
)
def test_a_malformed_or_hostile_file_has_no_failing_tests(file: str, data: bytes) -> None:
    assert failing_tests("s", file, data) == []


def test_names_that_no_encoding_has_are_shown() -> None:
    (found,) = failing_tests("s", "ctrf.json", b'{"results": {"tests": [{"status": "failed", "name": "\\ud800"}]}}')
    assert found.name == "?"
