"""Warns of likely mistakes in a valid task: in numbers, scripts, instructions, solutions, rewards, the workdir. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from multistep.api.task.task_toml import StepConfig, TaskConfig
from multistep.client.task.agent_code_imports import submission_imports
from multistep.client.task.findings import Finding, line_of
from multistep.engine.plan.plan import StepPlan, TrialPlan
from multistep.engine.plan.verifier_environment import verifier_mode
from multistep.engine.score.trial_score import REWARD
from multistep.errors import InvalidRequest, InvalidTask
from multistep.runner_client.check_requests import Request, require_valid
from multistep.sources.task.bundle import Bundle, BundleEntry
from multistep.sources.task.bundle_links import entry_at, is_directory, resolve_links
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
    workdir, dockerfile = config.environment.workdir, entry_at(bundle, "environment/Dockerfile")
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


def _named(workdir: str, dockerfile: BundleEntry) -> bool:
    path = workdir.rstrip("/")
    return not path or re.search(rf"{re.escape(path)}(?![\w.-])".encode(), bytes(dockerfile.data)) is not None


def _instruction(bundle: Bundle, path: str) -> Iterator[Finding]:
    entry = entry_at(bundle, path)
    if entry and entry.kind == "file" and not strip_canary(bytes(entry.data).decode(errors="replace")).strip():
        yield Finding(f"{path}:1", "is empty: the agent gets no instruction")


def _solution(bundle: Bundle, directory: str) -> Iterator[Finding]:
    path = f"{directory}solution/solve.sh" if is_directory(bundle, f"{directory}solution") else "solution/solve.sh"
    if entry_at(bundle, path) is None:
        yield Finding(
            f"{directory}solution/solve.sh",
            "is missing: the oracle agent fails here, so nothing shows that the step can be solved",
        )


def _rewards(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    """Warn if no file of a step's tests names a reward file. Tests in a separate verifier's image cannot be checked."""
    for step in config.steps or [StepConfig(name="task")]:
        own = f"steps/{step.name}/tests" if config.steps else "tests"
        script = f"{own}/test.sh" if entry_at(bundle, f"{own}/test.sh") else "tests/test.sh"
        if verifier_mode(config, step) == "separate" or entry_at(bundle, script) is None:
            continue
        if not any(_REWARD_FILE.search(bytes(entry.data)) for top in {own, "tests"} for _, entry in _files(bundle, top)):
            text = "no file of the tests names /logs/verifier/reward.txt or reward.json: without either a step has no reward"
            yield Finding(script, text)


def _shebangs(bundle: Bundle, directory: str) -> Iterator[Finding]:
    for name in _SCRIPTS:
        entry = entry_at(bundle, f"{directory}{name}")
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


def _files(bundle: Bundle, top: str) -> Iterator[tuple[str, BundleEntry]]:
    """Yield path and entry of each file of at most _MAX_BYTES below a directory. Follow symbolic links in the path ``top``, but
    not below."""
    real = resolve_links(bundle, top)
    for path, entry in bundle.entries.items():
        if entry.kind == "file" and (not real or path.startswith(f"{real}/")) and len(entry.data) <= _MAX_BYTES:
            yield path, entry


_KEY: Final = re.compile(rb"""\\?["']reward\\?["']\s*[:\]=]""")  # the key "reward" in JSON, a dict or a subscript


def reward_key_warnings(bundle: Bundle, steps: Sequence[StepConfig]) -> Iterator[Finding]:
    """Yield a warning for each step whose rewards lack the key "reward". The text says how this affects the step's score or the
    task's reward."""
    found = [known for index, step in enumerate(steps) if (known := _has_reward(bundle, index, step)) is not None]
    mixed = any(named for named, _ in found)
    for named, where in found:
        if not named and mixed:
            yield Finding(
                where,
                "the rewards have no key reward, but those of other steps do: the task's own reward counts a missing key "
                "as 0, so the highest reward is less than 1; write the key reward, too",
            )
        elif not named:
            text = "the rewards have no key reward: the step's score is the mean of all keys"
            yield Finding(where, f"{text}; a sweep can choose one with spec.scoring.key")


def _has_reward(bundle: Bundle, index: int, step: StepConfig) -> tuple[bool, str] | None:
    """Return whether a step's rewards have the key "reward", and the field or file that shows this; None if unknown."""
    gate, where = step.min_reward, f"steps[{index}].min_reward"
    if gate is not None and (not isinstance(gate, Mapping) or REWARD in gate):
        return True, where
    own = f"steps/{step.name}/tests/test.sh"
    script = entry_at(bundle, own)
    path = own if script else "tests/test.sh"
    entry = script or entry_at(bundle, path)
    text = bytes(entry.data) if entry else b""
    if b"reward.txt" in text or _KEY.search(text):
        return True, path
    if line := line_of(text, lambda each: b"reward.json" in each):
        return False, f"{path}:{line}"
    return (False, where) if gate else None


def refused_values(plan: TrialPlan) -> Iterator[Finding]:
    """Yield a problem for each value that the runner would refuse: the trial would fail when it is sent."""
    for field, request in _requests(plan):
        try:
            require_valid(request)
        except InvalidRequest as error:
            yield Finding(field, str(error).partition(": ")[2])


def _requests(plan: TrialPlan) -> Iterator[tuple[str, Request]]:
    """Yield the field of each value, with a request that has this value."""
    yield "environment.workdir", _start(cwd=plan.workdir)
    yield "environment.env", _start(env=plan.environment_env)
    if isinstance(plan.solution_env, Mapping):
        yield "solution.env", _start(env=plan.solution_env)
    if plan.healthcheck is not None:
        yield "environment.healthcheck.command", _start(["bash", "-c", plan.healthcheck.command])
    for step in plan.steps:
        yield from _of_step(step, "" if plan.single else f"steps[{step.index}].", hosted=plan.hosted is not None)


def _of_step(step: StepPlan, where: str, *, hosted: bool) -> Iterator[tuple[str, Request]]:
    yield f"{where}agent.user", _start(user=step.agent_user)
    if hosted:
        path = f"steps/{step.name}/instruction.md" if where else "instruction.md"
        yield path, {**_start(), "stdin": step.instruction or ""}
    if step.healthcheck is not None:
        yield f"{where}healthcheck.command", _start(["bash", "-c", step.healthcheck.command])
    for hook in step.hooks:
        yield f"{where}verifier.collect", _start(["bash", "-c", hook.command], user=hook.user)
    if step.verifier is not None:
        yield f"{where}verifier.user", _start(user=step.verifier.user)
        if isinstance(step.verifier.env, Mapping):
            yield f"{where}verifier.env", _start(env=step.verifier.env)


def _start(argv: Sequence[str] = ("true",), *, user: str = "", cwd: str = "", env: Mapping[str, str] | None = None) -> Request:
    return {"op": "start", "id": "check", "argv": argv, "user": user, "cwd": cwd, "env": env or {}}
