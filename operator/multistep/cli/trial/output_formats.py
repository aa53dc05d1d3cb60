"""The pieces of a trial's output, and the formats of `multistep logs`: escaped text, the original bytes, or JSON.

The output of agents is untrusted, and control characters can manipulate a terminal, also at the end of a pipe. So only --raw prints
the original bytes.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from multistep.api.trial.status import ANOTHER_TRIAL, StepStatus, TrialStatus
from multistep.api.trial.values import AGENT, HEALTHCHECK, PRINTING, VERIFIER
from multistep.engine.journal.operations import Place, operation_id
from multistep.errors import UsageError
from multistep.logs import escaped
from multistep.report.stream_json import MAX_BYTES, START, output_lines, readable_line

BUILD = "build"  # the phase of a piece with the log of an image's build. Its ``step`` is the image's name
_FILES = {AGENT: ("agent/oracle.txt", "agent/command.txt", "agent/output.txt"), VERIFIER: ("verifier/test-stdout.txt",)}


@dataclass(frozen=True)
class Piece:
    """The output of one phase."""

    attempt: int
    """The attempt that ran the phase."""
    number: int
    """Number of the step, from 1. The environment's healthcheck, which runs before step 1, has the number 0."""
    step: str
    """Name of the step, or "" for the environment's healthcheck."""
    phase: str

    @property
    def title(self) -> str:
        if self.phase == BUILD:
            return f"build of {self.step}"
        where = f"step {self.number} {self.step}".rstrip() if self.number else "environment"
        return f"{where}, {self.phase}{f', attempt {self.attempt}' if self.attempt > 1 else ''}"

    def id(self, place: Place) -> str:
        """Return the id of the phase's operation in the runner at ``place``."""
        return operation_id(self.attempt, self.step, place, self.phase)

    def files(self, status: TrialStatus) -> Iterator[str]:
        """Yield the possible paths of the output in the trial's results: in the step's directory (multi-step task) and in the top
        directory (single-step task)."""
        if not self.number:
            return  # the results do not contain the output of the environment's healthcheck
        last = [runner for runner, _ in status.listed_steps().get(status.attempt or 1, [])]
        top = "" if self.attempt in last[self.number - 1 : self.number] else f"attempts/{self.attempt}/"
        for file in _FILES.get(self.phase, (f"{self.phase}.txt",)):
            yield f"{top}steps/{self.step}/{file}"
            yield f"{top}{file}"


@dataclass(frozen=True)
class Wanted:
    """The user's selection of pieces."""

    attempt: int | None = None
    """None: the latest attempt."""
    step: str | None = None
    """Name or number of a step. None: all steps."""
    phase: str | None = None
    """None: all phases."""
    follow: bool = False

    @property
    def one(self) -> bool:
        """Report whether the selection is a single piece. The output then needs no titles."""
        return self.step is not None and self.phase is not None and not (self.follow and self.attempt is None)


def pieces(status: TrialStatus, wanted: Wanted, since: int | None = None) -> list[Piece]:
    """Return the selected pieces of a trial's log that may have output so far, in the order in which the phases ran, without
    duplicates.

    The pieces of an attempt include those of the steps that it did not repeat because an earlier attempt completed them. since: the
    first attempt to include if the user selected no attempt, or None to include only the latest attempt. Raises UsageError if the
    selected attempt does not exist.
    """
    attempts = status.listed_steps()
    if wanted.attempt is not None and attempts and wanted.attempt not in attempts:
        raise UsageError(f"attempt {wanted.attempt} does not exist: the trial has {', '.join(map(str, sorted(attempts)))}")
    first = wanted.attempt or since or max(attempts, default=1)
    last = wanted.attempt or max(attempts, default=1)
    chosen = [(number, steps) for number, steps in sorted(attempts.items()) if first <= number <= last]
    found = (piece for number, steps in chosen for piece in _of_attempt(number, steps) if _fits(piece, wanted))
    return list(dict.fromkeys(found))


def _of_attempt(attempt: int, steps: list[tuple[int, StepStatus]]) -> Iterator[Piece]:
    yield Piece(attempt, 0, "", HEALTHCHECK)
    for number, (runner, step) in enumerate(steps, 1):
        for phase in PRINTING if runner != ANOTHER_TRIAL else ():
            yield Piece(runner, number, step.name, phase)


def _fits(piece: Piece, wanted: Wanted) -> bool:
    if wanted.phase is not None and piece.phase != wanted.phase:
        return False
    return wanted.step is None or wanted.step == piece.step or (wanted.step == str(piece.number) and piece.number > 0)


MAX_LINE_CHARACTERS: Final = 16 * 1024
MAX_TAIL_BYTES: Final = 1024 * 1024  # maximum response size of the results server

Write = Callable[[bytes], object]


class Form(Protocol):
    """An output format, which writes the pieces of a trial's output one after the other."""

    def start(self, piece: Piece) -> None:
        """Start a piece on a new line."""

    def show(self, data: bytes) -> None:
        """Write the next bytes of the piece."""

    def end(self) -> None:
        """End the piece: write the data that the format still buffers."""

    def close(self) -> None:
        """End the whole output, after the last piece."""


class Raw:
    """The format that writes the original bytes."""

    def __init__(self, write: Write, *, titles: bool) -> None:
        """titles: whether to write a title before each piece."""
        self._write, self._titles = write, titles
        self._piece: Piece | None = None
        self._at_line_start = True

    def start(self, piece: Piece) -> None:
        if piece != self._piece:
            self._write(b"" if self._at_line_start else b"\n")
            if self._titles:
                self._write(f"==> {escaped(piece.title)} <==\n".encode())
            self._piece, self._at_line_start = piece, True

    def show(self, data: bytes) -> None:
        self._write(data)
        self._at_line_start = data.endswith(b"\n") if data else self._at_line_start

    def end(self) -> None:
        return

    def close(self) -> None:
        return


class Escaped:
    """The format for people. It escapes control characters and cuts long lines."""

    def __init__(self, write: Write, *, titles: bool, most: int | None = MAX_LINE_CHARACTERS) -> None:
        """most: the maximum number of characters of a line, counted before they are escaped. None: lines are not cut."""
        self._most = most
        self._raw = Raw(write, titles=titles)
        self._decoder = _decoder()
        self._held = ""
        self._column = 0

    def start(self, piece: Piece) -> None:
        self._raw.start(piece)

    def show(self, data: bytes) -> None:
        text = self._held + self._decoder.decode(data)
        self._held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix("\r").replace("\r\n", "\n")
        self._raw.show("".join(self._bounded(text)).encode(errors="backslashreplace"))

    def end(self) -> None:
        rest = self._held + self._decoder.decode(b"", final=True)
        self._decoder, self._held = _decoder(), ""
        self._raw.show("".join(self._bounded(rest)).encode(errors="backslashreplace"))

    def close(self) -> None:
        self.end()

    def _bounded(self, text: str) -> Iterator[str]:
        for line in re.findall(r"[^\n]*\n|[^\n]+", text):
            body = line.removesuffix("\n")
            room = None if self._most is None else max(0, self._most - self._column)
            yield escaped(body[:room])
            self._column += len(body)
            if line.endswith("\n"):
                left_out = 0 if self._most is None else self._column - self._most
                yield f"[... {left_out} more characters]\n" if left_out > 0 else "\n"
                self._column = 0


class Readable:
    """The format that prints an agent's lines of Claude Code's stream-json as text, and passes all output on to another format."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._piece: Piece | None = None
        self._held = b""  # the start of a line that may be one of stream-json
        self._in_line = False

    def start(self, piece: Piece) -> None:
        if piece != self._piece:
            self._pass_on(self._held)  # the start of a line of the previous piece, which has no end
            self._piece, self._held, self._in_line = piece, b"", False
        self._form.start(piece)

    def show(self, data: bytes) -> None:
        lines, self._held = output_lines(self._held + data), b""
        for line in lines:
            whole, at_start = line.endswith(b"\n"), self._of_agent and not self._in_line
            if at_start and not whole and line[: len(START)] == START[: len(line)] and len(line) <= MAX_BYTES:
                self._held = line
            else:
                self._pass_on(readable_line(line) if at_start else line)
                self._in_line = not whole

    def end(self) -> None:
        self._pass_on(readable_line(self._held))
        self._held = b""
        self._form.end()

    def close(self) -> None:
        self.end()
        self._form.close()

    @property
    def _of_agent(self) -> bool:
        return self._piece is not None and self._piece.phase == AGENT

    def _pass_on(self, data: bytes) -> None:
        if data:
            self._form.show(data)


class Json:
    """The format with a JSON object for each line: attempt, step, phase and text, and for a cut line charactersLeftOut."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._decoder = _decoder()
        self._piece: Piece | None = None
        self._line = ""
        self._length = 0

    def start(self, piece: Piece) -> None:
        if piece != self._piece:
            self._finish_line()
            self._piece = piece

    def show(self, data: bytes) -> None:
        *lines, rest = self._decoder.decode(data).split("\n")
        for line in lines:
            self._take(line)
            self._write_part()
        self._take(rest)

    def end(self) -> None:
        self._take(self._decoder.decode(b"", final=True))
        self._decoder = _decoder()

    def close(self) -> None:
        """Print the last line, which may lack a line break."""
        self._finish_line()

    def _take(self, text: str) -> None:
        self._line += text[: max(0, MAX_LINE_CHARACTERS - len(self._line))]
        self._length += len(text)

    def _finish_line(self) -> None:
        if self._length:
            self._write_part()

    def _write_part(self) -> None:
        assert self._piece is not None
        left_out = self._length - len(self._line)
        document = {
            "attempt": self._piece.attempt,
            "step": self._piece.step or None,
            "phase": self._piece.phase,
            "text": self._line.removesuffix("\r"),
        }
        self._write((json.dumps(document | ({"charactersLeftOut": left_out} if left_out else {})) + "\n").encode())
        self._line, self._length = "", 0


class Tail:
    """Keeps the last lines of the output so far."""

    def __init__(self, lines: int) -> None:
        self._left = lines
        self._held: deque[bytes] = deque()

    def add(self, data: bytes) -> None:
        """Add output, and drop the oldest lines above the maximum number."""
        for line in output_lines(data):
            if self._held and not self._held[-1].endswith(b"\n"):
                line = self._held.pop() + line
            self._held.append(line)
            while len(self._held) > self._left:
                self._held.popleft()

    def last(self) -> bytes:
        """Return the last lines, and clear the buffer."""
        held, self._held = b"".join(self._held), deque()
        return held


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("backslashreplace")
