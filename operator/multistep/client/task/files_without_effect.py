"""Warns of files of a task that have no effect at their place, such as a setup.sh in the root. Pure functions.

Neither Harbor nor the operator reads these files. A trial would run without them, and its failure would be hard to explain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from multistep.api.task.layout import Services
from multistep.api.task.task_toml import StepConfig, TaskConfig
from multistep.client.task.findings import Finding
from multistep.engine.plan.verifier_environment import verifier_mode
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.bundle_links import entry_at, is_file
from multistep.sources.task.read_compose import COMPOSE_FILE

_COMPOSE_FILE: Final = f"environment/{COMPOSE_FILE}"
_COMPOSE: Final = re.compile(r"(docker-)?compose(\.[\w-]+)*\.ya?ml")
_DOCKERFILE: Final = "environment/Dockerfile"
_OF_TASK: Final[Mapping[str, str]] = {"Dockerfile": _DOCKERFILE, "test.sh": "tests/test.sh", "solve.sh": "solution/solve.sh"}
_OF_STEP: Final[Mapping[str, str]] = {
    **{"setup.sh": "workdir/setup.sh", "resume.sh": "workdir/resume.sh"},
    **{"test.sh": "tests/test.sh", "solve.sh": "solution/solve.sh"},
}
_INSTRUCTION: Final = re.compile(r"\s*(?P<name>FROM|ENTRYPOINT)\s+(?P<rest>.*\S)\s*$", re.IGNORECASE | re.DOTALL)
_FROM: Final = re.compile(r"(--\S+\s+)*(?P<base>\S+)(\s+AS\s+(?P<stage>\S+))?$", re.IGNORECASE)


def no_effect(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    """Yield a warning for each file that has no effect where it is, with its remedy. Raises InvalidTask for an invalid link."""
    yield from _of_task(bundle, single=not config.steps)
    for step in config.steps or []:
        yield from _of_step(bundle, f"steps/{step.name}")
    yield from _compose_files(bundle)
    yield from _unused_tests(bundle, config)


def entrypoint(bundle: Bundle, config: TaskConfig, services: Services | None) -> Iterator[Finding]:
    """Yield a warning for the ENTRYPOINT of environment/Dockerfile, which is not run. services: of the task's compose file."""
    dockerfile = entry_at(bundle, _DOCKERFILE)
    if dockerfile is None or config.environment.docker_image or (services and (services.main.command or services.main.entrypoint)):
        return
    line, value = _entrypoint(bytes(dockerfile.data).decode(errors="replace"))
    if value.strip() not in ("", "[]"):
        yield Finding(
            f"{_DOCKERFILE}:{line}",
            f"ENTRYPOINT {value[:80]} has no effect, as process 1 is Multistep's runner: start a server in workdir/setup.sh of a "
            f"step, or as services.main.command in {_COMPOSE_FILE}",
        )


def _of_task(bundle: Bundle, *, single: bool) -> Iterator[Finding]:
    for name, right in _OF_TASK.items():
        if is_file(bundle, name):
            yield _misplaced(name, right)
    each = "each step has its own below steps/NAME/"
    for name, kind in (("workdir", "dir"), ("setup.sh", "file"), ("instruction.md", "file")):
        entry = entry_at(bundle, name)
        if entry is None or entry.kind != kind or (single and name == "instruction.md"):
            continue
        remedy = f"a task without [[steps]] has none: put it into {_DOCKERFILE}" if single else each
        yield _unused(name, remedy.replace("steps/NAME/", "steps/NAME/workdir/") if name == "setup.sh" else remedy)


def _of_step(bundle: Bundle, directory: str) -> Iterator[Finding]:
    for name, right in _OF_STEP.items():
        if is_file(bundle, f"{directory}/{name}"):
            yield _misplaced(f"{directory}/{name}", f"{directory}/{right}")
    if entry_at(bundle, f"{directory}/environment") is not None:
        yield _unused(f"{directory}/environment", "all steps share the task's environment/")


def _compose_files(bundle: Bundle) -> Iterator[Finding]:
    """Warn of compose files of another name or at another place. If the task has the right one, too, the others may belong to the
    code that the agent works on, so there is no warning."""
    if is_file(bundle, _COMPOSE_FILE):
        return
    for directory in ("", "environment"):
        for name in bundle.children(directory):
            path = f"{directory}/{name}" if directory else name
            if _COMPOSE.fullmatch(name) and is_file(bundle, path):
                yield _misplaced(path, _COMPOSE_FILE)


def _unused_tests(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    """Warn of files for the image of a separate verifier in a task or step that has no separate verifier."""
    steps = config.steps or []
    separate = {step.name for step in steps or [StepConfig(name="task")] if verifier_mode(config, step) == "separate"}
    unused = [] if separate else [("tests", "verifier")]
    unused += [(f"steps/{step.name}/tests", "steps.verifier") for step in steps if step.name not in separate]
    for directory, table in unused:
        for name in ("Dockerfile", COMPOSE_FILE):
            if is_file(bundle, f"{directory}/{name}"):
                remedy = f'the tests run in the agent\'s environment, unless [{table}] has environment_mode = "separate"'
                yield _unused(f"{directory}/{name}", remedy)


def _misplaced(path: str, right: str) -> Finding:
    return _unused(path, f"it is read as {right} only; move it there")


def _unused(path: str, remedy: str) -> Finding:
    return Finding(path, f"has no effect: {remedy}", place=path)


def _entrypoint(dockerfile: str) -> tuple[int, str]:
    """Return line and value of the ENTRYPOINT that applies to the last stage; (0, "") without one."""
    stages: dict[str, tuple[int, str]] = {}
    stage, found = "", (0, "")
    waiting: list[str] = []
    for number, line in enumerate(dockerfile.splitlines(), 1):
        if line.lstrip().startswith("#"):
            continue
        if line.rstrip().endswith("\\"):
            waiting.append(line.rstrip()[:-1])
            continue
        first, text = number - len(waiting), " ".join([*waiting, line])
        waiting = []
        if (match := _INSTRUCTION.match(text)) is None:
            continue
        if match["name"].upper() == "ENTRYPOINT":
            found = (first, match["rest"])
        elif (base := _FROM.match(match["rest"])) is not None:
            found = stages.get(base["base"].lower(), (0, ""))
            stage = (base["stage"] or "").lower()
        stages[stage] = found
    return found
