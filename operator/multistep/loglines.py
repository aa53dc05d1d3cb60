"""The operator's log: one JSON object a line for machines, or a line for a person at a terminal (docs/operations.md, Log).

What a line is about (trial, step, attempt, reconcile id) comes from the context that it is written in, so that no caller has to
say it. Texts come from agents, too: nothing that a terminal would obey is written, and no line is endless.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal

MAX_TEXT_CHARACTERS: Final = 16 * 1024

Form = Literal["auto", "json", "text"]

# In the order in which they are written.
_ABOUT: Final = ("namespace", "sweep", "trial", "uid", "attempt", "step", "reconcile")
_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default=MappingProxyType({}))

_SECRETS: Final = (
    (re.compile(r"(/results/[^/\s]+/[^/\s]+/[^/\s]+/)[0-9a-f]{32}"), r"\1[REDACTED]"),  # whoever knows it reads the results
    (re.compile(r"(://)[^/\s@]+@"), r"\1[REDACTED]@"),
    (re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{8,}"), r"\1[REDACTED]"),
    (re.compile(r"(?i)([?&](?:[\w-]*(?:signature|credential|token|password|secret)|sig)=)[^&\s]+"), r"\1[REDACTED]"),
)


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """All that is logged inside is about this: namespace, sweep, trial, uid, attempt, step, reconcile."""
    former = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(former)


def also_about(**fields: Any) -> None:
    """From here on to the end of the innermost ``about``, what is logged is about this, too."""
    _about.set({**_about.get(), **fields})


def set_up(level: str, form: Form = "auto") -> None:
    """Write the log to stderr: everything that this process says, also of an error that ends it. auto: text on a terminal only."""
    handler = logging.StreamHandler(sys.stderr)
    as_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event it saw
    sys.excepthook = _log_uncaught


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
    else:
        logging.getLogger(__name__).critical("the operator ends", exc_info=(kind, error, trace))


class JsonFormatter(logging.Formatter):
    """``{"time": ..., "level": ..., "logger": ..., "message": ..., ...}``: ASCII only, so every control character is escaped."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "message": _text(_message(record)),
            **_fields(record),
        }
        if record.exc_info:
            told["error"] = _text(self.formatException(record.exc_info))
        return json.dumps(told, default=str)


class TextFormatter(logging.Formatter):
    """``TIME LEVEL LOGGER: MESSAGE (trial=NAMESPACE/NAME ...)``; a trace follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        where = {"trial": f"{fields.pop('namespace', '')}/{fields.pop('trial')}"} if "trial" in fields else {}
        shown = " ".join(f"{name}={value}" for name, value in {**where, **fields}.items() if name != "uid")
        line = f"{_time(record)} {record.levelname} {record.name}: {_text(_message(record))}{f' ({shown})' if shown else ''}"
        trace = _text(self.formatException(record.exc_info)).splitlines() if record.exc_info else []
        return "\n".join(escaped(each) for each in (line, *trace))


def escaped(text: str) -> str:
    """The text with everything visible that a terminal might obey or hide: ``^[`` for ESC, as less and cat -v have it."""
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(char: str) -> str:
    if char.isprintable() or char == "\t":
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"<U+{code:04X}>"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # of some library: its line must not be lost for that
        return f"{record.msg} {record.args}"


def _text(text: str) -> str:
    for secret, replacement in _SECRETS:
        text = secret.sub(replacement, text)
    left_out = len(text) - MAX_TEXT_CHARACTERS
    return text if left_out <= 0 else f"{text[:MAX_TEXT_CHARACTERS]}[... {left_out} more characters]"


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What the line is about; kopf says it of its own lines."""
    found = {**_of_kopf(record), **_about.get()}
    return {name: found[name] for name in _ABOUT if found.get(name) not in (None, "")}


def _of_kopf(record: logging.LogRecord) -> dict[str, Any]:
    ref = getattr(record, "k8s_ref", None)
    if not isinstance(ref, Mapping) or ref.get("kind") != "MultiStepTrial":
        return {}
    return {"namespace": ref.get("namespace"), "trial": ref.get("name"), "uid": ref.get("uid")}
