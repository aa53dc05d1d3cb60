"""Checks requests with values of the task or the spec by the runner's rules (runner/internal/wire) before they are sent.

A genuine runner refuses no request that passes. So a refusal shows that something else in the container answers. An invalid request
is an error of the task or the spec, which the operator finds without an answer that an agent could forge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from multistep.errors import InvalidRequest

MAX_ID_BYTES: Final = 1024
MAX_STDIN_BYTES: Final = 256 << 10
MAX_MODE: Final = 0o7777
_INT64: Final = 1 << 63
_SHOWN_CHARACTERS: Final = 200

Request = Mapping[str, Any]


def require_valid(request: Request) -> None:
    """Raise InvalidRequest if the runner would refuse the request because of a value. Requests that have only values of the
    operator or the runner are not checked."""
    check = _CHECKS.get(request["op"])
    if check is None:
        return
    try:
        _check_id(request)
        check(request)
    except ValueError as error:
        raise InvalidRequest(f"{_where(request)}: {error}") from None


def unsendable(request: Request, error: ValueError) -> InvalidRequest | None:
    """Return the error of a checked request that cannot be encoded, or None if the request has no values of task or spec."""
    return InvalidRequest(f"{_where(request)}: {error}") if request["op"] in _CHECKS else None


def _where(request: Request) -> str:
    id = str(request.get("id") or "")
    return f"the runner would refuse the request {request['op']!r}" + (f" of {id[:_SHOWN_CHARACTERS]!r}" if id else "")


def _check_id(request: Request) -> None:
    if "id" in request and not 0 < len(_bytes(request["id"])) <= MAX_ID_BYTES:
        raise ValueError(f"its id has {len(_bytes(request['id']))} bytes, of at most {MAX_ID_BYTES}: use a shorter step name")


def _check_start(request: Request) -> None:
    stdin = len(_bytes(request.get("stdin", "")))
    if stdin > MAX_STDIN_BYTES:
        raise ValueError(
            f"the agent's instruction and variables have {stdin} bytes, more than {MAX_STDIN_BYTES}: use a shorter instruction.md"
        )
    _check_command(request)


def _check_healthcheck(request: Request) -> None:
    retries = request.get("retries", 0)
    if not -_INT64 <= retries < _INT64:
        raise ValueError(f"retries = {retries} must be an integer of 64 bits")
    _check_command(request)


def _check_command(request: Request) -> None:
    argv = request["argv"]
    if not argv or not argv[0]:
        raise ValueError("the command is empty")
    for what, text in (("user", request.get("user", "")), ("cwd", request.get("cwd", "")), *(("command", each) for each in argv)):
        if "\0" in text:
            raise ValueError(f"the {what} {_shown(text)} has a NUL character")
    for name, value in request.get("env", {}).items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(f"{_shown(name)} cannot be the name of an environment variable")
        if "\0" in value:
            raise ValueError(f"the value of the variable {_shown(name)} has a NUL character")


def _check_reset(request: Request) -> None:
    for each in request["directories"]:
        _check_paths([each["path"]])
        if not 0 <= each["mode"] <= MAX_MODE:
            raise ValueError(f"the mode {each['mode']:o} of {_shown(each['path'])} is not between 0 and {MAX_MODE:o}")


def _check_upload(request: Request) -> None:
    target = request["target"]
    if not target.startswith("$RUNTIME/"):
        _check_paths([target])


def _check_sources(request: Request) -> None:
    _check_paths(each["path"] for each in request["sources"])


def _check_paths(paths: Iterable[str]) -> None:
    for path in paths:
        if not path.startswith("/") or "\0" in path:
            raise ValueError(f"{_shown(path)} is not an absolute path without NUL characters")


def _shown(text: str) -> str:
    return repr(text[:_SHOWN_CHARACTERS])


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


_CHECKS: Mapping[str, Callable[[Request], None]] = {
    "start": _check_start,
    "healthcheck": _check_healthcheck,
    "reset": _check_reset,
    "upload": _check_upload,
    "download": _check_sources,
    "survey": _check_sources,
}
