"""`multistep sweep run` and `status`: checks tasks, builds their images, submits, follows and shows the sweep."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from multistep.api.common.plural import plural
from multistep.api.sweep.sweep import SweepStatus, parse_sweep, parse_sweep_status
from multistep.cli import cluster
from multistep.cli.exit_codes import Exit, exit_of_outcome
from multistep.cli.image.images import BuildFailed
from multistep.cli.options import RunOptions
from multistep.cli.sweep.sweep_view import follow_sweep, sweep_document, sweep_view
from multistep.cli.terminal import print_err, print_json, print_line, print_out, print_warning
from multistep.cli.trial.run_trial import check_accepted_by, check_used, image_of, show_finding, var_options
from multistep.client.connection import Cluster
from multistep.client.datasets import DatasetOptions, open_tasks
from multistep.client.objects import existing_sweep, find_sweep
from multistep.client.outcome import outcome_of_sweep
from multistep.client.submit.create import submit
from multistep.client.submit.manifests import Manifest, Submission, TrialImage, checked_name, new_name
from multistep.client.submit.sweep_manifest import (
    SweepOptions,
    directories,
    find_tasks,
    new_sweep_name,
    sweep_of_file,
    sweep_of_source,
    sweep_of_tasks,
)
from multistep.client.sweep_trials import counted_rows
from multistep.client.task.check_task import validate_tasks
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import ClusterError, UsageError
from multistep.report.rows import FEWEST, TrialRow

_SHOWN = 5


async def excluded_trials(cluster: Cluster, namespace: str, sweep: str) -> list[str]:
    """Return why trials of a sweep are excluded: a text for each task and reason, at most _SHOWN, and then one with the number of
    the others. Return [] if the trials cannot be listed."""
    try:
        found = await find_sweep(cluster, namespace, sweep)
        return _texts(sweep, await counted_rows(cluster, found, print_warning)) if found else []
    except ClusterError:
        return []


def _texts(sweep: str, rows: Iterable[TrialRow]) -> list[str]:
    groups: dict[tuple[str, str], list[TrialRow]] = defaultdict(list)
    for each in rows:
        if each.excluded:
            groups[each.task, each.reason].append(each)
    found = [
        ": ".join(filter(None, [f"task {task}", f"{plural(len(group), 'trial')} excluded", reason, group[0].message]))
        for (task, reason), group in sorted(groups.items())
    ]
    more = len(found) - _SHOWN
    return found if more <= 0 else [*found[:_SHOWN], f"{more} more tasks or reasons: multistep sweep report {sweep}"]


@dataclass(frozen=True)
class SweepSubmission:
    """One call of `sweep run`, with its options."""

    sources: Sequence[Path]
    options: SweepOptions
    chosen: DatasetOptions
    common: RunOptions
    find_drop: float | None = None
    """Drop of an agent's mean score that the sweep is meant to find."""

    def run(self) -> Exit:
        """Validate the tasks, build their images, create the sweep and follow it. Raises UsageError if a task or an option is
        invalid, and ClusterError."""
        if self.options.name:
            checked_name(self.options.name)
        if bool(self.sources) == bool(self.chosen.dataset):
            raise UsageError("give directories of tasks, a file with a sweep, or --dataset NAME: one of these")
        if self.chosen.dataset:
            return self._run_dataset()
        if self.chosen.registry:
            raise UsageError("--registry applies to --dataset only")
        if any(each.is_file() for each in self.sources):
            return self._run_file()
        found = find_tasks(self.sources)
        tasks = self.chosen.of_directories(found, ", ".join(map(str, self.sources)))
        if len(tasks) < len(found):
            print_err(f"{len(tasks)} of {len(found)} tasks")
        return self._run_tasks(tasks, self.options.name or new_sweep_name(tasks))

    def _run_dataset(self) -> Exit:
        selected = self.chosen.selected()
        dataset, name = selected.dataset, self.options.name or new_name(selected.dataset.name)
        print_err(f"dataset {dataset.name}@{dataset.version}: {len(selected.tasks)} of {len(dataset.tasks)} tasks")
        if selected.source is None:
            return self._run_tasks(open_tasks(selected), name)
        submission = sweep_of_source({"dataset": selected.source}, self.common.trial_image, self._options(name))
        return asyncio.run(submit_sweep(submission, self.common))

    def _options(self, name: str) -> SweepOptions:
        return replace(self.options, name=name, values=self.common.values())

    def _run_file(self) -> Exit:
        path = next(each for each in self.sources if each.is_file())
        options = self.options
        given = {
            **{"--agent": options.agents, "--attempts": options.attempts, "--parallelism": options.parallelism},
            **{"--name": options.name, "--timeout-multiplier": options.timeout_multiplier is not None},
            **{"--var": self.common.variables, "--agent-env": self.common.agent_env},
            **{"--image": self.common.image, "--runner-in-image": self.common.runner_in_image},
            **{"--agent-file": options.agent_files, "--agent-env-from-secret": options.secret_agent_env},
            **{"--queue": options.queue, "--budget": options.budget, "the options of a model": options.model.given},
            "--judge": options.judge.given,
            **{"--override-*": options.resources, "--resume": options.resume},
            **{"--task": self.chosen.include, "--exclude": self.chosen.exclude, "--limit": self.chosen.limit},
        }
        if len(self.sources) > 1:
            raise UsageError(f"{path} is a file: give one file alone, or directories only")
        if wrong := [name for name, value in given.items() if value]:
            raise UsageError(f"{wrong[0]} applies to directories of tasks only: set it in {path}")
        submission = sweep_of_file(path)
        own, other = submission.main["metadata"].get("namespace"), self.common.target.namespace
        if own and other and own != other:
            raise UsageError(f"--namespace {other}: the sweep in {path} has namespace {own}")
        self._print_size(submission.main["spec"])
        return asyncio.run(submit_sweep(submission, self.common))

    def _print_size(self, spec: Manifest) -> None:
        """Print a note if the sweep is too small to find the drop that --find-drop names. Its tasks must be in its spec."""
        if self.find_drop is None:
            return
        from multistep.report.gate import too_small

        if note := too_small(len(spec.get("tasks") or ()), spec.get("attempts") or 1, self.find_drop):
            print_err(note)

    def _run_tasks(self, tasks: Sequence[TaskDirectory | Manifest], name: str) -> Exit:
        options, here = self._options(name), directories(tasks)
        planned = sweep_of_tasks(tasks, {}, options)
        spec = parse_sweep(planned.main).spec
        reports = validate_tasks(here, spec, show=show_finding, remedy=var_options, image=self.common.image)
        if len(here) == len(tasks):
            used = frozenset().union(*(each.used for each in reports))
            check_used(options.values.variables, used, agents=[each.agent for each in spec.agents])
        self._print_size(planned.main["spec"])
        asyncio.run(check_accepted_by(self.common.target, planned))
        images, unbuilt = self._images(here, len(tasks))
        built, elsewhere = [each for each in tasks if each not in unbuilt], self.common.trial_image
        names = ", ".join(each.name for each in unbuilt)
        text = f"{len(unbuilt)} of {len(tasks)} tasks could not be built and are not in the sweep: {names}"
        fault = text if unbuilt else ""
        code = asyncio.run(submit_sweep(sweep_of_tasks(built, images, options, elsewhere), self.common, fault))
        if fault:
            print_err(f"error: {fault}")
        return code

    def _images(self, tasks: Sequence[TaskDirectory], total: int) -> tuple[dict[str, TrialImage], list[TaskDirectory]]:
        """Return the images by task name, and the tasks whose images cannot be built. total: number of the sweep's tasks, including
        those that are not local directories. Raises BuildFailed if no task would remain."""
        images: dict[str, TrialImage] = {}
        unbuilt: list[TaskDirectory] = []
        for task in tasks:
            try:
                image = image_of(task, task.path, self.common)
                if image is not None:
                    images[task.name] = image
            except BuildFailed as error:
                if len(unbuilt) + 1 == total:
                    raise
                unbuilt.append(task)
                print_err(f"error: task {task.name} is left out of the sweep, as its image cannot be built: {error}")
        return images, unbuilt


async def submit_sweep(submission: Submission, common: RunOptions, fault: str = "") -> Exit:
    """Create a sweep and follow it. With --detach, only create it. fault: the names of tasks left out of the sweep, as a text."""
    async with cluster.connect(common.target) as connected:
        if text := _too_few(submission.main["spec"]):
            print_err(text)
        metadata = (await submit(connected, submission))["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        if common.detach:
            status = SweepStatus()
            print_err(f"submitted; follow: multistep sweep status --follow {name} -n {namespace}")
        else:
            print_err(f"sweep {name} in namespace {namespace}")
            status = await _followed(connected, namespace, name)
    if common.detach and not common.as_json:
        print_line(name)
        return Exit.FAULT if fault else Exit.OK
    return _shown(namespace, name, status, fault, as_json=common.as_json)


async def show_sweep(connected: Cluster, name: str, *, until_finished: bool, as_json: bool) -> Exit:
    """Print a sweep's status. until_finished: first follow the sweep until it finishes, and return the exit code of its outcome."""
    namespace = connected.namespace
    status = parse_sweep_status(await existing_sweep(connected, namespace, name))
    if until_finished:
        status = await _followed(connected, namespace, name)
    code = _shown(namespace, name, status, as_json=as_json)
    return code if until_finished else Exit.OK


async def _followed(connected: Cluster, namespace: str, name: str) -> SweepStatus:
    """Follow a sweep until it finishes. Print why trials are excluded, such as an image that the cluster could not build."""
    status = await follow_sweep(connected, namespace, name)
    for text in await excluded_trials(connected, namespace, name) if status.excluded else ():
        print_err(text)
    return status


def _shown(namespace: str, name: str, status: SweepStatus, fault: str = "", *, as_json: bool) -> Exit:
    now, found = datetime.now(UTC), outcome_of_sweep(status)
    if fault:
        found = replace(found, faults=(*found.faults, fault))
    if as_json:
        print_json(sweep_document(namespace, name, status, found, now))
    else:
        print_out(sweep_view(name, status, now))
    return exit_of_outcome(found)


def _too_few(spec: Manifest) -> str:
    """Return a note if a sweep has too few tasks to compare its agents; "" if it has enough, or reads its tasks from a source."""
    tasks, agents = len(spec.get("tasks") or ()), len(spec.get("agents") or ())
    if not 0 < tasks < FEWEST or agents < 2:
        return ""
    return (
        f"note: {plural(tasks, 'task')}: fewer than {FEWEST} tasks never show a significant difference between agents, however "
        "many attempts they have"
    )
