"""Running other programs, and telling the user what is going on."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from localkube.errors import CommandFailed, Unsupported


def say(message: str) -> None:
    """One line of progress for a human, on stderr."""
    print(f"localkube: {message}", file=sys.stderr, flush=True)


@contextmanager
def step(message: str) -> Iterator[None]:
    """Announce work that takes a while and say afterwards how long it took."""
    say(f"{message} ...")
    start = time.monotonic()
    yield
    say(f"{message}: done in {time.monotonic() - start:.1f} s")


def capture(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdin: str | None = None
) -> str:
    """Run a program to its end and return its stdout; its output is in the error if it fails."""
    try:
        done = subprocess.run(command, env=env, cwd=cwd, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Unsupported(f"the program {command[0]!r} is needed and not installed") from error
    if done.returncode:
        raise CommandFailed(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


def succeeds(command: Sequence[str]) -> bool:
    """Run a program and say whether it exists and ended with 0."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def stream(command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a program whose output the user should see (on stderr: stdout is for results)."""
    try:
        code = subprocess.run(command, env=env, cwd=cwd, stdout=sys.stderr, check=False).returncode
    except FileNotFoundError as error:
        raise Unsupported(f"the program {command[0]!r} is needed and not installed") from error
    if code:
        raise CommandFailed(command, code, "(see its output above)")


def wait_until(condition: Callable[[], bool], timeout_seconds: float, interval_seconds: float = 0.05) -> bool:
    """Ask until the answer is yes (True) or the time is over (False)."""
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_seconds)
    return True
