"""Validation of the names that a task's author chooses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.task import allowed_names
from multistep.api.task.task_toml import parse_task
from multistep.errors import InvalidTask


@pytest.mark.parametrize("name", ["a", "a b", "$(x)", "-a", ".a", "é", "com0", "con1", "clock$", "~", " a", "x" * 255])
def test_step_names_that_are_fine(name: str) -> None:
    assert allowed_names.step_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *["", " ", ".", "..", "a.", "a ", "a/b", "a\\b", "a:b", "a?", "a\tb", "a\0b", "a\x7f"],
        *["con", "CON.txt", "nul", "aux.a.b", "com1", "LPT9.x", "com¹", "conin$", "con .txt"],
        *["x" * 256, "é" * 128],
    ],
)
def test_step_names_that_are_not_portable(name: str) -> None:
    with pytest.raises(ValueError, match="must"):
        allowed_names.step_name(name)


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("é", "e\u0301"), ("ß", "ss"), ("K", "\u212a")])
def test_step_names_differ_by_more_than_case(one: str, other: str) -> None:
    with pytest.raises(InvalidTask, match="differ by more than case"):
        parse_task(f'[[steps]]\nname = "{one}"\n[[steps]]\nname = "{other}"')


@given(st.text())
def test_a_step_name_is_one_path_component(name: str) -> None:
    try:
        allowed_names.step_name(name)
    except (ValueError, UnicodeEncodeError):
        return
    assert "/" not in name
    assert name not in ("", ".", "..")
    assert "\0" not in name


@pytest.mark.parametrize(
    "host",
    [
        *["", " ", "http://a", "a:80", "a/b", "*", "*.", "a*", "*.1.2.3.4", "[::1]", "a_b", "-a", "a..b"],
        *["fe80::1%eth0", "10.0.0.1/8", "x" * 64, "é.com"],
    ],
)
def test_hosts_that_cannot_be_allowed(host: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        allowed_names.allowed_host(host)


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_a_destination_never_leads_out(path: str) -> None:
    try:
        found = allowed_names.artifact_destination(path)
    except ValueError:
        return
    if found is not None:
        assert not found.startswith("/")
        assert ".." not in found.split("/")
