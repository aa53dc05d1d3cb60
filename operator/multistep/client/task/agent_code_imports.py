"""Warns of tests that import the agent's code into their own process, where it has the verifier's rights. Pure functions.

Such code can replace the test runner, exit with 0 or write the reward itself, whatever the isolation is. The check reads only the
files of the task: it finds a test file that imports a module of the workdir, the environment, the solution or the instruction.
"""

from __future__ import annotations

import ast
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

from multistep.api.task.task_toml import StepConfig, TaskConfig
from multistep.client.task.findings import Finding
from multistep.engine.plan.verifier_environment import verifier_mode
from multistep.sources.task.bundle import Bundle
from multistep.sources.task.bundle_links import entry_at, resolve_links

_MAX_BYTES: Final = 200_000  # maximum size of a file to read: parsing a larger one takes seconds
_MAX_PARSED: Final = 100  # maximum number of test files to parse per task
_MAX_TEXTS: Final = 1_000_000  # maximum number of characters of instructions and scripts that are searched for names, per task
_MAX_PARTS: Final = 4  # maximum number of parts of a module's name that are compared with paths
_RUNS_PYTHON: Final = re.compile(rb"py\.?test|python|unittest|\buv\b|\btox\b|\bnox\b")
_OTHER_USER: Final = re.compile(
    rb"\b(setpriv|runuser|su-exec|gosu|bwrap|nsjail|unshare|chroot|setuid|setreuid|setresuid)\b|\bsudo\s+-u|\bsu\s|\buser="
)
_PATH: Final = re.compile(r"[\w./-]+")
_TEST_FILE: Final = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
_LOADERS: Final = frozenset(
    ("import_module", "__import__", "spec_from_file_location", "SourceFileLoader", "run_path", "run_module", "exec")
)
_DESCRIBING: Final = ("instruction.md", "solution/solve.sh", "workdir/setup.sh")
_REMEDY: Final = (
    "into the test's own process, where it can replace the test runner, exit with 0 and write the reward: run it in a process of "
    "its own as another user (setpriv --reuid=65534 --regid=65534 --clear-groups --reset-env -- ...) and read only its output"
)


def submission_imports(bundle: Bundle, config: TaskConfig) -> Iterator[Finding]:
    """Yield a warning for each test file that imports the agent's code. Raises InvalidTask for an invalid link."""
    submission, tests, seen = _Submission(bundle), _Tests(bundle), set[str]()
    for step in config.steps or [StepConfig(name="task")]:
        own = f"steps/{step.name}/tests" if config.steps else "tests"
        script = entry_at(bundle, f"{own}/test.sh") or entry_at(bundle, "tests/test.sh")
        if script is None or not _RUNS_PYTHON.search(text := bytes(script.data[:_MAX_BYTES])):
            continue
        tops = [top for each in dict.fromkeys((own, "tests")) if (top := resolve_links(bundle, each))]
        if any(map(tests.name_another_user, tops)):
            continue
        separate = verifier_mode(config, step) == "separate"
        for path, data in (each for top in tops for each in tests.python(top)):
            name = path.rpartition("/")[2]
            if path in seen or len(seen) == _MAX_PARSED or not (_TEST_FILE.fullmatch(name) or name.encode() in text):
                continue
            seen.add(path)
            for line, module in _imports(data):
                if not tests.have(tops, module) and submission.has(module, separate=separate):
                    yield Finding(f"{path}:{line}", f"imports {module[:100]}, code that the agent can change, {_REMEDY}")
                    break


class _Tests:
    """The files of directories of tests. Each directory is read once, as steps share one."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._read: dict[str, list[tuple[str, bytes]]] = {}
        self._another_user: dict[str, bool] = {}

    def _files(self, top: str) -> list[tuple[str, bytes]]:
        if top not in self._read:
            self._read[top] = [(path, data) for path, data in _files(self._bundle) if path.startswith(f"{top}/")]
        return self._read[top]

    def python(self, top: str) -> Sequence[tuple[str, bytes]]:
        """Return path and content of each Python file below a directory."""
        return [(path, data) for path, data in self._files(top) if path.endswith(".py")]

    def name_another_user(self, top: str) -> bool:
        """Return whether a file below the directory seems to run a process, perhaps the agent's code, as another user."""
        if top not in self._another_user:
            self._another_user[top] = any(_OTHER_USER.search(data) for _, data in self._files(top))
        return self._another_user[top]

    def have(self, tops: Sequence[str], module: str) -> bool:
        """Return whether the tests' directories have a module or package with the first name of ``module``."""
        first = module.partition(".")[0]
        places = [f"{top}/{first}" for top in tops]
        return any(entry_at(self._bundle, path) is not None for each in places for path in (each, f"{each}.py"))


class _Submission:
    """The Python modules that the agent writes, as far as the task's files show."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._known: dict[tuple[str, bool], bool] = {}

    def has(self, module: str, *, separate: bool) -> bool:
        """Return whether the agent can change a module, or a file that is given by its absolute path. separate: whether the
        verifier has an image of its own, in which the agent cannot change the files of the task's environment."""
        if (module, separate) not in self._known:
            self._known[module, separate] = self._has(module, separate=separate)
        return self._known[module, separate]

    def _has(self, module: str, *, separate: bool) -> bool:
        files = [self._written, self._named, *([] if separate else [self._given])]
        if module.startswith("/"):
            return any(module.rpartition("/")[2] in each for each in files)
        parts = module.split(".", _MAX_PARTS)[:_MAX_PARTS]
        if parts[0] in sys.stdlib_module_names:
            return False
        paths = [f"{'/'.join(parts[:count])}.py" for count in range(1, len(parts) + 1)]
        return any(path in each for path in (*paths, f"{parts[0]}/__init__.py") for each in files)

    @cached_property
    def _written(self) -> frozenset[str]:
        """The ends of the paths of the Python files in the steps and the solution."""
        return _ends(self._files("solution/", "steps/"))

    @cached_property
    def _given(self) -> frozenset[str]:
        """The ends of the paths of the Python files in the task's environment."""
        return _ends(self._files("environment/"))

    @cached_property
    def _named(self) -> frozenset[str]:
        """The ends of the paths of Python files that are named in an instruction, or in a script of the solution or the workdir."""
        texts = (data.decode(errors="replace") for path, data in _files(self._bundle) if path.endswith(_DESCRIBING))
        return _ends(each.rstrip(".") for each in _PATH.findall("\n".join(texts)[:_MAX_TEXTS]))

    def _files(self, *tops: str) -> Iterator[str]:
        return (path for path in self._bundle.entries if path.startswith(tops) and "/tests/" not in path)


def _ends(paths: Iterable[str]) -> frozenset[str]:
    """Return the ends of the paths by which an import may name the Python files: the last part, the last two, and so on."""
    split = (path.split("/") for path in paths if path.endswith(".py"))
    return frozenset("/".join(parts[-count:]) for parts in split for count in range(1, min(len(parts), _MAX_PARTS) + 1))


def _files(bundle: Bundle) -> Iterator[tuple[str, bytes]]:
    for path, entry in bundle.entries.items():
        if entry.kind == "file" and len(entry.data) <= _MAX_BYTES:
            yield path, bytes(entry.data)


def _imports(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield the line and each name of what a Python file loads: modules and absolute paths; nothing if it cannot be parsed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, each.name) for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{each.name}") for each in node.names)
        elif isinstance(node, ast.Call) and (called := _name(node.func)) in _LOADERS:
            yield from ((node.lineno, text) for text in _texts(node) if _is_loaded(text, called))


def _texts(call: ast.Call) -> Iterator[str]:
    for argument in call.args:
        for part in ast.walk(argument):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value


def _is_loaded(text: str, called: str) -> bool:
    if text.startswith("/"):
        return text.endswith(".py") and not text.startswith("/tests/")
    return called != "exec" and text.replace(".", "").isidentifier()


def _name(function: ast.expr) -> str:
    """Return the name of the called function. Return "" for a method named exec: clients of containers have such methods."""
    if isinstance(function, ast.Attribute):
        return function.attr if function.attr != "exec" else ""
    return function.id if isinstance(function, ast.Name) else ""
