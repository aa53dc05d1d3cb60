"""Runs of pytest side by side: each line is shown as it comes, with its run's name before it; how the runs ended comes last."""

import os
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hack import deployment, image, peers
from hack.places import ROOT, VENV
from hack.stages import Failure

PYTEST = (str(VENV / "bin" / "python"), "-m", "pytest", "--no-header", "-p", "hack.pytest_no_skips")
_HEADING = re.compile(r"=+ (?!test session starts)\S.* =+")  # of the failures, or of the totals where all is well
_TOTAL = re.compile(r"(\d+) (\w+)")
_NAME_WIDTH = 14
_screen = threading.Lock()


@dataclass(frozen=True)
class Run:
    """One process of pytest. name: of at most 14 letters."""

    name: str
    arguments: Sequence[str]
    env: Mapping[str, str]


@dataclass(frozen=True)
class Ended:
    """code: of the process. words: what it said in the end, failures first, the line of totals last."""

    run: Run
    code: int
    words: Sequence[str]


def environment(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those variables, what tests want to know of this checkout, and the programs that they work with."""
    return {
        **variables,
        "PATH": peers.path(variables),
        "PYTHONUNBUFFERED": "1",
        "MULTISTEP_TEST_IMAGE": f"{image.repository()}:{image.tag()}",
        "MULTISTEP_TEST_NAMESPACE": deployment.NAMESPACE,
    }


def execute(run: Run) -> Ended:
    """Run it to its end; its progress is shown meanwhile. May be called by several threads at once."""
    words: list[str] = []
    command = [*PYTEST, *run.arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=run.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if words or _HEADING.fullmatch(line.rstrip()):
                words.append(line.rstrip())
            elif line.strip():
                _show(f"{run.name:<{_NAME_WIDTH}}| {line.rstrip()}")
    for line in words[-1:] if process.returncode else words:
        _show(f"{run.name:<{_NAME_WIDTH}}| {line}")
    return Ended(run, process.returncode, words)


def report(ended: Sequence[Ended]) -> None:
    """Tell how they ended: what failed, then the totals. Raises Failure if one of them was no success."""
    bad = [each for each in ended if each.code]
    for each in bad:
        print(f"\n-- {each.run.name}: pytest {' '.join(each.run.arguments)}", *each.words, sep="\n")
    print(*_table(ended), sep="\n", flush=True)
    if bad:
        raise Failure(f"pytest failed: {', '.join(f'{each.run.name} (exit code {each.code})' for each in bad)}")


def _table(ended: Sequence[Ended]) -> Iterable[str]:
    totals: Counter[str] = Counter()
    for each in ended:
        last = each.words[-1].strip("= ") if each.words else f"exit code {each.code}"
        totals.update({what: int(number) for number, what in _TOTAL.findall(last.partition(" in ")[0]) if what != "deselected"})
        yield f"    {each.run.name:<{_NAME_WIDTH}}  {last}"
    yield f"==== {', '.join(f'{number} {what}' for what, number in sorted(totals.items()))} ===="


def _show(line: str) -> None:
    with _screen:
        print(line, flush=True)
