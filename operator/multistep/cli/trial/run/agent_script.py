"""The command agent for a local script (--agent-file): the command contains the script's text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from multistep.errors import UsageError

MAX_BYTES: Final = 32 * 1024
"""Maximum size of a script: each trial has a copy in its spec. Linux allows 128 KiB for one argument."""
_STARTER: Final = """\
file=$(mktemp "${TMPDIR:-/tmp}/agent.XXXXXX") && printf %s "$1" >"$file" && chmod 700 "$file" || exit 126
shift
"$file" "$@"
status=$?
rm -f "$file"
exit $status
"""
"""Writes the script, its first argument, to a file and runs it, so that the script's shebang chooses the interpreter."""


def script_command(path: Path, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command that runs a script with these arguments. Raises UsageError if the file is not a usable script."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--agent-file {path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"--agent-file {path} has more than {MAX_BYTES // 1024} KiB, the limit, as each trial has a copy in its spec: put the "
            "program into the task's image, or let a small script fetch it"
        )
    if not data.strip():
        raise UsageError(f"--agent-file {path} is empty: it must be a script, such as #!/bin/bash and its commands")
    if b"\r\n" in data:
        raise UsageError(
            f"--agent-file {path} has CRLF line endings, which no shell understands: convert it with sed -i 's/\\r$//'"
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"--agent-file {path} is not a script: it is not UTF-8 text: {error}") from error
    if "\0" in text:
        raise UsageError(f"--agent-file {path} is not a script: it has a NUL byte")
    return ["sh", "-c", _STARTER, path.name, text, *arguments]
