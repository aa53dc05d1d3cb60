"""The models of TrialSweep, a benchmark of tasks x agents x attempts. The CRD is generated from them.

As for trials, the models and not the CRD apply defaults. Durations are in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from multistep.api.common.base_model import (
    API_VERSION,
    OPEN_CHOICE,
    DeadlineSeconds,
    Metadata,
    Model,
    Name,
    WholeSeconds,
    cel,
    parsed,
)
from multistep.api.common.problems import shown
from multistep.api.sweep.tasks_source import TasksSource
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.error_policy import ErrorPolicyOverrides
from multistep.api.trial.regrade import SweepRegrade
from multistep.api.trial.spec import EnvironmentSpec, TrialTemplateSpec, refuse_pod_templates
from multistep.api.trial.status import Condition, FailureClass, is_finished
from multistep.api.trial.task_source import TaskSource

EACH: Final = "each"

_EACH_ALONE = f"{EACH} must be the only entry: it stands for every step"


class SweepBranch(Model):
    """Trials of single steps, in addition to the sweep's ordinary trials."""

    model_config = cel((f"!has(self.at) || self.at.size() < 2 || !self.at.exists(name, name == '{EACH}')", f"at: {_EACH_ALONE}"))

    at: Annotated[list[Name], Field(min_length=1, max_length=64)] = [EACH]
    """Names of the steps. [each] means every step of every task. A task without a step of these names has no branches."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of trials per task, agent, step and state from which the step starts."""

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        if len(self.at) > 1 and EACH in self.at:
            raise ValueError(f"at: {_EACH_ALONE}")
        if twice := [name for name, count in Counter(self.at).items() if count > 1]:
            raise ValueError(f"at: names must be unique; {shown(twice[0])} occurs more than once")
        return self

    def includes(self, step: str) -> bool:
        """Return whether the sweep runs branches of this step."""
        return self.at == [EACH] or step in self.at


class SweepBranchesStatus(Model):
    """The branches, which are planned when the ordinary trials have finished."""

    trials: int
    """Number of trials of single steps."""
    missing: int = 0
    """Number of steps, over all tasks and agents, without branches from the agent's own state, because no ordinary trial has a
    checkpoint before the step."""
    unknown: list[str] = []
    """Names in spec.branch.at that no task has as a step."""
    config_map: str
    """Immutable ConfigMap with the steps of the tasks, and the checkpoints that the ordinary trials left."""
    digest: str
    """Digest of the ConfigMap's content."""


def check_branch_states(where: str, spec: TrialTemplateSpec) -> None:
    """Raise ValueError if the spec of a sweep with branches forbids the checkpoints from which branches start.

    ``where`` is the path of ``spec`` in the sweep, for the message.
    """
    made = spec.checkpoints
    for name, wanted, value in (("policy", "AfterStep", made.policy), ("keep", "WithResults", made.keep)):
        if name in made.model_fields_set and value != wanted:
            raise ValueError(f"{where}.checkpoints.{name} must be {wanted} or unset with spec.branch; got {shown(value)}")
    if spec.resume_trajectory:
        raise ValueError(f"{where}.resumeTrajectory must not be true with spec.branch: branches need checkpoints")


class SweepLease(Model):
    """Ends the sweep when its client stops renewing the lease. A new value of the annotation multistep.dev/renewal renews the
    lease."""

    seconds: Annotated[int, Field(ge=5, le=86_400)]
    """Seconds without a renewal after which active trials are stopped and the sweep is Failed, LeaseExpired."""


class SweepLeaseStatus(Model):
    """The last renewal that the operator saw."""

    renewal: str
    """Value of the annotation multistep.dev/renewal, or its SHA-256 if it is longer than 64 characters. Empty before the first
    renewal."""
    renew_time: datetime
    """Time at which the operator first saw this value, according to the operator's clock."""


SWEEP_KIND = "TrialSweep"
SWEEP_PLURAL = "trialsweeps"
MAX_RETRIES = 10_000
MAX_PARALLELISM = 10_000
MAX_TRIALS = 50_000  # maximum per sweep, because the operator keeps 200 bytes per trial in memory


class SweepTask(TaskSource):
    """A task of a sweep, with a name and the fields of a trial's spec.task."""

    name: Name
    """Name of the task in trials, overrides and reports, and the task's own name if its config has none."""
    environment: EnvironmentSpec = EnvironmentSpec()
    """Environment of this task's trials, which overrides the template's."""


class SweepAgent(Model):
    """An agent of a sweep."""

    name: Name
    """Name of the agent in trials, overrides and reports."""
    agent: AgentSpec
    """The agent that works on the steps."""


class TemplateMetadata(Model):
    """Metadata of each trial, in addition to the sweep's own labels and annotations."""

    labels: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Labels of the trials."""
    annotations: Annotated[dict[str, str], Field(max_length=64)] = {}
    """Annotations of the trials."""


class TrialTemplate(Model):
    """Template of the sweep's trials."""

    metadata: TemplateMetadata = TemplateMetadata()
    """Labels and annotations of the trials."""
    spec: TrialTemplateSpec = TrialTemplateSpec()
    """A trial's spec without task, agent, suspend, stop and ttlSecondsAfterFinished."""


class TrialOverride(Model):
    """Changes to some trials of a sweep."""

    tasks: Annotated[list[Name], Field(max_length=1000)] = []
    """Names of the tasks whose trials are changed. Empty means all tasks."""
    agents: Annotated[list[Name], Field(max_length=64)] = []
    """Names of the agents whose trials are changed. Empty means all agents."""
    spec: TrialTemplateSpec
    """Changes of the template's spec. Objects are merged field by field. Lists and other values are replaced."""


_CLASSES = get_args(FailureClass)
_KNOWN_CLASSES = {
    "x-kubernetes-validations": [
        {
            "rule": f"self.all(name, name in [{', '.join(f'{each!r}' for each in _CLASSES)}])",
            "message": f"must be failure classes: {', '.join(_CLASSES)}",
        }
    ]
}


class StopWhen(Model):
    """Limits at which a sweep creates no more trials. Active trials continue to their end."""

    pod_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Maximum pod-hours of all trials together."""
    failures: Annotated[
        dict[FailureClass, Annotated[int, Field(ge=0)]], Field(max_length=len(_CLASSES), json_schema_extra=_KNOWN_CLASSES)
    ] = {}
    """Tolerated number of failed trials, scored or excluded, by failure class. One more stops the sweep."""


class SweepWeights(Model):
    """The weights of the model that a trainer updates while the sweep's agents call it by the model gateway."""

    version: Annotated[str, Field(max_length=100)] = ""
    """Version of the weights that answer now. Recorded tokens are stamped with it."""
    paused: bool = False
    """If true, the model gateway holds the agents' requests that it has not sent yet."""


class SweepWeightsStatus(SweepWeights):
    """The weights that the model gateway knows."""

    in_flight: int = 0
    """Number of the agents' requests that the model server had not answered when paused was last observed. 0 if not paused."""


class SweepBudget(Model):
    """Budget of the model requests of all trials of a sweep together."""

    cost_usd: Annotated[float, Field(alias="costUSD", gt=0, allow_inf_nan=False)]
    """Budget in US dollars, according to the model gateway's price table, which must list the models."""


ScoringChoice = Literal["Score", "Exclude"]
ProviderChoice = Literal["Exclude", "Zero"]
TamperingChoice = Literal["Report", "Zero", "Exclude"]


class Scoring(Model):
    """How trials are scored, including those whose agent may have caused a failure or changed the verdict. Trials with failures
    that only the infrastructure, task or user can cause are always excluded."""

    key: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    """Name of the only reward that counts. A step without this reward scores 0. If unset, the reward "reward" counts, or, in a step
    without "reward", the mean of all its rewards."""
    strategy: Literal["DeclaredSteps", "AsTask"] = "DeclaredSteps"
    """DeclaredSteps computes the score over all declared steps, with 0 for steps that did not run. AsTask uses the task's own
    reward over the steps that ran, as in Harbor, so an agent can gain by not meeting a gate."""
    pass_: Annotated[float | None, Field(alias="pass", gt=0, allow_inf_nan=False)] = None
    """Minimum score of a passed trial, for pass@k. If unset, a trial passes if every declared step ran and passed."""
    agent_errors: ScoringChoice = "Score"
    """Scoring of trials in which an agent failed with an exception after which Harbor counts no reward, such as ApiRateLimitError,
    ran out of memory or disk, or killed its container. With Score they count, and a step without a verdict counts 0. With Exclude
    they do not count, as in Harbor, so an agent can avoid a 0 by such a failure."""
    environment_errors: ScoringChoice = "Score"
    """Scoring of trials whose verifier, setup.sh or healthcheck failed after an agent had run. With Score they count, and a step
    without a verdict counts 0. With Exclude they do not count, so an agent can avoid a 0 by breaking its environment."""
    provider_errors: ProviderChoice = "Exclude"
    """Scoring of trials that ended, after their retries, because the model's provider failed. With Exclude they do not count. With
    Zero they count 0, so an agent cannot avoid a 0 by requests at which its provider fails, but honest agents lose by outages."""
    override_error_policy: ErrorPolicyOverrides = {}
    """Changes to what follows an exception of a step, by the exception's type, as in Harbor's override_error_policy.
    docs/reference/failures.md lists the types. Each trial gets these changes as its own spec.scoring."""
    tampering: TamperingChoice = "Report"
    """Scoring of trials with evidence of tampering in status.tampering. With Report they count as any other, and reports mark them.
    With Zero they count 0. With Exclude they do not count, and reports list them separately. Findings of kinds that honest agents
    cause too are no evidence."""


_OPEN_NEEDS = "open needs tasks and order Tasks, so that trials keep their numbers, and excludes branch, regrade and retries"


# The index of an entry of `retries` determines the name and the number of the retry's trial, so entries must not move. The rule
# compares only the first and the last old entry, because comparing all entries would exceed CEL's cost limit.
_RETRIES_ARE_KEPT = (
    "!has(oldSelf.retries) || oldSelf.retries.size() == 0 || (has(self.retries) && "
    "self.retries.size() >= oldSelf.retries.size() && self.retries[0] == oldSelf.retries[0] && "
    "self.retries[oldSelf.retries.size() - 1] == oldSelf.retries[oldSelf.retries.size() - 1])",
    "retries may only get further entries at the end",
)
# The index of a task determines the numbers of its trials, so tasks must not move. As for `retries`, only the first and the last
# old entry are compared.
_TASKS_ARE_KEPT = (
    "has(self.tasks) == has(oldSelf.tasks) && (!has(self.tasks) || self.tasks == oldSelf.tasks || "
    "(has(oldSelf.open) && oldSelf.open && self.tasks.size() >= oldSelf.tasks.size() && "
    "self.tasks[0] == oldSelf.tasks[0] && self.tasks[oldSelf.tasks.size() - 1] == oldSelf.tasks[oldSelf.tasks.size() - 1]))",
    "tasks may only get further entries at the end, while open is true: create a new sweep",
)
_CLOSES_FOR_GOOD = (
    "!has(self.open) || !self.open || (has(oldSelf.open) && oldSelf.open)",
    "open cannot be set to true later: create a new sweep",
)


class SweepSpec(Model):
    """Desired state of the sweep. Immutable except suspend, stop, parallelism, prestart, stopWhen, budget, activeDeadlineSeconds,
    the TTL, weights, open, which may become false, retries, which may get more entries, and tasks, which may do so while open."""

    model_config = cel(
        ("has(self.tasks) != has(self.tasksFrom)", "must have exactly one of tasks and tasksFrom"),
        (
            "!has(self.open) || !self.open || (has(self.tasks) && has(self.order) && self.order == 'Tasks' && "
            "!has(self.branch) && !has(self.regrade) && (!has(self.retries) || self.retries.size() == 0))",
            _OPEN_NEEDS,
        ),
        changes={"retries": _RETRIES_ARE_KEPT, "tasks": _TASKS_ARE_KEPT, "open": _CLOSES_FOR_GOOD},
    )
    mutable: ClassVar[tuple[str, ...]] = (
        "suspend",
        "stop",
        "parallelism",
        "prestart",
        "stopWhen",
        "budget",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "retries",
        "tasks",
        "open",
        "weights",
    )
    """Names of the fields that users may change."""

    tasks: Annotated[list[SweepTask], Field(min_length=1, max_length=1000)] = []
    """Tasks, with unique names."""
    open: bool = False
    """If true, tasks may get more entries, and the sweep does not finish before open is set to false, which is final."""
    tasks_from: TasksSource | None = None
    """Source of the tasks: all tasks of one source, sorted by name, or of a dataset, in the dataset's order. The source is resolved
    once, when the sweep starts."""
    agents: Annotated[list[SweepAgent], Field(min_length=1, max_length=64)]
    """Agents that work on each task, with unique names."""
    attempts: Annotated[int, Field(ge=1, le=1000)] = 1
    """Number of trials per task and agent."""
    regrade: SweepRegrade | None = None
    """Verify the trials of another sweep again instead of running agents. The agents must be nop. See docs/how-to/regrade.md."""
    parallelism: Annotated[int, Field(ge=1, le=MAX_PARALLELISM)] = 10
    """Maximum number of active trials. A lower value stops no trial."""
    prestart: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of further trials, beyond parallelism, whose pods are created early. They are suspended before their first step."""
    branch: SweepBranch | None = None
    """Trials of single steps, which start when the ordinary trials have finished. The ordinary trials store checkpoints, which are
    retained with their results."""
    order: Literal["Attempts", "Tasks"] = "Attempts"
    """Attempts runs the first attempts of all tasks before the second ones, for an early estimate. Tasks runs one task after the
    other."""
    template: TrialTemplate = TrialTemplate()
    """Template of the trials."""
    overrides: Annotated[list[TrialOverride], Field(max_length=64)] = []
    """Changes to some trials. If several overrides match a trial, the last one takes precedence."""
    stop_when: StopWhen = StopWhen()
    """Limits at which the sweep creates no more trials. If it reaches one before it has created all trials, it is Failed."""
    budget: SweepBudget | None = None
    """Budget of the trials' model requests. The model gateway refuses a request that might exceed the budget. The sweep is then
    suspended until the budget is raised. Every agent with a model needs access Gateway."""
    weights: SweepWeights | None = None
    """Version of the weights of the agents' model, and whether the agents' requests are held while a trainer updates them. Every
    agent needs access Gateway."""
    scoring: Scoring = Scoring()
    """How trials are scored."""
    active_deadline_seconds: DeadlineSeconds | None = None
    """Timeout in seconds of the whole sweep, excluding suspended time. Then active trials are stopped, and the sweep is Failed."""
    lease: SweepLease | None = None
    """Ends the sweep when its client no longer renews the lease. The Python client renews it while it runs. If unset, the sweep
    has no lease."""
    retries: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_RETRIES)] = []
    """Numbers of trials to run again, after all others. A number may occur more than once, but counts only once: with its first
    trial that has a score, or with its newest trial if none has a score. New entries make a finished sweep continue."""
    suspend: bool = False
    """If true, no trial is created, and active trials are suspended."""
    stop: bool = False
    """If true, no trial is created, active trials are stopped, and the sweep is then Failed. After stop is set back to false, the
    sweep continues if retries has new entries."""
    ttl_seconds_after_finished: WholeSeconds | None = None
    """Seconds after which a finished sweep and its trials are deleted, as for a Job. If unset, they are not deleted."""

    @model_validator(mode="after")
    def _one_kind_of_tasks(self) -> Self:
        if bool(self.tasks) == (self.tasks_from is not None):
            raise ValueError("must have exactly one of tasks and tasksFrom")
        return self

    @model_validator(mode="after")
    def _appended_tasks_keep_numbers(self) -> Self:
        if self.open and (not self.tasks or self.order != "Tasks" or self.branch or self.regrade or self.retries):
            raise ValueError(_OPEN_NEEDS)
        return self

    @model_validator(mode="after")
    def _gateway_has_the_weights(self) -> Self:
        if self.weights is not None and (direct := [each.name for each in self.agents if not each.agent.uses_gateway]):
            raise ValueError(f"weights needs the model gateway: agent {shown(direct[0])} must have access Gateway")
        return self

    @model_validator(mode="after")
    def _gateway_keeps_the_budget(self) -> Self:
        direct = [each.name for each in self.agents if each.agent.hosted and not each.agent.uses_gateway]
        if self.budget is not None and direct:
            raise ValueError(
                f"budget needs the model gateway: agent {shown(direct[0])} must have access Gateway, and credentials with its key"
            )
        return self

    @model_validator(mode="after")
    def _regrade_runs_no_agent(self) -> Self:
        if self.regrade is not None and (wrong := [each.name for each in self.agents if each.agent.name != "nop"]):
            raise ValueError(f"regrade runs no agent: agents[{shown(wrong[0])}].agent.name must be nop")
        if self.regrade is not None and self.branch is not None:
            raise ValueError("branch must not be set with regrade, which verifies what other trials left")
        return self

    @model_validator(mode="after")
    def _user_can_talk_to_the_agents(self) -> Self:
        for each in self.agents if self.regrade is None else ():
            self.template.spec.models.refuse_agent(each.agent)
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        for field, names in (("tasks", _names(self.tasks)), ("agents", _names(self.agents))):
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"{field}: names must be unique; {shown(twice[0])} occurs more than once")
        return self

    @model_validator(mode="after")
    def _overrides_fit(self) -> Self:
        """Check that overrides name known tasks and agents. Tasks of tasksFrom are checked when they are resolved."""
        if self.tasks:
            check_overrides(self.overrides, _names(self.tasks))
        for index, override in enumerate(self.overrides):
            _check_known(f"overrides[{index}].agents", override.agents, _names(self.agents))
        return self

    @model_validator(mode="after")
    def _branches_have_states(self) -> Self:
        if self.branch is not None:
            check_branch_states("template.spec", self.template.spec)
            for index, override in enumerate(self.overrides):
                check_branch_states(f"overrides[{index}].spec", override.spec)
        return self


def check_overrides(overrides: Sequence[TrialOverride], tasks: Iterable[str]) -> None:
    """Raise ValueError if an override names an unknown task."""
    known = set(tasks)
    for index, override in enumerate(overrides):
        _check_known(f"overrides[{index}].tasks", override.tasks, known)


def _check_known(field: str, names: Iterable[str], known: Iterable[str]) -> None:
    there = set(known)
    if unknown := [name for name in names if name not in there]:
        some = ", ".join(sorted(there)[:5])
        raise ValueError(
            f"{field}: {shown(unknown[0])} does not exist in the sweep, which has {some}{' ...' if len(there) > 5 else ''}"
        )


def _names(named: Sequence[SweepTask] | Sequence[SweepAgent]) -> list[str]:
    return [each.name for each in named]


class SweepTrials(Model):
    """Number of trials by state."""

    total: int = 0
    """Number of trials that the sweep will create in total. Those of spec.branch are included once they are planned."""
    created: int = 0
    """Number of created trials."""
    active: int = 0
    """Number of active trials, which are pending, running or suspended."""
    pending: int = 0
    """Number of trials that wait for a pod or for its start."""
    running: int = 0
    """Number of running trials."""
    suspended: int = 0
    """Number of suspended trials."""
    finished: int = 0
    """Number of finished trials, which are complete or failed."""
    complete: int = 0
    """Number of complete trials, whatever their score is."""
    failed: int = 0
    """Number of failed trials."""
    deleted: int = 0
    """Number of deleted trials. They are not created again."""
    counted: int = 0
    """Number of scored trials."""
    retried: int = 0
    """Number of created retries. The counts of created and finished trials do not include them, because each number counts once."""


class SweepAgentStatus(Model):
    """Results of an agent so far."""

    name: str
    """Name of the agent."""
    counted: int = 0
    """Number of scored trials."""
    finished: int = 0
    """Finished trials: scored or excluded."""
    passed: int = 0
    """Number of scored trials that passed."""
    mean: float | None = None
    """Mean over tasks of each task's mean score, as in reports. Unset while no trial is scored."""


class SweepBudgetStatus(Model):
    """The budget in effect."""

    cost_usd: Annotated[float, Field(alias="costUSD")]
    """The budget in US dollars, from spec.budget.costUSD."""
    since: datetime
    """Time at which the operator first saw this budget. Refusals of steps that started earlier do not count."""


class SweepTasksStatus(Model):
    """Resolved source of the tasks, which is the same for all trials."""

    revision: str
    """Commit of the git repository, or digest of the image manifest, of the archive or of the dataset's registry.json."""
    count: int
    """Number of tasks found."""
    config_map: str
    """Immutable ConfigMap with the names of the tasks. For a dataset it also has their repositories, commits and directories."""
    digest: str
    """Digest of the ConfigMap's content."""


class SweepStatus(Model):
    """Observed state of the sweep. It has counts of trials, but does not list them."""

    observed_generation: int | None = None
    """Generation of the spec that this status describes. -1 until an operator has seen the sweep."""
    phase: str | None = None
    """Pending, Running, Suspended, Halting, Complete or Failed, for display. Programs should read the conditions."""
    conditions: list[Condition] = []
    """The conditions Ready, Complete, Failed, Reconciling, Stalled and Suspended, as for a trial."""
    start_time: datetime | None = None
    """Start time."""
    completion_time: datetime | None = None
    """Completion time."""
    suspended_seconds: int | None = None
    """Seconds for which the sweep was suspended, until it last resumed."""
    tasks_from: SweepTasksStatus | None = None
    """The resolved spec.tasksFrom."""
    source_uid: Annotated[str | None, Field(alias="sourceUID")] = None
    """UID of the sweep that spec.regrade names, if it existed when this sweep started."""
    branches: SweepBranchesStatus | None = None
    """The trials of spec.branch. Unset until they are planned."""
    trials: SweepTrials = SweepTrials()
    """Number of trials by state."""
    excluded: dict[Annotated[FailureClass, *OPEN_CHOICE], int] = {}
    """Excluded trials, by failure class."""
    scored_failures: dict[Annotated[FailureClass, *OPEN_CHOICE], int] = {}
    """Number of trials, by failure class, that are scored although a failure ended them, because their agent may have caused it."""
    agents: list[SweepAgentStatus] = []
    """Results of each agent so far."""
    score: str | None = None
    """The agents' mean scores as text, for the printer column."""
    pod_hours: float = 0.0
    """Total pod-hours of the sweep's trials. For each attempt, the time from its first step to its end counts."""
    cost_usd: Annotated[float | None, Field(alias="costUSD")] = None
    """Known cost of the trials' model requests so far, in US dollars. Unset if no request has a known price."""
    budget: SweepBudgetStatus | None = None
    """The budget in effect. Unset without spec.budget."""
    lease: SweepLeaseStatus | None = None
    """The last renewal of the lease. Unset without spec.lease."""
    weights: SweepWeightsStatus | None = None
    """The weights that the model gateway knows. Unset without spec.weights."""


class TrialSweep(Model):
    """A benchmark: tasks x agents x attempts."""

    api_version: str = API_VERSION
    kind: str = SWEEP_KIND
    metadata: Metadata = Metadata()
    spec: SweepSpec
    """Desired state of the sweep."""
    status: SweepStatus = SweepStatus()
    """Observed state of the sweep."""


def parse_sweep(obj: Mapping[str, Any]) -> TrialSweep:
    """Parse a TrialSweep. Raises InvalidSpec with one line per problem, each starting with the field's path."""
    found = parsed(TrialSweep, obj)
    if found.status.start_time is None and not is_finished(found.status):
        refuse_pod_templates((f"spec.{field}.podTemplate", each.pod_template) for field, each in _environments(found.spec))
    return found


def _environments(spec: SweepSpec) -> Iterator[tuple[str, EnvironmentSpec]]:
    yield "template.spec.environment", spec.template.spec.environment
    for index, task in enumerate(spec.tasks):
        yield f"tasks[{index}].environment", task.environment
    for index, override in enumerate(spec.overrides):
        yield f"overrides[{index}].spec.environment", override.spec.environment


def parse_sweep_status(obj: Mapping[str, Any]) -> SweepStatus:
    """Parse only the status of a TrialSweep, which is possible even if the spec is invalid. Raises InvalidSpec."""
    return parsed(SweepStatus, obj.get("status") or {}, under="status.")


def parse_scoring(obj: Mapping[str, Any]) -> Scoring:
    """Parse only spec.scoring of a TrialSweep. Raises InvalidSpec."""
    return parsed(Scoring, (obj.get("spec") or {}).get("scoring") or {}, under="spec.scoring.")
