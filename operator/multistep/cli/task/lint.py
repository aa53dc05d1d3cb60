"""Warns of likely mistakes in a valid task: in numbers, scripts, instructions, solutions, rewards, the workdir. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from multistep.api.task.task_toml import StepConfig, TaskConfig
from multistep.cli.task.findings import Finding, line_of
from multistep.cli.task.submission_imports import submission_imports
from multistep.engine.plan.verifier_environment import verifier_mode
from multistep.errors import InvalidTask
from multistep.sources.task.bundle import Bundle, Entry
from multistep.sources.task.bundle_links import is_directory, lookup, resolve
from multistep.sources.task.task import strip_canary

_SCRIPTS: Final = ("tests/test.sh", "solution/solve.sh")  # need a shebang, unlike setup.sh and resume.sh, which bash runs
_REWARD_FILE: Final = re.compile(rb"reward\.(txt|json)|/logs/verifier|rewardkit", re.IGNORECASE)
_MAX_BYTES: Final = 1 << 20  # larger files are not checked: they are data, not scripts


def lint(bundle: Bundle, table: Mapping[str, Any]) -> list[Finding]:
    """Return likely mistakes in a task that the operator accepts; [] if the operator rejects task.toml or a link."""
    try:
        return list(_lint(bundle, TaskConfig.model_validate(table)))
    except (ValidationError, InvalidTask):
        return []


def _lint(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    steps = [step.name for step in config.steps or []]
    directories = [f"steps/{name}/" for name in steps] or [""]
    yield from _numbers(config)
    yield from (
        Finding(f"steps[{index}].min_reward", "is empty: every reward passes it; name a key, or remove it")
        for index, step in enumerate(config.steps or [])
        if step.min_reward == {}
    )
    yield from _workdir(bundle, config)
    for directory in directories:
        yield from _instruction(bundle, f"{directory}instruction.md")
        yield from _solution(bundle, directory)
    yield from _rewards(bundle, config)
    for directory in dict.fromkeys((*directories, "")):
        yield from _shebangs(bundle, directory)
    yield from submission_imports(bundle, config)
    yield from _line_endings(bundle)


def _numbers(config: TaskConfig) -> Iterator[Finding]:
    """Warn of timeouts of 0 or less, and of negative resources. Harbor's format allows both."""
    environment = config.environment
    timeouts = {"agent": config.agent.timeout_sec, "verifier": config.verifier.timeout_sec}
    for index, step in enumerate(config.steps or []):
        timeouts |= {f"steps[{index}].agent": step.agent.timeout_sec, f"steps[{index}].verifier": step.verifier.timeout_sec}
    timeouts = {f"{table}.timeout_sec": seconds for table, seconds in timeouts.items()}
    for key, seconds in {**timeouts, "environment.build_timeout_sec": environment.build_timeout_sec}.items():
        if seconds is not None and seconds <= 0:
            yield Finding(key, f"is {seconds:g}: it must be above 0, or the timeout is reached at once")
    for name in ("cpus", "memory_mb", "storage_mb", "gpus"):
        if (getattr(environment, name) or 0) < 0:
            yield Finding(
                f"environment.{name}", f"is {getattr(environment, name):g}: the API server rejects a pod with a negative resource"
            )


def _workdir(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    """Warn of a relative workdir, and of a workdir that the Dockerfile of the task's image does not name."""
    workdir, dockerfile = config.environment.workdir, lookup(bundle, "environment/Dockerfile")
    if workdir is None:
        return
    if not workdir.startswith("/"):
        yield Finding("environment.workdir", f"{workdir!r} is a relative path: give it from /")
    elif dockerfile and not config.environment.docker_image and not _named(workdir, dockerfile):
        yield Finding(
            "environment.workdir",
            f"{workdir!r} is not named in environment/Dockerfile: unless the base image has it, processes start in an empty "
            f"directory that root owns; add WORKDIR {workdir}",
        )


def _named(workdir: str, dockerfile: Entry) -> bool:
    path = workdir.rstrip("/")
    return not path or re.search(rf"{re.escape(path)}(?![\w.-])".encode(), bytes(dockerfile.data)) is not None


def _instruction(bundle: Bundle, path: str) -> Iterator[Finding]:
    entry = lookup(bundle, path)
    if entry and entry.kind == "file" and not strip_canary(bytes(entry.data).decode(errors="replace")).strip():
        yield Finding(f"{path}:1", "is empty: the agent gets no instruction")


def _solution(bundle: Bundle, directory: str) -> Iterator[Finding]:
    path = f"{directory}solution/solve.sh" if is_directory(bundle, f"{directory}solution") else "solution/solve.sh"
    if lookup(bundle, path) is None:
        yield Finding(
            f"{directory}solution/solve.sh",
            "is missing: the oracle agent fails here, so nothing shows that the step can be solved",
        )


def _rewards(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    """Warn if no file of a step's tests names a reward file. Tests in a separate verifier's image cannot be checked."""
    for step in config.steps or [StepConfig(name="task")]:
        own = f"steps/{step.name}/tests" if config.steps else "tests"
        script = f"{own}/test.sh" if lookup(bundle, f"{own}/test.sh") else "tests/test.sh"
        if verifier_mode(config, step) == "separate" or lookup(bundle, script) is None:
            continue
        if not any(_REWARD_FILE.search(bytes(entry.data)) for top in {own, "tests"} for _, entry in _files(bundle, top)):
            text = "no file of the tests names /logs/verifier/reward.txt or reward.json: without either a step has no reward"
            yield Finding(script, text)


def _shebangs(bundle: Bundle, directory: str) -> Iterator[Finding]:
    for name in _SCRIPTS:
        entry = lookup(bundle, f"{directory}{name}")
        if entry and entry.kind == "file" and not bytes(entry.data[:4]).startswith((b"#!", b"\x7fELF")):
            text = "has no shebang: bash runs it, or /bin/sh where there is none; name the interpreter, such as #!/bin/bash"
            yield Finding(f"{directory}{name}:1", text)


def _line_endings(bundle: Bundle) -> Iterator[Finding]:
    """Warn of scripts with CRLF: the carriage return becomes part of the interpreter's name, or of the line's last word."""
    for path, entry in _files(bundle, ""):
        data = bytes(entry.data)
        script = path.endswith(".sh") or data.startswith(b"#!")
        if script and (line := line_of(data, lambda each: each.endswith(b"\r"))):
            yield Finding(
                f"{path}:{line}", f"has CRLF line endings, which no shell understands: convert it with sed -i 's/\\r$//' {path}"
            )


def _files(bundle: Bundle, top: str) -> Iterator[tuple[str, Entry]]:
    """Yield path and entry of each file of at most _MAX_BYTES below a directory. Follow symbolic links in the path ``top``, but
    not below."""
    real = resolve(bundle, top)
    for path, entry in bundle.entries.items():
        if entry.kind == "file" and (not real or path.startswith(f"{real}/")) and len(entry.data) <= _MAX_BYTES:
            yield path, entry
