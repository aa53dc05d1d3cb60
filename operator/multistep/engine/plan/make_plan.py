"""Makes a trial's plan: applies the inheritance between parts of task.toml, the overrides of the trial's spec, and templates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

from multistep.api.task.layout import StepLayout, TaskLayout
from multistep.api.task.task_toml import (
    ArtifactConfig,
    EnvironmentConfig,
    HealthcheckConfig,
    StepConfig,
    TaskConfig,
    User,
    VerifierConfig,
)
from multistep.api.trial.spec import CheckpointsSpec, TrialSpec
from multistep.engine.plan.hosted_agent import hosted_agent
from multistep.engine.plan.image_builds import NO_IMAGES, Images, services_of, trial_image, verifier_image
from multistep.engine.plan.judge_plan import judge_sources
from multistep.engine.plan.network_types import Egress, Networks, StepNetworks
from multistep.engine.plan.phase_networks import plan_networks
from multistep.engine.plan.phase_timeouts import real_limit, real_pause, resolve_limit
from multistep.engine.plan.plan import Env, Hook, StepPlan, TrialEnv, TrialPlan, VerifierPlan
from multistep.engine.plan.resolve_templates import Unresolved, resolve_templates, resolved_field
from multistep.engine.plan.role_plans import JudgePlan, user_plan
from multistep.engine.plan.select_artifacts import pass_entries
from multistep.engine.plan.task_steps import files_of, hooks_of, part_of_task, steps_of
from multistep.engine.plan.unsupported_parts import refuse_unsupported
from multistep.engine.plan.verifier_environment import VerifierDefinition, VerifierEnvironment, verifier_definition
from multistep.errors import InvalidSpec

MAX_ENTRIES: Final = 50_000
MAX_HOSTS: Final = 2_000  # smaller than MAX_ENTRIES, because parsing an address takes longer than copying an entry
MAX_CHARACTERS: Final = 4 << 20
MAX_ARTIFACTS: Final = 4_000  # maximum for one step, because the runner's record of a Collect has at most 64 KiB


def refuse_large(config: TaskConfig, steps: Sequence[StepConfig], spec: TrialSpec, variables: int) -> None:
    """Raise InvalidSpec if the steps together have too many entries.

    ``variables`` is the number of variables that each step inherits from the trial.
    """
    own, number = config.verifier, len(steps)
    separate = own.environment or EnvironmentConfig()
    for index, step in enumerate(steps):
        artifacts = len(config.artifacts) + len(spec.artifacts) + len(step.artifacts)
        if artifacts > MAX_ARTIFACTS:
            raise InvalidSpec(f"artifacts: {artifacts} in step {index + 1}, more than the limit of {MAX_ARTIFACTS}")
    entries = len(config.artifacts) + len(spec.artifacts) + len(own.collect) + len(own.env) + len(separate.env) + variables
    where = "artifacts, collect hooks and variables of task.toml's top level and of the trial's spec"
    _refuse(where, number * entries, MAX_ENTRIES, number)
    inherited = len(config.environment.allowed_hosts or ()) + len(config.agent.allowed_hosts or ()) + _hosts(own)
    hosts = number * inherited + sum(len(step.agent.allowed_hosts or ()) + _hosts(step.verifier) for step in steps)
    _refuse("allowed_hosts", hosts, MAX_HOSTS, number)
    characters = number * sum(map(len, spec.extra_instructions))
    _refuse("spec.extraInstructions (characters)", characters, MAX_CHARACTERS, number)


def _hosts(verifier: VerifierConfig) -> int:
    own = verifier.environment.allowed_hosts if verifier.environment else None
    return len(verifier.allowed_hosts or ()) + len(own or ())


def _refuse(where: str, size: int, limit: int, steps: int) -> None:
    if size > limit:
        raise InvalidSpec(f"{where}: {size} over all {steps} steps, more than the limit of {limit}: use fewer, or fewer steps")


Apart = Callable[[VerifierDefinition], VerifierEnvironment]
_MAX_RETRIES = 2**31 - 1


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a trial's plan."""

    config: TaskConfig
    layout: TaskLayout
    spec: TrialSpec
    env: TrialEnv
    networks: Networks
    """The network of each phase."""
    images: Images
    """Images built from the task's Dockerfiles."""

    @cached_property
    def image(self) -> str:
        """Return the image of the environment."""
        return trial_image(self.config, self.layout, self.spec, self.images)

    @cached_property
    def artifacts(self) -> list[ArtifactConfig]:
        """Return the spec's artifact entries, which apply to every step."""
        return [artifact.config() for artifact in self.spec.artifacts]

    @cached_property
    def own_env(self) -> dict[str, str]:
        """Return the environment variables of [environment.env], resolved. Raises InvalidTask."""
        return resolved_field("environment.env", self.config.environment.env, self.env.variables)


def make_plan(
    config: TaskConfig,
    layout: TaskLayout,
    spec: TrialSpec,
    env: TrialEnv,
    *,
    name: str,
    egress: Egress = "Disabled",
    images: Images = NO_IMAGES,
) -> TrialPlan:
    """Return the plan of a trial.

    ``name`` is the task's name if task.toml has none. ``egress`` is the operator's way to limit the networks of trial pods.
    ``images`` are the images built from the task's Dockerfiles. Raises InvalidSpec or InvalidTask.
    """
    refuse_unsupported(config, layout, spec.agent)
    steps = steps_of(config)
    refuse_large(config, steps, spec, len(env.verifier) + len(env.environment))
    inputs = _Inputs(config, layout, spec, env, plan_networks(config, layout, steps, spec, egress), images)
    return _with_services(_trial_plan(inputs, steps, name), inputs)


def _trial_plan(inputs: _Inputs, steps: Sequence[StepConfig], name: str) -> TrialPlan:
    """Return the plan without its services, and without what the compose file sets for its service ``main``."""
    config, layout, spec, env, reach = inputs.config, inputs.layout, inputs.spec, inputs.env, inputs.networks
    branch = part_of_task(spec, [step.name for step in steps], single=not config.steps)
    return TrialPlan(
        task_name=config.task.name if config.task else name,
        image=inputs.image,
        agent_name=spec.agent.label,
        agent_command=tuple(spec.agent.command or ()),
        agent_env=resolved_field("spec.agent.env", env.agent, env.variables),
        solution_env=_attempt(config.solution.env, env),
        environment_env={**inputs.own_env, **env.environment},
        environment_files=_uploads_environment(config, layout),
        workdir=config.environment.workdir or "",
        healthcheck=_healthcheck(config.environment.healthcheck),
        start_timeout=_start_timeout(config, spec),
        steps=tuple(_step_plan(inputs, *indexed_step) for indexed_step in enumerate(steps[: branch.end])),
        strategy=config.multi_step_reward_strategy if config.steps else "final",
        abort_on_agent_error=spec.on_agent_error == "Abort",
        single=not config.steps,
        network=reach.environment,
        sidecar=reach.sidecar,
        hosted=hosted_agent(config, spec, env.credentials) if spec.agent.hosted else None,
        judge=JudgePlan(spec.models.judge, env.judge) if spec.models.judge else None,
        user=user_plan(spec.models.user, env.user, config),
        snapshots=spec.checkpoints,
        checkpoints=None if spec.regrade else _checkpoints(config, spec.checkpoints),
        branch=branch,
        regrade=spec.regrade is not None,
        error_policy=spec.scoring.override_error_policy,
    )


def _with_services(plan: TrialPlan, inputs: _Inputs) -> TrialPlan:
    """Return the plan with its services and with the variables and working directory that the compose file sets for ``main``.

    Those of task.toml take precedence.
    """
    services = services_of(inputs.layout.compose, inputs.image, inputs.spec, inputs.own_env, inputs.env.variables, inputs.images)
    if services is None:
        return plan
    main = services.main
    env = {**main.environment, **plan.environment_env}
    return replace(plan, services=services, environment_env=env, workdir=plan.workdir or main.working_dir)


def _step_plan(inputs: _Inputs, index: int, step: StepConfig) -> StepPlan:
    config, layout, spec, reach = inputs.config, inputs.layout, inputs.spec, inputs.networks.steps[index]
    single = not config.steps
    files = files_of(config, layout, step)
    solution = files if files.solution else layout.root
    return StepPlan(
        name=step.name,
        index=index,
        directory=None if single else step.name,
        instruction=instruction(files.instruction, spec.extra_instructions),
        workdir=files.workdir and not single,
        setup=files.setup and not single,
        resume=files.resume and not single,
        healthcheck=_healthcheck(step.healthcheck),
        agent_user=_user(step.agent.user, config.agent.user, override=spec.agent.user),
        agent_timeout=_agent_timeout(config, spec, step),
        solution_directory=step.name if files.solution and not single else None,
        solve_script=solution.solve_script,
        hooks=tuple(
            Hook(hook.command, _user(hook.user), real_limit(hook.timeout_sec), hook.service) for hook in hooks_of(config, step)
        ),
        verifier=None if spec.verifier.disable else _verifier_plan(inputs, reach, step, files),
        min_reward=step.min_reward,
        artifacts=pass_entries(config.artifacts, inputs.artifacts, step.artifacts),
        network=reach.agent,
    )


def _verifier_plan(inputs: _Inputs, reach: StepNetworks, step: StepConfig, files: StepLayout) -> VerifierPlan:
    config, layout, spec, env = inputs.config, inputs.layout, inputs.spec, inputs.env
    defined = verifier_definition(config, layout, step, files)
    bundled = defined is not None and defined.bundled
    if defined and spec.regrade:
        raise InvalidSpec(f"spec.regrade: {defined.where}: step {step.name} is verified on artifacts, not on a checkpoint")
    apart = partial(_verifier_environment, inputs, reach)
    restored = None if defined else _restored(config, spec, apart)
    both = spec.verifier.isolation == "Both" and spec.regrade is None
    own = {**config.verifier.env, **step.verifier.env, **env.verifier}
    judged = judge_sources(spec.models.judge, own)
    return VerifierPlan(
        user=_user(step.verifier.user, config.verifier.user),
        timeout=resolve_limit(
            step.verifier.timeout_sec,  # as in Harbor 0.26, [verifier].timeout_sec does not apply to [[steps]]
            override=spec.verifier.timeout_seconds,
            maximum=spec.verifier.max_timeout_seconds,
            multiplier=spec.verifier.timeout_multiplier,
            default_multiplier=spec.timeout_multiplier,
        ),
        env=_attempt({name: value for name, value in own.items() if name not in judged}, env),
        task_tests=layout.root.tests and not bundled,
        step_tests=files.tests and bool(config.steps) and not bundled,
        environment=apart(defined) if defined else None if both else restored,
        second_environment=restored if both else None,
        network=reach.verifier,
        judge_variables=judged,
    )


def _restored(config: TaskConfig, spec: TrialSpec, apart: Apart) -> VerifierEnvironment | None:
    """Return the environment of a new pod in which the agent's files are restored, for a verifier without an environment of its
    own.

    Return None if spec.verifier.isolation is Declared and the trial is not a regrade.
    """
    if spec.verifier.isolation == "Declared" and spec.regrade is None:
        return None
    same = apart(VerifierDefinition("environment", config.environment, None))
    # A restored environment needs neither the healthcheck nor the upload of environment/. Both are for a start from the image.
    return replace(same, healthcheck=None, files=False, restored=tuple(spec.verifier.paths))


def _verifier_environment(inputs: _Inputs, reach: StepNetworks, defined: VerifierDefinition) -> VerifierEnvironment:
    config, layout, spec, env = inputs.config, inputs.layout, inputs.spec, inputs.env
    own, image = defined.config, verifier_image(defined, inputs.images) or inputs.image
    own_env = resolved_field(f"{defined.where}.env", own.env, env.variables)
    services = services_of(
        defined.services if defined.bundled else layout.compose, image, spec, own_env, env.variables, inputs.images
    )
    of_other_image = defined.bundled and own is config.environment  # if true, the healthcheck is meant for the agent's image
    return VerifierEnvironment(
        config=own,
        image=image,
        env={**(services.main.environment if services else {}), **own_env, **env.environment},
        healthcheck=None if of_other_image else _healthcheck(own.healthcheck),
        files=_uploads_environment(config, layout) and not defined.bundled,
        own_image=defined.bundled,
        services=services,
        network=reach.verifiers_pod,
        sidecar=reach.sidecar,
    )


def instruction(text: str | None, extra: Sequence[str]) -> str | None:
    """Return ``text`` and the extra instructions, separated by blank lines as in Harbor 0.26, or None if ``text`` is None."""
    if text is None:
        return None
    return "\n\n".join([text, *extra])


def _agent_timeout(config: TaskConfig, spec: TrialSpec, step: StepConfig) -> float | None:
    own = step.agent.timeout_sec
    return resolve_limit(
        config.agent.timeout_sec if own is None else own,
        override=spec.agent.timeout_seconds,
        maximum=spec.agent.max_timeout_seconds,
        multiplier=spec.agent.timeout_multiplier,
        default_multiplier=spec.timeout_multiplier,
    )


def _start_timeout(config: TaskConfig, spec: TrialSpec) -> float:
    own = spec.environment_timeout_multiplier
    limit = real_limit(config.environment.build_timeout_sec * (spec.timeout_multiplier if own is None else own))
    return math.inf if limit is None else limit


def _healthcheck(check: HealthcheckConfig | None) -> HealthcheckConfig | None:
    """Return the healthcheck with its numbers limited to the range that the runner accepts."""
    if check is None:
        return None
    times = ("interval_sec", "timeout_sec", "start_period_sec", "start_interval_sec")
    pauses = {name: real_pause(getattr(check, name)) for name in times}
    return check.model_copy(update={**pauses, "retries": min(max(check.retries, 0), _MAX_RETRIES)})


def _uploads_environment(config: TaskConfig, layout: TaskLayout) -> bool:
    """Return whether to upload environment/. If the task has a Dockerfile, its image already contains these files."""
    return layout.environment_files and bool(config.environment.docker_image) and not (layout.dockerfile or layout.compose)


def _checkpoints(config: TaskConfig, spec: CheckpointsSpec) -> CheckpointsSpec | None:
    """Return the spec of the trial's checkpoints, None if it stores none.

    In a task without [[steps]] only a later trial can use a checkpoint.
    """
    made = spec.policy == "AfterStep" and (bool(config.steps) or spec.keep == "WithResults")
    return spec if made else None


def _user(own: User | None, inherited: User | None = None, *, override: User | None = None) -> str:
    """Return the user of a phase, "" for the USER of the image."""
    for user in (override, own, inherited):
        if user is not None and user != "":
            return str(user)
    return ""


def _attempt(values: Env, env: TrialEnv) -> dict[str, str] | Unresolved:
    try:
        return resolve_templates(values, env.variables)
    except Unresolved as error:
        return error
