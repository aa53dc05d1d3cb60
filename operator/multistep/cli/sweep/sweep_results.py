"""`multistep sweep results`: fetch all trials of a sweep as a job in Harbor's layout."""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Final, TextIO

from rich.text import Text

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import TrialSweep, parse_sweep
from multistep.api.trial.status import Usage
from multistep.api.trial.trial import parse_status
from multistep.cli import cluster
from multistep.cli.exits import Exit
from multistep.cli.terminal import Following, bytes_text, clean, print_err, print_json, print_warning
from multistep.client.connection import Cluster
from multistep.client.objects import existing_sweep
from multistep.client.options import Target
from multistep.client.results.fetch import download
from multistep.client.sweep_trials import owned_trials
from multistep.engine.score.usage_totals import of_all_attempts
from multistep.errors import ClusterError, StoreError, UsageError
from multistep.report.rows import TrialRow, pass_at_ks, pass_chances, rows_that_count, task_means, trial_row
from multistep.store.harbor.job_files import AgentResult, JobStats, config_json, lock_head, result_json

_PARTIAL: Final = ".partial"  # directory of trials that are not completely fetched yet; Harbor's viewer ignores it
_OTHERS: Final = {"": "", "excluded": ".excluded", "branches": ".branches"}  # suffix of the job's name, by kind of job


@dataclass(frozen=True, slots=True)
class Entry:
    """A trial of the sweep. usage: tokens and cost of all attempts of the trial; results: status.results, None if the trial has no
    results."""

    row: TrialRow
    uid: str
    usage: Usage | None
    results: str | None

    @property
    def kind(self) -> str:
        """Return the kind of job that the trial belongs to: "", "excluded" or "branches" (trials of spec.branch).

        Excluded trials have a separate job, because Harbor's viewer counts a trial without a reward as 0 in its task's average.
        """
        return "branches" if self.row.branch else "excluded" if self.row.excluded else ""


class JobDirectory:
    """The directory of one Harbor job in a jobs directory. kind: the value of ``Entry.kind`` of the job's trials."""

    def __init__(self, jobs: Path, sweep: TrialSweep, kind: str = "") -> None:
        self.name = f"{sweep.metadata.name}{_OTHERS[kind]}"
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
        """Write config.json, lock.json and result.json. entries: the job's trials; lock.json lists those in the directory."""
        shutil.rmtree(self.path / _PARTIAL, ignore_errors=True)
        here = [each for each in entries if self.has(each)]
        tasks = dict.fromkeys([each.name for each in self._sweep.spec.tasks] + [each.row.task for each in entries])
        self._replace("config.json", config_json(self._sweep, self.name, tasks))
        self._write_lock(here)
        self._replace("result.json", self._result(entries, here))

    def _result(self, entries: Sequence[Entry], here: Sequence[Entry]) -> dict[str, Any]:
        stats = JobStats()
        for each in here:
            result = _read(self.path / each.row.trial / "result.json")
            stats.add(each.row.agent, result, each.usage, each.row.failed_attempts)
        total = self._total(entries)
        running = sum(each.row.state == "Active" for each in entries)
        rows = [each.row for each in entries]
        now = datetime.now(UTC)
        numbers = stats.json({} if self._kind else standings(rows_that_count(rows)), total, running)
        return result_json(self._sweep, self._uid, numbers, total, now, finished=not running)

    def _total(self, entries: Sequence[Entry]) -> int:
        """Return the number of the job's trials, including those that an unfinished sweep has not created yet."""
        trials = self._sweep.status.trials
        return len(entries) + (0 if self._kind or not entries else max(0, trials.total - trials.created))

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


_AT_ONCE: Final = 4  # concurrent downloads; the operator serves at most 8 to all clients at once
_TRIES, _PAUSE_SECONDS = 3, 2.0
_LINE_SECONDS: Final = 10.0
_SHOWN: Final = 5


@dataclass
class Fetched:
    """The command's result, which -o json prints.

    trials: number of the sweep's trials; present: number of trials that an earlier call fetched; failed: errors by trial; left_out:
    number of result files that this machine cannot store; no_results: names of trials without results; unfinished: names of active
    trials.
    """

    sweep: str
    namespace: str
    directory: str
    trials: int = 0
    present: int = 0
    fetched: int = 0
    files: int = 0
    bytes: int = 0
    left_out: int = 0
    jobs: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    no_results: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    @property
    def progress(self) -> str:
        """Return the progress on one line."""
        done = self.present + self.fetched + len(self.failed) + len(self.no_results)
        return f"{done} of {self.trials - len(self.unfinished)} trials, {bytes_text(self.bytes)} fetched"


async def write_results(target: Target, name: str, jobs: Path, *, as_json: bool) -> Exit:
    """Fetch a sweep's trials into a jobs directory, except trials that an earlier call fetched completely. Raises UsageError if the
    sweep does not exist, or the directory has other files or cannot be written, and ClusterError."""
    async with cluster.connect(target) as connected:
        found = await existing_sweep(connected, connected.namespace, name)
        sweep = parse_sweep(found)
        entries = await _entries(connected, sweep, found)
        try:
            fetched = await _Fetch(connected, sweep, jobs).run(entries)
        except OSError as error:
            raise UsageError(f"{error.filename or jobs}: {error.strerror or error}") from error
    if as_json:
        print_json(vars(fetched))
    _report(fetched)
    return Exit.UNREACHABLE if fetched.failed else Exit.OK


async def _entries(connected: Cluster, sweep: TrialSweep, found: Mapping[str, Any]) -> list[Entry]:
    """Return the sweep's trials, in the order of their names."""
    name, namespace = sweep.metadata.name, sweep.metadata.namespace
    owned = await owned_trials(connected, namespace, name, dict(found), lambda trial: _entry(trial, sweep))
    for warning in owned.warnings():
        print_warning(warning)
    return sorted((each for uid, each in owned.trials if uid == sweep.metadata.uid), key=lambda each: each.row.trial)


def _entry(trial: Mapping[str, Any], sweep: TrialSweep) -> Entry:
    status = parse_status(trial)
    return Entry(trial_row(trial, sweep.spec.scoring), trial["metadata"]["uid"], of_all_attempts(status), status.results)


class _Fetch:
    def __init__(self, connected: Cluster, sweep: TrialSweep, jobs: Path) -> None:
        self._cluster, self._sweep, self._jobs = connected, sweep, jobs
        self._done = Fetched(sweep.metadata.name, sweep.metadata.namespace, str(jobs))
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def run(self, entries: Sequence[Entry]) -> Fetched:
        by_kind: dict[str, list[Entry]] = defaultdict(list, {"": []})
        for each in entries:
            by_kind[each.kind].append(each)
        directories = {kind: JobDirectory(self._jobs, self._sweep, kind) for kind in by_kind}
        for directory in directories.values():
            directory.check()
        self._done.trials = len(entries)
        with Following(lambda: Text(self._done.progress)) as following:
            lines = asyncio.create_task(self._lines(following))
            try:
                for kind, those in by_kind.items():
                    await self._fetch_job(directories[kind], those)
            finally:
                lines.cancel()
        return self._done

    async def _lines(self, following: Following) -> None:
        while True:
            await asyncio.sleep(_LINE_SECONDS)
            following.line(self._done.progress)

    async def _fetch_job(self, directory: JobDirectory, entries: Sequence[Entry]) -> None:
        await asyncio.to_thread(directory.start)
        try:
            async with asyncio.TaskGroup() as group:
                for each in entries:
                    await self._slots.acquire()
                    group.create_task(self._fetch(directory, each))
        finally:
            await asyncio.to_thread(directory.write, entries)
        self._done.jobs.append(str(directory.path))

    async def _fetch(self, directory: JobDirectory, entry: Entry) -> None:
        """Fetch one trial. Record an error instead of raising it, so that the other trials are still fetched."""
        try:
            if entry.row.state == "Active":
                self._done.unfinished.append(entry.row.trial)
            elif await asyncio.to_thread(directory.has, entry):
                self._done.present += 1
            elif entry.results is None:
                self._done.no_results.append(entry.row.trial)
            else:
                await self._download(directory, entry, entry.results)
        except (StoreError, ClusterError, OSError) as error:
            self._done.failed[entry.row.trial] = str(error)
        finally:
            self._slots.release()

    async def _download(self, directory: JobDirectory, entry: Entry, uri: str) -> None:
        for left in reversed(range(_TRIES)):
            try:
                place = await asyncio.to_thread(directory.partial, entry)
                unpacked = await download(self._cluster, uri, place)
                break
            except (StoreError, ClusterError):
                if not left:
                    raise
            await asyncio.sleep(_PAUSE_SECONDS)
        await asyncio.to_thread(directory.complete, entry)
        self._done.fetched += 1
        self._done.files += unpacked.files
        self._done.bytes += unpacked.bytes
        self._done.left_out += len(unpacked.left_out)


def _report(fetched: Fetched) -> None:
    there = f", {fetched.present} were there already" if fetched.present else ""
    files = f"{plural(fetched.files, 'file')}, {bytes_text(fetched.bytes)}"
    print_err(f"fetched {plural(fetched.fetched, 'trial')} ({files}){there}")
    print_err(f"harbor jobs: {', '.join(fetched.jobs)}; open them: multistep view {fetched.directory}")
    if left_out := fetched.left_out:
        print_warning(f"left out {plural(left_out, 'file')} whose names or kinds are impossible here")
    for text, names in (("not finished: fetch again later", fetched.unfinished), ("without results", fetched.no_results)):
        if names:
            shown = f"{', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
            print_err(f"{plural(len(names), 'trial')} {text}: {shown}")
    for name, why in list(fetched.failed.items())[:_SHOWN]:
        print_err(f"error: {name}: {clean(why)}")
    if failed := len(fetched.failed):
        print_err(f"error: could not fetch {plural(failed, 'trial')}; the same command resumes")
