"""Measure the history with a million synthetic trials: the time to copy the packs, the size of the copy, and the time of each
question.

    python -m tests.bench.history [TRIALS]
"""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from rich.console import Console
from rich.table import Table

from multistep.report.history_database import HistoryDatabase
from multistep.report.history_questions import QUESTIONS, Filters
from multistep.report.history_row import TYPES, line_of

MAX_SECONDS = 2.0
PACK, TASKS, AGENTS, VERSIONS, DAYS = 5_000, 500, 12, 6, 365
_AT_ONCE = 20


@dataclass(frozen=True)
class HistoryCost:
    """The cost of a history. copied: seconds to copy all packs; packed_bytes: size of the packs; bytes: size of the copy; seconds:
    by question."""

    trials: int
    copied: float
    packed_bytes: int
    bytes: int
    seconds: Mapping[str, float]


def rows(trials: int, seed: int = 1) -> Iterator[dict[str, object]]:
    """Yield synthetic rows of sweeps: each trial has one of TASKS tasks, of AGENTS agents and of VERSIONS versions."""
    draw = random.Random(seed)
    start = datetime(2026, 1, 1)
    for index in range(trials):
        task, agent, sweep = index % TASKS, index // TASKS % AGENTS, index // PACK
        at = start + timedelta(days=DAYS * index / trials)
        version = index * VERSIONS // trials
        excluded = draw.random() < 0.03
        score = float(draw.random() < 0.2 + 0.6 * task / TASKS + 0.01 * version)
        seconds = {"setup": 3.5, "agent": round(draw.expovariate(1 / 300), 1), "verifier": 12.25}
        step = {"rewards": {"reward": score}, "score": score, "passed": score == 1, "exception": "", "seconds": seconds}
        row: dict[str, object] = dict.fromkeys(TYPES) | {
            "uid": f"{draw.getrandbits(128):032x}",
            "namespace": f"team-{sweep % 8}",
            "date": at.date().isoformat(),
            "trial": f"sweep-{sweep}-{index % PACK}",
            "sweep": f"sweep-{sweep}",
            "sweep_uid": f"uid-{sweep}",
            "dataset": f"dataset-{sweep % 4}",
            "task": f"task-{task}",
            "task_digest": f"sha256:{task:064x}",
            "image": f"registry.example/task-{task}@sha256:{task:064x}",
            "agent": f"agent-{agent}",
            "program": f"agent-{agent}",
            "agent_version": f"1.{version}",
            "model": f"provider/model-{agent % 3}",
            "harbor_version": "0.26",
            "regrade_of": "",
            "branch": "",
            "state": "Complete",
            "outcome": "Excluded" if excluded else "Passed" if score else "NotPassed",
            "score": None if excluded else score,
            "passed": None if excluded else score == 1,
            "failure_class": "Infrastructure" if excluded else "",
            "rewards": {"reward": score},
            "steps": [{"name": name, **step} for name in ("plan", "build", "test")],
            "started": at.isoformat(timespec="seconds"),
            "finished": (at + timedelta(seconds=400)).isoformat(timespec="seconds"),
            "seconds": 3 * sum(seconds.values()),
            "input_tokens": draw.randrange(10**6),
            "output_tokens": draw.randrange(10**4),
            "cost_usd": draw.random(),
            "labels": {"team": f"group-{agent % 5}"},
        }
        yield row


def packs(trials: int) -> Iterator[bytes]:
    """Yield the packs of the rows, as the operator writes them."""
    lines: list[bytes] = []
    for row in rows(trials):
        lines.append(line_of(row))
        if len(lines) == PACK:
            yield gzip.compress(b"".join(lines), compresslevel=1)
            lines = []
    if lines:
        yield gzip.compress(b"".join(lines), compresslevel=1)


def measure(trials: int, directory: Path) -> HistoryCost:
    """Copy the packs into a database, and ask each question."""
    database, copied, packed, batch = HistoryDatabase(directory / "history"), 0.0, 0, dict[str, tuple[str, bytes]]()
    for number, data in enumerate(packs(trials)):
        batch[f"pack-{number}"] = "1", data
        packed += len(data)
        if len(batch) == _AT_ONCE:
            copied += _seconds(lambda: database.update("ns/source", (), batch, b""))
            batch.clear()
    copied += _seconds(lambda: database.update("ns/source", (), batch, b""))
    seconds = {
        f"{name}, {about}": _seconds(lambda: question(database, filters, "week", "team"))  # noqa: B023 - called at once
        for name, question in QUESTIONS.items()
        for about, filters in (
            ("all", Filters()),
            ("one dataset", Filters(dataset="dataset-1")),
            ("one task", Filters(task="task-7")),
        )
    }
    seconds["sql"] = _seconds(lambda: database.query("SELECT failure_class, part.name, avg(part.score) FROM trials, unnest(steps)"
                                                     " AS each(part) GROUP BY ALL"))  # fmt: skip
    return HistoryCost(trials, copied, packed, sum(file.stat().st_size for file in directory.iterdir()), seconds)


def table(cost: HistoryCost) -> Table:
    """Return a table with a row per question."""
    sizes = f"packs {cost.packed_bytes / 2**20:.0f} MiB, copied in {cost.copied:.0f} s, {cost.bytes / 2**20:.0f} MiB"
    made = Table("question", "seconds", title=f"history of {cost.trials:,} trials: {sizes}")
    for name, seconds in cost.seconds.items():
        made.add_row(name, f"{seconds:.2f}")
    return made


def _seconds(work: Callable[[], object]) -> float:
    start = time.monotonic()
    work()
    return time.monotonic() - start


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        cost = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000, Path(directory))
    Console().print(table(cost))
    sys.exit(max(cost.seconds.values()) > MAX_SECONDS)
