"""Runs the child process that fetches a task."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from multistep.errors import SourceError
from multistep.sources.fetch.__main__ import INCOMING
from multistep.sources.fetch.fetch_messages import FetchOrder, FetchRequest, FetchResult, FetchRules, parse_answer, progress_file
from multistep.sources.fetch.output_file import name_prefix
from multistep.sources.task.read_limits import child_environment

_COMMAND = (sys.executable, "-P", "-m", "multistep.sources.fetch")
_ANSWER_BYTES = 4 << 20  # maximum size of an answer, which may have the names and digests of many tasks
_LONGER_SECONDS = 5.0


async def fetch_in_child(request: FetchRequest, rules: FetchRules, cache: Path) -> FetchResult:
    """Fetch a task in a child process. Cancellation kills the process. Raises SourceError."""
    process = await _start()
    try:
        output = await _output(process, request, rules, cache)
        return _parsed(output, process.returncode, request, rules)
    except BaseException:
        await asyncio.to_thread(_delete_files, cache / INCOMING, process.pid)
        raise


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *_COMMAND,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # a traceback may contain credentials
        env=child_environment("SSL_CERT_FILE", "SSL_CERT_DIR"),
        start_new_session=True,
    )


async def _output(process: asyncio.subprocess.Process, request: FetchRequest, rules: FetchRules, cache: Path) -> bytes:
    """Return the output of the process, or b"" after the timeout. Then kill the process, and wait until it has ended."""
    try:
        async with asyncio.timeout(rules.seconds + _LONGER_SECONDS):
            return await _communicate(process, FetchOrder(request, rules, str(cache)).to_json())
    except TimeoutError:
        return b""
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        progress_file(cache / INCOMING, request).unlink(missing_ok=True)


def _delete_files(incoming: Path, pid: int) -> None:
    """Delete the files of a process that failed or was killed before it deleted them itself."""
    for path in incoming.glob(f"{name_prefix(pid)}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):  # an error here must not hide that of the fetch
                path.unlink(missing_ok=True)


async def _communicate(process: asyncio.subprocess.Process, order: bytes) -> bytes:
    assert process.stdin is not None and process.stdout is not None
    with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):
        # uvloop raises RuntimeError if the process has already ended.
        process.stdin.write(order)
        await process.stdin.drain()
        process.stdin.close()
    output = b""
    while len(output) < _ANSWER_BYTES and (data := await process.stdout.read(_ANSWER_BYTES)):
        output += data
    return output


def _parsed(output: bytes, code: int | None, request: FetchRequest, rules: FetchRules) -> FetchResult:
    what = request.location.partition("?")[0]
    try:
        return parse_answer(output)
    except SourceError as error:
        raise SourceError(_without(str(error), request), transient=error.transient, reason=error.reason) from None
    except (ValueError, KeyError, TypeError):
        if code in (-signal.SIGALRM, -signal.SIGKILL, -signal.SIGXCPU):
            raise SourceError(f"{what} could not be fetched within {rules.seconds:g} s", transient=True) from None
        raise SourceError(f"{what} could not be fetched: the process for it ended with status {code}", transient=True) from None


def _without(message: str, request: FetchRequest) -> str:
    """Return the message with credentials redacted, because a library's error may contain them."""
    for secret in request.credentials.values():
        if len(secret.strip()) > 3:
            message = message.replace(secret.strip(), "***")
    return message
