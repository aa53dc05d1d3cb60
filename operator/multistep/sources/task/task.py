"""Loads a task from a bundle, with its config, its layout, and the tar streams of its uploads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathspec import GitIgnoreSpec

from multistep.api.task.layout import Services, StepLayout, TaskLayout
from multistep.api.task.suspicious_values import UnknownKey, unknown_keys
from multistep.api.task.task_toml import EnvironmentConfig, StepConfig, TaskConfig, task_from_dict, toml_table
from multistep.api.trial.content_references import Content
from multistep.engine.plan.unsupported_parts import TRAJECTORY_FILE, check_services
from multistep.engine.plan.verifier_environment import verifier_mode
from multistep.errors import InvalidTask, SourceError, collected
from multistep.sources.task import bundle_links
from multistep.sources.task.bundle import Bundle, BundleEntry, tar_chunks
from multistep.sources.task.read_compose import COMPOSE_FILE, read_services

FILE_NAME = ".harborignore"
_SCOPES = ("tests", "solution")


class IgnoreRules:
    """The .harborignore rules of a task. They apply only in tests/, solution/, steps/*/tests/ and steps/*/solution/."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._specs: dict[str, GitIgnoreSpec] = {}

    def excludes(self, path: str) -> bool:
        """Return whether a rule excludes the path, or the file to which the path links."""
        if self._matches(path):
            return True
        real = bundle_links.resolve_links(self._bundle, path)
        return real != path and self._matches(real)

    def _matches(self, path: str) -> bool:
        parts = path.split("/")
        if parts[-1] == FILE_NAME:
            return True
        scope = _scope_depth(parts)
        return scope > 0 and any(self._decides(parts, scope, end) for end in range(scope + 1, len(parts) + 1))

    def _decides(self, parts: list[str], scope: int, end: int) -> bool:
        """Return whether the path of the first ``end`` parts is excluded. If several rules match it, the last one decides."""
        directory = end < len(parts) or self._is_directory("/".join(parts))
        excluded = False
        for start in range(scope, end):
            name = "/".join(parts[start:end]) + ("/" if directory else "")
            match = self._spec("/".join(parts[:start])).check_file(name).include
            excluded = excluded if match is None else match
        return excluded

    def _is_directory(self, path: str) -> bool:
        try:
            return bundle_links.is_directory(self._bundle, path)
        except InvalidTask:  # the link leads out of the task. This is not an error here, because a rule may exclude the link
            return False

    def _spec(self, directory: str) -> GitIgnoreSpec:
        if directory not in self._specs:
            self._specs[directory] = self._read(f"{directory}/{FILE_NAME}")
        return self._specs[directory]

    def _read(self, path: str) -> GitIgnoreSpec:
        entry = bundle_links.entry_at(self._bundle, path)
        if entry.kind != "file" if entry else path in self._bundle.entries:
            raise InvalidTask("is no regular file", kind="ValueError", field=path)  # as in Harbor 0.26
        try:
            return GitIgnoreSpec.from_lines(bytes(entry.data).decode().splitlines() if entry else [])
        except ValueError as error:
            raise InvalidTask(f"cannot be read: {error}", kind="ValueError", field=path) from error


def _scope_depth(parts: list[str]) -> int:
    """Return the depth of the directory below which rules apply, or 0 if no rules apply to the path."""
    if parts[0] in _SCOPES:
        return 1
    return 3 if parts[0] == "steps" and len(parts) > 2 and parts[2] in _SCOPES else 0


CONFIG_FILE = "task.toml"
_UPLOAD_MTIME = 946_684_800  # 2000-01-01, because some tools, e.g. zip, reject times before 1980
_MAX_UNKNOWN = 20  # maximum number of unknown keys to report, because one Event lists all of them
_MAX_FAULTS = 50  # maximum number of faults in one error
_FILTERED = ("tests", "solution")  # .harborignore applies only to these directories, as in Harbor 0.26


@dataclass(frozen=True)
class Task:
    """A task that was loaded and checked."""

    config: TaskConfig
    bundle: Bundle
    layout: TaskLayout
    unknown: Sequence[UnknownKey] = ()
    """The first unknown keys of task.toml."""

    def content(self, ref: Content) -> Iterator[bytes]:
        """Return an upload's tar stream in chunks of at most 1 MiB. Raises SourceError if the task lacks its directory."""
        if ref.kind == "file":
            return text_file_tar(ref)
        real, paths = self.selection(ref)
        prefix = f"{real}/" if real else ""
        return tar_chunks(((path, self.bundle.entries[prefix + path]) for path in paths), mtime=_UPLOAD_MTIME)

    def selection(self, ref: Content) -> tuple[str, list[str]]:
        """Return an upload's directory with links resolved, and the paths to upload. Raises SourceError if the directory does not
        exist."""
        directory = _path(ref.step, "tests" if ref.kind == "verifier" else ref.kind)
        if not bundle_links.is_directory(self.bundle, directory):
            raise SourceError(f"the task has no directory {directory}/")
        rules = IgnoreRules(self.bundle) if ref.kind in _FILTERED else None
        real = bundle_links.resolve_links(self.bundle, directory)
        return real, list(_selected(self.bundle, directory, real, rules))


def text_file_tar(ref: Content) -> Iterator[bytes]:
    """Return a tar stream with the one file of a Content of kind "file"."""
    return tar_chunks([(ref.name, BundleEntry("file", 0o644, data=ref.text.encode()))], mtime=_UPLOAD_MTIME)


def load_task(bundle: Bundle, *, verification: bool = True, oracle: bool = False) -> Task:
    """Load the task of a bundle. Raises InvalidTask, with all faults, if Harbor 0.26 also rejects the task, or if its links or
    services are not supported.

    If steps are verified (``verification``) or the agent is oracle (``oracle``), all instructions and test scripts must exist, as
    in Harbor. Otherwise files may be missing, and a step that needs a missing file fails.
    """
    table = config_table(bundle)
    config = task_from_dict(table)
    rules = IgnoreRules(bundle)
    faults: list[InvalidTask] = []
    for path in _input_directories(config):
        with collected(faults):
            bundle_links.check_tree(bundle, path, rules.excludes)
    layout = TaskLayout()
    with collected(faults):
        layout = _layout(bundle, rules, config)
        check_services(config, layout)
    if verification or oracle:
        _check_files(bundle, rules, config, faults)
    if faults:
        raise InvalidTask.joined(list({str(fault): fault for fault in faults}.values())[:_MAX_FAULTS])
    return Task(config, bundle, layout, unknown_keys(table, most=_MAX_UNKNOWN))


def config_table(bundle: Bundle) -> Mapping[str, Any]:
    """Return the content of task.toml. Raises InvalidTask."""
    return bundle.table if bundle.table is not None else toml_table(_config_text(bundle))


def strip_canary(text: str) -> str:
    """Return an instruction without leading canary comments (marks of benchmark data) and blank lines, as Harbor 0.26 loads it."""
    start = 0
    canary = True
    while start < len(text):
        end = text.find("\n", start)
        line = text[start : end if end >= 0 else len(text)].strip()
        canary = canary and _is_canary(line)
        if line and not canary:
            break
        start = end + 1 if end >= 0 else len(text)
    return text[start:]


def _is_canary(line: str) -> bool:
    comment = line.startswith("#") or (line.startswith("<!--") and line.endswith("-->") and len(line) >= len("<!---->"))
    return comment and "canary" in line.lower()


def _path(step: str | None, name: str) -> str:
    return name if step is None else f"steps/{step}/{name}"


def _config_text(bundle: Bundle) -> str:
    if not bundle_links.is_file(bundle, CONFIG_FILE):
        raise InvalidTask("is missing: a task directory has one at its root", kind="FileNotFoundError", field=CONFIG_FILE)
    return _text(bundle, CONFIG_FILE)


def _text(bundle: Bundle, path: str) -> str:
    """Return the content of a text file with every line break as a newline, as Python's text mode does."""
    entry = bundle_links.entry_at(bundle, path)
    try:
        text = bytes(entry.data).decode() if entry else ""
    except UnicodeDecodeError as error:
        raise InvalidTask(f"is not UTF-8 text: {error}", kind="ValueError", field=path) from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _input_directories(config: TaskConfig) -> list[str]:
    return [*(f"steps/{step.name}" for step in config.steps or []), "tests", "solution"]


def _layout(bundle: Bundle, rules: IgnoreRules, config: TaskConfig) -> TaskLayout:
    steps = {step.name: _step_layout(bundle, rules, step.name) for step in config.steps or []}
    root = _step_layout(bundle, rules, None, instruction=not config.steps)
    for step in config.steps or []:
        verifier = step.verifier.environment or config.verifier.environment or config.environment
        if verifier_mode(config, step) == "separate":
            steps[step.name] = replace(steps[step.name], tests_compose=_services(bundle, f"steps/{step.name}/tests", verifier))
            root = root if root.tests_compose else replace(root, tests_compose=_services(bundle, "tests", verifier))
    if not config.steps and verifier_mode(config, StepConfig(name="task")) == "separate":
        verifier = config.verifier.environment or config.environment
        root = replace(root, tests_compose=_services(bundle, "tests", verifier))
    return TaskLayout(
        steps=steps,
        root=root,
        dockerfile=bundle_links.is_file(bundle, "environment/Dockerfile"),
        compose=_services(bundle, "environment", config.environment),
        environment_files=bool(bundle.children(bundle_links.resolve_links(bundle, "environment"))),
    )


def _services(bundle: Bundle, directory: str, environment: EnvironmentConfig) -> Services | None:
    """Return the services of a directory's compose file, or None without such a file."""
    return read_services(bundle, directory, environment) if bundle_links.is_file(bundle, f"{directory}/{COMPOSE_FILE}") else None


def _step_layout(bundle: Bundle, rules: IgnoreRules, step: str | None, *, instruction: bool = True) -> StepLayout:
    def directory(name: str) -> bool:
        return bundle_links.is_directory(bundle, _path(step, name))

    def script(name: str) -> bool:
        path = _path(step, name)
        return not rules.excludes(path) and bundle_links.is_file(bundle, path)

    def text(name: str) -> str | None:
        path = _path(step, name)
        return strip_canary(_text(bundle, path)) if bundle_links.is_file(bundle, path) else None

    return StepLayout(
        instruction=text("instruction.md") if instruction else None,
        workdir=directory("workdir"),
        setup=bundle_links.is_file(bundle, _path(step, "workdir/setup.sh")),
        resume=bundle_links.is_file(bundle, _path(step, "workdir/resume.sh")),
        tests=directory("tests"),
        test_script=script("tests/test.sh"),
        tests_dockerfile=bundle_links.is_file(bundle, _path(step, "tests/Dockerfile")),
        solution=directory("solution"),
        solve_script=script("solution/solve.sh"),
        trajectory=bundle_links.is_file(bundle, _path(step, TRAJECTORY_FILE)),
    )


def _check_files(bundle: Bundle, rules: IgnoreRules, config: TaskConfig, faults: list[InvalidTask]) -> None:
    """Add missing instructions and test scripts to ``faults``, as Harbor 0.26 does when it loads a task."""
    steps: Sequence[StepConfig | None] = config.steps or [None]
    for step in steps:
        with collected(faults):
            if step is not None and not bundle_links.is_directory(bundle, f"steps/{step.name}"):
                raise InvalidTask("is missing: each step has a directory", kind="FileNotFoundError", field=f"steps/{step.name}/")
            with collected(faults):
                _check_instruction(bundle, step.name if step else None)
            _check_tests(bundle, rules, config, step)


def _check_instruction(bundle: Bundle, step: str | None) -> None:
    path = _path(step, "instruction.md")
    if not bundle_links.is_file(bundle, path):
        raise InvalidTask("is missing: it has the agent's instruction", kind="FileNotFoundError", field=path)


def _check_tests(bundle: Bundle, rules: IgnoreRules, config: TaskConfig, step: StepConfig | None) -> None:
    if _brings_tests(bundle, config, step):
        return
    own = _path(step.name if step else None, "tests/test.sh")
    path = own if bundle_links.is_file(bundle, own) else "tests/test.sh"
    if not bundle_links.is_file(bundle, path):
        shared = "" if path == own else f", and so is the shared {path}"
        raise InvalidTask(f"is missing{shared}: without it nothing is verified", kind="FileNotFoundError", field=own)
    if rules.excludes(path):
        raise InvalidTask("is excluded by .harborignore, but needed", kind="ValueError", field=path)


def _brings_tests(bundle: Bundle, config: TaskConfig, step: StepConfig | None) -> bool:
    """Return whether the image of a separate verifier contains the tests, so that they are not uploaded."""
    levels = [(config.verifier, "tests")]
    if step is not None:
        levels.insert(0, (step.verifier, _path(step.name, "tests")))
    modes = [v.environment_mode or ("separate" if v.environment else None) for v, _ in levels]
    if next((mode for mode in modes if mode), "shared") == "shared":
        return False
    return any(
        (verifier.environment is not None and verifier.environment.docker_image)
        or any(bundle_links.is_file(bundle, f"{tests}/{name}") for name in ("Dockerfile", COMPOSE_FILE))
        for verifier, tests in levels
    )


def _selected(bundle: Bundle, directory: str, real: str, rules: IgnoreRules | None) -> Iterator[str]:
    """Yield the sorted paths below a directory, relative to it, without following links. ``real`` is the directory's resolved
    path."""
    prefix = f"{real}/" if real else ""
    ahead = [*reversed(bundle.children(real))]
    while ahead:
        path = ahead.pop()
        if rules is not None and rules.excludes(f"{directory}/{path}"):
            continue
        yield path
        ahead.extend(f"{path}/{name}" for name in reversed(bundle.children(prefix + path)))
