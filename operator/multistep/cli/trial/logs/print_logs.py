"""Output formats of `multistep logs`: readable and escaped, the original bytes, or JSON.

Output of agents is untrusted, and control characters can manipulate a terminal, also one that shows what comes out of a pipe. So
only --raw prints the original bytes.
"""

from __future__ import annotations

import codecs
import json
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from multistep.api.trial.phases import AGENT
from multistep.cli.trial.logs.log_pieces import Piece
from multistep.logs import escaped
from multistep.report.stream_json import MAX_BYTES, START, lines_of, readable

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
    """The format that writes the original bytes. titles: write a title before each piece."""

    def __init__(self, write: Write, *, titles: bool) -> None:
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
    """The format for people: escapes control characters and cuts long lines. most: maximum number of characters of a line, before
    they are escaped; None: lines are not cut."""

    def __init__(self, write: Write, *, titles: bool, most: int | None = MAX_LINE_CHARACTERS) -> None:
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
    """Passes output on to another format, with the lines of Claude Code's stream-json as text, if an agent printed them."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._piece: Piece | None = None
        self._held = b""  # the start of a line that may be one of stream-json
        self._in_line = False

    def start(self, piece: Piece) -> None:
        if piece != self._piece:
            self._pass_on(self._held)  # of a piece that broke off
            self._piece, self._held, self._in_line = piece, b"", False
        self._form.start(piece)

    def show(self, data: bytes) -> None:
        lines, self._held = lines_of(self._held + data), b""
        for line in lines:
            whole, at_start = line.endswith(b"\n"), self._of_agent and not self._in_line
            if at_start and not whole and line[: len(START)] == START[: len(line)] and len(line) <= MAX_BYTES:
                self._held = line
            else:
                self._pass_on(readable(line) if at_start else line)
                self._in_line = not whole

    def end(self) -> None:
        self._pass_on(readable(self._held))
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
    """The format with a JSON object for each line: attempt, step, phase, text; for a cut line also charactersLeftOut."""

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
        for line in re.findall(rb"[^\n]*\n|[^\n]+", data):
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
