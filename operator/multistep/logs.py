"""Sets up the log of all processes: one JSON object per line, or lines of text on a terminal (docs/how-to/operations.md, Log).

The fields of a line, such as trial and step, come from the context, so callers need not pass them. Messages may contain text of
agents, so control characters are escaped and long messages are cut.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal

from multistep.timestamps import rfc3339

MAX_TEXT_CHARACTERS: Final = 16 * 1024

Form = Literal["auto", "json", "text"]

# The fields of a log line, in the order of the output.
_ABOUT: Final = ("namespace", "sweep", "trial", "uid", "attempt", "step", "reconcile")
_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default=MappingProxyType({}))

# Patterns of secrets and what replaces them. The first is the token in a results URL, which grants access to the results.
_SECRETS: Final = (
    (
        re.compile(r"(/results/[^/\s]+/[^/\s]+/[^/\s]+/)[0-9a-f]{32}"),
        r"\1[REDACTED]",
    ),
    (re.compile(r"(://)[^/\s@]+@"), r"\1[REDACTED]@"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), r"\1[REDACTED]"),
    (re.compile(r"(?i)([?&](?:[\w-]*(?:signature|credential|token|password|secret)|sig)=)[^&\s]+"), r"\1[REDACTED]"),
)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Return a context manager in which every log line has these fields, such as namespace, trial and step."""
    former = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(former)


def also_about(**fields: Any) -> None:
    """Add fields to all further log lines inside the innermost ``about`` context."""
    _about.set({**_about.get(), **fields})


def set_up(level: str, form: Form = "auto") -> None:
    """Set up logging to stderr, also of uncaught exceptions. The form "auto" means text on a terminal, else JSON."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # at INFO, kopf logs every event
    sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logging.getLogger(__name__).critical("uncaught exception; the operator exits", exc_info=(kind, error, trace))


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON with time, level, logger, message and the fields from the context.

    The line is ASCII, so every control character is escaped.
    """

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _text(_message(record)),
            **_fields(record),
        }
        if record.exc_info:
            document["error"] = _text(self.formatException(record.exc_info))
        return json.dumps(document, default=str)


class TextFormatter(logging.Formatter):
    """Formats a record as ``TIME LEVEL LOGGER: MESSAGE (trial=NAMESPACE/NAME ...)``, followed by the lines of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        where = {"trial": f"{fields.pop('namespace', '')}/{fields.pop('trial')}"} if "trial" in fields else {}
        shown = " ".join(f"{name}={value}" for name, value in {**where, **fields}.items() if name != "uid")
        line = f"{_time(record)} {record.levelname} {record.name}: {_text(_message(record))}{f' ({shown})' if shown else ''}"
        trace = _text(self.formatException(record.exc_info)).splitlines() if record.exc_info else []
        return "\n".join(escaped(each) for each in (line, *trace))


def escaped(text: str) -> str:
    """Return the text with control and invisible characters escaped, e.g. ESC as ``^[``, like less and cat -v."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char.isprintable() or char == "\t":
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"<U+{code:04X}>"


def _time(record: logging.LogRecord) -> str:
    return rfc3339(record.created, "milliseconds")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # a library passed invalid format arguments; log the line anyway
        return f"{record.msg} {record.args}"


def _text(text: str) -> str:
    for secret, replacement in _SECRETS:
        text = secret.sub(replacement, text)
    left_out = len(text) - MAX_TEXT_CHARACTERS
    return text if left_out <= 0 else f"{text[:MAX_TEXT_CHARACTERS]}[... {left_out} more characters]"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a line, from the context or from kopf's own records."""
    found = {**_of_kopf(record), **_about.get()}
    return {name: found[name] for name in _ABOUT if found.get(name) not in (None, "")}


def _of_kopf(record: logging.LogRecord) -> dict[str, Any]:
    ref = getattr(record, "k8s_ref", None)
    if not isinstance(ref, Mapping) or ref.get("kind") != "MultiStepTrial":
        return {}
    return {"namespace": ref.get("namespace"), "trial": ref.get("name"), "uid": ref.get("uid")}
