"""The state of one ``Driver.drive`` call, which runs operations of a trial's script, and the functions of the driver without IO."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from multistep.api.trial.runner_records import Hello, Record
from multistep.api.trial.status import TrialStatus
from multistep.api.trial.trial import MultiStepTrial
from multistep.engine.journal.journal import Journal
from multistep.engine.journal.operations import CloseModelAccess, Collect, Operation, Place, place_of
from multistep.engine.lifecycle.decisions import PodFacts
from multistep.engine.plan.plan import StepPlan
from multistep.engine.script.operation_scope import KeptStep, Scope
from multistep.engine.script.trial_script import AgentScript
from multistep.engine.status.status_size import redacted
from multistep.engine.status.tampering_findings import merged
from multistep.engine.status.trial_status import step_status
from multistep.kube.cluster_protocols import ExecStream
from multistep.pods.pod_manifest import chooses_user
from multistep.reconcile.admission.concurrency_limit import Key
from multistep.runner_client.session import Session
from multistep.sources.load.load_trial import LoadedTrial
from multistep.store.checkpoints.checkpoint_files import CheckpointCommit
from multistep.store.files.trial_key import TrialKey
from multistep.store.harbor import secret_variables
from multistep.store.trial.collect_files import StoredVerifierData

Report = Callable[[Journal, str], Awaitable[None]]
Dismiss = Callable[[StepPlan], Awaitable[None]]


@dataclass(frozen=True)
class Pods:
    """A trial's pods."""

    agent: PodFacts
    verifier: PodFacts | None = None
    """The pod of the current step's separate verifier, None if it does not exist."""
    lost: str = ""
    """Why the pod for the step's second verification cannot be used, "" if it can."""


@dataclass(frozen=True)
class Hooks:
    """Callbacks of the driver."""

    report: Report
    """Writes the progress to the status."""
    dismiss: Dismiss
    """Deletes the pod of a step's verifier."""
    expired: Callable[[], bool]
    """Returns whether the trial's deadline has passed."""
    answered: Callable[[], None] = lambda: None
    """Records that the runner in the agent's pod answered."""


@dataclass
class DriveState:
    """The state of one ``Driver.drive`` call, in which a trial's script continues."""

    trial: MultiStepTrial
    loaded: LoadedTrial
    agent: AgentScript
    pods: Pods
    hooks: Hooks
    scope: Scope
    isolation: str
    """How well verdicts are isolated from agents (engine.plan.plan.isolation)."""
    stack: AsyncExitStack
    """Closes the sessions at the end of the call."""
    deadline: asyncio.Timeout
    """Timeout of the sessions."""
    sessions: dict[Place, Session]
    """The open sessions with runners."""
    records: dict[str, Record] = field(default_factory=dict)
    """All known records, by id."""
    under_way: set[str] = field(default_factory=set)
    """Ids of the operations that were already running when their session opened."""
    workdir: str = ""
    """Working directory of the verifier's environment."""
    chain: Sequence[CheckpointCommit] = ()
    """Layers of the checkpoint from which the attempt continues."""
    protocol: int = 1
    """Protocol version of the runner in the agent's pod."""
    journal: Journal = field(default_factory=Journal)
    """The trial's progress."""
    sidecars: dict[str, ExecStream] = field(default_factory=dict)
    """The open exec sessions with egress sidecars, by UID of their pods."""

    @property
    def key(self) -> TrialKey:
        return TrialKey.of(self.trial)

    @property
    def name(self) -> Key:
        """Return the trial's key in concurrency limits."""
        return self.trial.metadata.namespace, self.trial.metadata.name

    @property
    def prefix(self) -> str:
        """Return the prefix of the ids of this attempt's operations."""
        return f"{self.scope.attempt}/"

    @property
    def shown(self) -> TrialStatus:
        """Return a status with the current steps and findings of tampering, without secrets."""
        steps, found = [step_status(run) for run in self.journal.steps], merged(self.trial.status, self.journal)
        secrets = secret_variables.secret_values(self.loaded.env, self.loaded.task.config, self.loaded.task.layout)
        return redacted(TrialStatus(steps=steps, tampering=found), secrets)

    def hides_end_of_agent(self, operation: Operation | None) -> bool:
        """Return whether the operation directly follows the agent's phase, and the status does not yet show the end of that
        phase."""
        return isinstance(operation, CloseModelAccess) and self.shown.steps != self.trial.status.steps

    def step(self, index: int) -> StepPlan:
        return self.loaded.plan.steps[index]

    def may_send(self, operation: Collect) -> bool:
        """Return whether the pod may send files to the object store.

        It may not if a separate verifier needs the files on the results volume, or if the pod's network is limited.
        """
        limited = self.loaded.plan.network.limited or self.loaded.plan.sidecar
        return self.protocol >= 2 and operation.part == "all" and not limited

    def hands_over(self, operation: Collect) -> bool:
        """Return whether a separate verifier gets the collected artifacts."""
        verifier = self.step(operation.step).verifier
        environment = verifier.environment if verifier and operation.part == "agent" else None
        return environment is not None and environment.restored is None

    def pod(self, where: Place) -> PodFacts:
        """Return the pod with which the session for this place is open."""
        pod = self.pods.verifier if where == "verifier" else self.pods.agent
        assert pod is not None  # an open session has a pod
        return pod

    def verifiers_records(self, step: StepPlan) -> list[dict[str, Any]]:
        """Return the current attempt's records of a step's verifier, as JSON."""
        prefix = f"{self.prefix}{step.name}/"
        return [each.to_json() for id, each in self.records.items() if place_of(id) == "verifier" and id.startswith(prefix)]

    def add_records(self, place: Place, hello: Hello) -> None:
        """Add the records that the runner in ``place`` sent at the start of its session.

        Records of other places and of other attempts are ignored. Otherwise an agent that controls the environment's runner could
        forge records of the verifier and of kept steps.
        """
        session = self.sessions[place]
        own = [each for each in hello.records if place_of(each.id) == place and each.id.startswith(self.prefix)]
        added = {each.id: session.seen(each) for each in own}
        self.records |= added
        self.under_way |= {id for id, each in added.items() if not each.done}

    def add_stored(self, stored: StoredVerifierData) -> None:
        """Add the records of verifiers that have finished.

        If the results volume lacks the files that were collected for another verifier, drop the record of their collection, so that
        it is repeated.
        """
        for index, step in enumerate(self.loaded.plan.steps):
            for each in stored.records.get(index, ()):
                self.records[each["id"]] = Record.from_json(each)
            if step.verified_apart and index not in stored.records and index not in stored.collected:
                self.records.pop(f"{self.prefix}{step.name}/collect", None)

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Return a context manager in which an operation has a timeout of its own. The sessions' timeout is paused meanwhile."""
        now = asyncio.get_running_loop().time
        left = (self.deadline.when() or now()) - now()
        self.deadline.reschedule(now() + seconds)
        try:
            yield
        finally:
            if not self.deadline.expired():
                self.deadline.reschedule(now() + left)

    def add_host(self, session: Session, hello: Hello) -> None:
        """Add the session with the agent host, and the records of its runner."""
        self.sessions["host"] = session
        self.add_records("host", hello)


def agent_works(trial: MultiStepTrial, loaded: LoadedTrial) -> bool:
    """Return whether the agent host runs the current step's agent, according to the status."""
    steps = trial.status.steps
    return loaded.plan.hosted is not None and bool(steps) and steps[-1].phase == "Agent"


def milestones(before: TrialStatus, journal: Journal) -> tuple[int, bool, bool]:
    """Return the progress that the status must show before the next operation.

    These are the number of started steps, whether a custom agent class ran, and whether the verifier's pod may have files of the
    agent. If a container ends later, the status then shows whether the class or the files can be the cause. ``before`` is the
    status at the start of the drive. Its verifier.untouched is true if the verifier's pod has no files of the agent.
    """
    handed_over = bool(before.verifier and before.verifier.untouched and journal.steps[-1].untouched is False)
    return len(journal.steps), journal.class_ran_at is not None, handed_over


def started_part(journal: Journal) -> Journal:
    """Return the journal without the steps that have not started."""
    return replace(journal, steps=[run for run in journal.steps if run.started_at is not None])


def scope_of(trial: MultiStepTrial, loaded: LoadedTrial, hello: Hello, *, isolated: bool, kept: tuple[KeptStep, ...]) -> Scope:
    """Return the scope of the operations of a trial's current attempt."""
    return Scope(
        plan=loaded.plan,
        attempt=trial.status.attempt or 1,
        workdir=hello.workdir,
        runtime_dir=hello.runtime_dir,
        trial_uid=trial.metadata.uid,
        isolated=isolated,
        kept=kept,
        source=trial.status.regraded,
    )


def needs_root(trial: MultiStepTrial, hello: Hello, image_user: str | None) -> bool:
    """Return whether the pod must be recreated as root, because the runner needs root to create /logs and /tests and to switch
    users.

    A user that is set in the pod template is not changed.
    """
    return hello.user.uid != 0 and image_user is None and not chooses_user(trial)


def user_of(hello: Hello) -> str:
    """Return the user that the runner runs as, as UID:GID."""
    return f"{hello.user.uid}:{hello.user.gid}"


@dataclass(frozen=True)
class Progressed:
    """Result of a drive: the script has finished (``journal.finished``), or a phase takes long."""

    journal: Journal


@dataclass(frozen=True)
class AgentStillRuns:
    """Result of a drive: there was nothing to do, because the agent host is still running the current step's agent."""


@dataclass(frozen=True)
class PausedBetweenSteps:
    """Result of a drive: the trial, which is to be suspended, has finished a step."""

    journal: Journal


@dataclass(frozen=True)
class RootRequired:
    """Result of a drive: the pod must be created again as root."""

    image_user: str
    """The image's user, who then runs the phases."""


@dataclass(frozen=True)
class VerifierRequired:
    """Result of a drive: the pod of a step's verifier must be created."""

    journal: Journal
    step: StepPlan
    image_user: str | None = None
    """The image's user, set if the pod must be recreated as root."""


@dataclass(frozen=True)
class TransferQueued:
    """Result of a drive: a checkpoint must be stored or restored, but the limit of concurrent transfers is reached."""

    journal: Journal


@dataclass(frozen=True)
class Postponed:
    """A result: the next operation must wait. seconds: how long; why: text for the status."""

    journal: Journal
    seconds: float
    why: str


DriveResult: TypeAlias = (
    Progressed | AgentStillRuns | PausedBetweenSteps | RootRequired | VerifierRequired | TransferQueued | Postponed
)
