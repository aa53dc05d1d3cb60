"""Implements `multistep-host setup|step`, which passes the request on stdin to the trial's daemon and writes the outcome to a
file."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

from multistep_host.import_path import missing_part
from multistep_host.outcome import Outcome, host_error, outcome, write

DIRECTORY_VARIABLE = "MULTISTEP_HOST_DIR"
_DEFAULT_DIRECTORY = "/run/multistep-host"
_USAGE = "usage: multistep-host setup|step < REQUEST.json"
_LOG_BYTES = 1000
_NO_CLASS = "AgentClassNotFoundError"
_NO_CLASS_STATUS = 78  # tells the operator that this command, and no code of the class, found that the class is missing


def main() -> None:
    """Run the command.

    The exit code is 0 if an outcome was written, or 78 if this outcome's error is that the agent's class does not exist. It is 1
    for wrong arguments, and 2 if stdin names no outcome file.
    """
    if sys.argv[1:] not in (["setup"], ["step"]):
        sys.exit(_USAGE)
    request = sys.stdin.read()
    try:
        target = Path(json.loads(request)["outcome"])
    except (ValueError, KeyError, TypeError):
        print("multistep-host: stdin is not a JSON object with a field `outcome`", file=sys.stderr)
        sys.exit(2)
    agent = json.loads(request).get("agent") or {}
    if sys.argv[1] == "setup" and (path := agent.get("importPath")) and (missing := missing_part(path)):
        message = f"the agent host's image has no {missing} of {path!r}"
        write(target, outcome(error={"type": _NO_CLASS, "message": message}))
        sys.exit(_NO_CLASS_STATUS)
    directory = Path(os.environ.get(DIRECTORY_VARIABLE, _DEFAULT_DIRECTORY))
    send = _setup if sys.argv[1] == "setup" else _step
    write(target, send(directory, json.dumps(json.loads(request)).encode() + b"\n"))


def _setup(directory: Path, request: bytes) -> Outcome:
    path = directory / "daemon.sock"
    if _connect(path) is not None:
        return outcome(error=host_error("the agent host was set up already: a trial's attempt is set up once"))
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        _start_daemon(directory, listener)
    return _step(directory, request)


def _step(directory: Path, request: bytes) -> Outcome:
    connection = _connect(directory / "daemon.sock")
    if connection is None:
        return _lost(directory, "the agent host has no daemon: it ended")
    with connection, connection.makefile("rb") as answers:
        try:
            connection.sendall(request)
            answer = _print_output(answers)
        except ConnectionError:
            answer = None
    return _lost(directory, "the agent host's daemon ended during the request") if answer is None else answer


def _print_output(answers: BinaryIO) -> Outcome | None:
    """Print the output of the agent's commands until the request is answered. Return the answer, or None if the daemon ended."""
    for line in answers:
        if not line.endswith(b"\n"):
            return None
        answer: dict[str, Any] = json.loads(line)
        if "output" not in answer:
            return answer
        sys.stdout.buffer.write(base64.b64decode(answer["output"]))
        sys.stdout.buffer.flush()
    return None


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        return None
    return connection


def _start_daemon(directory: Path, listener: socket.socket) -> None:
    """Start the daemon in a new session, so that it survives this command."""
    command = [sys.executable, "-m", "multistep_host.daemon", str(listener.fileno()), str(directory / "trial")]
    with _log_file(directory).open("wb") as log:
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[listener.fileno()], start_new_session=True
        )


def _log_file(directory: Path) -> Path:
    return directory / "daemon.log"


def _lost(directory: Path, message: str) -> Outcome:
    try:
        log = _log_file(directory).read_bytes()[-_LOG_BYTES:].decode(errors="replace").strip()
    except OSError:
        log = ""
    return outcome(error=host_error(f"{message}; its log ends with: {log}" if log else message))


if __name__ == "__main__":
    main()
