"""Checks a task without a cluster: problems, unknown keys, required variables, the steps' timeouts.

``examine`` runs the operator's own checks (sources.reader.accept_task, engine.plan.make_plan) one after the other, and returns all
that they find. ``validate`` does so before a trial or a sweep is submitted, for the command line and the Python client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from pydantic import ValidationError

from multistep.api.common.problems import problems as schema_problems
from multistep.api.sweep.sweep import SweepSpec
from multistep.api.task.suspicious_values import not_finite, unknown_keys
from multistep.api.task.task_toml import GPU_TYPES, TaskConfig, toml_table
from multistep.api.trial.agent_spec import AgentSpec
from multistep.api.trial.spec import EnvironmentSpec, TrialSpec, VerifierSpec
from multistep.api.trial.task_source import TaskSource
from multistep.client.task.files_without_effect import entrypoint, no_effect
from multistep.client.task.findings import Finding, Locator
from multistep.client.task.lint import lint, refused_values, reward_key_warnings
from multistep.client.task.task_directory import TaskDirectory
from multistep.engine.plan.container_resources import node_terms
from multistep.engine.plan.image_builds import needed_builds
from multistep.engine.plan.make_plan import make_plan
from multistep.engine.plan.phase_networks import limited_networks
from multistep.engine.plan.plan import StepPlan, TrialEnv, TrialPlan
from multistep.engine.plan.resolve_templates import (
    Unresolved,
    compose_variables,
    resolve_templates,
    template_tables,
    used_variables,
)
from multistep.engine.plan.unsupported_parts import unsupported_parts
from multistep.errors import InvalidSpec, InvalidTask, SourceError, UsageError
from multistep.pods.pod_manifest import reserved_ports
from multistep.pods.service_containers import refuse_ports
from multistep.providers import PROVIDERS, judge_variables
from multistep.settings import Settings
from multistep.sources.reader.accept_task import accept_task
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.bundle_links import entry_at
from multistep.sources.task.task import CONFIG_FILE, Task

_RESERVED_PORTS = reserved_ports(Settings.model_construct(), sidecar=False)  # ports that an operator with default settings reserves


Remedy = Callable[[Sequence[str]], str]
"""Returns how to give variables a value. Its argument: their names."""
Show = Callable[[str, str], object]
"""Shows a finding that does not make the task invalid. Its arguments: "warning" or "note", and the text."""


@dataclass(frozen=True)
class StepSummary:
    """A step's plan."""

    name: str
    agent_limit: float | None
    """Timeout of the agent, in seconds."""
    verifier_limit: float | None
    """Timeout of the verifier, in seconds."""
    gate: Mapping[str, float] | None
    """The minimum reward by key; None without a gate."""
    setup: bool
    healthcheck: bool
    tests: str
    """Where the tests come from: own, shared, image or none."""


@dataclass(frozen=True)
class Report:
    """The result of all checks of a task."""

    name: str
    problems: tuple[Finding, ...] = ()
    """Why the task cannot be run."""
    warnings: tuple[Finding, ...] = ()
    """Likely mistakes, and what has no effect."""
    notes: tuple[Finding, ...] = ()
    """What depends on the operator's settings or on the trial's agent. It is no mistake of the task."""
    steps: tuple[StepSummary, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    """Each variable without a default, with a field whose template uses it."""
    used: frozenset[str] = frozenset()
    """Names of all variables that templates use, with or without a default."""

    @property
    def ok(self) -> bool:
        """Report whether the operator would accept the task."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        steps = [_json_step(each) for each in self.steps]
        kinds = {"problems": self.problems, "warnings": self.warnings, "notes": self.notes}
        found = {kind: [asdict(each) for each in findings] for kind, findings in kinds.items()}
        return {"name": self.name, "ok": self.ok, **found, "variables": dict(self.variables), "steps": steps}


def validate(
    task: TaskDirectory,
    *,
    agents: Sequence[AgentSpec],
    given: Collection[str],
    show: Show,
    remedy: Remedy,
    verification: bool = True,
    image: str | None = None,
) -> Report:
    """Show a task's warnings and notes, and return the report on it.

    agents: agents of the trials. given: names of the variables that have a value. verification: whether the trials run verifiers.
    image: image that replaces the task's image. Raises InvalidTask if the task cannot be run, UsageError if a variable is missing.
    """
    report = examine(task.bundle(), task.directory_name, verification=verification, agents=agents, image=image or None)
    for kind, findings in (("warning", report.warnings), ("note", report.notes)):
        for finding in findings:
            show(kind, f"task {task.name}: {finding}")
    if not report.ok:
        raise InvalidTask("\n".join([f"the task {task.directory_name} cannot be run:", *map(str, report.problems)]))
    if missing := [name for name in report.variables if name not in given]:
        raise UsageError(f"{report.variables[missing[0]]} needs a variable: {remedy(missing)}")
    return report


def validate_tasks(
    tasks: Sequence[TaskDirectory], spec: SweepSpec, *, show: Show, remedy: Remedy, image: str | None = None
) -> list[Report]:
    """Validate the tasks of a sweep, and return their reports. Arguments and errors are those of ``validate``."""
    trials = [spec.template.spec, *(each.spec for each in spec.overrides)]
    return [
        validate(
            task,
            agents=[each.agent for each in spec.agents],
            given={name for trial in trials for name in (*(each.name for each in trial.variables), *trial.models.variables)},
            show=show,
            remedy=remedy,
            verification=not spec.template.spec.verifier.disable,
            image=image,
        )
        for task in tasks
    ]


@dataclass(frozen=True)
class _Subject:
    """A task, and what is known of the trials that will run it."""

    bundle: Bundle
    directory_name: str
    verification: bool
    """Whether the trials run verifiers."""
    agents: Sequence[AgentSpec]
    """The trials' agents; () if they are unknown."""
    image: str | None
    """An image that replaces the task's image."""


def examine(
    bundle: Bundle,
    directory_name: str,
    *,
    verification: bool = True,
    agents: Sequence[AgentSpec] = (),
    image: str | None = None,
    mistakes: bool = False,
) -> Report:
    """Return the report on a task.

    verification: whether the trials run verifiers (see sources.task.task.load_task). agents: agents of the trials, if known. image:
    image that replaces the task's image. mistakes: whether to warn of likely mistakes, too.
    """
    try:
        table = toml_table(_config_text(bundle))
    except InvalidTask as error:
        report, table = Report(directory_name, (_problem(error),)), {}
    else:
        report = _examined(_Subject(bundle, directory_name, verification, agents, image), table)
        if mistakes:
            report = replace(report, warnings=(*report.warnings, *lint(bundle, table)))
    locator = Locator(table, bundle)
    problems, warnings, notes = (tuple(map(locator.located, found)) for found in (report.problems, report.warnings, report.notes))
    return replace(report, problems=problems, warnings=warnings, notes=notes)


def _examined(subject: _Subject, table: Mapping[str, Any]) -> Report:
    unknown = tuple(Finding(each.path, each.text) for each in unknown_keys(table))
    try:
        config = TaskConfig.model_validate(table)
    except ValidationError as error:
        found = [Finding(each.path, each.message) for each in schema_problems(error, table)]
        return Report(subject.directory_name, tuple(found), unknown)
    bundle = subject.bundle
    known = _Known(config, dict(_variables(config)), [], [*unknown], [*_limited(config)])
    known.warnings += [*_ineffective(table, config), *_undeclared(bundle, config)]
    known.warnings += [Finding(each.path, each.text) for each in not_finite(config)]
    with known.problems_of():
        known.warnings += [*no_effect(bundle, config), *reward_key_warnings(bundle, config.steps or [])]
    with known.problems_of():
        known.devices()
    task: Task | None = None
    with known.problems_of():
        oracle = any(each.name == "oracle" for each in subject.agents)
        task = accept_task(bundle, verification=subject.verification, oracle=oracle).task
    plan = known.plan(subject, task) if task is not None else None
    steps = tuple(_summary(task, step) for step in plan.steps) if task is not None and plan is not None else ()
    used = used_variables(config, task.layout) if task is not None else frozenset[str]()
    return known.report(subject.directory_name, steps, used)


@dataclass
class _Known:
    """The findings of the checks so far."""

    config: TaskConfig
    variables: dict[str, str]
    problems: list[Finding]
    warnings: list[Finding]
    notes: list[Finding]

    @contextmanager
    def problems_of(self) -> Iterator[None]:
        """Add an error that the block raises to the problems, and continue, so that the later checks run, too."""
        try:
            yield
        except InvalidTask as error:
            self.problems += map(_problem, error.parts)
        except (InvalidSpec, SourceError) as error:
            self.problems.append(_problem(error))

    def devices(self) -> None:
        """Note a type of GPU that is not in Multistep's defaults, because only some installations know it. Raises InvalidTask for a
        type of TPU, which none knows."""
        try:
            node_terms(self.config.environment, GPU_TYPES)
        except InvalidTask as error:
            if self.config.environment.tpu is not None:
                raise
            self.notes.append(_problem(error))

    def plan(self, subject: _Subject, task: Task) -> TrialPlan | None:
        """Plan a trial with each agent, and find what is ignored. Return the last plan; None if there are problems."""
        agents = subject.agents
        self.variables |= compose_variables(task.layout)
        self.warnings += entrypoint(subject.bundle, self.config, task.layout.compose)
        for part in dict.fromkeys(
            part for agent in agents or (None,) for part in unsupported_parts(self.config, task.layout, agent)
        ):
            if not part.refused:
                (self.notes if part.by_agent and not agents else self.warnings).append(Finding(part.path, part.message))
        plan = None
        for agent in agents or (AgentSpec(name="oracle"),):
            with self.problems_of():
                plan = _plan(subject, task, self.variables, agent)
                self.problems += refused_values(plan)
        with self.problems_of():
            self.warnings += _missing_dockerfiles(subject, task, self.variables)
        return None if self.problems else plan

    def report(self, directory_name: str, steps: tuple[StepSummary, ...], used: frozenset[str]) -> Report:
        """Return the report. A problem of several agents is one problem."""
        problems, warnings, notes = (tuple(dict.fromkeys(found)) for found in (self.problems, self.warnings, self.notes))
        name = self.config.task.name if self.config.task else directory_name
        return Report(name, problems, warnings, notes, steps, self.variables, used)


def _config_text(bundle: Bundle) -> str:
    entry = entry_at(bundle, CONFIG_FILE)
    try:
        return bytes(entry.data).decode() if entry else ""
    except UnicodeDecodeError as error:
        raise InvalidTask(f"is not UTF-8 text: {error}", kind="ValueError", field=CONFIG_FILE) from error


def _problem(error: InvalidTask | InvalidSpec | SourceError) -> Finding:
    where = error.field if isinstance(error, InvalidTask) else ""
    return Finding(where, str(error).removeprefix(f"{where}: ") if where else str(error))


# Values of variables that would let a service call a model: a provider's key, or another server's URL.
_OF_MODELS: Final = {
    name: "key" if is_key else "http://server"
    for provider in PROVIDERS
    for name, is_key in judge_variables(provider.key_variables[0]).items()
}


def _plan(subject: _Subject, task: Task, variables: Mapping[str, str], agent: AgentSpec) -> TrialPlan:
    """Return the plan of a trial with default options, on the assumption that its images are built and its variables are set."""
    main = task.layout.compose.main if task.layout.compose else None
    buildable = task.layout.dockerfile or (main is not None and main.build is not None)
    image = subject.image
    if image is None and buildable and not task.config.environment.docker_image:
        image = "built"
    built = [each.name for each in task.layout.compose.others if each.build] if task.layout.compose else []
    spec = TrialSpec.model_construct(
        task=TaskSource.model_construct(),
        agent=agent,
        environment=EnvironmentSpec(image=image, service_images=dict.fromkeys(built, "built")),
        verifier=VerifierSpec(disable=not subject.verification),
    )
    env = TrialEnv(variables={name: _OF_MODELS.get(name, "") for name in variables})
    plan = make_plan(task.config, task.layout, spec, env, name=subject.directory_name, egress="Sidecar")
    if plan.services is not None:
        refuse_ports(plan.services, _RESERVED_PORTS)
    return plan


def _missing_dockerfiles(subject: _Subject, task: Task, variables: Mapping[str, str]) -> Iterator[Finding]:
    """Warn of missing Dockerfiles of images that the cluster must build. Raises InvalidTask for other builds that must fail."""
    spec = TrialSpec.model_construct(
        task=TaskSource.model_construct(), environment=EnvironmentSpec(), verifier=VerifierSpec(disable=not subject.verification)
    )
    for build in needed_builds(task.config, task.layout, spec, dict.fromkeys(variables, "")):
        if entry_at(subject.bundle, build.path) is None:
            yield Finding(build.path, "does not exist, so the cluster cannot build this image")


def _ineffective(table: Mapping[str, Any], config: TaskConfig) -> Iterator[Finding]:
    """Warn if a task with steps sets verifier.timeout_sec, which the steps do not inherit, as in Harbor."""
    verifier = table.get("verifier")
    if config.steps and isinstance(verifier, Mapping) and "timeout_sec" in verifier:
        text = "is not inherited by the steps; each has steps.verifier.timeout_sec, 600 by default"
        yield Finding("verifier.timeout_sec", text)


def _limited(config: TaskConfig) -> Iterator[Finding]:
    """Note network modes that an operator accepts only if its settings enable them."""
    for where, mode in limited_networks(config):
        text = f"{mode} needs an operator with trials.egress Sidecar, or NetworkPolicy if no host is a name"
        yield Finding(f"{where}.network_mode", text)


def _undeclared(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    declared = {step.name for step in config.steps or []}
    for name in bundle.children("steps"):
        if name not in declared and bundle.entries[f"steps/{name}"].kind == "dir":
            yield Finding(f"steps/{name}/", "is not a step: task.toml has no [[steps]] of this name")


def _variables(config: TaskConfig) -> Iterator[tuple[str, str]]:
    for where, env in template_tables(config):
        for key, value in env.items():
            try:
                resolve_templates({key: value}, {})
            except Unresolved as error:
                yield error.name, f"{where}.{key}"


def _summary(task: Task, step: StepPlan) -> StepSummary:
    gate = step.min_reward
    return StepSummary(
        name=step.name,
        agent_limit=step.agent_timeout,
        verifier_limit=step.verifier.timeout if step.verifier else None,
        gate={"reward": gate} if isinstance(gate, int | float) else gate,
        setup=step.setup,
        healthcheck=step.healthcheck is not None,
        tests=_tests(task, step),
    )


def _tests(task: Task, step: StepPlan) -> str:
    if step.verifier is None:
        return "none"
    if step.verifier.environment is not None and step.verifier.environment.own_image:
        return "image"
    own = task.layout.root if step.directory is None else task.layout.steps[step.directory]
    if own.test_script:
        return "own"
    return "shared" if task.layout.root.test_script else "none"


def _json_step(step: StepSummary) -> dict[str, Any]:
    return {
        "name": step.name,
        "agentTimeoutSeconds": step.agent_limit,
        "verifierTimeoutSeconds": step.verifier_limit,
        "minReward": {key: value if math.isfinite(value) else str(value) for key, value in (step.gate or {}).items()},
        "setup": step.setup,
        "healthcheck": step.healthcheck,
        "tests": step.tests,
    }
