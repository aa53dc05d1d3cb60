"""The TrialSweep resource: many tasks with many agents, some times each. The CRD is generated from these models.

Defaults are applied here, not by the CRD, as for trials. Times are seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from .problems import shown
from .trial import (
    API_VERSION,
    AgentSpec,
    Condition,
    DeadlineSeconds,
    EnvironmentSpec,
    FailureClass,
    GitSource,
    Metadata,
    Model,
    OCISource,
    TaskSource,
    TrialTemplateSpec,
    URLSource,
    WholeSeconds,
    cel,
    parsed,
)

SWEEP_KIND = "TrialSweep"
SWEEP_PLURAL = "trialsweeps"
MOST_TRIALS = 50_000  # of a sweep: what an operator can hold of one without a thought

Name = Annotated[str, Field(min_length=1, max_length=253)]


class SweepTask(TaskSource):
    """A task of a sweep: as spec.task of a trial, with a name."""

    name: Name
    """What to call it: in names of trials, overrides and reports, and as the task's name when its config has none."""
    environment: EnvironmentSpec = EnvironmentSpec()
    """Where this task's trials run, over the template's environment."""


_SOURCES = ("oci", "git", "url")
_ONE_SOURCE = "must have exactly one of oci, git and url"


class TasksSource(Model):
    """Where many tasks come from: exactly one of oci, git and url. Each directory right below its path with a task.toml is one."""

    model_config = cel(f"[{', '.join(f'has(self.{each})' for each in _SOURCES)}].filter(x, x).size() == 1", _ONE_SOURCE)

    oci: OCISource | None = None
    """An image whose path holds the tasks' directories."""
    git: GitSource | None = None
    """A git repository whose path holds the tasks' directories."""
    url: URLSource | None = None
    """A tar.gz whose path holds the tasks' directories."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(getattr(self, each) is not None for each in _SOURCES) != 1:
            raise ValueError(_ONE_SOURCE)
        return self


class SweepAgent(Model):
    """An agent of a sweep."""

    name: Name
    """What to call it: in names of trials, overrides and reports. Two with the same program differ in this."""
    agent: AgentSpec
    """Who works on the steps."""


class TemplateMetadata(Model):
    """What each trial gets besides the labels and annotations of its sweep."""

    labels: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Labels."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Annotations."""


class TrialTemplate(Model):
    """What the trials of a sweep have in common."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations."""
    spec: TrialTemplateSpec = TrialTemplateSpec()
    """As a trial's spec, without task, agent, suspend, stop and ttlSecondsAfterFinished."""


class TrialOverride(Model):
    """What some trials of a sweep have otherwise."""

    tasks: Annotated[list[Name], Field(max_length=1000)] = []
    """Names of the tasks that it is for; empty: all."""
    agents: Annotated[list[Name], Field(max_length=64)] = []
    """Names of the agents that it is for; empty: all."""
    spec: TrialTemplateSpec
    """Merged over the template's spec: tables field by field, anything else, lists too, as a whole."""


_CLASSES = ("Agent", "Verifier", "Task", "Infrastructure", "User")
_KNOWN_CLASSES = {
    "x-kubernetes-validations": [
        {
            "rule": f"self.all(name, name in [{', '.join(f'{each!r}' for each in _CLASSES)}])",
            "message": f"must name classes of failures: {', '.join(_CLASSES)}",
        }
    ]
}


class StopWhen(Model):
    """When a sweep makes no more trials. Those that are live may end."""

    pod_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """When its trials' pods have worked for so many hours together."""
    failures: Annotated[
        dict[FailureClass, Annotated[int, Field(ge=0)]], Field(max_length=len(_CLASSES), json_schema_extra=_KNOWN_CLASSES)
    ] = {}
    """By class of failure, how many trials without a result are borne; one more ends the sweep."""


class SweepSpec(Model):
    """What to run. Immutable but for suspend, parallelism, prestart, stopWhen, activeDeadlineSeconds and the time to live."""

    model_config = cel("has(self.tasks) != has(self.tasksFrom)", "must have exactly one of tasks and tasksFrom")

    tasks: Annotated[list[SweepTask], Field(min_length=1, max_length=1000)] = []
    """The tasks, with names that differ."""
    tasks_from: TasksSource | None = None
    """All tasks of a place, in the order of their names, as they are when the sweep begins."""
    agents: Annotated[list[SweepAgent], Field(min_length=1, max_length=64)]
    """Who works on each of the tasks, with names that differ."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    """How often each agent works on each task, each time in a trial of its own."""
    parallelism: Annotated[int, Field(ge=1, le=10_000)] = 10
    """How many of its trials may be live at once. Lowered, it waits for as many to end."""
    prestart: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many more have their pods ready, suspended before their first step, so that the next one begins at once."""
    order: Literal["Attempts", "Tasks"] = "Attempts"
    """Attempts: the first attempts of all before the second ones, for an early estimate; Tasks: one task after the other."""
    template: TrialTemplate = TrialTemplate()
    """What its trials have in common."""
    overrides: Annotated[list[TrialOverride], Field(max_length=64)] = []
    """What some of them have otherwise; where several fit, a later one wins over an earlier one."""
    stop_when: StopWhen = StopWhen()
    """When to make no more trials, though some are left; the sweep is Failed then."""
    active_deadline_seconds: DeadlineSeconds | None = None
    """Time for the whole sweep, but not while it is suspended; then its live trials are stopped, and it is Failed."""
    suspend: bool = False
    """While true, no trial is made, and those that are live are suspended."""
    ttl_seconds_after_finished: WholeSeconds | None = None
    """Deletes the sweep, and with it its trials, this long after its end, as a Job's; unset: never."""

    @model_validator(mode="after")
    def _one_kind_of_tasks(self) -> Self:
        if bool(self.tasks) == (self.tasks_from is not None):
            raise ValueError("must have exactly one of tasks and tasksFrom")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for field, names in (("tasks", _names(self.tasks)), ("agents", _names(self.agents))):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{field}: names must differ; {shown(twice[0])} is there more than once")
        return self

    @model_validator(mode="after")
    def _overrides_fit(self) -> Self:
        """Tasks of tasksFrom are known later."""
        if self.tasks:
            check_overrides(self.overrides, _names(self.tasks))
        for index, override in enumerate(self.overrides):
            _check_known(f"overrides[{index}].agents", override.agents, _names(self.agents))
        return self


def check_overrides(overrides: Sequence[TrialOverride], tasks: Iterable[str]) -> None:
    """ValueError: one is for a task that is not there, most often a typo."""
    known = set(tasks)
    for index, override in enumerate(overrides):
        _check_known(f"overrides[{index}].tasks", override.tasks, known)


def _check_known(field: str, names: Iterable[str], known: Iterable[str]) -> None:
    there = set(known)
    if unknown := [name for name in names if name not in there]:
        some = ", ".join(sorted(there)[:5])
        raise ValueError(f"{field}: {shown(unknown[0])} is none of the sweep's, which are {some}{' ...' if len(there) > 5 else ''}")


def _names(named: Sequence[SweepTask] | Sequence[SweepAgent]) -> list[str]:
    return [each.name for each in named]


class SweepTrials(Model):
    """How many trials a sweep has, and where they are."""

    total: int = 0
    """All that it will have."""
    made: int = 0
    """Made so far."""
    live: int = 0
    """Not at their end: pending, running or suspended."""
    pending: int = 0
    """Waiting for a pod, or for it to start."""
    running: int = 0
    """At work."""
    suspended: int = 0
    """Suspended."""
    done: int = 0
    """At their end: complete or failed."""
    complete: int = 0
    """Ran as specified, whatever their reward."""
    failed: int = 0
    """Could not be run."""
    deleted: int = 0
    """Made, and deleted by somebody since. They are not made again."""
    counted: int = 0
    """Add to a mean: those with a reward, and those that an agent failed without one, as 0."""


class SweepAgentStatus(Model):
    """What an agent's trials have come to so far."""

    name: str
    """The agent's."""
    counted: int = 0
    """Trials that count."""
    mean: float | None = None
    """The mean over tasks of each task's mean reward, as reports have it; unset while no trial counts."""


class SweepTasksStatus(Model):
    """What spec.tasksFrom was when the sweep began, and is for all of its trials."""

    revision: str
    """The commit, or the digest of the image's manifest or of the file."""
    count: int
    """How many tasks were found there."""
    config_map: str
    """The immutable ConfigMap with their names."""
    digest: str
    """Digest of the list of names in it."""


class SweepStatus(Model):
    """What the operator found: counts, never lists of trials."""

    observed_generation: int | None = None
    """The generation of the spec this status is about; -1 until an operator saw the sweep."""
    phase: str | None = None
    """For display: Pending, Running, Suspended, Halting, Complete or Failed; machines read the conditions."""
    conditions: list[Condition] = []
    """Complete, Failed, Ready, Reconciling, Stalled, Suspended, as a trial's."""
    start_time: datetime | None = None
    """When the sweep began."""
    completion_time: datetime | None = None
    """When it ended."""
    suspended_seconds: int | None = None
    """How long it was suspended since it began, up to the last time it went on."""
    tasks_from: SweepTasksStatus | None = None
    """What spec.tasksFrom was resolved to."""
    trials: SweepTrials = SweepTrials()
    """How many there are, and where."""
    not_counted: dict[FailureClass, int] = {}
    """Trials at their end that add to no mean, by the class of their failure."""
    agents: list[SweepAgentStatus] = []
    """What each agent's trials have come to so far."""
    reward: str | None = None
    """The agents' means as text, for the column."""
    pod_hours: float = 0.0
    """How long pods have worked for its trials, together: each from its first step to its end."""


class TrialSweep(Model):
    """Many tasks with many agents, some times each: a whole benchmark."""

    api_version: str = API_VERSION
    kind: str = SWEEP_KIND
    metadata: Metadata = Metadata()
    spec: SweepSpec
    """What to run."""
    status: SweepStatus = SweepStatus()
    """What was found."""


def parse_sweep(obj: Mapping[str, Any]) -> TrialSweep:
    """The resource as a model. InvalidSpec: one line for each problem, beginning with the field's path."""
    return parsed(TrialSweep, obj)


def parse_sweep_status(obj: Mapping[str, Any]) -> SweepStatus:
    """Only the resource's status, which can be read even when its spec cannot."""
    return parsed(SweepStatus, obj.get("status") or {}, under="status.")
