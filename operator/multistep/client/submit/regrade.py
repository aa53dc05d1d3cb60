"""Builds a trial or sweep that runs the verifiers of an earlier trial or sweep again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from multistep.api.common import labels
from multistep.api.common.base_model import API_VERSION
from multistep.api.sweep.sweep import SWEEP_KIND, parse_sweep
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.trial import KIND, parse_trial
from multistep.client.connection import Cluster
from multistep.client.objects import find_either
from multistep.client.options import JudgeOptions
from multistep.client.submit.judge_choice import with_judge, without_judge
from multistep.client.submit.manifests import (
    Manifest,
    Submission,
    TrialImage,
    bundle_config_maps,
    bundle_source,
    checked_name,
    environment,
    new_name,
    optional,
)
from multistep.client.task.check_task import Remedy, Show, validate
from multistep.client.task.task_directory import TaskDirectory
from multistep.engine.sweep.trial_manifests import pinned_source
from multistep.errors import NotFound, UsageError
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import CONFIG_MAPS
from multistep.pods.kueue import QUEUE
from multistep.providers import judge_variables
from multistep.sources.task import stored_bundles
from multistep.sources.task.bundle import Bundle, BundleEntry, digest_of, pack_entries

_TESTS = "tests"


@dataclass(frozen=True)
class TaskOf:
    """Builds spec.task for a new trial or sweep."""

    cluster: Cluster
    namespace: str
    """Namespace of the new objects."""
    name: str
    """Name of the new trial or sweep, with which the names of its ConfigMaps start."""

    async def same(self, task: Manifest, tests: Path | None) -> tuple[Manifest, Sequence[Manifest]]:
        """Return spec.task of the regrade, and its ConfigMaps to create. A bundle gets new ConfigMaps, because the old ones are
        deleted with the source trial or sweep.

        task: spec.task of the source. tests: a directory whose tests replace the task's tests. Raises UsageError if the ConfigMaps
        were deleted, or if the tests cannot be replaced.
        """
        if "bundle" in task:
            bundle = task["bundle"]
            data = await self._joined(bundle["configMaps"], bundle["digest"])
            return self._bundled(task, data if tests is None else _with_tests(data, tests))
        if tests is None:
            return task, ()
        if "inline" in task:
            inline = task["inline"]
            return {**task, "inline": {**inline, "files": _inline_files(inline.get("files", {}), tests)}}, ()
        (kind,) = set(task) & {"oci", "git", "url"}
        raise UsageError(f"--tests: the task comes from {kind}: name the directory of the whole task with --task instead")

    def other(self, task: Manifest, directory: TaskDirectory) -> tuple[Manifest, Sequence[Manifest]]:
        """Return a spec.task for a directory, and the ConfigMaps of its bundle. task: the spec.task that the new one replaces, and
        whose name and environment it keeps, if set."""
        kept = {key: value for key, value in task.items() if key in ("name", "environment")}
        return self._bundled({"name": directory.directory_name, **kept}, directory.packed)

    def _bundled(self, task: Manifest, data: bytes) -> tuple[Manifest, Sequence[Manifest]]:
        digest = digest_of(data)
        parts = bundle_config_maps(data, self.name, digest)
        return {**task, **bundle_source(parts, digest)}, parts

    async def _joined(self, names: Iterable[str], digest: str) -> bytes:
        try:
            return stored_bundles.join_bundle([await self.cluster.get(CONFIG_MAPS, self.namespace, each) for each in names], digest)
        except NotFound as error:
            raise UsageError(f"the ConfigMaps of the source's task were deleted ({error}): name the task with --task") from error


def _with_tests(data: bytes, tests: Path) -> bytes:
    """Return the packed task with its tests replaced by those in a directory."""
    entries = Bundle.from_archive(data, digest_of(data)).entries
    given = Bundle.from_directory(tests).entries
    replaced = _replaced(tests, entries, given)
    kept = {path: each for path, each in entries.items() if not _is_below(path, replaced)}
    return pack_entries({**kept, **{path: each for path, each in given.items() if _is_below(path, replaced)}})


def _inline_files(files: Mapping[str, str], tests: Path) -> dict[str, str]:
    """Return the files of the inline task with its tests replaced by those in a directory."""
    given = Bundle.from_directory(tests).entries
    replaced = _replaced(tests, files, given)
    kept = {path: text for path, text in files.items() if not _is_below(path, replaced)}
    return {**kept, **{path: _text(path, each) for path, each in given.items() if _is_below(path, replaced) and each.kind != "dir"}}


def _text(path: str, entry: BundleEntry) -> str:
    try:
        if entry.kind == "file":
            return bytes(entry.data).decode()
    except UnicodeDecodeError:
        pass
    raise UsageError(f"--tests: {path} is not UTF-8 text, and the task is inline: name the directory of the whole task with --task")


def _replaced(tests: Path, task: Mapping[str, Any], given: Mapping[str, BundleEntry]) -> Sequence[str]:
    """Return the directories of tests in ``given``: tests and steps/NAME/tests.

    Raises UsageError if ``given`` has none, or has tests of a step that the task lacks.
    """
    parts = [path.split("/") for path, each in given.items() if each.kind == "dir"]
    steps = [each[1] for each in parts if len(each) == 3 and (each[0], each[2]) == ("steps", _TESTS)]
    found = [*([_TESTS] if [_TESTS] in parts else []), *(f"steps/{each}/{_TESTS}" for each in steps)]
    if not found:
        raise UsageError(f"{tests} has neither tests/ nor steps/NAME/tests/: --tests needs the layout of a task's directory")
    for step in steps:
        if not any(path.startswith(f"steps/{step}/") for path in task):
            raise UsageError(f"--tests: {tests}/steps/{step}: the task has no such step")
    return found


def _is_below(path: str, directories: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}/") for each in directories)


# Fields of the source's spec that a regrade does not copy: they apply only to trials with an agent, or only to the source.
_AGENT_FIELDS: Final = ("agent", "suspend", "prestart", "stop", "checkpoints", "resumeTrajectory", "activeDeadlineSeconds")
_NOT_COPIED: Final = (*_AGENT_FIELDS, "from", "fromStep", "regrade")
_NOT_COPIED_TO_SWEEP: Final = (*_NOT_COPIED, "agents", "tasks", "tasksFrom", "stopWhen", "budget", "branch", "retries", "lease")


@dataclass(frozen=True)
class Regrade:
    """A trial or sweep to verify again, and what changes."""

    source: str
    """NAME, trial/NAME or sweep/NAME. The trial may have been deleted, if its results are kept and ``tasks`` has its task."""
    show: Show
    """Shows a finding in a task that does not make it invalid."""
    remedy: Remedy
    """Returns how a user gives values to variables of a task."""
    built_image: Callable[[TaskDirectory], TrialImage | None]
    """Returns the image that is built for a task."""
    image: TrialImage | None = None
    """The image of a deleted trial, or None for the image that is built for its task."""
    name: str | None = None
    """Name of the new trial or sweep, or None for a generated name."""
    tests: Path | None = None
    """Directory whose tests replace the task's."""
    tasks: Sequence[TaskDirectory] = ()
    """Tasks that replace those of the same name."""
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    """The judge that replaces the source's."""

    async def submission(self, cluster: Cluster) -> Submission:
        """Find the source, and return the trial or sweep that verifies it again. Raises UsageError if it does not exist or an
        argument does not fit, InvalidTask if a given task cannot be run, and ClusterError."""
        name, trial, sweep = await find_either(cluster, cluster.namespace, self.source)
        if self.image and (trial is not None or sweep is not None):
            raise UsageError(f"--image is for a deleted trial: {name} exists and names its image")
        to = TaskOf(cluster, cluster.namespace, checked_name(self.name) if self.name else new_name(name, "regrade"))
        return await (self._sweep(sweep, to) if sweep is not None else self._trial(name, trial, to))

    async def _trial(self, name: str, found: Object | None, to: TaskOf) -> Submission:
        if len(self.tasks) > 1:
            raise UsageError(f"{name} is a trial, which has one task: give one --task")
        spec = found["spec"] if found else self._spec_of_deleted(name, to.namespace)
        kept = with_judge({key: value for key, value in spec.items() if key not in _NOT_COPIED}, self.judge, alone=True)
        if self.tasks:
            self._check(self.tasks[0], kept.get("variables", ()), kept)
            kept["task"], parts = to.other(kept.get("task", {}), self.tasks[0])
        else:
            kept["task"], parts = await to.same(kept["task"], self.tests)
        trial = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": _metadata(to, found),
            "spec": {**kept, "agent": _no_agent(spec.get("agent", {})), "regrade": {"trial": name}},
        }
        parse_trial(trial)
        return Submission(trial, parts)

    def _spec_of_deleted(self, name: str, namespace: str) -> Manifest:
        if not self.tasks:
            raise UsageError(
                f"neither a trial nor a sweep {name!r} exists in namespace {namespace!r}; if it was a trial "
                "whose results are kept, name its task with --task"
            )
        return optional(environment=environment(self.image or self.built_image(self.tasks[0])))

    async def _sweep(self, found: Object, to: TaskOf) -> Submission:
        spec = found["spec"]
        agents = [{"name": each["name"], "agent": _no_agent(each["agent"])} for each in spec["agents"]]
        kept = {key: value for key, value in spec.items() if key not in _NOT_COPIED_TO_SWEEP}
        template = kept.get("template", {})
        template = {**template, "spec": with_judge(_without_agent(template.get("spec", {})), self.judge, alone=True)}
        tasks, parts = await self._tasks_of_sweep(found, template["spec"], to)
        sweep = {
            "apiVersion": API_VERSION,
            "kind": SWEEP_KIND,
            "metadata": _metadata(to, found),
            "spec": {
                **kept,
                **tasks,
                "agents": agents,
                "regrade": {"sweep": found["metadata"]["name"]},
                "template": template,
                "overrides": [
                    {**each, "spec": without_judge(_without_agent(each["spec"]), self.judge)} for each in kept.get("overrides", ())
                ],
            },
        }
        parse_sweep(sweep)
        return Submission(sweep, parts)

    async def _tasks_of_sweep(self, found: Object, template: Manifest, to: TaskOf) -> tuple[Manifest, Sequence[Manifest]]:
        """Return spec.tasks or spec.tasksFrom of the new sweep, and the ConfigMaps of the tasks' bundles. template: the new
        sweep's spec.template.spec."""
        spec = found["spec"]
        if (source := spec.get("tasksFrom")) is not None:
            if self.tests or self.tasks:
                raise UsageError("the sweep's tasks come from spec.tasksFrom: --tests and --task need tasks in spec.tasks")
            revision = (found.get("status") or {}).get("tasksFrom", {}).get("revision")
            return {"tasksFrom": pinned_source(source, revision) if revision else source}, ()
        given = spec["tasks"]
        if self.tests and len(given) > 1:
            raise UsageError(f"--tests is for one task, and the sweep has {len(given)}: name the changed ones with --task")
        changed = _by_name(given, self.tasks)
        tasks, parts = [], list[Manifest]()
        for each in given:
            directory = changed.get(each["name"])
            if directory is None:
                task, own = await to.same(each, self.tests)
            else:
                self._check(directory, template.get("variables", ()), each, template)
                task, own = to.other(each, directory)
            tasks.append(task)
            parts += own
        return {"tasks": tasks}, parts

    def _check(self, task: TaskDirectory, variables: Sequence[Mapping[str, Any]], *specs: Manifest) -> None:
        """Validate a task that replaces the source's. specs: the first with ``environment.image`` names the task's image."""
        image = next(filter(None, ((spec.get("environment") or {}).get("image") for spec in specs)), None)
        judges = [(spec.get("models") or {}).get("judge") or {} for spec in specs]
        keys = [each["name"] for judge in judges for each in judge.get("credentials", ())]
        given = [each["name"] for each in variables] + [name for key in keys for name in judge_variables(key)]
        validate(task, agents=[AgentSpec(name="nop")], given=given, show=self.show, remedy=self.remedy, image=image)


def _by_name(tasks: Sequence[Manifest], directories: Sequence[TaskDirectory]) -> Mapping[str, TaskDirectory]:
    """Return the directories, by the name of the task that each replaces. A directory's name must equal its task's name, unless
    there is only one task and one directory."""
    names = [each["name"] for each in tasks]
    if len(names) == len(directories) == 1:
        return {names[0]: directories[0]}
    for each in directories:
        if each.name not in names:
            raise UsageError(f"--task {each.path}: the sweep has no task {each.name!r}, but {', '.join(names[:5])}")
    return {each.name: each for each in directories}


def _metadata(to: TaskOf, found: Object | None) -> Manifest:
    """Return the new object's metadata, with those labels of the source that name the Kueue queue and the operator's shard."""
    given = (found["metadata"].get("labels") or {}) if found else {}
    kept = {key: given[key] for key in (QUEUE, labels.SHARD) if key in given}
    return {"name": to.name, "namespace": to.namespace, **optional(labels=kept or None)}


def _without_agent(spec: Manifest) -> Manifest:
    return {key: value for key, value in spec.items() if key not in _NOT_COPIED}


def _no_agent(agent: Manifest) -> Manifest:
    """Return the agent of a regrade: nop, with the source's variables.

    No process receives the variables. The operator needs them to redact their secret values in the results, because files in the
    checkpoints may contain these values. The references are optional, because the Secrets may be deleted with the source.
    """
    credentials = agent.get("credentials", ()) if agent.get("access") == "Direct" else ()
    env = [_optional(each) for each in (*agent.get("env", ()), *credentials)]
    return {"name": "nop", **optional(env=env or None)}


def _optional(variable: Manifest) -> Manifest:
    source = variable.get("valueFrom")
    if source is None:
        return variable
    return {**variable, "valueFrom": {key: {**selector, "optional": True} for key, selector in source.items()}}
