"""The models of a MultiStepTrial's status. Fields that are marked with JOURNAL are stored in status.journal (status_journal)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain, repeat
from typing import Annotated, Final, Literal, Protocol

from pydantic import Field, model_validator

from multistep.api.common.base_model import OPEN_CHOICE, Model
from multistep.api.trial.regrade import RegradeStatus
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status_journal import FIELD, JOURNAL, joined
from multistep.api.trial.task_source import TaskSourceStatus
from multistep.api.trial.values import Outcome

ANOTHER_TRIAL: Final = 0
"""Attempt number of the steps that another trial ran. The trial's own attempts start at 1."""


class RefusedTarget(Model):
    """A network target that the egress sidecar refused."""

    protocol: str
    """Protocol, which is dns (a lookup of the host), tls or http (the server's name), tcp, udp, icmp, or a protocol's number."""
    host: str
    """Name or address, as the pod's processes chose it."""
    port: int | None = None
    """Number of the port. Unset for protocols without ports."""
    count: int
    """Number of refused lookups, connections or packets."""


class EgressStatus(Model):
    """Network targets that the egress sidecar refused to processes of the step's pods. A refusal is no failure of the step
    (docs/how-to/egress.md)."""

    refused: list[RefusedTarget] = []
    """The targets that were refused most often."""
    others: int = 0
    """Number of refused connections to targets that ``refused`` does not list."""


def total(parts: Iterable[EgressStatus], most: int) -> EgressStatus:
    """Return the sum of the parts, which lists at most ``most`` targets, the most frequent ones first."""
    counts, others = Counter[tuple[str, str, int | None]](), 0
    for part in parts:
        others += part.others
        for each in part.refused:
            counts[each.protocol, each.host, each.port] += each.count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], *map(str, item[0])))
    kept = [RefusedTarget(protocol=protocol, host=host, port=port, count=count) for (protocol, host, port), count in ordered[:most]]
    return EgressStatus(refused=kept, others=others + sum(count for _, count in ordered[most:]))


class ImageStatus(Model):
    """An image of the trial's pods that is built in the cluster."""

    name: str
    """Purpose of the image: environment, tests, steps/NAME/tests, or a service, e.g. environment/docker-compose.yaml/db."""
    build: str
    """Digest of the build's inputs (context, Dockerfile, arguments and platform), which is the image's tag."""
    image: str | None = None
    """The image with its digest. Unset until it is in the registry."""
    log: str | None = None
    """URL of the build's log. Unset if the registry already had the image."""


Rewards = dict[str, int | float]
Isolation = Literal["Separate", "Restored", "User", "Shared"]
TamperingKind = Literal[
    "SystemFileChanged",
    "ProgramShadowed",
    "StartupHook",
    "TestHook",
    "WorkdirHook",
    "VerifierFilesPlanted",
    "SurvivingProcesses",
    "InspectionIncomplete",
    "VerdictsDiffer",
    "ComparisonIncomplete",
    "ComparisonPrevented",
    "ExecSessionsKilled",
    "RunnerReplaced",
]
FailureClass = Literal["Agent", "Verifier", "Task", "Infrastructure", "Provider", "Configuration", "User"]


class Condition(Model):
    """A metav1.Condition. It describes the generation in status.observedGeneration."""

    type: Annotated[str, Field(max_length=316)]
    """Type of the condition. Complete, Failed and Suspended are as for a Job. Ready, Reconciling and Stalled are as for kstatus."""
    status: Literal["True", "False", "Unknown"]
    """Status of the condition."""
    last_transition_time: datetime
    """Time of the last change of status."""
    reason: Annotated[str, Field(max_length=1024)]
    """Machine-readable reason, one word."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Human-readable message."""


class TrialException(Model):
    """An exception of the trial as a whole."""

    type: str
    """Harbor's exception class, such as HealthcheckError."""
    message: str = ""
    """What failed, where, and what to do."""


class ExceptionStatus(TrialException):
    """An exception of a step."""

    phase: str | None = None
    """Phase that failed: setup, healthcheck, agent, verifier or artifacts."""


class TrialFailure(Model):
    """Why the trial finished early. docs/reference/failures.md lists all reasons."""

    class_: Annotated[FailureClass, *OPEN_CHOICE, Field(alias="class")]
    """Where the failure occurred: Agent, Verifier, Task, Infrastructure, Provider, Configuration or User."""
    reason: str
    """Reason of the condition Failed, or the exception type that ended a Complete trial."""
    step: str | None = None
    """Name of the step that failed."""


class PhaseSeconds(Model):
    """Duration in seconds of each phase of a step. Unset for a phase that did not run."""

    setup: float | None = None
    """Duration of workdir/setup.sh."""
    healthcheck: float | None = None
    """Duration of the healthcheck with its retries."""
    agent: float | None = None
    """Duration of the agent's run."""
    verifier: float | None = None
    """Duration of the verification, including upload and download."""
    artifacts: float | None = None
    """Duration of the collection of logs and artifacts."""


class ArtifactsSummary(Model):
    """Files collected after a step."""

    count: int = 0
    """Number of files."""
    bytes: int = 0
    """Total size in bytes."""
    incomplete: list[str] | None = None
    """Sources that were not collected completely, with the reason. manifest.json names the files."""


class Usage(Model):
    """Usage of the model requests of an agent, a judge or a simulated user. Unset fields are unknown."""

    input_tokens: int | None = None
    """Number of input tokens, including cached ones."""
    cached_tokens: int | None = None
    """Number of input tokens that the provider read from its cache."""
    output_tokens: int | None = None
    """Number of output tokens."""
    cost_usd: Annotated[float | None, Field(alias="costUSD")] = None
    """Cost in US dollars. Unset if a price is unknown."""
    requests: int | None = None
    """Number of model requests. Only the gateway counts them."""
    incomplete: Annotated[int | None, JOURNAL] = None
    """Number of requests whose usage the gateway does not know, because they were cut off or lost. The amounts do not include
    them."""
    held_seconds: Annotated[float | None, JOURNAL] = None
    """Seconds for which requests waited at the gateway, because the provider refused further requests."""
    source: Annotated[Literal["Gateway", "Agent"], *OPEN_CHOICE] = "Agent"
    """Who counted the tokens. Gateway is the model gateway, which reads them from the provider's responses. Agent is the agent
    itself, which can be wrong."""
    prices: Annotated[str | None, JOURNAL] = None
    """Price table with which the cost was computed."""


class CheckpointStatus(Model):
    """The checkpoint after a step, which has the step's changes to the environment's file system."""

    digest: str | None = None
    """SHA-256 of the checkpoint's commit file, which lists its files, the records of its steps, and the earlier checkpoint on which
    it is based."""
    bytes: Annotated[int | None, JOURNAL] = None
    """Size of the stored layer and its manifest, compressed."""
    entries: Annotated[int | None, JOURNAL] = None
    """Number of changed and deleted paths."""
    processes: Annotated[int | None, JOURNAL] = None
    """Number of processes that the step left running. A restore loses them."""
    shared_memory: Annotated[bool | None, JOURNAL] = None
    """Whether /dev/shm has files. A restore loses them."""
    missing: str | None = None
    """Why the step has no checkpoint. No later attempt can resume directly after the step."""


class StepStatus(Model):
    """A started step."""

    name: str
    """Name of the step in the task."""
    phase: str | None = None
    """Current phase, for display."""
    rewards: Rewards | None = None
    """Rewards from the verifier, by key. {} is a result without keys, and null is no result."""
    omitted_rewards: int | None = None
    """Number of further rewards that only result.json has. Unset if there are none."""
    score: Annotated[float | None, JOURNAL] = None
    """The step's part of the trial's score, which is the reward "reward", else the mean of all rewards, but at least 0. Unset
    without a result."""
    passed: bool | None = None
    """Whether the step passed. It passed if min_reward was met or, without min_reward, if the reward "reward" (every reward if
    there is no "reward") is 1 or more. Unset without a result."""
    exception: ExceptionStatus | None = None
    """The first exception, if any."""
    start_time: datetime | None = None
    """Start time."""
    phase_start_time: Annotated[datetime | None, JOURNAL] = None
    """Start time of the current phase. Unset until its first operation, and when the step is completed."""
    completion_time: datetime | None = None
    """Completion time."""
    seconds: PhaseSeconds | None = None
    """Seconds of each phase."""
    hidden_seconds: Annotated[PhaseSeconds | None, JOURNAL] = None
    """The same as ``seconds``, in a status that is too large to show them."""
    artifacts: Annotated[ArtifactsSummary | None, JOURNAL] = None
    """Collected files."""
    verifier_image_id: Annotated[str | None, JOURNAL, Field(alias="verifierImageID")] = None
    """Image of the separate verifier's pod, with its digest, as resolved by the kubelet."""
    usage: Annotated[Usage | None, JOURNAL] = None
    """Tokens and cost of the agent's model requests. Unset without an agent of Harbor."""
    judge_usage: Annotated[Usage | None, JOURNAL] = None
    """Tokens and cost of the judge's model requests. Unset if it made none."""
    user_usage: Annotated[Usage | None, JOURNAL] = None
    """Tokens and cost of the simulated user's model requests. Unset if it made none."""
    egress: Annotated[EgressStatus | None, JOURNAL] = None
    """Network targets that were refused to the step's pods. Unset without an egress sidecar."""
    gate: Annotated[bool | None, JOURNAL] = None
    """Whether min_reward was met. Unset without a gate or without a result."""
    checkpoint: CheckpointStatus | None = None
    """Checkpoint after the step. Unset without spec.checkpoints. The last step has one only with checkpoints.keep WithResults."""
    trial: str | None = None
    """Name of the other trial that ran the step (spec.from, spec.fromStep). Unset if this trial ran it. status.usage does not
    include the usage of another trial's step."""

    @property
    def phase_seconds(self) -> PhaseSeconds | None:
        """Return the seconds of each phase, from the field that has them, None if they are unknown."""
        return self.seconds or self.hidden_seconds


class Tampering(Model):
    """A finding in the agent's environment that could change a verdict. See docs/reference/tampering.md."""

    attempt: int
    """Number of the attempt."""
    step: str
    """Name of the step to which the finding belongs."""
    kind: Annotated[TamperingKind, *OPEN_CHOICE]
    """Kind of the finding."""
    detail: str = ""
    """The files or processes, with names that the agent chose."""


class ResumeStatus(Model):
    """The checkpoint from which an attempt continued."""

    after: str
    """Name of the step after which the attempt continued."""
    attempts: list[int]
    """For each step up to ``after``, the number of the attempt that ran it. 0 stands for another trial."""
    digest: str
    """Digest of the checkpoint, as in the step's status."""


class StartStatus(Model):
    """The checkpoint of another trial from which the trial starts."""

    trial: str
    """Name of the other trial."""
    uid: str
    """UID of the other trial."""
    step: str
    """Name of the step after which this trial continues."""
    digest: str
    """Digest of the checkpoint, as in the other trial's status."""


class AttemptStatus(Model):
    """An attempt that failed, or whose pod was deleted during a suspension."""

    number: int
    """Number of the attempt, from 1."""
    pod_name: str | None = None
    """Name of the pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """UID of the pod."""
    node_name: str | None = None
    """Node of the pod."""
    image_id: Annotated[str | None, JOURNAL, Field(alias="imageID")] = None
    """Image of the pod, with its digest, as resolved by the kubelet."""
    runner_image_id: Annotated[str | None, JOURNAL, Field(alias="runnerImageID")] = None
    """Image from which the pod's runner comes, with its digest."""
    start_time: datetime | None = None
    """Start time."""
    completion_time: datetime | None = None
    """Completion time."""
    reason: str | None = None
    """Machine-readable reason why the attempt failed."""
    message: str | None = None
    """Human-readable message."""
    steps: Annotated[list[StepStatus], JOURNAL] = []
    """Steps of the attempt. First come those before the checkpoint from which it resumed, then those that it started."""
    resumed: Annotated[ResumeStatus | None, JOURNAL] = None
    """The checkpoint from which the attempt continued. Unset if it started at step 1."""

    @property
    def own_steps(self) -> list[StepStatus]:
        """Return the steps that the attempt started itself."""
        return self.steps[len(_kept(self.resumed)) :]


class VerifierStatus(Model):
    """Pod of the current step's separate verifier."""

    pod_name: str
    """Name of the pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """UID of the pod."""
    image_user: str | None = None
    """User of the image, as reported by the runner."""
    start_time: datetime | None = None
    """Time at which the pod was first requested."""
    untouched: bool | None = None
    """True until the agent's files are copied to the pod. Until then, no agent can have caused a failure in it."""


class TrialStatus(Model):
    """Observed state of the trial."""

    observed_generation: int | None = None
    """Generation of the spec that this status describes. -1 until an operator has seen the trial."""
    phase: str | None = None
    """Phase, for display. Programs should read the conditions."""
    conditions: list[Condition] = []
    """The conditions Ready, Complete, Failed, Reconciling, Stalled and Suspended. All but Ready are listed only while they are
    True. Suspended is also listed after a suspension, until the trial is finished."""
    isolation: Annotated[Isolation, *OPEN_CHOICE] | None = None
    """Isolation of agent and verifier: separate pods (Separate), separate pods with the agent's files restored (Restored), separate
    users (User), or none (Shared)."""
    attempt: int | None = None
    """Number of the current or last attempt, from 1."""
    pod_name: str | None = None
    """Name of the pod."""
    pod_uid: Annotated[str | None, Field(alias="podUID")] = None
    """UID of the pod."""
    node_name: str | None = None
    """Node of the pod."""
    image_id: Annotated[str | None, Field(alias="imageID")] = None
    """Image of the pod, with its digest, as resolved by the kubelet."""
    runner_image_id: Annotated[str | None, JOURNAL, Field(alias="runnerImageID")] = None
    """Image from which the pod's runner comes, with its digest. It is the operator's image, or one that `multistep build` built."""
    agent_host_image_id: Annotated[str | None, JOURNAL, Field(alias="agentHostImageID")] = None
    """Image of the agent host, with its digest. Unset without an agent of Harbor."""
    container_id: Annotated[str | None, JOURNAL, Field(alias="containerID")] = None
    """ID of the pod's main container when the first step started. A different ID later means that the container was restarted."""
    image_user: Annotated[str | None, JOURNAL] = None
    """User of the image, as reported by the runner, which is the default user of phases."""
    verifier: Annotated[VerifierStatus | None, JOURNAL] = None
    """Pod of a separate verifier, until it is deleted."""
    task: str | None = None
    """Name of the task."""
    task_steps: list[str] = []
    """Names of the task's steps, in order, up to spec.toStep. Empty until the task is read, and in a status that is too large."""
    task_source: TaskSourceStatus | None = None
    """The resolved spec.task. Unset for bundle and inline, which cannot change."""
    images: list[ImageStatus] = []
    """Images of the trial's pods that the cluster builds from the task's Dockerfiles. They are the same for all attempts."""
    start_time: datetime | None = None
    """Start time of the trial."""
    completion_time: datetime | None = None
    """Completion time."""
    suspended_seconds: Annotated[int | None, JOURNAL] = None
    """Seconds for which the trial was suspended, queued, or unable to write its results, until it last resumed."""
    started_from: Annotated[StartStatus | None, JOURNAL] = None
    """The checkpoint of another trial from which the trial starts. Its copy belongs to attempt 0. Unset if the trial starts from
    the image."""
    resumed: Annotated[ResumeStatus | None, JOURNAL] = None
    """The checkpoint from which the current attempt continues. Unset if it started at step 1."""
    regraded: Annotated[RegradeStatus | None, JOURNAL] = None
    """The source of a regrade. Unset until it is found, and without spec.regrade."""
    agent_setup_time: Annotated[datetime | None, JOURNAL] = None
    """When the setup of a custom agent class (`spec.agent.importPath`) started in this attempt. The class can have caused every
    later failure."""
    current_step: str | None = None
    """Name of the current step."""
    steps: list[StepStatus] = []
    """Started steps, in order."""
    attempts: list[AttemptStatus] = []
    """Earlier attempts."""
    tampering: list[Tampering] = []
    """Findings that could have changed a verdict, in all attempts."""
    rewards: Rewards | None = None
    """Rewards of the trial. {} is a result without keys, and null is no result."""
    outcome: Annotated[Outcome, *OPEN_CHOICE] | None = None
    """How the trial ended: Passed, NotPassed, GateNotMet, AgentError, VerifierError, TaskError, Unverified or Excluded. Unset while
    the trial is active."""
    score: float | None = None
    """The number that sweeps count, over all declared steps, with 0 for each step without a result. Unset if the trial is active,
    if verification is disabled, or if no agent can have caused the failure that ended the trial."""
    passed: bool | None = None
    """Whether every declared step ran and passed. Unset without a score."""
    score_rule: Annotated[ScoreRule | None, JOURNAL] = None
    """The rule by which the score was computed. Unset until the trial is finished."""
    exception: Annotated[TrialException | None, JOURNAL] = None
    """Exception of the trial as a whole, if any."""
    failure: TrialFailure | None = None
    """Why the trial finished early, and the failure class. Unset if a gate ended the trial."""
    usage: Usage | None = None
    """Tokens and cost of the agent's model requests in all steps of the last attempt."""
    judge_usage: Annotated[Usage | None, JOURNAL] = None
    """Tokens and cost of the judge's model requests in all steps of the last attempt; unset if it made none."""
    user_usage: Annotated[Usage | None, JOURNAL] = None
    """Tokens and cost of the simulated user's model requests in the last attempt; unset if it made none."""
    results: str | None = None
    """URL of the results."""
    results_store: str | None = None
    """URL of the files in the operator's object store, if it has one. manifest.jsonl describes each file."""
    journal: str | None = None
    """Details for the operator and for `multistep show -o json`, as gzip of JSON in base64."""

    @model_validator(mode="before")
    @classmethod
    def _with_journal(cls, value: object) -> object:
        return joined(TrialStatus, value) if isinstance(value, Mapping) and value.get(FIELD) is not None else value

    @property
    def own_steps(self) -> list[StepStatus]:
        """Return the started steps without those that another trial ran."""
        return [each for each in self.steps if each.trial is None]

    @property
    def kept_steps(self) -> int:
        """Return how many steps of ``steps`` the current attempt did not run, because it resumed from a checkpoint."""
        return len(_kept(self.resumed))

    def listed_steps(self) -> dict[int, list[tuple[int, StepStatus]]]:
        """Return the listed steps of each attempt, by attempt number, each with the number of the attempt that ran it.

        An attempt that resumed from a checkpoint also lists the earlier steps.
        """
        found = {each.number: _with_runner(each.number, _kept(each.resumed), each.steps) for each in self.attempts}
        if self.attempt is not None:
            found.setdefault(self.attempt, _with_runner(self.attempt, _kept(self.resumed), self.steps))
        return found

    @property
    def has_own_step(self) -> bool:
        """Return whether the current attempt started a step itself. Steps before its checkpoint do not count."""
        return self.current_step is not None and (self.resumed is None or len(self.steps) > self.kept_steps)

    @property
    def agent_acted(self) -> bool:
        """Return whether an agent may have acted in the current attempt, in a step or in the setup of a custom agent class."""
        return self.has_own_step or self.agent_setup_time is not None

    def steps_by_attempt(self) -> dict[int, list[StepStatus]]:
        """Return the steps that each attempt ran itself, by attempt number. Each step is in the result once."""
        return _by_runner(self.listed_steps())


def _kept(resumed: ResumeStatus | None) -> list[int]:
    """Return, for each step that an attempt did not run itself, the number of the attempt that ran it."""
    return resumed.attempts if resumed else []


def _with_runner(attempt: int, kept: Sequence[int], steps: Iterable[StepStatus]) -> list[tuple[int, StepStatus]]:
    """Return the steps that an attempt lists, each with the number of the attempt that ran it."""
    return list(zip(chain(kept, repeat(attempt)), steps, strict=False))


def _by_runner(listed: Mapping[int, Iterable[tuple[int, StepStatus]]]) -> dict[int, list[StepStatus]]:
    """Return the steps that each of the trial's attempts ran. ``listed`` has the steps of each attempt from ``_with_runner``.

    If several attempts list a step, the result has the step as the last of them lists it. The list of the attempt that ran the step
    may show it as unfinished, if the pod was lost before the status showed the step's end, or lack it, if the status was too large.
    """
    found: dict[int, dict[int, StepStatus]] = {attempt: {} for attempt in listed}
    for steps in listed.values():
        for index, (runner, step) in enumerate(steps):
            found.setdefault(runner, {})[index] = step
    own = {attempt: steps for attempt, steps in found.items() if attempt != ANOTHER_TRIAL or attempt in listed}
    return {attempt: list(steps.values()) for attempt, steps in own.items()}


class HasConditions(Protocol):
    """A status that has conditions."""

    conditions: list[Condition]


def holds(status: HasConditions, type_: str) -> Condition | None:
    """Return the condition of this type if its status is True, else None."""
    return next((each for each in status.conditions if each.type == type_ and each.status == "True"), None)


def is_finished(status: HasConditions) -> bool:
    """Return whether the trial or sweep is finished, which means Complete or Failed."""
    return bool(holds(status, "Complete") or holds(status, "Failed"))
