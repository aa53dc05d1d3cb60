"""Fetches the results of a sweep's trials as jobs in Harbor's layout. An interrupted fetch is resumed by the next one."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from multistep.api.sweep.sweep import parse_sweep
from multistep.client.connection import Cluster
from multistep.client.results.fetch import download
from multistep.client.results.job_directory import Entry, JobDirectory, entry_of
from multistep.client.sweep_trials import own_trials
from multistep.errors import ClusterError, StoreError, UsageError
from multistep.kube.cluster_protocols import Object

_AT_ONCE: Final = 4  # concurrent downloads; the operator serves at most 8 to all clients at once
_TRIES, _PAUSE_SECONDS = 3, 2.0


@dataclass
class Fetched:
    """The progress of a fetch. Its fields are those of `multistep sweep results -o json`."""

    sweep: str
    namespace: str
    directory: str
    trials: int = 0
    """Number of the sweep's trials."""
    present: int = 0
    """Number of trials that an earlier call fetched."""
    fetched: int = 0
    files: int = 0
    bytes: int = 0
    left_out: int = 0
    """Number of result files that this machine cannot store."""
    jobs: list[str] = field(default_factory=list)
    """Paths of the jobs' directories."""
    failed: dict[str, str] = field(default_factory=dict)
    """Errors by name of the trial."""
    no_results: list[str] = field(default_factory=list)
    """Names of finished trials that have no results."""
    unfinished: list[str] = field(default_factory=list)
    """Names of active trials."""


class SweepFetch:
    """Fetches the trials of a sweep into a jobs directory, except trials that an earlier call fetched completely."""

    def __init__(self, cluster: Cluster, found: Object, jobs: Path) -> None:
        """found: the TrialSweep."""
        self._cluster, self._found, self._jobs = cluster, found, jobs
        self._sweep = parse_sweep(found)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.done = Fetched(self._sweep.metadata.name, self._sweep.metadata.namespace, str(jobs))

    async def run(self, warn: Callable[[str], object]) -> None:
        """Fetch the trials, and update ``done`` meanwhile. warn: called with each warning about the sweep's trials.

        Raises UsageError if the directory has other files or cannot be written, and ClusterError.
        """
        by_kind: dict[str, list[Entry]] = defaultdict(list, {"": []})
        for each in await self._entries(warn):
            by_kind[each.kind].append(each)
            self.done.trials += 1
        directories = {kind: JobDirectory(self._jobs, self._sweep, kind) for kind in by_kind}
        try:
            for directory in directories.values():
                directory.check()
            for kind, entries in by_kind.items():
                await self._fetch_job(directories[kind], entries)
        except OSError as error:
            raise UsageError(f"{error.filename or self._jobs}: {error.strerror or error}") from error

    async def _entries(self, warn: Callable[[str], object]) -> list[Entry]:
        """Return the sweep's trials, in the order of their names."""
        scoring = self._sweep.spec.scoring
        found = await own_trials(self._cluster, self._found, lambda trial: entry_of(trial, scoring), warn)
        return sorted(found, key=lambda each: each.row.trial)

    async def _fetch_job(self, directory: JobDirectory, entries: Sequence[Entry]) -> None:
        await asyncio.to_thread(directory.start)
        try:
            async with asyncio.TaskGroup() as group:
                for each in entries:
                    await self._slots.acquire()
                    group.create_task(self._fetch(directory, each))
        finally:
            await asyncio.to_thread(directory.write, entries)
        self.done.jobs.append(str(directory.path))

    async def _fetch(self, directory: JobDirectory, entry: Entry) -> None:
        """Fetch one trial. Record an error instead of raising it, so that the other trials are still fetched."""
        try:
            if entry.row.state == "Active":
                self.done.unfinished.append(entry.row.trial)
            elif await asyncio.to_thread(directory.has, entry):
                self.done.present += 1
            elif entry.results is None:
                self.done.no_results.append(entry.row.trial)
            else:
                await self._download(directory, entry, entry.results)
        except (StoreError, ClusterError, OSError) as error:
            self.done.failed[entry.row.trial] = str(error)
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
        self.done.fetched += 1
        self.done.files += unpacked.files
        self.done.bytes += unpacked.bytes
        self.done.left_out += len(unpacked.left_out)
