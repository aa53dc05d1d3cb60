"""Findings of `multistep check`, and their locations: file, line and step. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import tomli

from multistep.api.common.problems import dotted
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.bundle_links import entry_at
from multistep.sources.task.task import CONFIG_FILE

_FILE: Final = re.compile(r"""(?P<place>[^"':]*/[^"':]*|task\.toml|instruction\.md)(?P<line>:\d+)?(: |$)""")
_STEP_FILE: Final = re.compile(r"steps/([^/]+)/")
_STEP_KEY: Final = re.compile(r"steps\[(\d+)\]")
_TOML_LINE: Final = re.compile(r"\(at line (\d+), column \d+\)")
_LAST_PART: Final = re.compile(r"""(\[\d+\]|\.?"[^"]*"|\.?[^.\["]+)$""")


@dataclass(frozen=True)
class Finding:
    """A fault of a task."""

    field: str
    """The key, FILE or FILE:LINE that has the fault. "": the task as a whole."""
    message: str
    place: str = ""
    """FILE:LINE, or FILE if the line is unknown, or "" if the file is unknown."""
    step: str = ""
    """Name of the step that has the fault, or ""."""

    def __str__(self) -> str:
        place = f"{self.place} (step {self.step})" if self.step else self.place
        key = self.field.removeprefix(self.place).removeprefix(": ")
        shown = () if not key or self.place.startswith(f"{self.field}:") else (key,)
        return ": ".join((*filter(None, (place, *shown)), self.message))


class Locator:
    """Finds the file, line and step of findings."""

    def __init__(self, table: Mapping[str, Any], bundle: Bundle) -> None:
        """table: the parsed task.toml; {} if it is not valid TOML."""
        self._table, self._bundle = table, bundle

    @cached_property
    def _lines(self) -> Mapping[str, int]:
        entry = entry_at(self._bundle, CONFIG_FILE) if self._table else None
        return key_lines(bytes(entry.data).decode()) if entry else {}

    def located(self, finding: Finding) -> Finding:
        """Return the finding with its place and step."""
        if place := finding.place or _file_of(finding.field):
            if place == CONFIG_FILE and (line := _TOML_LINE.search(finding.message)):
                place = f"{place}:{line[1]}"
            step = _STEP_FILE.match(place)
            return replace(finding, place=place, step=step[1] if step and step[1] in map(self._name, self._steps) else "")
        if not finding.field:
            return finding
        number = self._line(finding.field)
        return replace(finding, place=f"{CONFIG_FILE}:{number}" if number else CONFIG_FILE, step=self._step(finding.field))

    def _line(self, key: str) -> int | None:
        """Return the line of a key, or if the key is missing, of the nearest existing table that would contain it."""
        while key:
            if key in self._lines:
                return self._lines[key]
            shorter = _LAST_PART.sub("", key)
            key = shorter if shorter != key else ""
        return None

    def _step(self, key: str) -> str:
        match = _STEP_KEY.match(key)
        return self._name(self._steps[int(match[1])]) if match and int(match[1]) < len(self._steps) else ""

    @property
    def _steps(self) -> Sequence[object]:
        steps = self._table.get("steps")
        return steps if isinstance(steps, list) else ()

    @staticmethod
    def _name(step: object) -> str:
        name = step.get("name") if isinstance(step, Mapping) else None
        return name if isinstance(name, str) else ""


def _file_of(field: str) -> str:
    """Return FILE or FILE:LINE at the start of a finding's field; "" if the field is a key of task.toml."""
    match = _FILE.match(field)
    return match["place"] + (match["line"] or "") if match else ""


def key_lines(text: str) -> dict[str, int]:
    """Return the line of each key and table of a TOML document, by its dotted path. The document must be valid TOML.

    Each statement is a valid TOML document by itself, so a statement ends at the first line after which tomli can parse it.
    """
    lines: dict[str, int] = {}
    table: tuple[str | int, ...] = ()
    counts: dict[tuple[str | int, ...], int] = {}
    for first, statement, content in _statements(text):
        if statement.startswith("["):
            table = _header(content, counts)
            lines.setdefault(dotted(table), first)
        else:
            for path in _paths(content, table):
                lines.setdefault(dotted(path), first)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """Yield the first line's number, the text and the parsed content of each statement."""
    waiting: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        waiting.append(f"{line}\n")
        statement = "".join(waiting)
        try:
            content = tomli.loads(statement)
        except tomli.TOMLDecodeError:
            continue
        if content:
            yield number - len(waiting) + 1, statement.lstrip(), content
        waiting.clear()


def _header(content: Mapping[str, Any], counts: dict[tuple[str | int, ...], int]) -> tuple[str | int, ...]:
    """Return the path of a table's header, with an index for each array of tables. counts: number of tables so far, by array."""
    place: tuple[str | int, ...] = ()
    here: Any = content
    while here:
        if isinstance(here, list):
            counts[place] = counts.get(place, 0) + 1
            return (*place, counts[place] - 1)
        name, here = next(iter(here.items()))
        place = (*place, name)
        if place in counts and not isinstance(here, list):
            place = (*place, counts[place] - 1)
    return place


def _paths(content: Any, place: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    below = content.items() if isinstance(content, Mapping) else enumerate(content) if isinstance(content, list) else ()
    for key, value in below:
        yield (*place, key)
        yield from _paths(value, (*place, key))


def line_of(data: bytes, found: Callable[[bytes], object]) -> int | None:
    """Return the number of the first line for which ``found`` is true."""
    return next((number for number, line in enumerate(data.split(b"\n"), 1) if found(line)), None)
