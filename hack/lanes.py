"""Run several processes in parallel, most of them pytest, and show their output line by line, prefixed with the run's name."""

import os
import re
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hack import deployment, image, outcomes, peers
from hack.outcomes import Outcomes
from hack.paths import ROOT, VENV

_PLUGINS = ("no_skips", "outcomes", "third")
PYTEST = (str(VENV / "bin" / "python"), "-m", "pytest", "--no-header", *(f"-phack.pytest_{each}" for each in _PLUGINS))
# Matches the first line of pytest's summary: the heading of the failures or, without failures, the totals
# (without "=" in `pytest -q`).
_HEADING = re.compile(r"=+ (?!test session starts)\S.* =+|\d+ (passed|failed|error)\S*.* in [\d.]+s.*")
_TOTAL = re.compile(r"(\d+) (\w+)")
_SINGULAR = {"errors": "error", "warnings": "warning"}
NAME_WIDTH = 14
NO_TESTS = 5  # pytest's exit code
_YIELDING = 10  # nice value
_screen = threading.Lock()


@dataclass(frozen=True)
class Run:
    """One pytest process to run, or one of another program. name: prefix of its output lines, at most 14 characters; may_be_empty:
    whether pytest may find no test; yields: whether runs beside it go first where cores are short."""

    name: str
    arguments: Sequence[str]
    env: Mapping[str, str]
    program: Sequence[str] = PYTEST
    may_be_empty: bool = False
    yields: bool = False

    @property
    def is_pytest(self) -> bool:
        return self.program is PYTEST

    @property
    def shown(self) -> str:
        """Return the command line, without the options that all pytest runs have."""
        return " ".join([*(["pytest"] if self.is_pytest else self.program), *self.arguments])


@dataclass(frozen=True)
class Ended:
    """A finished run. code: exit code; words: lines of pytest's summary, failures first, totals last (the whole output of another
    program); seconds: duration; cpu: CPU seconds of the process and of those that it and its children waited for."""

    run: Run
    code: int
    words: Sequence[str]
    outcomes: Outcomes
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def totals(self) -> Counter[str]:
        """Return the counts in the last line of pytest's summary, by "passed", "failed" etc., without deselected tests."""
        if not self.run.is_pytest:
            return Counter()
        last = self.words[-1].strip("= ").partition(" in ")[0] if self.words else ""
        found = {what: int(number) for number, what in _TOTAL.findall(last)}
        return Counter({_SINGULAR.get(what, what): number for what, number in found.items() if what != "deselected"})


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables plus others that tests need: this checkout's image and namespace, and PATH with hack.peers' programs."""
    return {
        **variables,
        "PATH": peers.path(variables),
        "PYTHONUNBUFFERED": "1",
        "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false",  # with websockets, kubectl 1.32 can lose the first output
        "MULTISTEP_TEST_IMAGE": f"{image.repository()}:{image.tag()}",
        "MULTISTEP_TEST_NAMESPACE": deployment.NAMESPACE,
    }


def execute(run: Run) -> Ended:
    """Run a process until it exits and show its progress. Thread-safe."""
    started = time.monotonic()
    with TemporaryDirectory() as directory:
        file = Path(directory) / "outcomes"
        outcomes_file = [f"--outcomes={file}"] if run.is_pytest else []
        code, words, cpu = _follow(run, [*run.program, *outcomes_file, *run.arguments])
        found = outcomes.read(file)
    if code == NO_TESTS and run.may_be_empty:
        code = 0
    if run.is_pytest:
        for line in words[-1:] if code else words:
            _show(f"{run.name:<{NAME_WIDTH}}| {line}")
    return Ended(run, code, words, found, time.monotonic() - started, cpu)


def _follow(run: Run, command: Sequence[str]) -> tuple[int, list[str], float]:
    """Show the output, of pytest until its summary starts; return the exit code, the lines of the summary (of another program all
    lines) and the CPU seconds."""
    words: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env=run.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        if run.yields:
            os.setpriority(os.PRIO_PROCESS, process.pid, _YIELDING)
        for line in process.stdout:
            if not run.is_pytest or words or _HEADING.fullmatch(line.rstrip()):
                words.append(line.rstrip())
            if line.strip() and not (run.is_pytest and words):
                _show(f"{run.name:<{NAME_WIDTH}}| {line.rstrip()}")
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, words, usage.ru_utime + usage.ru_stime


def _show(line: str) -> None:
    with _screen:
        print(line, flush=True)
