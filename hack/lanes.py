"""Run several processes in parallel, most of them pytest. Each line of their output is shown with the run's name before it."""

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
# Matches the first line of pytest's summary. This line is the heading of the failures or, without failures, the totals. In the
# output of `pytest -q`, it has no "=".
_HEADING = re.compile(r"=+ (?!test session starts)\S.* =+|\d+ (passed|failed|error)\S*.* in [\d.]+s.*")
_TOTAL = re.compile(r"(\d+) (\w+)")
_SINGULAR = {"errors": "error", "warnings": "warning"}
NAME_WIDTH = 14
NO_TESTS = 5  # pytest's exit code if it found no test
_YIELDING = 10  # nice value
_screen = threading.Lock()


@dataclass(frozen=True)
class Run:
    """One process of pytest or another program, to be run."""

    name: str
    """Prefix of the output lines, at most 14 characters."""
    arguments: Sequence[str]
    env: Mapping[str, str]
    program: Sequence[str] = PYTEST
    may_be_empty: bool = False
    """Whether pytest may find no test."""
    yields: bool = False
    """Whether processes beside this one go first when cores are short."""

    @property
    def is_pytest(self) -> bool:
        return self.program is PYTEST

    @property
    def shown(self) -> str:
        """The command line, without the options that all pytest runs have."""
        return " ".join([*(["pytest"] if self.is_pytest else self.program), *self.arguments])


@dataclass(frozen=True)
class Ended:
    """A finished run."""

    run: Run
    code: int
    """Exit code."""
    words: Sequence[str]
    """Lines of pytest's summary, failures first and totals last, or the whole output of another program."""
    outcomes: Outcomes
    seconds: float = 0.0
    """Duration in seconds."""
    cpu: float = 0.0
    """CPU seconds of the process and of its descendants that were waited for."""

    @property
    def totals(self) -> Counter[str]:
        """The counts in the last line of pytest's summary, by "passed", "failed" etc. Deselected tests are not counted."""
        if not self.run.is_pytest:
            return Counter()
        last = self.words[-1].strip("= ").partition(" in ")[0] if self.words else ""
        found = {what: int(number) for number, what in _TOTAL.findall(last)}
        return Counter({_SINGULAR.get(what, what): number for what, number in found.items() if what != "deselected"})


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the given variables and those that tests need, such as this checkout's image and a PATH with the programs of
    hack.peers."""
    return {
        **variables,
        "PATH": peers.path(variables),
        "PYTHONUNBUFFERED": "1",
        "KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false",  # with websockets, kubectl 1.32 can lose the first output
        "MULTISTEP_TEST_IMAGE": f"{image.repository()}:{image.tag()}",
        "MULTISTEP_TEST_NAMESPACE": deployment.NAMESPACE,
    }


def execute(run: Run) -> Ended:
    """Run a process until it exits, and show its progress. Several threads may call this function at the same time."""
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
    """Run the command and return the exit code, the lines of pytest's summary and the CPU seconds. pytest's output is shown until
    the summary starts. All output of other programs is shown and returned."""
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
