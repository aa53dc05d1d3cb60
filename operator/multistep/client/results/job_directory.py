"""Harbor's job directory of a sweep: which trials it has, and its own files."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TextIO

from multistep.api.sweep.sweep import Scoring, TrialSweep
from multistep.api.trial.status import Usage
from multistep.api.trial.trial import parse_status
from multistep.engine.score.usage_totals import usage_of_all_attempts
from multistep.errors import UsageError
from multistep.report.pass_at_k import pass_at_ks, pass_chances, task_means
from multistep.report.rows import TrialRow, row_of, rows_that_count
from multistep.store.harbor.job_files import AgentResult, JobStats, config_json, lock_head, result_json

_PARTIAL: Final = ".partial"  # directory of trials that are not completely fetched yet; Harbor's viewer ignores it
_OTHERS: Final = {"": "", "excluded": ".excluded", "branches": ".branches"}  # suffix of the job's name, by kind of job


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial of the sweep."""

    row: TrialRow
    uid: str
    usage: Usage | None
    """Tokens and cost of all attempts of the trial."""
    results: str | None
    """status.results of the trial; None if it has no results."""

    @property
    def kind(self) -> str:
        """Return the kind of job that the trial belongs to: "", "excluded" or "branches" (trials of spec.branch).

        Excluded trials have a separate job, because the viewer of Harbor before 0.26 counts a trial without a reward as 0 in its
        task's average.
        """
        return "branches" if self.row.branch else "excluded" if self.row.excluded else ""


def entry_of(trial: Mapping[str, Any], scoring: Scoring) -> Entry:
    """Return the entry of a MultiStepTrial. scoring: the sweep's spec.scoring. Raises InvalidSpec if the status is invalid."""
    status = parse_status(trial)
    return Entry(row_of(trial, status, scoring), trial["metadata"]["uid"], usage_of_all_attempts(status), status.results)


def job_name(sweep: TrialSweep, kind: str) -> str:
    """Return the name of the sweep's job of this kind."""
    return f"{sweep.metadata.name}{_OTHERS[kind]}"


def job_stats(
    sweep: TrialSweep, kind: str, entries: Sequence[Entry], finished: Iterable[tuple[Entry, Mapping[str, Any]]]
) -> dict[str, Any]:
    """Return Harbor's JobStats of a job. entries: the job's trials. finished: those that the job shows as finished, each with its
    result.json, or the part of it that JobStats reads."""
    stats = JobStats(sweep.spec.scoring.override_error_policy)
    for each, result in finished:
        stats.add(each.row.agent, result, each.usage, each.row.failed_attempts)
    running = sum(each.row.state == "Active" for each in entries)
    return stats.json(
        {} if kind else standings(rows_that_count(each.row for each in entries)), total(sweep, kind, entries), running
    )


def total(sweep: TrialSweep, kind: str, entries: Sequence[Entry]) -> int:
    """Return the number of the job's trials, including those that an unfinished sweep has not created yet."""
    trials = sweep.status.trials
    return len(entries) + (0 if kind or not entries else max(0, trials.total - trials.created))


class JobDirectory:
    """The directory of one Harbor job in a jobs directory."""

    def __init__(self, jobs: Path, sweep: TrialSweep, kind: str = "") -> None:
        """kind: the value of ``Entry.kind`` of the job's trials."""
        self.name = job_name(sweep, kind)
        self.path = jobs / self.name
        self._sweep = sweep
        self._uid = str(uuid.uuid5(uuid.UUID(sweep.metadata.uid), kind)) if kind else sweep.metadata.uid
        self._kind = kind

    def check(self) -> None:
        """Raise UsageError if the directory contains something other than this job."""
        if not self.path.exists():
            return
        found = _read(self.path / "result.json").get("id")
        if found != self._uid and any(each.name != _PARTIAL for each in self.path.iterdir()):
            raise UsageError(f"{self.path} is not a copy of sweep {self.name!r}: name another directory")

    def start(self) -> None:
        """Create the directory with a result.json that has the job's id: ``check`` then accepts it, if this call is interrupted."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not (self.path / "result.json").exists():
            self.write([])

    def has(self, entry: Entry) -> bool:
        """Return whether the directory has all files of the trial: ``complete`` moves a trial here once all are fetched."""
        return _read(self.path / entry.row.trial / "result.json").get("id") == entry.uid

    def partial(self, entry: Entry) -> Path:
        """Return the path of the directory for the trial's files while they are fetched. It does not exist, because the method
        deletes the files of an earlier call."""
        place = self.path / _PARTIAL / entry.row.trial
        shutil.rmtree(place, ignore_errors=True)
        return place

    def complete(self, entry: Entry) -> None:
        """Move the fetched trial to its final directory, and replace an older copy."""
        shutil.rmtree(self.path / entry.row.trial, ignore_errors=True)
        (self.path / _PARTIAL / entry.row.trial).rename(self.path / entry.row.trial)

    def write(self, entries: Sequence[Entry]) -> None:
        """Write config.json, lock.json and result.json. lock.json lists those of the job's trials that are in the directory."""
        shutil.rmtree(self.path / _PARTIAL, ignore_errors=True)
        here = [each for each in entries if self.has(each)]
        tasks = dict.fromkeys([each.name for each in self._sweep.spec.tasks] + [each.row.task for each in entries])
        self._replace("config.json", config_json(self._sweep, self.name, tasks))
        self._write_lock(here)
        self._replace("result.json", self._result(entries, here))

    def _result(self, entries: Sequence[Entry], here: Sequence[Entry]) -> dict[str, Any]:
        results = ((each, _read(self.path / each.row.trial / "result.json")) for each in here)
        stats = job_stats(self._sweep, self._kind, entries, results)
        every = total(self._sweep, self._kind, entries)
        return result_json(self._sweep, self._uid, stats, every, datetime.now(UTC), finished=not stats["n_running_trials"])

    def _write_lock(self, here: Iterable[Entry]) -> None:
        """Write lock.json trial by trial, to limit memory: a sweep may have 50,000 trials."""
        partial = self.path / ".lock.json.part"
        with partial.open("w") as out:
            head = json.dumps(lock_head(self._sweep), indent=4)
            out.write(f'{head.rstrip("}").rstrip()},\n    "trials": [')
            _write_items(out, (self.path / each.row.trial / "lock.json" for each in here))
            out.write("]\n}\n")
        partial.replace(self.path / "lock.json")

    def _replace(self, name: str, document: dict[str, Any]) -> None:
        partial = self.path / f".{name}.part"
        partial.write_text(json.dumps(document, indent=4) + "\n")
        partial.replace(self.path / name)


def standings(rows: Iterable[TrialRow]) -> dict[str, AgentResult]:
    """Return the score and pass@k of each agent, equal to those of `multistep sweep report`."""
    scored: dict[str, dict[str, list[TrialRow]]] = defaultdict(lambda: defaultdict(list))
    for each in rows:
        if each.counts is not None:
            scored[each.agent][each.task].append(each)
    return {agent: _standing(by_task) for agent, by_task in scored.items()}


def _standing(scored: Mapping[str, Sequence[TrialRow]]) -> AgentResult:
    scores = {task: [each.counts or 0.0 for each in those] for task, those in scored.items()}
    passed = {task: [bool(each.passed) for each in those] for task, those in scored.items()}
    most = max(map(len, passed.values()))
    return AgentResult(fmean(task_means(scores).values()), {k: fmean(pass_chances(k, passed).values()) for k in pass_at_ks(most)})


def _write_items(out: TextIO, files: Iterable[Path]) -> None:
    separator = "\n"
    for file in files:
        if file.exists():
            out.write(separator + file.read_text().rstrip())
            separator = ",\n"


def _read(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; {} if the file is missing or has no JSON object."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
