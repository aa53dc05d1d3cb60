"""The models of a MultiStepTrial's spec.

The models and not the CRD apply defaults, so that a GitOps tool reads back what it wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from multistep.api.common.base_model import DeadlineSeconds, EnvVars, Model, Multiplier, ObjectName, Seconds, WholeSeconds, cel
from multistep.api.task import allowed_names
from multistep.api.task.task_toml import ArtifactConfig, TpuConfig
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.error_policy import ErrorPolicyOverrides
from multistep.api.trial.models_spec import ModelsSpec
from multistep.api.trial.regrade import RegradeSpec
from multistep.api.trial.task_source import TaskSource
from multistep.errors import InvalidSpec


class ResourcesSpec(Model):
    """Resources of the container in place of the task's, like Harbor's override_cpus and override_memory_mb."""

    cpus: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    """Number of CPU cores, as request and limit."""
    memory_mb: Annotated[Annotated[int, Field(ge=1)] | None, Field(alias="memoryMB")] = None
    """Memory in mebibytes, as request and limit."""
    storage_mb: Annotated[Annotated[int, Field(ge=1)] | None, Field(alias="storageMB")] = None
    """Ephemeral storage in mebibytes, as request and limit."""
    gpus: Annotated[int, Field(ge=0)] | None = None
    """Number of GPUs (`nvidia.com/gpu`)."""
    gpu_types: Annotated[list[str], Field(min_length=1, max_length=16)] | None = None
    """Types of GPU of which a node must have one."""
    tpu: TpuConfig | None = None
    """TPU slice."""


_ServiceName = Annotated[str, AfterValidator(allowed_names.service_name), Field(min_length=1, max_length=255)]


class EnvironmentSpec(Model):
    """Overrides of the task's environment."""

    image: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """Image of the container, which overrides the task's docker_image. `multistep build` builds one from a Dockerfile."""
    service_images: dict[_ServiceName, Annotated[str, Field(min_length=1, max_length=4096)]] = {}
    """Images of services of the task's compose files, by the service's name. They replace the file's `image` or `build`. An image
    applies to every service of that name, in the environment and in separate verifiers."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """Pull policy, as in a pod. If `image` is set, Never applies only to it. Images of services and verifiers are then pulled if
    they are not present."""
    env: EnvVars = []
    """Variables of every phase, which override the task's environment.env."""
    pod_template: dict[str, Any] | None = None
    """A PodTemplateSpec that is merged into the trial's pod. The trial's container is named "main"."""
    resources: ResourcesSpec = ResourcesSpec()
    """Resources of the container, and of a separate verifier's, in place of the task's."""
    runner_in_image: bool = False
    """Whether the image contains /multistep/runner. The init container then copies it from this image, so that the operator's image
    is not pulled."""


class VerifierSpec(Model):
    """Verification of the steps."""

    isolation: Literal["Declared", "Separate", "Both"] = "Declared"
    """Where steps are verified. Declared means as the task declares. With Separate, a step for which the task declares no separate
    environment is verified in a new pod of the same image, in which the environment's files, but not its processes, are restored
    from a checkpoint. With Both, such a step is verified in place, and then again in such a pod, and status.tampering reports
    different verdicts."""
    paths: Annotated[list[_AbsolutePath], Field(max_length=64)] = []
    """Directories whose files are restored with isolation Separate or Both. Programs that the agent changed elsewhere are not
    restored. Empty means all files."""
    disable: bool = False
    """Skip verification. There are no rewards then, and gates are ignored."""
    env: EnvVars = []
    """Variables of only the verifier, which override the step's and the task's."""
    timeout_seconds: Seconds | None = None
    """Verifier timeout in seconds, which overrides the steps'. 0 or unset means no override."""
    max_timeout_seconds: Seconds | None = None
    """Upper bound of the timeout in seconds. 0 or unset means no bound."""
    timeout_multiplier: Multiplier | None = None
    """Multiplier of the timeout, which replaces spec.timeoutMultiplier."""


class ArtifactSpec(Model):
    """A path to collect after each step, in addition to those of the task."""

    source: Annotated[str, AfterValidator(allowed_names.artifact_source), Field(min_length=1, max_length=4096)]
    """Path in the environment, without '..'."""
    destination: Annotated[str | None, AfterValidator(allowed_names.artifact_destination), Field(max_length=4096)] = None
    """Relative path under the step's artifacts/. If unset, it is the base name of the source."""
    exclude: Annotated[list[str], Field(max_length=256)] = []
    """Patterns of paths to exclude from a directory, as for tar --exclude."""

    def config(self) -> ArtifactConfig:
        """Return the artifact as an entry of task.toml."""
        return ArtifactConfig(source=self.source, destination=self.destination, exclude=list(self.exclude))


_AbsolutePath = Annotated[str, AfterValidator(allowed_names.absolute_path), Field(max_length=4096)]


class CheckpointsSpec(Model):
    """Checkpoints of the environment's files after each step."""

    policy: Literal["AfterStep", "Never"] = "Never"
    """With AfterStep, the next attempt after an infrastructure failure continues after the last finished step. With Never, it
    starts at step 1. Files are restored, but processes are not, so the next step's setup.sh must start the task's servers."""
    exclude: Annotated[list[_AbsolutePath], Field(max_length=64)] = []
    """Absolute paths that are left out, e.g. of caches. They are missing after a restore."""
    max_bytes: Annotated[int, Field(ge=1, le=2**40)] = 4 * 2**30
    """Maximum size in bytes of one step's changes. A step with larger changes gets no checkpoint, so no attempt resumes after
    it."""
    keep: Literal["WhileActive", "WithResults"] = "WhileActive"
    """WhileActive deletes the checkpoints when the trial is finished. WithResults retains them as long as the trial's results, and
    also stores one after the last step, even for a single-step task."""


_StepName = Annotated[str, AfterValidator(allowed_names.step_name), Field(min_length=1, max_length=255)]


class FromSpec(Model):
    """A step of another trial."""

    trial: ObjectName
    """Name of the trial, in the same namespace. It may be active, or deleted if its results and checkpoints are retained."""
    step: _StepName
    """Name of the step after which this trial continues."""


class TrialTemplateSpec(Model):
    """The part of a trial's spec that does not depend on task and agent, which is also the spec of a sweep's template."""

    environment: EnvironmentSpec = EnvironmentSpec()
    """Overrides of the environment."""
    verifier: VerifierSpec = VerifierSpec()
    """Overrides of the verification."""
    models: ModelsSpec = ModelsSpec()
    """Models by role, beside the agent's."""
    timeout_multiplier: Multiplier = 1.0
    """Multiplier of every timeout of the task that has no multiplier of its own."""
    environment_timeout_multiplier: Multiplier | None = None
    """Multiplier of the environment's start timeout, which replaces timeoutMultiplier."""
    agent_setup_timeout_multiplier: Multiplier | None = None
    """Multiplier of the agent's setup timeout, which replaces timeoutMultiplier."""
    artifacts: Annotated[list[ArtifactSpec], Field(max_length=256)] = []
    """Artifacts to collect after each step, after the task's and before the step's own."""
    variables: EnvVars = []
    """Values of ${NAME} in the env tables of task.toml and in the task's compose files."""
    extra_instructions: Annotated[list[str], Field(max_length=64)] = []
    """Texts to append to the instruction of every step, each after a blank line."""
    on_agent_error: Literal["Abort", "Continue"] = "Abort"
    """Whether the trial continues after a step whose agent failed with an exception. Abort runs no further step. Continue runs the
    next step if the verifier returned a result, as in Harbor."""
    suspend_policy: Literal["Pause", "ReleaseAfterStep", "Release"] = "Pause"
    """Pod of a suspended trial. Pause retains it, ReleaseAfterStep deletes it after the current step, and Release deletes it
    immediately."""
    active_deadline_seconds: DeadlineSeconds | None = None
    """Timeout in seconds of the whole trial, over all attempts, excluding suspended time, after which it is Failed. Unset means no
    timeout."""
    infrastructure_retries: Annotated[int, Field(ge=0, le=100)] = 2
    """How many times an infrastructure failure, or an exception for which scoring has retry, starts a new attempt in a new pod."""
    checkpoints: CheckpointsSpec = CheckpointsSpec()
    """Checkpoints, from which a later attempt can continue."""
    pod_cleanup: Literal["Always", "OnSuccess", "Never"] = "Always"
    """When to delete the pod of a finished trial. OnSuccess retains it if the trial is Failed or has an exception.

    The pod is always deleted after a stop or a deadline, because an agent may still be running in it."""
    pod_ttl_seconds_after_finished: Annotated[WholeSeconds | None, Field(alias="podTTLSecondsAfterFinished")] = None
    """Seconds to keep the pod of a finished trial before podCleanup deletes it. If unset, it is deleted immediately."""
    resume_trajectory: bool = False
    """Start each step from the agent's trajectory of the step before. An agent that cannot resume is rejected, as in Harbor
    0.26."""

    @model_validator(mode="after")
    def _env_keeps_the_gateways_variables(self) -> Self:
        self.models.refuse_variables([each.name for each in self.verifier.env])
        return self


class TrialScoring(Model):
    """What follows exceptions of the trial's steps."""

    override_error_policy: ErrorPolicyOverrides = {}
    """Changes to what follows an exception, by its type, as in Harbor's override_error_policy. docs/reference/failures.md lists the
    types."""


_ONE_START = "must have only one of from and fromStep"


class _TaskAndAgent(Model):
    """Task and agent. They are in a base class of their own, so that these fields come first in TrialSpec."""

    task: TaskSource
    """Source of the task."""
    agent: AgentSpec = AgentSpec(name="oracle")
    """The agent that works on the steps. Defaults to the oracle."""
    regrade: RegradeSpec | None = None
    """Verify the steps of another trial again instead of running an agent. The agent must be nop. See docs/how-to/regrade.md."""
    scoring: TrialScoring = TrialScoring()
    """What follows exceptions of the trial's steps. Trials of a sweep have the sweep's."""


_STOPS_FOR_GOOD = (
    "!has(oldSelf.stop) || !oldSelf.stop || (has(self.stop) && self.stop)",
    "stop cannot be set back to false: create a new trial",
)


class TrialSpec(TrialTemplateSpec, _TaskAndAgent):
    """Desired state of the trial. Immutable except suspend, suspendPolicy, prestart, stop, activeDeadlineSeconds and the TTLs."""

    model_config = cel(("!has(self.from) || !has(self.fromStep)", _ONE_START), changes={"stop": _STOPS_FOR_GOOD})
    mutable: ClassVar[tuple[str, ...]] = (
        "suspend",
        "suspendPolicy",
        "prestart",
        "stop",
        "activeDeadlineSeconds",
        "podTTLSecondsAfterFinished",
        "ttlSecondsAfterFinished",
    )
    """Names of the fields that users may change."""

    from_: Annotated[FromSpec | None, Field(alias="from")] = None
    """Start after a step of another trial, from its checkpoint. The steps up to it are not run again and keep their rewards."""
    from_step: _StepName | None = None
    """Start at this step, from the reference state, which is the files that the task's own solutions of the earlier steps leave."""
    to_step: _StepName | None = None
    """End the trial after this step."""
    suspend: bool = False
    """If true, no further step starts, and no pod is created."""
    prestart: bool = False
    """If true, a trial that is suspended before its first step gets its pod anyway, so that it starts at once when resumed."""
    stop: bool = False
    """If true, the trial is stopped permanently. It is Failed with reason Stopped, without a reward. It cannot be set back to
    false."""
    ttl_seconds_after_finished: WholeSeconds | None = None
    """Seconds after which a finished trial is deleted, as for a Job. If unset, it is not deleted."""

    @model_validator(mode="after")
    def _regrade_only_verifies(self) -> Self:
        if self.regrade is not None and self.agent.name != "nop":
            raise ValueError("regrade runs no agent: agent.name must be nop")
        if self.regrade is not None and self.verifier.disable:
            raise ValueError("verifier.disable must not be true with regrade, which only verifies")
        if self.regrade is not None and (self.from_ is not None or self.from_step is not None):
            raise ValueError("from and fromStep must not be set with regrade, which verifies all steps that its source has")
        return self

    @model_validator(mode="after")
    def _user_can_talk_to_the_agent(self) -> Self:
        if self.regrade is None:
            self.models.refuse_agent(self.agent)
        return self

    @model_validator(mode="after")
    def _agent_can_resume(self) -> Self:
        if self.resume_trajectory and not self.agent.may_resume:
            raise ValueError(f"resumeTrajectory must not be true: {self.agent.label} cannot resume a trajectory")
        if self.resume_trajectory and self.checkpoints.policy != "Never":
            raise ValueError(
                "checkpoints.policy must be Never with resumeTrajectory: agents may keep the session that they resume in the agent "
                "host, whose files no checkpoint has"
            )
        return self

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.from_ is not None and self.from_step is not None:
            raise ValueError(_ONE_START)
        if self.resume_trajectory and (start := "from" if self.from_ is not None else "fromStep" if self.from_step else None):
            raise ValueError(
                f"resumeTrajectory must not be true with {start}: no checkpoint has the agent's session of a kept step"
            )
        return self


MAIN: Final = "main"
AGENT_HOST: Final = "agent-host"
RESERVED: Final = frozenset({"egress", "install-runner", "copy-agent"})
RESERVED_PREFIX: Final = "svc-"
_TOP: Final = frozenset({"metadata", "spec"})
_NAMES: Final = frozenset({"name", "generateName", "namespace"})  # fields without effect, as in any PodTemplateSpec
_METADATA: Final = frozenset({"labels", "annotations", "finalizers", "creationTimestamp", *_NAMES})
_POD_FIELDS: Final = """
    activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy enableServiceLinks hostAliases
    hostIPC hostNetwork hostPID hostUsers hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os
    overhead preemptionPolicy priority priorityClassName readinessGates resourceClaims resources restartPolicy runtimeClassName
    schedulerName schedulingGates schedulingGroup securityContext serviceAccount serviceAccountName setHostnameAsFQDN
    shareProcessNamespace subdomain terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes workloadRef
"""
_CONTAINER_FIELDS: Final = """
    args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy resources
    restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath
    terminationMessagePolicy tty volumeDevices volumeMounts workingDir
"""
_POD: Final = frozenset(_POD_FIELDS.split())
_CONTAINER: Final = frozenset(_CONTAINER_FIELDS.split())
_COMMAND: Final = ("command", "args")


def refuse_pod_templates(templates: Iterable[tuple[str, Mapping[str, Any] | None]]) -> None:
    """Raise InvalidSpec for unknown fields, reserved names of containers, and commands of the operator's containers.

    ``templates`` are pairs of the field's path and the template. The message has a line for each invalid template.
    """
    wrong = [f"{field}: {problem}" for field, template in templates if template and (problem := next(_problems(template), ""))]
    if wrong:
        raise InvalidSpec("\n".join(wrong))


def _problems(template: Mapping[str, Any]) -> Iterator[str]:
    yield from _unknown("", template, _TOP)
    yield from _unknown("metadata", template.get("metadata"), _METADATA)
    spec = template.get("spec")
    yield from _unknown("spec", spec, _POD)
    for field in ("containers", "initContainers"):
        yield from _of_containers(field, (spec or {}).get(field))


def _of_containers(field: str, found: Any) -> Iterator[str]:
    where = f"spec.{field}"
    if found is not None and not isinstance(found, list):
        yield f"{where}: must be a list"
    for index, each in enumerate(found if isinstance(found, list) else []):
        name = each.get("name") if isinstance(each, Mapping) else None
        if not isinstance(name, str) or not name:
            yield f"{where}[{index}].name: must be the container's name"
            return
        place = f"{where}[{name}]"
        yield from _unknown(place, each, _CONTAINER)
        own = (MAIN, AGENT_HOST)
        if name in RESERVED or name.startswith(RESERVED_PREFIX) or (field == "initContainers" and name in own):
            yield f"{place}: the name is reserved for the operator's own container; choose another"
        if name in own and (given := next((each_field for each_field in _COMMAND if each.get(each_field)), "")):
            yield f"{place}.{given}: must not be set; the container runs Multistep's runner, which starts the task's commands"


def _unknown(where: str, found: Any, known: frozenset[str]) -> Iterator[str]:
    if found is not None and not isinstance(found, Mapping):
        yield f"{where}: must be an object"
        return
    for name in sorted(set(found or {}) - known, key=str):
        near = get_close_matches(str(name), known, n=1)
        place = f"{where}.{name}".lstrip(".")
        yield f"{place}: unknown field" + (f"; did you mean {near[0]}?" if near else "")
