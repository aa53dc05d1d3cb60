"""The journal: a trial's progress, rebuilt by replaying its records. Times are seconds since the epoch, by the pod's clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multistep.api.trial.runner_records import Record
from multistep.api.trial.score import ScoreRule
from multistep.api.trial.status import CheckpointStatus, EgressStatus, Usage
from multistep.api.trial.values import SETUP
from multistep.engine.plan.network_types import Network

Number = float | int


@dataclass(frozen=True)
class StepException:
    """The error of a step or a trial. type: Harbor's bare class name; phase: where it occurred, "" for the trial itself."""

    type: str
    message: str
    phase: str = ""


@dataclass
class Collected:
    """The outputs of a step that were copied to the results store. types: type of each artifact entry, as in
    engine.plan.select_artifacts.artifacts_manifest; incomplete: one line for each source that was not copied completely."""

    types: Sequence[str] = ()
    count: int = 0
    bytes: int = 0
    incomplete: tuple[str, ...] = ()


@dataclass(frozen=True)
class TamperingTraces:
    """The traces of tampering of one kind (api.trial.status.TamperingKind) that one step of an attempt has. attempt: number of that
    attempt; items: the first traces: paths of files, names of processes, or texts; count: number of all traces."""

    kind: str
    attempt: int
    items: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class AgentInfo:
    """A Harbor agent, as it describes itself. model_name, model_provider: None if the agent reports no model."""

    name: str
    version: str
    model_name: str | None = None
    model_provider: str | None = None


@dataclass(frozen=True)
class AttemptLost:
    """Why an attempt has no result although its pod runs. reason: failure reason of the attempt, or of the trial if ``final``
    (api.trial.failure_table); final: whether the trial fails without a retry, because another attempt would fail, too."""

    reason: str
    message: str
    final: bool = False


@dataclass
class StepRun:
    """One step that was started. timings: phase -> (start, end or None while it runs); rewards: None without a verifier result."""

    name: str
    started_at: float | None = None
    completed_at: float | None = None
    phase: str = SETUP
    timings: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    rewards: dict[str, Number] | None = None
    omitted_rewards: int = 0  # number of rewards that are missing, because the status from which the step was read omits them
    known_score: tuple[float, bool] | None = None  # score and ``passed`` in the step's status, if rewards are missing
    exception: StepException | None = None
    gate_failure: str | None = None
    gate_passed: bool | None = None
    collected: Collected | None = None
    verifier_image_id: str | None = None  # image of the separate verifier; None without one
    untouched: bool | None = None  # whether the separate verifier's pod has no files of the agent yet; None before there is a pod
    printed: dict[str, str] = field(default_factory=dict)  # phase -> end of its output, for phases whose output is in no file
    usage: Usage | None = None  # model usage of a hosted agent
    network: Network | None = None  # the network in force in the agent's pod; None: the environment's network
    egress: EgressStatus | None = None  # connections that were refused to the step's pods; None without an egress sidecar
    metadata: Mapping[str, Any] | None = None  # metadata that the agent returned, for result.json
    checkpoint: CheckpointStatus | None = None
    findings: tuple[
        TamperingTraces, ...
    ] = ()  # traces of tampering, found before the verification (engine.script.inspect_environment)
    verdict_differences: tuple[
        TamperingTraces, ...
    ] = ()  # between the two verdicts, or why they were not compared (compare_verdicts)
    trial: str | None = None  # name of the trial that ran the step; None: this trial
    lost: AttemptLost | None = None  # set if the step has no result, e.g. because the model provider failed

    def fail(self, exception: StepException | None) -> None:
        """Record an exception, unless the step already has one, as in Harbor 0.25."""
        self.exception = self.exception or exception

    def began(self, phase: str, record: Record) -> None:
        """Record the start of a phase with the first of its records. The phase lasts until ``timed``."""
        self.timings.setdefault(phase, (record.started_at, None))

    def timed(self, phase: str, record: Record) -> None:
        """Record the start and end of a phase; several records of one phase form one span."""
        start, _ = self.timings.get(phase, (record.started_at, None))
        self.timings[phase] = (start, record.ended_at)

    @property
    def durations(self) -> dict[str, float]:
        """Return the seconds per finished phase."""
        return {phase: end - start for phase, (start, end) in self.timings.items() if end is not None}


@dataclass
class Journal:
    """The progress of a trial.

    exception: the exception of the trial itself; rewards: the trial's rewards, set when it is finished; broken: whether the
    environment failed; all_steps: whether every step ran; score_rule: rule for the trial's score, set when it is finished.
    agent: description of a hosted agent; agent_setup: start and end of a hosted agent's setup; setup_usage: the setup's model
    usage; class_ran_at: when the setup of a custom agent class started, since the class may have caused every later failure; None
    before, and for other agents; lost: why the attempt has no result, None if it has one.
    """

    steps: list[StepRun] = field(default_factory=list)
    started_at: float | None = None
    completed_at: float | None = None
    exception: StepException | None = None
    rewards: dict[str, Number] | None = None
    score_rule: ScoreRule | None = None
    finished: bool = False
    broken: bool = False
    all_steps: bool = False
    agent: AgentInfo | None = None
    agent_setup: tuple[float, float | None] | None = None
    setup_usage: Usage | None = None
    class_ran_at: float | None = None
    lost: AttemptLost | None = None
