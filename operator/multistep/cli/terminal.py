"""The output of all commands: tables, lines and JSON on stdout, progress on stderr. Ruff forbids them to print in another way.

Texts of tasks, agents and clusters are untrusted, and control characters can manipulate a terminal, also at the end of a pipe. So
the functions of this module write printable characters only, except ``print_bytes``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Self, TextIO, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from multistep.api.trial.score import Level
from multistep.logs import escaped

_FailureClass = TypeVar("_FailureClass", bound=str)
_PIPED_WIDTH = 250  # width in characters of tables, and of output to a pipe. It is large, so that lines are not folded
_NOT_PLAIN = re.compile(r"[^\n -~]+")
STYLES: Final[dict[Level, str]] = {"good": "green", "bad": "red", "excluded": "yellow", "neutral": ""}  # by level of an outcome


def clean(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(char if char.isprintable() else " " if char in "\n\t" else "�" for char in text)


def clean_lines(text: str) -> str:
    """Return the text without control characters except line breaks; lines after the first are indented."""
    return "\n  ".join(clean(line) for line in text.rstrip().split("\n"))


def rewards_text(rewards: Mapping[str, float] | None) -> str:
    """Format all rewards. Return "-" for None (no result of the verifier) and "{}" for a result without keys."""
    if rewards is None:
        return "-"
    if set(rewards) == {"reward"}:
        return f"{rewards['reward']:.4g}"
    return clean(", ".join(f"{key}={value:.4g}" for key, value in rewards.items())) or "{}"


def seconds_text(seconds: float | None, *, none: str = "-") -> str:
    """Format a duration, for example 12 s, 3 min 20 s or 2.5 h; None as ``none``."""
    if seconds is None:
        return none
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if rest == 0 or minutes >= 60:
        return f"{minutes} min" if minutes < 120 else f"{seconds / 3600:.3g} h"
    return f"{minutes} min {rest} s"


def bytes_text(size: int) -> str:
    """Format a size in bytes, for example 512 B or 1.5 MB."""
    amount = float(size)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} GB"


def counts_text(counts: Mapping[_FailureClass, int]) -> str:
    """Format numbers of trials by failure class, for example ``2 Agent, 1 Infrastructure``."""
    return ", ".join(f"{count} {failure_class}" for failure_class, count in sorted(counts.items()))


def print_json(document: object, *, indent: int | None = 2) -> None:
    """Print one JSON document to stdout. Strings have control and invisible characters as escapes of JSON."""
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(_NOT_PLAIN.sub(lambda found: "".join(map(_json_escape, found[0])), text) + "\n")


def _json_escape(char: str) -> str:
    return char if char.isprintable() else json.dumps(char)[1:-1]


def print_line(text: str) -> None:
    """Print a text on one line of stdout."""
    print(clean(text), flush=True)


def print_text(text: str) -> None:
    """Print a text of several lines to stdout, such as a report; its control characters are escaped."""
    sys.stdout.write("\n".join(map(_escaped_line, text.split("\n"))))


def print_bytes(data: bytes) -> None:
    """Write bytes to stdout at once: a file that the user asked for, or the output of `multistep logs`."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _escaped_line(line: str) -> str:
    body = line.removesuffix("\r")
    return escaped(body) + line[len(body) :]


def print_out(*renderables: RenderableType) -> None:
    """Print to stdout."""
    console = _console(sys.stdout)
    width = console.width
    for each in renderables:
        # A table may be wider than the terminal, which then wraps its lines: Rich would break numbers to fold its columns.
        console.width = max(width, _PIPED_WIDTH) if isinstance(each, Table) else width
        console.print(_Printable(each))


@dataclass(frozen=True)
class _Printable:
    """A renderable whose text is reduced to printable characters. The styles of Rich are kept."""

    of: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for text, style, control in console.render(self.of, options):
            yield Segment(text if control else "\n".join(map(clean, text.split("\n"))), style, control)


def print_err(text: str) -> None:
    """Print a message on stderr."""
    print(clean_lines(text), file=sys.stderr, flush=True)


def print_warning(text: str) -> None:
    """Print a warning on stderr."""
    print_err(f"warning: {text}")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show on stderr that an operation is active: a spinner on a terminal, otherwise one line."""
    console = _console(sys.stderr)
    if not console.is_terminal:
        print_err(text)
        yield
        return
    with console.status(Text(clean(text))):
        yield


class Following:
    """Shows progress on stderr: a live display of ``view()`` on a terminal, otherwise single lines."""

    def __init__(self, view: Callable[[], RenderableType]) -> None:
        console = _console(sys.stderr)
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(get_renderable=lambda: _Printable(view()), console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """Print a progress line if stderr is not a terminal; on a terminal the live view shows the progress."""
        if self._live is None:
            print_err(text)

    def note(self, text: str) -> None:
        """Print a message; on a terminal, print it above the live view."""
        if self._live:
            self._live.console.print(Text(clean(text)))
        else:
            print_err(text)


def _console(stream: TextIO) -> Console:
    console = Console(file=stream, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPED_WIDTH
    return console


def table(*columns: str, numbers: Sequence[str] = ()) -> Table:
    """Return an empty table. numbers: columns to align to the right."""
    created = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        created.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return created


def labelled_line(label: str, text: str, style: str) -> Text:
    """Return ``label: text``, with the label in a style."""
    return Text.assemble((label, style), ": ", clean_lines(text))
