"""The MultiStepTrial resource: its fields in snake case. The CRD is generated from these models.

Defaults are applied here, not by the CRD, so that a GitOps tool reads back what it wrote. Times are seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from ..errors import InvalidSpec
from . import names
from .problems import problems
from .task import ArtifactConfig

GROUP = "multistep.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "MultiStepTrial"
PLURAL = "multisteptrials"

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Multiplier = Annotated[float, Field(ge=0, allow_inf_nan=False)]
WholeSeconds = Annotated[int, Field(ge=0, le=2**31 - 1)]
DeadlineSeconds = Annotated[int, Field(ge=1, le=2**31 - 1)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253)]
Rewards = dict[str, int | float]
FailureClass = Literal["Agent", "Verifier", "Task", "Infrastructure", "User"]

_M = TypeVar("_M", bound=BaseModel)


class Model(BaseModel):
    """camelCase in the resource, snake case here; a null counts as absent, as it does for the API server."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: object) -> object:
        return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else value


def cel(rule: str, message: str) -> ConfigDict:
    """A rule that the API server checks, too. The models check the same in Python, for those who read files."""
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": [{"rule": rule, "message": message}]})


class KeySelector(Model):
    """A key of a Secret or ConfigMap in the trial's namespace."""

    name: ObjectName
    """Name of the Secret or ConfigMap."""
    key: ObjectName
    """The key in it."""
    optional: bool = False
    """When true, a missing object or key leaves the variable unset instead of stopping the trial."""


class EnvVarSource(Model):
    """Where a variable's value comes from: exactly one of these."""

    model_config = cel(
        "has(self.secretKeyRef) != has(self.configMapKeyRef)",
        "must have exactly one of secretKeyRef and configMapKeyRef",
    )

    secret_key_ref: KeySelector | None = None
    """A key of a Secret."""
    config_map_key_ref: KeySelector | None = None
    """A key of a ConfigMap."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.secret_key_ref is None) == (self.config_map_key_ref is None):
            raise ValueError("must have exactly one of secretKeyRef and configMapKeyRef")
        return self


class EnvVar(Model):
    """An environment variable, as in a pod: a value, or where it comes from."""

    model_config = cel("!has(self.value) || !has(self.valueFrom)", "must have only one of value and valueFrom")

    name: Annotated[str, Field(pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$", max_length=1024)]
    """Letters, digits, '_', '.' and '-', not beginning with a digit."""
    value: str | None = None
    """The value as it is; "" when neither this nor valueFrom is given."""
    value_from: EnvVarSource | None = None
    """Where the value comes from."""

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.value is not None and self.value_from is not None:
            raise ValueError("must have only one of value and valueFrom")
        return self


EnvVars = Annotated[list[EnvVar], Field(max_length=256)]


class BundleSource(Model):
    """A task packed into ConfigMaps, as `multistep package` writes it."""

    config_maps: Annotated[list[ObjectName], Field(min_length=1, max_length=256)]
    """The immutable ConfigMaps that hold the parts, in order."""
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    """Digest of the whole bundle, sha256: and 64 hexadecimal digits."""


class InlineSource(Model):
    """A small task written into the trial itself."""

    config: dict[str, Any]
    """What a task.toml would hold."""
    files: Annotated[dict[str, str], Field(max_length=1024)] = {}
    """Text files by their path in the task directory; a name ending in .sh makes it executable."""


class SecretReference(Model):
    """A Secret in the trial's namespace."""

    name: ObjectName
    """Its name."""


class OCISource(Model):
    """A task in a registry: what `multistep package --to oci://...` pushed, or any image that holds a task's directory."""

    image: Annotated[str, Field(min_length=1, max_length=1024)]
    """HOST/REPOSITORY:TAG or HOST/REPOSITORY@sha256:DIGEST. A tag is resolved once, when the trial begins."""
    path: Annotated[str, AfterValidator(names.path_in_source), Field(max_length=4096)] = ""
    """The task's directory in an ordinary image; unset: its root."""
    secret_ref: SecretReference | None = None
    """A Secret of type kubernetes.io/dockerconfigjson."""


_NO_CREDENTIALS = "must not hold credentials: put them into a Secret and name it in secretRef"


class _AtURL(Model):
    """What names a URL, which holds no credentials."""

    model_config = cel("!self.url.matches('^[a-z0-9]+://[^/]*@')", f"url {_NO_CREDENTIALS}")

    url: str

    @model_validator(mode="after")
    def _without_credentials(self) -> Self:
        if names.has_credentials(self.url):
            raise ValueError(f"url {_NO_CREDENTIALS}")
        return self


class GitSource(_AtURL):
    """A task in a git repository, without submodules and Git LFS."""

    url: Annotated[str, Field(pattern=r"^https?://", max_length=2048)]
    """Where it is cloned from, https:// or http://."""
    ref: Annotated[str, Field(min_length=1, max_length=255)] | None = None
    """A branch, a tag, a commit (40 digits) or refs/...; unset: the default branch. It is resolved once, when the trial begins."""
    path: Annotated[str, AfterValidator(names.path_in_source), Field(max_length=4096)] = ""
    """The task's directory in the repository; unset: its top."""
    secret_ref: SecretReference | None = None
    """A Secret of type kubernetes.io/basic-auth, or with the key token; it may have ca.crt."""


class URLSource(_AtURL):
    """A packed task at a URL."""

    url: Annotated[str, Field(pattern=r"^(https?|s3|gs)://", max_length=2048)]
    """https://, http://, s3://BUCKET/KEY or gs://BUCKET/KEY."""
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    """Digest of the file, a tar.gz: sha256: and 64 hexadecimal digits."""
    path: Annotated[str, AfterValidator(names.path_in_source), Field(max_length=4096)] = ""
    """The task's directory in it; unset: its top."""
    secret_ref: SecretReference | None = None
    """A Secret with username and password, token, AWS_ACCESS_KEY_ID and so on; docs/task-sources.md has them all."""


_SOURCES = ("bundle", "inline", "oci", "git", "url")
_ONE_SOURCE = f"must have exactly one of {', '.join(_SOURCES[:-1])} and {_SOURCES[-1]}"


class TaskSource(Model):
    """Where the task comes from: exactly one of bundle, inline, oci, git and url."""

    model_config = cel(f"[{', '.join(f'has(self.{each})' for each in _SOURCES)}].filter(x, x).size() == 1", _ONE_SOURCE)

    name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """What to call the task when its config has no task.name; `multistep package` puts the directory's name here."""
    bundle: BundleSource | None = None
    """A packed task."""
    inline: InlineSource | None = None
    """A task written here."""
    oci: OCISource | None = None
    """A task in a registry."""
    git: GitSource | None = None
    """A task in a git repository."""
    url: URLSource | None = None
    """A task at a URL."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(getattr(self, each) is not None for each in _SOURCES) != 1:
            raise ValueError(_ONE_SOURCE)
        return self

    @property
    def kind(self) -> str:
        """The name of the one that is there."""
        return next(each for each in _SOURCES if getattr(self, each) is not None)

    @property
    def remote(self) -> bool:
        """Whether it is fetched from outside of the cluster."""
        return self.bundle is None and self.inline is None

    @property
    def secret_ref(self) -> SecretReference | None:
        """The Secret with its credentials, if it names one."""
        source = self.oci or self.git or self.url
        return source.secret_ref if source else None


class EnvironmentSpec(Model):
    """The environment, where the trial is to differ from the task."""

    image: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """The container's image; overrides the task's docker_image. `multistep build` makes one of a Dockerfile."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """As in a pod."""
    env: EnvVars = []
    """Variables for everything in the environment, over the task's environment.env."""
    pod_template: dict[str, Any] | None = None
    """A PodTemplateSpec that is merged into the trial's pod; the trial's container is called "main"."""
    runner_in_image: bool = False
    """The image holds /multistep/runner already, so that no init container is needed."""


class AgentSpec(Model):
    """Who works on the steps."""

    model_config = cel(
        "(self.name == 'command') == has(self.command)",
        "command is required with name 'command', and not possible with any other",
    )

    name: Literal["oracle", "nop", "command"]
    """oracle plays the task's solution, nop does nothing, command runs the command given here."""
    command: Annotated[list[str], Field(min_length=1, max_length=1024)] | None = None
    """Program and arguments of the command agent, who finds the instruction in $MULTISTEP_INSTRUCTION_FILE."""
    env: EnvVars = []
    """Variables for the agent only."""
    timeout_seconds: Seconds | None = None
    """Overrides the step's and the task's limit; 0 or unset does not."""
    max_timeout_seconds: Seconds | None = None
    """Cap on the limit; 0 or unset is none."""
    timeout_multiplier: Multiplier | None = None
    """Multiplies the limit in place of spec.timeoutMultiplier."""
    user: str | int | None = None
    """Name or uid; overrides the task's agent user."""

    @model_validator(mode="after")
    def _command_is_for_command(self) -> Self:
        if (self.name == "command") != (self.command is not None):
            raise ValueError("command is required with name 'command', and not possible with any other")
        return self


class VerifierSpec(Model):
    """How the steps are verified."""

    disable: bool = False
    """No verification: no rewards, and gates are ignored."""
    env: EnvVars = []
    """Variables for the verifier only, over the step's and the task's."""
    timeout_seconds: Seconds | None = None
    """Overrides the steps' limit; 0 or unset does not."""
    max_timeout_seconds: Seconds | None = None
    """Cap on the limit; 0 or unset is none."""
    timeout_multiplier: Multiplier | None = None
    """Multiplies the limit in place of spec.timeoutMultiplier."""


class ArtifactSpec(Model):
    """A path to collect after each step, besides those of the task."""

    source: Annotated[str, AfterValidator(names.artifact_source), Field(min_length=1, max_length=4096)]
    """Path in the environment, without '..'."""
    destination: Annotated[str | None, AfterValidator(names.artifact_destination), Field(max_length=4096)] = None
    """Relative path below the step's artifacts/; unset: the base name of the source."""
    exclude: Annotated[list[str], Field(max_length=256)] = []
    """Patterns of what to leave out of a directory, as tar's --exclude."""

    def config(self) -> ArtifactConfig:
        """The same as an entry of a task.toml."""
        return ArtifactConfig(source=self.source, destination=self.destination, exclude=list(self.exclude))


def _no_resume(value: bool) -> bool:
    if value:
        raise ValueError("must not be true: none of the agents can resume a trajectory")
    return value


class TrialTemplateSpec(Model):
    """How a trial is run, whatever its task and agent: what a sweep's trials have in common."""

    environment: EnvironmentSpec = EnvironmentSpec()
    """Where it runs."""
    verifier: VerifierSpec = VerifierSpec()
    """How it is verified."""
    timeout_multiplier: Multiplier = 1.0
    """Multiplies every time limit of the task that has no multiplier of its own."""
    environment_timeout_multiplier: Multiplier | None = None
    """Multiplies the limit of the environment's start, in place of timeoutMultiplier."""
    agent_setup_timeout_multiplier: Multiplier | None = None
    """Multiplies the limit of the agent's setup, in place of timeoutMultiplier."""
    artifacts: Annotated[list[ArtifactSpec], Field(max_length=256)] = []
    """Collected after each step, after the task's and before the step's own."""
    variables: EnvVars = []
    """What ${NAME} in the env tables of task.toml stands for."""
    extra_instructions: Annotated[list[str], Field(max_length=64)] = []
    """Texts appended to the instruction of every step, each after a blank line."""
    on_agent_error: Literal["Abort", "Continue"] = "Abort"
    """After an agent's exception: no further step; or, like Harbor, go on if the verifier gave a result."""
    suspend_policy: Literal["Pause", "ReleaseAfterStep", "Release"] = "Pause"
    """What becomes of a pod that runs: Pause keeps it after the current step, the others remove it after the step or at once."""
    active_deadline_seconds: DeadlineSeconds | None = None
    """Time for the whole trial, over all attempts, but not while it is suspended; then it is Failed. Unset: no limit."""
    infrastructure_retries: Annotated[int, Field(ge=0, le=100)] = 2
    """How often the trial begins anew, in a new pod, after a fault of the infrastructure."""
    pod_cleanup: Literal["Always", "OnSuccess", "Never"] = "Always"
    """When to delete the pod of a finished trial; OnSuccess keeps it after Failed or an exception.

    None is kept after a stop or at the deadline, when an agent may still be at work in it."""
    pod_ttl_seconds_after_finished: Annotated[WholeSeconds | None, Field(alias="podTTLSecondsAfterFinished")] = None
    """How long a finished pod stays before podCleanup removes it; unset: not at all."""
    resume_trajectory: Annotated[bool, AfterValidator(_no_resume)] = False
    """Not supported: true is refused."""


class _TaskAndAgent(Model):
    """What a trial is about; a base, so that these fields come first."""

    task: TaskSource
    """The task."""
    agent: AgentSpec = AgentSpec(name="oracle")
    """Who works on it; the oracle when unset."""


class TrialSpec(TrialTemplateSpec, _TaskAndAgent):
    """What to run. Immutable but for suspend, suspendPolicy, prestart, stop, activeDeadlineSeconds and the TTLs."""

    suspend: bool = False
    """While true, no further step begins, and a trial without a pod gets none."""
    prestart: bool = False
    """While suspended before its first step, it gets its pod all the same, made ready up to that step, to begin at once."""
    stop: bool = False
    """true ends the trial for good: Failed with reason Stopped, without a reward. It cannot be taken back."""
    ttl_seconds_after_finished: WholeSeconds | None = None
    """Deletes the trial this long after its end, as a Job's; unset: never."""


class Condition(Model):
    """A metav1.Condition: what machines read."""

    type: Annotated[str, Field(max_length=316)]
    """Complete, Failed and Suspended as a Job's; Ready, Reconciling and Stalled as kstatus reads them."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: int | None = None
    """The generation of the spec that this is about."""
    last_transition_time: datetime
    """When status changed last."""
    reason: Annotated[str, Field(max_length=1024)]
    """One word for machines."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """A sentence for people."""


class TrialException(Model):
    """What went wrong on the trial's level."""

    type: str
    """Harbor's class of the exception, such as HealthcheckError."""
    message: str = ""
    """What happened, to what, and what to do."""


class StepException(TrialException):
    """What went wrong in a step."""

    phase: str | None = None
    """setup, healthcheck, agent, verifier or artifacts."""


class TrialFailure(Model):
    """What ended the trial before its time, for machines; failures.md has all reasons."""

    class_: Annotated[FailureClass, Field(alias="class")]
    """Whose doing it was."""
    reason: str
    """That of the condition Failed, or the type of the exception that ended a trial which is Complete."""
    step: str | None = None
    """The step in which it happened."""


class Durations(Model):
    """How long a step's phases took, in seconds; unset: not run."""

    setup: float | None = None
    """workdir/setup.sh."""
    healthcheck: float | None = None
    """All its attempts."""
    agent: float | None = None
    """The agent."""
    verifier: float | None = None
    """test.sh with upload and download."""
    artifacts: float | None = None
    """Collection."""


class ArtifactsSummary(Model):
    """What was collected after a step."""

    count: int = 0
    """Files."""
    bytes: int = 0
    """Their size together."""
    uri: str | None = None
    """Where they are."""


class StepStatus(Model):
    """A step that was started."""

    name: str
    """As in the task."""
    phase: str | None = None
    """For display."""
    rewards: Rewards | None = None
    """What the verifier gave, by key; {} is a result without keys, null is no result."""
    exception: StepException | None = None
    """The first thing that went wrong, if any."""
    start_time: datetime | None = None
    """When it began."""
    completion_time: datetime | None = None
    """When it ended."""
    durations: Durations | None = None
    """Of its phases."""
    artifacts: ArtifactsSummary | None = None
    """What was collected."""
    gate: bool | None = None
    """Whether min_reward was met; null when there is no gate or it was not reached."""


class AttemptStatus(Model):
    """An earlier pod of the trial, with what it had reached."""

    number: int
    """From 1."""
    pod_name: str | None = None
    """Its pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """The pod's UID."""
    node_name: str | None = None
    """The pod's node."""
    start_time: datetime | None = None
    """When it began."""
    end_time: datetime | None = None
    """When it ended."""
    reason: str | None = None
    """One word: why it ended."""
    message: str | None = None
    """A sentence: why it ended."""
    steps: list[StepStatus] = []
    """The steps it had started."""


class VerifierStatus(Model):
    """The pod where the current step is verified, apart from the agent's."""

    pod_name: str
    """The pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """The pod's UID."""
    image_user: str | None = None
    """Its image's own user, as the runner reported it."""
    start_time: datetime | None = None
    """When it was first wanted."""


class TaskSourceStatus(Model):
    """What a task from outside of the cluster was when the trial began, and is for all of its attempts."""

    revision: str
    """The commit, or the digest of the image's manifest or of the file."""
    digest: str
    """Digest of the task as it was unpacked from there."""


class TrialStatus(Model):
    """What the operator found."""

    observed_generation: int | None = None
    """The generation of the spec this status is about; -1 until an operator saw the trial."""
    phase: str | None = None
    """For display; machines read the conditions."""
    conditions: list[Condition] = []
    """Complete, Failed, Ready, Reconciling, Stalled, Suspended."""
    isolation: Literal["Separate", "User", "Shared"] | None = None
    """What kept agent and verifier apart: a pod of its own, another user, or nothing."""
    attempt: int | None = None
    """Number of the pod that runs or ran last, from 1."""
    pod_name: str | None = None
    """The pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """The pod's UID."""
    node_name: str | None = None
    """The pod's node."""
    image_user: str | None = None
    """The image's own user, as the runner reported it: the default user of phases."""
    verifier: VerifierStatus | None = None
    """The pod of a separate verifier, while it works (or has not been removed)."""
    task: str | None = None
    """What the task is called."""
    task_source: TaskSourceStatus | None = None
    """What spec.task was resolved to; unset for bundle and inline, which cannot change."""
    start_time: datetime | None = None
    """When the trial began."""
    completion_time: datetime | None = None
    """When it ended."""
    suspended_seconds: int | None = None
    """How long it was suspended, or its pod held back by a queue, since it began, up to the last time it went on."""
    current_step: str | None = None
    """The step that runs."""
    steps: list[StepStatus] = []
    """The steps that were started, in order."""
    attempts: list[AttemptStatus] = []
    """Earlier pods."""
    rewards: Rewards | None = None
    """The trial's rewards; {} is a result without keys, null is no result."""
    reward: str | None = None
    """rewards.reward as text, for the column."""
    exception: TrialException | None = None
    """What went wrong on the trial's level, if anything."""
    failure: TrialFailure | None = None
    """What ended the trial before its time, and whose doing it was; unset after a gate."""
    results: str | None = None
    """Where the results are (URI)."""
    results_store: str | None = None
    """Where their files are in the operator's object store (URL), if it has one; manifest.jsonl tells what each is."""

    def steps_by_attempt(self) -> dict[int, list[StepStatus]]:
        """The steps that each attempt had started, by its number: those that were lost, and the current one."""
        found = {each.number: each.steps for each in self.attempts}
        if self.attempt is not None:
            found.setdefault(self.attempt, self.steps)
        return found


class Metadata(Model):
    """The part of metav1.ObjectMeta that is used."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class MultiStepTrial(Model):
    """One run of a multi-step task by one agent."""

    api_version: str = API_VERSION
    kind: str = KIND
    metadata: Metadata = Metadata()
    spec: TrialSpec
    """What to run."""
    status: TrialStatus = TrialStatus()
    """What was found."""


def parse_trial(obj: Mapping[str, Any]) -> MultiStepTrial:
    """The resource as a model. InvalidSpec: one line for each problem, beginning with the field's path."""
    return parsed(MultiStepTrial, obj)


def parse_status(obj: Mapping[str, Any]) -> TrialStatus:
    """Only the resource's status, which can be read even when its spec cannot."""
    return parsed(TrialStatus, obj.get("status") or {}, under="status.")


def parsed(model: type[_M], document: Mapping[str, Any], under: str = "") -> _M:
    """A document as a model. under: what the paths of its fields begin with. InvalidSpec: one line for each problem."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise InvalidSpec("\n".join(f"{under}{problem}" for problem in problems(error, document))) from None
