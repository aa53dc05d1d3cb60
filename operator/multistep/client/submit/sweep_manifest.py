"""Builds a TrialSweep and the objects it needs from tasks, spec.tasksFrom or a file, without access to the cluster."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from multistep.api.common.base_model import API_VERSION
from multistep.api.sweep.sweep import SWEEP_KIND, parse_sweep
from multistep.api.trial import harbor_agents
from multistep.api.trial.values import PLAIN
from multistep.client.options import JudgeOptions, ModelOptions
from multistep.client.submit.agent_choice import (
    agent_entry,
    check_hosted,
    check_images,
    check_keys,
    hosted_choice,
    label,
    script_command,
    with_images_of,
)
from multistep.client.submit.judge_choice import with_judge
from multistep.client.submit.manifests import (
    Manifest,
    Submission,
    TrialImage,
    bundle_config_maps,
    bundle_source,
    dns_label,
    environment,
    new_name,
    optional,
    queue_labels,
)
from multistep.client.submit.values import Values, from_secret
from multistep.client.task.task_directory import TaskDirectory
from multistep.errors import InvalidSpec, UsageError

_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
_OPERATOR = re.compile(r"(?<!\S)(?:[<>|&;]+|[<>]\S+|\S+;)(?!\S)")
_SHELL = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh")
_SCRIPT_OPTION = re.compile(r"-[a-z]*c")
_PROGRAM = re.compile(r"[\w./-]+")


@dataclass(frozen=True)
class SweepOptions:
    """The options of `sweep run`."""

    name: str = ""
    agents: Sequence[str] = ()
    agent_files: Sequence[str] = ()
    attempts: int | None = None
    parallelism: int | None = None
    timeout_multiplier: float | None = None
    values: Values = field(default_factory=Values)
    """The values of --var and --agent-env."""
    secret_agent_env: Sequence[str] = ()
    """The values of --agent-env-from-secret."""
    queue: str | None = None
    model: ModelOptions = field(default_factory=ModelOptions)
    judge: JudgeOptions = field(default_factory=JudgeOptions)
    budget: float | None = None
    """Budget of all trials together, in US dollars."""
    resources: Manifest = field(default_factory=dict)
    """spec.environment.resources of the template."""
    resume: bool = False
    """spec.resumeTrajectory of the template."""


def find_tasks(paths: Iterable[Path]) -> list[TaskDirectory]:
    """Return the tasks at the paths or directly below them. Raises UsageError if a path has no task or two have the same name."""
    found = [TaskDirectory.open(each) for path in paths for each in _task_paths(path)]
    twice = [name for name, count in Counter(each.name for each in found).items() if count > 1]
    if twice:
        places = " and ".join(str(each.path) for each in found if each.name == twice[0])
        raise UsageError(f"{places} are both called {twice[0]!r}: the tasks of a sweep need names that differ (task.name)")
    return found


def _task_paths(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"{path} does not exist: name the directory of a task, or of tasks")
    if not path.is_dir() or (path / "task.toml").is_file():
        return [path]
    below = sorted(each.parent for each in path.glob("*/task.toml"))
    if not below:
        raise UsageError(f"{path} has no task.toml, and no directory with one: name the directory of a task, or of tasks")
    return below


def directories(tasks: Sequence[TaskDirectory | Manifest]) -> list[TaskDirectory]:
    """Return the tasks that are directories on this machine."""
    return [each for each in tasks if isinstance(each, TaskDirectory)]


def new_sweep_name(tasks: Sequence[TaskDirectory]) -> str:
    """Return a new name that starts with the only task's name or, for several tasks, with the name of their parent directory."""
    return new_name(tasks[0].name if len(tasks) == 1 else tasks[0].path.parent.name)


def sweep_of_tasks(
    tasks: Sequence[TaskDirectory | Manifest],
    images: Mapping[str, TrialImage],
    options: SweepOptions,
    elsewhere: TrialImage | None = None,
) -> Submission:
    """Return the sweep of ``tasks``, each a directory or an entry of spec.tasks. Raises UsageError and InvalidSpec if options are
    invalid.

    images: the images of the tasks in directories, by task name. elsewhere: the image of the entries of spec.tasks, or None for the
    tasks' own images.
    """
    parts = {task.name: bundle_config_maps(task.packed, options.name, task.digest) for task in directories(tasks)}
    entries = [
        _task(each, parts[each.name], images.get(each.name))
        if isinstance(each, TaskDirectory)
        else {**each, **optional(environment=environment(elsewhere))}
        for each in tasks
    ]
    owned = [part for those in parts.values() for part in those]
    return _sweep({"tasks": entries}, owned, None, options)


def sweep_of_source(source: Manifest, image: TrialImage | None, options: SweepOptions) -> Submission:
    """Return the sweep whose tasks the operator reads from ``source`` (spec.tasksFrom). Raises UsageError and InvalidSpec if
    options are invalid."""
    return _sweep({"tasksFrom": source}, [], image, options)


def _sweep(tasks: Manifest, owned: Sequence[Manifest], image: TrialImage | None, options: SweepOptions) -> Submission:
    name = options.name
    variables, agents = options.values.variable_entries(name), _agents(options)
    entries = [each["agent"] for each in agents]
    check_hosted(options.model, entries)
    check_images(options.model, entries, [*_names_of_hosted(options)])
    check_keys(options.model, entries)
    spec = optional(
        environment=environment(image, options.resources),
        timeoutMultiplier=options.timeout_multiplier,
        variables=variables or None,
        resumeTrajectory=options.resume or None,
    )
    labels = queue_labels(options.queue)
    template = optional(metadata=labels and {"labels": labels}, spec=with_judge(spec, options.judge) or None)
    sweep = {
        "apiVersion": API_VERSION,
        "kind": SWEEP_KIND,
        "metadata": {"name": name},
        "spec": {
            **tasks,
            "agents": agents,
            **optional(
                attempts=options.attempts,
                parallelism=options.parallelism,
                budget=options.budget and {"costUSD": options.budget},
                template=template or None,
            ),
        },
    }
    parsed = parse_sweep(sweep)
    if unable := [each.name for each in parsed.spec.agents if options.resume and not each.agent.may_resume]:
        raise UsageError(f"--resume: {', '.join(unable)} cannot resume a trajectory; see RESUME in `multistep agent list`")
    return Submission(sweep, [*owned, *options.values.secrets(name)])


def _names_of_hosted(options: SweepOptions) -> Iterator[str]:
    """Yield the names in ``NAME=AGENT@MODEL``, for which an image can be given. Raises UsageError for a name that is another
    agent's program, as ``--agent-image NAME=IMAGE`` would be the image of both."""
    named = [text.partition("=") for text in options.agents]
    hosted = {name: agent for name, separator, text in named if separator and (agent := hosted_choice(text, options.model))}
    for name, agent in hosted.items():
        others = (label(each) for each in hosted.values() if each is not agent)
        if any(text.startswith(f"{name}=") for text in options.model.images) and name in others:
            raise UsageError(f"--agent-image {name}=...: {name} is also the program of another agent: give the agent another name")
        yield name


def _agents(options: SweepOptions) -> list[Manifest]:
    """Return spec.agents. Raises UsageError if an option is invalid."""
    env = [from_secret("--agent-env-from-secret", each) for each in options.secret_agent_env]
    env += options.values.agent_entries(options.name)
    texts = options.agents or (() if options.agent_files else ("oracle",))
    return [*(_agent(each, options.model, env) for each in texts), *(_scripted(each, env) for each in options.agent_files)]


def _scripted(text: str, env: Sequence[Manifest]) -> Manifest:
    """Return the entry of spec.agents for ``[NAME=]SCRIPT``. Raises UsageError if the text is invalid or the script cannot be
    used."""
    name, separator, path = text.rpartition("=")
    if separator and not name:
        raise UsageError(f"--agent-file {text}: must be SCRIPT or NAME=SCRIPT")
    entry = agent_entry("command", ModelOptions(), command=script_command(Path(path)), env=env)
    return {"name": name or dns_label(Path(path).stem), "agent": entry}


def agent_of_text(text: str) -> Manifest:
    """Return the entry of spec.agents for a value of --agent, without options for agents of Harbor. Raises UsageError if it is
    invalid."""
    return _agent(text, ModelOptions(), ())


def _task(task: TaskDirectory, parts: Sequence[Manifest], image: TrialImage | None) -> Manifest:
    return {"name": task.name, **bundle_source(parts, task.digest), **optional(environment=environment(image))}


def _agent(text: str, options: ModelOptions, env: Sequence[Manifest]) -> Manifest:
    """Return the entry of spec.agents for ``[NAME=]oracle`` (or nop), ``[NAME=]AGENT@MODEL`` or ``NAME=COMMAND``. Raises
    UsageError for another text."""
    name, separator, value = text.partition("=")
    agent = value if separator else text
    if (hosted := hosted_choice(agent, with_images_of(options, name) if separator else options)) is not None:
        return {"name": name if separator else dns_label(label(hosted)), "agent": {**hosted, **optional(env=list(env) or None)}}
    if agent in harbor_agents.NAMES:
        raise UsageError(f"--agent {text}: needs a model: --agent {text}@PROVIDER/NAME")
    if name and agent in PLAIN:
        return {"name": name, "agent": agent_entry(agent, ModelOptions(), env=env)}
    if not separator:
        plain = ", ".join(PLAIN)
        raise UsageError(f"--agent {text}: must be {plain}, AGENT@MODEL, or NAME=COMMAND for a custom command")
    words = _words(text, value)
    if not name or not words:
        raise UsageError(f"--agent {text}: must be NAME=COMMAND")
    return {"name": name, "agent": agent_entry("command", ModelOptions(), command=words, env=env)}


def _words(text: str, command: str) -> list[str]:
    """Split the command into words as a shell does. Raises UsageError if the command needs a shell (pipes, redirections), because
    the trial runs it without one."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--agent {text}: quotes are not balanced: {error}") from error
    if operator := _OPERATOR.search(_QUOTED.sub("q", command)):
        raise UsageError(
            f"--agent {text}: {operator.group().strip()!r} needs a shell: use NAME=sh -c 'SCRIPT' with the script in quotes"
        )
    if len(words) > 3 and _SHELL.fullmatch(words[0]) and _SCRIPT_OPTION.fullmatch(words[1]) and _PROGRAM.fullmatch(words[2]):
        raise UsageError(f"--agent {text}: {words[0]} {words[1]} runs {words[2]!r} only: quote the whole script as one word")
    return words


def sweep_of_file(path: Path) -> Submission:
    """Return the TrialSweep and the other objects in a YAML file. Raises UsageError or InvalidSpec if the file is invalid."""
    try:
        found = [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: {error}") from error
    if not all(isinstance(each, dict) and isinstance(each.get("metadata"), dict) for each in found):
        raise UsageError(f"{path} is not a manifest: each document must be an object with metadata")
    sweeps = [each for each in found if each.get("kind") == SWEEP_KIND]
    if len(sweeps) != 1:
        raise UsageError(f"{path} must have one {SWEEP_KIND}, and has {len(sweeps)}")
    sweep = sweeps[0]
    for each in found:
        if not isinstance(name := each["metadata"].get("name"), str) or not name:
            raise UsageError(f"{path}: the {each.get('kind') or 'object'} needs metadata.name, a string")
    try:
        parse_sweep(sweep)
    except InvalidSpec as error:
        raise InvalidSpec(f"{path}: {error}") from error
    return Submission(sweep, others=[each for each in found if each is not sweep])
