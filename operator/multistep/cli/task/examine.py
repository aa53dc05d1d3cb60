"""Static checks of a task: problems, unknown keys, required variables, the steps' timeouts.

Runs the operator's checks (sources.task, engine.make_plan) in sequence and returns their findings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from multistep.api.agent_spec import AgentSpec
from multistep.api.devices import GPU_TYPES
from multistep.api.not_finite import not_finite
from multistep.api.problems import problems as schema_problems
from multistep.api.task_source import TaskSource
from multistep.api.task_toml import TaskConfig, toml_table
from multistep.api.trial_spec import EnvironmentSpec, TrialSpec, VerifierSpec
from multistep.api.unknown_keys import unknown_keys
from multistep.cli.task.findings import Finding, Locator
from multistep.cli.task.lint import lint
from multistep.cli.task.reward_keys import reward_key_warnings
from multistep.engine.devices import node_terms
from multistep.engine.image_builds import needed
from multistep.engine.make_plan import make_plan
from multistep.engine.phase_networks import limits
from multistep.engine.plan import StepPlan, TrialEnv, TrialPlan
from multistep.engine.templates import Unresolved, resolve
from multistep.engine.unsupported import unsupported
from multistep.engine.variables import compose_variables, template_tables, used_variables
from multistep.errors import InvalidSpec, InvalidTask, SourceError
from multistep.pods.manifest import reserved_ports
from multistep.pods.services import refuse_ports
from multistep.settings import Settings
from multistep.sources.bundle import Bundle
from multistep.sources.links import lookup
from multistep.sources.task import CONFIG_FILE, Task, load_task

_RESERVED_PORTS = reserved_ports(Settings.model_construct(), sidecar=False)  # ports that an operator with default settings reserves


@dataclass(frozen=True)
class StepSummary:
    """A step's plan. agent_limit, verifier_limit: timeouts in seconds; gate: minimum reward by key; tests: where the tests come
    from (own, shared, image, none)."""

    name: str
    agent_limit: float | None
    verifier_limit: float | None
    gate: Mapping[str, float]
    setup: bool
    healthcheck: bool
    tests: str


@dataclass(frozen=True)
class Report:
    """The result of all checks. problems: why the task cannot be run; variables: each variable without a default, and a field whose
    template uses it; used: names of all variables that templates use, with or without a default."""

    name: str
    problems: tuple[Finding, ...] = ()
    warnings: tuple[Finding, ...] = ()
    steps: tuple[StepSummary, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    used: frozenset[str] = frozenset()

    @property
    def ok(self) -> bool:
        """Report whether the operator would accept the task."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        steps = [_json_step(each) for each in self.steps]
        found = {"problems": [asdict(each) for each in self.problems], "warnings": [asdict(each) for each in self.warnings]}
        return {"name": self.name, "ok": self.ok, **found, "variables": dict(self.variables), "steps": steps}


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

    verification: whether the trials run verifiers (see sources.task.load_task). agents: agents of the trials, if known. image:
    image that replaces the task's image. mistakes: whether to warn of likely mistakes, too.
    """
    try:
        table = toml_table(_config_text(bundle))
    except InvalidTask as error:
        report, table = Report(directory_name, (_problem(error),)), {}
    else:
        report = _examined(bundle, table, directory_name, verification, agents, image)
        if mistakes:
            report = replace(report, warnings=(*report.warnings, *lint(bundle, table)))
    locator = Locator(table, bundle)
    problems, warnings = (tuple(map(locator.located, found)) for found in (report.problems, report.warnings))
    return replace(report, problems=problems, warnings=warnings)


def _examined(
    bundle: Bundle,
    table: Mapping[str, Any],
    directory_name: str,
    verification: bool,
    agents: Sequence[AgentSpec],
    image: str | None,
) -> Report:
    warnings = [Finding(each.path, each.text) for each in unknown_keys(table)]
    try:
        config = TaskConfig.model_validate(table)
    except ValidationError as error:
        found = [Finding(each.path, each.message) for each in schema_problems(error, table)]
        return Report(directory_name, tuple(found), tuple(warnings))
    name = config.task.name if config.task else directory_name
    warnings += [*_ineffective(table, config), *_limited(config), *_devices(config), *_undeclared(bundle, config)]
    warnings += [Finding(each.path, each.text) for each in not_finite(config)]
    variables = dict(_variables(config))
    try:
        warnings += reward_key_warnings(bundle, config.steps or [])
        task = load_task(bundle, verification=verification, oracle=any(each.name == "oracle" for each in agents))
        variables |= compose_variables(task.layout)
        parts = dict.fromkeys(part for agent in agents or (None,) for part in unsupported(task.config, task.layout, agent))
        warnings += [Finding(each.path, each.message) for each in parts if not each.refused]
        if refused := [Finding(each.path, each.message) for each in parts if each.refused]:
            return Report(name, tuple(refused), tuple(warnings), variables=variables)
        plan = _plan(task, name, variables, verification, image)
        warnings += _missing_dockerfiles(bundle, task, variables, verification)
    except (InvalidTask, InvalidSpec, SourceError) as error:
        found = [_problem(each) for each in (error.parts if isinstance(error, InvalidTask) else (error,))]
        return Report(name, tuple(found), tuple(warnings), variables=variables)
    steps = tuple(_summary(task, step) for step in plan.steps)
    return Report(name, (), tuple(warnings), steps, variables, used_variables(config, task.layout))


def _devices(config: TaskConfig) -> Iterator[Finding]:
    """Warn of a GPU type that is not in Multistep's defaults, so only some installations may know it."""
    try:
        node_terms(config.environment, GPU_TYPES)
    except InvalidTask as error:
        yield _problem(error)


def _config_text(bundle: Bundle) -> str:
    entry = lookup(bundle, CONFIG_FILE)
    try:
        return bytes(entry.data).decode() if entry else ""
    except UnicodeDecodeError as error:
        raise InvalidTask(f"is not UTF-8 text: {error}", kind="ValueError", field=CONFIG_FILE) from error


def _problem(error: InvalidTask | InvalidSpec | SourceError) -> Finding:
    where = error.field if isinstance(error, InvalidTask) else ""
    return Finding(where, str(error).removeprefix(f"{where}: ") if where else str(error))


def _plan(task: Task, name: str, variables: Mapping[str, str], verification: bool, image: str | None) -> TrialPlan:
    """Return the plan of a trial with default options, on the assumption that its images are built and its variables are set."""
    main = task.layout.compose.main if task.layout.compose else None
    buildable = task.layout.dockerfile or (main is not None and main.build is not None)
    if image is None and buildable and not task.config.environment.docker_image:
        image = "built"
    built = [each.name for each in task.layout.compose.others if each.build] if task.layout.compose else []
    spec = TrialSpec.model_construct(
        task=TaskSource.model_construct(),
        agent=AgentSpec(name="oracle"),
        environment=EnvironmentSpec(image=image, service_images=dict.fromkeys(built, "built")),
        verifier=VerifierSpec(disable=not verification),
    )
    env = TrialEnv(variables=dict.fromkeys(variables, ""))
    plan = make_plan(task.config, task.layout, spec, env, name=name, egress="Sidecar")
    if plan.services is not None:
        refuse_ports(plan.services, _RESERVED_PORTS)
    return plan


def _missing_dockerfiles(bundle: Bundle, task: Task, variables: Mapping[str, str], verification: bool) -> Iterator[Finding]:
    """Warn of missing Dockerfiles of images that the cluster must build. Raises InvalidTask for other builds that must fail."""
    spec = TrialSpec.model_construct(
        task=TaskSource.model_construct(), environment=EnvironmentSpec(), verifier=VerifierSpec(disable=not verification)
    )
    for build in needed(task.config, task.layout, spec, dict.fromkeys(variables, "")):
        if lookup(bundle, build.path) is None:
            yield Finding(build.path, "does not exist, so the cluster cannot build this image")


def _ineffective(table: Mapping[str, Any], config: TaskConfig) -> Iterator[Finding]:
    """Warn if a task with steps sets verifier.timeout_sec, which the steps do not inherit, as in Harbor."""
    verifier = table.get("verifier")
    if config.steps and isinstance(verifier, Mapping) and "timeout_sec" in verifier:
        text = "is not inherited by the steps; each has steps.verifier.timeout_sec, 600 by default"
        yield Finding("verifier.timeout_sec", text)


def _limited(config: TaskConfig) -> Iterator[Finding]:
    """Warn of network modes that an operator accepts only if its settings enable them."""
    for where, mode in limits(config):
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
                resolve({key: value}, {})
            except Unresolved as error:
                yield error.name, f"{where}.{key}"


def _summary(task: Task, step: StepPlan) -> StepSummary:
    gate = step.min_reward
    return StepSummary(
        name=step.name,
        agent_limit=step.agent_timeout,
        verifier_limit=step.verifier.timeout if step.verifier else None,
        gate={} if gate is None else dict(gate) if isinstance(gate, Mapping) else {"reward": gate},
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
        "minReward": {key: value if math.isfinite(value) else str(value) for key, value in step.gate.items()},
        "setup": step.setup,
        "healthcheck": step.healthcheck,
        "tests": step.tests,
    }
