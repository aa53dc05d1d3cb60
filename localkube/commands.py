"""Run other programs, and report progress to the user."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from localkube.errors import CommandFailed, Unsupported


def print_line(message: str) -> None:
    """Print one line of progress on stderr."""
    print(f"localkube: {message}", file=sys.stderr, flush=True)


@contextmanager
def step(message: str) -> Iterator[None]:
    """Report the start of a longer task, and the task's duration at the end of the ``with`` block."""
    print_line(f"{message} ...")
    start = time.monotonic()
    yield
    print_line(f"{message}: done in {time.monotonic() - start:.1f} s")


def capture(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str | None = None
) -> str:
    """Run a program and return its stdout. Raises CommandFailed, which contains the output, if the program fails, and Unsupported
    if it is missing."""
    try:
        done = subprocess.run(command, env=env, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unsupported(f"the program {command[0]!r} is needed and not installed") from error
    if done.returncode:
        raise CommandFailed(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


def pipe(source: Sequence[str], sink: Sequence[str]) -> None:
    """Run `source | sink`. Raises CommandFailed, which contains the output of both, if one of them fails."""
    with tempfile.TemporaryFile("w+") as errors, subprocess.Popen(source, stdout=subprocess.PIPE, stderr=errors) as first:
        second = subprocess.run(sink, stdin=first.stdout, capture_output=True, text=True, check=False)
        assert first.stdout is not None
        first.stdout.close()  # so that the source ends if the sink has not read everything
        code = first.wait()
        errors.seek(0)
        if code or second.returncode:
            raise CommandFailed([*source, "|", *sink], code or second.returncode, errors.read() + second.stdout + second.stderr)


def succeeds(command: Sequence[str]) -> bool:
    """Return whether a program exists and exits with code 0."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def stream(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a program and show its output on stderr, because stdout is for results. Raises CommandFailed if the program fails, and
    Unsupported if it is missing."""
    try:
        code = subprocess.run(command, env=env, cwd=cwd, stdout=sys.stderr, check=False).returncode
    except FileNotFoundError as error:
        raise Unsupported(f"the program {command[0]!r} is needed and not installed") from error
    if code:
        raise CommandFailed(command, code, "(see its output above)")


def wait_until(condition: Callable[[], bool], timeout_seconds: float, interval_seconds: float = 0.05) -> bool:
    """Poll the condition. Return True when it is true, False at the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_seconds)
    return True
