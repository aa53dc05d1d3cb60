"""The journal: a trial's progress, rebuilt by replaying its records.

All times are seconds since the epoch, according to the pod's clock.
"""

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
    """The error of a step or a trial."""

    type: str
    """Name of Harbor's exception class, without its module."""
    message: str
    phase: str = ""
    """Phase in which the error occurred, "" for an error of the trial itself."""


@dataclass
class Collected:
    """The outputs of a step that were copied to the results store."""

    types: Sequence[str] = ()
    """Type of each artifact entry, as in engine.plan.select_artifacts.artifacts_manifest."""
    count: int = 0
    """Number of copied files."""
    bytes: int = 0
    incomplete: tuple[str, ...] = ()
    """One line for each source that was not copied completely."""


@dataclass(frozen=True)
class TamperingTraces:
    """The traces of tampering that the operator found in one step of one attempt, all of the same kind."""

    kind: str
    """One of api.trial.status.TamperingKind."""
    attempt: int
    """Number of the attempt."""
    items: tuple[str, ...]
    """The first traces: paths of files, names of processes, or texts."""
    count: int
    """Number of all traces."""


@dataclass(frozen=True)
class AgentInfo:
    """A Harbor agent's description of itself."""

    name: str
    version: str
    model_name: str | None = None
    """None if the agent reports no model."""
    model_provider: str | None = None
    """None if the agent reports no model."""


@dataclass(frozen=True)
class AttemptLost:
    """Why an attempt has no result although its pod runs."""

    reason: str
    """Failure reason of the attempt, or of the trial if ``final`` (api.trial.failure_table)."""
    message: str
    final: bool = False
    """Whether the trial fails without a retry, because another attempt would fail too."""


@dataclass
class StepRun:
    """One step that was started."""

    name: str
    started_at: float | None = None
    completed_at: float | None = None
    phase: str = SETUP
    timings: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    """Phase -> (start, end or None while it runs)."""
    rewards: dict[str, Number] | None = None
    """The step's rewards, None without a verifier result."""
    omitted_rewards: int = 0
    """Number of rewards that are not in ``rewards``, because the status from which the step was read omits them."""
    known_score: tuple[float, bool] | None = None
    """Score and ``passed`` from the step's status, set if rewards are missing."""
    exception: StepException | None = None
    gate_failure: str | None = None
    gate_passed: bool | None = None
    collected: Collected | None = None
    verifier_image_id: str | None = None
    """Image of the step's separate verifier, None if the step has none. A separate verifier runs in a pod of its own."""
    untouched: bool | None = None
    """Whether the separate verifier's pod has no files of the agent yet, None before that pod exists."""
    printed: dict[str, str] = field(default_factory=dict)
    """Phase -> end of its output, for phases whose output is in no file."""
    usage: Usage | None = None
    """Model usage of the step's agent, None unless the agent runs in the agent host."""
    judge_usage: Usage | None = None
    """Model usage of the step's judge, in all runs of its verification."""
    user_usage: Usage | None = None
    """Model usage of the step's simulated user, including its setup."""
    network: Network | None = None
    """The network that currently applies in the agent's pod. None means the environment's network."""
    egress: EgressStatus | None = None
    """Connections of the step's pods that the egress sidecars refused, None without an egress sidecar."""
    metadata: Mapping[str, Any] | None = None
    """Metadata that the agent returned, for result.json."""
    checkpoint: CheckpointStatus | None = None
    findings: tuple[TamperingTraces, ...] = ()
    """Traces of tampering that the operator found before the verification (engine.script.inspect_environment)."""
    verdict_differences: tuple[TamperingTraces, ...] = ()
    """Differences between the step's two verdicts, or why they were not compared (engine.script.compare_verdicts)."""
    trial: str | None = None
    """Name of the trial that ran the step. None means this trial."""
    lost: AttemptLost | None = None
    """Why the attempt ended in this step without a result, e.g. because the model provider failed."""

    def fail(self, exception: StepException | None) -> None:
        """Set the step's exception, unless it already has one. Harbor 0.26 does the same."""
        self.exception = self.exception or exception

    def began(self, phase: str, record: Record) -> None:
        """Set the start of a phase from its first record. The phase lasts until ``timed`` sets its end."""
        self.timings.setdefault(phase, (record.started_at, None))

    def timed(self, phase: str, record: Record) -> None:
        """Set the start and end of a phase from one of its records. Several records of one phase form one span."""
        start, _ = self.timings.get(phase, (record.started_at, None))
        self.timings[phase] = (start, record.ended_at)

    @property
    def durations(self) -> dict[str, float]:
        """Return the duration of each finished phase in seconds."""
        return {phase: end - start for phase, (start, end) in self.timings.items() if end is not None}


@dataclass
class Journal:
    """The progress of a trial."""

    steps: list[StepRun] = field(default_factory=list)
    started_at: float | None = None
    completed_at: float | None = None
    exception: StepException | None = None
    """The exception of the trial itself."""
    rewards: dict[str, Number] | None = None
    """The trial's rewards, set when it is finished."""
    score_rule: ScoreRule | None = None
    """Rule for the trial's score, set when it is finished."""
    finished: bool = False
    broken: bool = False
    """Whether an exception of the trial, and not of a step, ended it."""
    all_steps: bool = False
    """Whether every step ran."""
    agent: AgentInfo | None = None
    """Description of a hosted agent, one that runs in the agent host."""
    agent_setup: tuple[float, float | None] | None = None
    """Start and end of a hosted agent's setup. The end is None while the setup runs."""
    setup_usage: Usage | None = None
    """Model usage of a hosted agent's setup."""
    class_ran_at: float | None = None
    """When the setup of a custom agent class started, None before that and for other agents. The class may have caused every
    failure after this time."""
    lost: AttemptLost | None = None
    """Why the attempt has no result, None if it has one."""
