"""The plan of a trial: the configuration of every step, with all inheritance, overrides and templates resolved.

A plan depends only on the task, the trial's spec and its variables. It contains secret values, so it is never stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

from multistep.api.task.layout import MAIN
from multistep.api.task.task_toml import ArtifactConfig, HealthcheckConfig
from multistep.api.trial.error_policy import ErrorPolicyOverrides
from multistep.api.trial.runner_records import Identity
from multistep.api.trial.spec import CheckpointsSpec
from multistep.api.trial.status import Isolation
from multistep.engine.plan.hosted_agent import HostedAgent
from multistep.engine.plan.network_types import PUBLIC, Network
from multistep.engine.plan.plan_services import PodServices
from multistep.engine.plan.resolve_templates import Unresolved
from multistep.engine.plan.role_plans import JudgePlan, UserPlan
from multistep.engine.plan.task_steps import WHOLE_TASK, TaskPart
from multistep.engine.plan.verifier_environment import VerifierEnvironment

Env = Mapping[str, str]


@dataclass(frozen=True)
class TrialEnv:
    """The environment variables of a trial's spec, with the values of Secrets and ConfigMaps resolved."""

    variables: Env = field(default_factory=dict)
    """The trial's spec.variables, which templates in task.toml may use."""
    environment: Env = field(default_factory=dict)
    agent: Env = field(default_factory=dict)
    verifier: Env = field(default_factory=dict)
    credentials: Env = field(default_factory=dict)
    """The agent's secret variables, such as API keys."""
    judge: Env = field(default_factory=dict)
    """The providers' keys of spec.models.judge."""
    user: Env = field(default_factory=dict)
    """The providers' keys of spec.models.user."""


@dataclass(frozen=True)
class Hook:
    """A collect hook, which is a command that runs after the agent and before the verifier. Its failure is ignored."""

    command: str
    user: str
    timeout: float | None
    """Timeout in seconds, None for no timeout."""
    service: str = MAIN
    """The service in whose container the hook runs."""


@dataclass(frozen=True)
class VerifierPlan:
    """The verifier of a step."""

    user: str
    timeout: float | None
    """Timeout in seconds, None for no timeout."""
    env: Env | Unresolved
    """The environment variables, or the error if a template names an unset variable."""
    task_tests: bool
    """Whether the task's own tests/ is uploaded."""
    step_tests: bool
    """Whether the step's tests/ is uploaded."""
    environment: VerifierEnvironment | None = None
    """The environment of a separate verifier, None if the verifier runs in the agent's environment."""
    second_environment: VerifierEnvironment | None = None
    """The environment of a second verification, whose verdict is compared with the first one, None for no second verification."""
    network: Network = PUBLIC
    """Network of the verifier's phase."""
    judge_variables: Env = field(default_factory=dict)
    """The phase's variables that give access to the judge's model: for each, the variable of the judge that has the same value
    (judge_plan.judge_sources)."""


@dataclass(frozen=True)
class StepPlan:
    """The plan of one step."""

    name: str
    index: int
    directory: str | None
    """The step's directory below steps/, None for the task's root."""
    instruction: str | None
    workdir: bool
    """Whether the step has a workdir."""
    setup: bool
    """Whether the step's workdir has setup.sh."""
    resume: bool
    """Whether the step's workdir has resume.sh."""
    healthcheck: HealthcheckConfig | None
    agent_user: str
    agent_timeout: float | None
    """Timeout of the agent's phase in seconds, None for no timeout."""
    solution_directory: str | None
    """The directory below steps/ that has the step's solution/, None for the task's root."""
    solve_script: bool
    """Whether the solution has solve.sh."""
    hooks: tuple[Hook, ...]
    verifier: VerifierPlan | None
    min_reward: float | Mapping[str, float] | None
    artifacts: tuple[ArtifactConfig, ...]
    network: Network = PUBLIC
    """Network of the agent's phase."""

    @property
    def verified_apart(self) -> bool:
        """Return whether the step has a separate verifier, whose files are then never in the agent's environment."""
        return self.verifier is not None and self.verifier.environment is not None

    @property
    def verifiers_environment(self) -> VerifierEnvironment | None:
        """Return the environment of the pod for a separate verification, whether first or second, or None without such a pod."""
        return (self.verifier.environment or self.verifier.second_environment) if self.verifier else None

    @property
    def compares_verdicts(self) -> bool:
        """Return whether the step is verified in the agent's environment and again in a new pod, to compare the verdicts."""
        return self.verifier is not None and self.verifier.second_environment is not None

    @property
    def verified_restored(self) -> bool:
        """Return whether the step is verified in a new pod in which the environment's files are restored."""
        apart = self.verifiers_environment
        return apart is not None and apart.restored is not None


@dataclass(frozen=True)
class TrialPlan:
    """The plan of a trial."""

    task_name: str
    image: str
    agent_name: str
    agent_command: tuple[str, ...]
    agent_env: Env
    solution_env: Env | Unresolved
    environment_env: Env
    environment_files: bool
    workdir: str
    healthcheck: HealthcheckConfig | None
    start_timeout: float
    steps: tuple[StepPlan, ...]
    """The task's steps up to the trial's last step, including first steps that another trial ran."""
    strategy: Literal["mean", "final"] | None
    abort_on_agent_error: bool
    single: bool
    """Whether the task has no [[steps]]. A few rules then differ, as in Harbor 0.26's single-step trials."""
    network: Network = PUBLIC
    """Network of the agent's pod outside of the phases of agent and verifier."""
    sidecar: bool = False
    """Whether the agent's pod has an egress sidecar."""
    hosted: HostedAgent | None = None
    judge: JudgePlan | None = None
    user: UserPlan | None = None
    checkpoints: CheckpointsSpec | None = None
    """Spec of the checkpoints from which later attempts resume, None if the trial stores none."""
    snapshots: CheckpointsSpec = field(default_factory=CheckpointsSpec)
    """Limits of the checkpoints that are restored in verifiers' pods."""
    branch: TaskPart = WHOLE_TASK
    """The part of the task that the trial runs."""
    regrade: bool = False
    """Whether the trial verifies the steps of another trial again."""
    services: PodServices | None = None
    error_policy: ErrorPolicyOverrides = field(default_factory=dict)
    """spec.scoring.overrideErrorPolicy."""

    @property
    def separate(self) -> bool:
        """Return whether any step has a verifier in a pod of its own."""
        return any(step.verifiers_environment is not None for step in self.steps)

    @property
    def switches_networks(self) -> bool:
        """Return whether any of the trial's pods has an egress sidecar."""
        return self.sidecar or any(step.verifiers_environment and step.verifiers_environment.sidecar for step in self.steps)

    @property
    def uses_checkpoints(self) -> bool:
        """Return whether checkpoints are stored or restored, for a later attempt, a verifier's pod or a trial with spec.from."""
        apart = not self.regrade and any(step.verified_restored for step in self.steps)
        return self.checkpoints is not None or self.branch.kept > 0 or apart


_ROOT: Final = "0"
_NOBODY_KNOWN: Final[Mapping[str, Identity]] = MappingProxyType({})


def isolation(
    plan: TrialPlan, default_user: str, known: Mapping[str, Identity] = _NOBODY_KNOWN, *, may_become_root: bool = False
) -> Isolation:
    """Return how well verdicts are isolated from agents in the least isolated step.

    Separate means that every verifier runs in a pod of its own. Restored means the same, but the agent's files are restored in at
    least one of these pods. User means that no agent is root, in root's group or a verifier's user, so no agent can change verdicts
    or the runner. Shared means all other cases.

    A collect hook counts as an agent, because it runs in a directory that the agent filled. There, Git, for example, runs commands
    from the directory's own configuration. A custom agent class that must be installed leads to Shared, because the installation
    runs as root and could prepare a way to become root later.

    ``default_user`` is the user of phases that configure none. ``known`` has the ids of users in the image. ``may_become_root``
    means that the image has a program such as sudo, by which any user may become root.
    """
    verifiers = [step.verifier for step in plan.steps if step.verifier]
    shared = [verifier for verifier in verifiers if verifier.environment is None]
    if verifiers and not shared:
        return "Restored" if any(step.verified_restored for step in plan.steps) else "Separate"
    if plan.hosted is not None and plan.hosted.spec.name is None and plan.hosted.spec.installs:
        return "Shared"
    agents = {step.agent_user or default_user for step in plan.steps}
    agents |= {hook.user or default_user for step in plan.steps for hook in step.hooks}
    others = {verifier.user or default_user for verifier in shared} | {_ROOT}
    alike = any(_may_be_one(agent, other, known) for agent in agents for other in others)
    return "Shared" if alike or may_become_root or any(_is_in_roots_group(agent, known) for agent in agents) else "User"


def users_of(plan: TrialPlan) -> set[str]:
    """Return the users of the plan's agents, hooks and verifiers. Their ids decide about the isolation."""
    verifiers = {step.verifier.user for step in plan.steps if step.verifier}
    users = verifiers | {step.agent_user for step in plan.steps} | {hook.user for step in plan.steps for hook in step.hooks}
    return {user for user in users if user}


def _may_be_one(user: str, other: str, known: Mapping[str, Identity]) -> bool:
    """Return whether two users may have the same uid. The uid of a user name other than root depends on the image."""
    uids = [_uid(user, known), _uid(other, known)]
    if None not in uids:
        return uids[0] == uids[1]
    return 0 not in uids and (uids != [None, None] or _name(user) == _name(other))


def _is_in_roots_group(user: str, known: Mapping[str, Identity]) -> bool:
    """Return whether a user is in root's group, which can write protected files, e.g. /etc/passwd, in some images."""
    group = user.partition(":")[2]
    return group == "root" or (group.isdecimal() and int(group) == 0) or (user in known and 0 in known[user].gids)


def _uid(user: str, known: Mapping[str, Identity]) -> int | None:
    if user in known:
        return known[user].uid
    name = _name(user)
    return 0 if name == "root" else int(name) if name.isdecimal() else None


def _name(user: str) -> str:
    return user.partition(":")[0]
