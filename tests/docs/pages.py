"""Parse a documentation page into the parts that tests check: its commands, links and anchors.

The convention for commands is in docs/internals/development.md, Documents.
"""

from __future__ import annotations

import itertools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).resolve().parents[2]

RUN: Final = ("sh", "console")
SHOWN: Final = ("json", "mermaid", "text", "toml", "yaml", "lua", "promql", "ini", "python", "dockerfile", "hcl")
NOT_RUN: Final = "not-run:"

_EXIT_CODE = re.compile(r"#.*\bexit code (\d+)")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


class BadPage(Exception):
    """A page violates the convention. The message names the violation."""


@dataclass(frozen=True)
class Command:
    """One command of a page, as input for a shell. output: the output shown on the page, None if the page shows no output."""

    line: int
    text: str
    exit_code: int = 0
    output: str | None = None


@dataclass(frozen=True)
class NotRun:
    """A block of commands that no test can run, and the reason."""

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Page:
    """One page. anchors: GitHub's anchors of its headings; links: line and target of its relative links."""

    path: Path
    commands: tuple[Command, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    anchors: frozenset[str] = frozenset()
    links: tuple[tuple[int, str], ...] = field(default=())

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT)) if self.path.is_relative_to(ROOT) else str(self.path)


def paths() -> list[Path]:
    """Return all pages whose commands the tests run."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def read(path: Path) -> Page:
    """Read and parse a page. Raises BadPage."""
    return parse(path, path.read_text())


def parse(path: Path, text: str) -> Page:
    """Parse a page's text. Raises BadPage."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    commands: list[Command] = []
    not_run: list[NotRun] = []
    for token in tokens:
        if token.type in ("fence", "code_block"):
            _read_block(path, token, commands, not_run)
    return Page(path, tuple(commands), tuple(not_run), frozenset(_anchors(tokens)), tuple(_links(tokens)))


def _read_block(path: Path, token: Token, commands: list[Command], not_run: list[NotRun]) -> None:
    line = (token.map or [0])[0] + 1
    language, _, rest = token.info.strip().partition(" ")
    try:
        if token.type == "code_block" or not language:
            raise BadPage(f"a block must say what it is: {', '.join((*RUN, *SHOWN))}")
        if language in SHOWN:
            if rest:
                commands.append(_file(line, rest, token.content))
            return
        if language not in RUN or (rest and not rest.startswith(NOT_RUN)):
            raise BadPage(f"{token.info!r} is none of {', '.join((*RUN, *SHOWN))}, or `sh {NOT_RUN} REASON`")
        if rest:
            not_run.append(NotRun(line, _reason(rest), token.content))
        else:
            commands += (_shell if language == "sh" else _console)(line + 1, token.content)
    except BadPage as problem:
        raise BadPage(f"{path}:{line}: {problem}") from None


def _reason(rest: str) -> str:
    reason = rest.removeprefix(NOT_RUN).strip()
    if len(reason.split()) < 2:
        raise BadPage(f"{NOT_RUN} needs the reason, in words")
    return reason


def _file(line: int, name: str, content: str) -> Command:
    """Return the command that writes a file whose content the page shows. Raises BadPage."""
    if not re.fullmatch(r"[\w-][\w./-]*", name) or ".." in name:
        raise BadPage(f"{name!r} is no relative path of a file")
    return Command(line, f"mkdir -p $(dirname {name}) && cat > {name} <<'END OF THE FILE'\n{content}END OF THE FILE")


def _shell(line: int, text: str) -> Iterator[Command]:
    """Yield the commands of an `sh` block. A command continues on the next line until bash accepts it as complete."""
    buffered: list[str] = []
    for number, each in enumerate(text.splitlines(), line):
        buffered.append(each)
        command = "\n".join(buffered)
        if not _is_whole(command):
            continue
        if any(part.strip() and not part.strip().startswith("#") for part in buffered):
            yield _command(number - len(buffered) + 1, command)
        buffered = []
    if buffered:
        raise BadPage(f"line {line + len(text.splitlines()) - len(buffered)}: a command that does not end")


def _console(line: int, text: str) -> Iterator[Command]:
    """Yield the commands of a `console` block, in which each `$ command` is followed by its output."""
    lines = list(enumerate(text.splitlines(), line))
    if not lines or not lines[0][1].startswith("$ "):
        raise BadPage("a console block begins with `$ ` and a command")
    while lines:
        number, first = lines.pop(0)
        buffered = [first.removeprefix("$ ")]
        while lines and not _is_whole("\n".join(buffered)):
            buffered.append(lines.pop(0)[1].removeprefix("> "))
        shown = []
        while lines and not lines[0][1].startswith("$ "):
            shown.append(lines.pop(0)[1])
        yield _command(number, "\n".join(buffered), "\n".join(shown) if shown else None)


def _command(line: int, text: str, output: str | None = None) -> Command:
    found = _EXIT_CODE.search(text)
    return Command(line, text, int(found[1]) if found else 0, output)


def _is_whole(text: str) -> bool:
    if text.endswith("\\"):
        return False
    checked = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    return checked.returncode == 0 and not checked.stderr  # bash exits with 0 for an unfinished here-document, and prints a warning


def _anchors(tokens: list[Token]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for token, inline in itertools.pairwise(tokens):
        if token.type == "heading_open":
            anchor = anchor_of("".join(each.content for each in inline.children or () if each.type in ("text", "code_inline")))
            count = seen[anchor] = seen.get(anchor, -1) + 1
            yield f"{anchor}-{count}" if count else anchor


def anchor_of(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return _NOT_IN_ANCHORS.sub("", heading.strip().lower()).replace(" ", "-")


def _links(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    for token in tokens:
        for child in token.children or ():
            target = child.attrGet("href") if child.type == "link_open" else child.attrGet("src") if child.type == "image" else None
            if target and not re.match(r"[a-z][a-z0-9+.-]*:", str(target)):
                yield (token.map or [0])[0] + 1, str(target)


def output_problem(expected: str, got: str) -> str | None:
    """Return a text with both outputs if an output differs from the one on the page, else None.

    White space does not matter; `...` on the page matches any text.
    """
    pattern = r"\s+".join(_pattern(word) for word in expected.split())
    if re.fullmatch(rf"\s*{pattern}\s*", got, re.DOTALL):
        return None
    return f"the page shows\n{expected}\nbut it printed\n{got}"


def _pattern(word: str) -> str:
    return r"(?:.*?)".join(re.escape(part) for part in word.split("..."))
