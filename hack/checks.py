"""Checks and tests, from the fastest to the slowest."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from hack import deployment, end_to_end, image, lanes, load, python_env, thirds
from hack.flaky import Rerun
from hack.lanes import Ended, Run
from hack.paths import CACHE, ROOT, VENV, files_below
from hack.report import report
from hack.stages import Failure, print_line, stage
from hack.tools import c_compiler, go, go_environment, helm, network_tools
from localkube.commands import capture
from localkube.errors import LocalkubeError

_CRDS = ROOT / "crds"
_CHART_CRDS = ROOT / "charts" / "multistep" / "files" / "crds"
_GO = (ROOT / "runner", ROOT / "egress", ROOT / "compose", ROOT / "localkube" / "kube")
_TYPED = (
    "operator/multistep",
    "charts/multistep/files",
    "agent-host/multistep_host",
    "agent-host/tests",
    "localkube",
    "hack",
    "tests",
)
_RACE_OF_CONTAINERS = "Checkpoint|Restore|BrokenSession|Counters|SignsOfLife|Survived"
# `make test-long` also searches for more examples than each run in the tests of properties, which Hypothesis marks.
_LONG, _WIDE = "long or hypothesis", ("--hypothesis-profile=wide",)
_EXPLAINED = 20  # maximum number of failed unit tests that run again with their assertions rewritten
_AGAIN = "-count=1"  # an option of `go test` that ignores results of earlier runs
_WAITING = "IsNoWork"  # tests that wait, which the race detector would only slow down
_PROCESSES = ("tests/process", "tests/conformance")
_CORE = ("tests/unit/engine", "tests/unit/api", "tests/unit/agents")
_YIELDING = 1.5  # workers per core of unit tests that run at low priority, because they wait for a third of their time
_SIDE_BY_SIDE_BYTES = 4 << 30  # with less available memory, the Go tests run before pytest instead of in parallel


def lint() -> None:
    """Run all static checks, even if some of them fail."""
    failures = []
    for name, check in _LINT.items():
        try:
            with stage(name):
                check()
        except (Failure, LocalkubeError) as error:
            failures.append(f"{name}: {error}")
    if failures:
        raise Failure("\n".join(failures))


def _ruff() -> None:
    _python_program("ruff", "check", ".")
    _python_program("ruff", "format", "--check", ".")


def _mypy() -> None:
    _python_program("mypy", "--strict", "--cache-dir", str(CACHE / "mypy"), *_TYPED)


def _lint_imports() -> None:
    capture([str(VENV / "bin" / "lint-imports"), "--cache-dir", str(CACHE / "import-linter")], cwd=ROOT)


def _go_format_and_vet() -> None:
    _gofmt()
    # Skip localkube/kube, for which go vet would compile all of Kubernetes again.
    for module in (ROOT / "runner", ROOT / "egress", ROOT / "compose"):
        _run([str(go()), "vet", "./..."], cwd=module, env=go_environment())


def _crds_and_chart() -> None:
    _crds_are_current()
    _run([str(helm()), "lint", "--strict", "--quiet", str(deployment.CHART)])


_LINT: Mapping[str, Callable[[], None]] = {
    "ruff": _ruff,
    "mypy --strict": _mypy,
    "lint-imports": _lint_imports,
    "gofmt and go vet": _go_format_and_vet,
    "CRDs and chart": _crds_and_chart,
}


def unit() -> None:
    """Run the tests that need no cluster, except tests with the mark `long`."""
    _ensure_programs()
    env = lanes.environment(os.environ)
    with stage("Go tests and Python tests (100 % branch coverage of the core)"):
        ended = _side_by_side(_target("go-tests"), _python_tests(env), _process_tests(env))
    report(ended)


def _ensure_programs() -> None:
    """Install or build the programs that tests without a cluster need."""
    helm()
    image.ensure_runner()
    image.ensure_compose_reader()
    c_compiler()
    network_tools()
    python_env.compile_modules()


def _side_by_side(*runs: Run) -> list[Ended]:
    """Execute runs in parallel if there is enough memory. Return the finished runs with details of their failed tests."""
    with ThreadPoolExecutor(len(runs) if load.free_bytes() >= _SIDE_BY_SIDE_BYTES else 1) as threads:
        return [*map(_explained, threads.map(lanes.execute, runs))]


def _explained(ended: Ended) -> Ended:
    """Run a finished run's failed tests again with assertions that show their values, and add the output to the run."""
    failed = list(ended.outcomes.failed)[:_EXPLAINED]
    if not failed:
        return ended
    again = lanes.execute(Run(f"{ended.run.name} again", [*failed, "-q"], ended.run.env))
    return replace(ended, words=[*again.words, *ended.words])


def _target(name: str) -> Run:
    """Return a run of another target of this program."""
    return Run(name, ["-m", "hack", name], os.environ | {"PYTHONUNBUFFERED": "1"}, (sys.executable,))


def go_tests() -> None:
    """Run each Go test once, with the race detector unless its threads would disturb the test. Go uses cached results of the
    runner's packages that did not change. Tests that depend on more than their package always run."""
    modules = (
        (ROOT / "egress", "-race", _AGAIN, "./..."),  # depends on the kernel's networks
        # These tests use the tasks of the end-to-end tests, which Go's cache of results does not notice.
        (ROOT / "compose", _AGAIN, "./..."),
        (ROOT / "runner", "-race", "./internal/..."),
        # The tests of the runner's main package run the runner in containers, mostly without the race detector.
        (ROOT / "runner", "-race", _AGAIN, "-run", _RACE_OF_CONTAINERS, "-skip", _WAITING, "."),
        (ROOT / "runner", _AGAIN, "-run", _WAITING, "."),
        (ROOT / "runner", _AGAIN, "-skip", f"{_RACE_OF_CONTAINERS}|{_WAITING}", "."),
    )
    failures = list(filter(None, (_go_test(*each) for each in modules)))
    if failures:
        raise Failure("\n".join(failures))


def _python_tests(env: dict[str, str], per_core: float = 1) -> Run:
    """Return the run of the Python tests that need no cluster, except tests with the mark `long`, with ``per_core`` workers per
    core."""
    coverage = ("--cov=multistep.engine", "--cov-branch", "--cov-report=term-missing:skip-covered", "--cov-fail-under=100")
    core = ("-p", "hack.pytest_core", *(f"--core={place}" for place in _CORE))
    arguments = ["tests", "--assert=plain", *_workers(per_core, "not long"), *_without(*end_to_end.PLACES, *_PROCESSES)]
    return Run("unit", [*arguments, *coverage, *core], env)


def _process_tests(env: dict[str, str]) -> Run:
    """Return the run of the tests with local processes in place of pods, except tests with the mark `long`. There are two workers
    per core, because the tests wait for half of their time."""
    return Run("processes", [*_PROCESSES, "--assert=plain", *_workers(2, "not long")], env)


def _workers(per_core: float, marks: str) -> tuple[str, ...]:
    """Return pytest's options to run tests with these marks in workers. An idle worker takes tests from others (worksteal), because
    the tests' durations differ widely."""
    return ("-q", "-n", str(round(per_core * len(os.sched_getaffinity(0)))), "--dist", "worksteal", "-m", marks)


def _without(*places: str) -> list[str]:
    return [f"--ignore={place}" for place in places]


def everything() -> None:
    """Run `make test`. The end-to-end tests wait for most of their time, so all other tests run in parallel, at lower priority. A
    failure does not stop the rest."""
    _ensure_programs()
    workers, env = load.workers(), lanes.environment(os.environ)
    more: Sequence[Ended] = ()
    again: Sequence[Rerun] = ()
    with stage("all checks and tests"), ThreadPoolExecutor(1) as thread:
        beside = thread.submit(_beside, env)
        deploying = lanes.execute(_target("deploy"))
        if deploying.code == 0:
            more, again = end_to_end.each_run(workers, beside.result)
        ended = [*beside.result(), deploying, *more]
    report(ended, again)


def _beside(env: dict[str, str]) -> list[Ended]:
    runs = (_target("lint"), _target("go-tests"), _process_tests(env), _python_tests(env, _YIELDING))
    return _side_by_side(*(replace(each, yields=True) for each in runs))


def long_tests() -> None:
    """Run `make test-long`, which has the tests that take too long for `make test`, or the third of them that LONG names."""
    choice = thirds.chosen(os.environ.get("LONG", ""))
    print_line(f"==> {choice.shown}")
    _ensure_programs()
    arguments = ["tests", *_workers(1, _LONG), *_WIDE, *_without(*end_to_end.PLACES), *choice.options]
    workers, apart = load.workers(), Run("long", arguments, lanes.environment(os.environ), yields=True)
    with ThreadPoolExecutor(1) as thread:
        end_to_end.run_long(workers, thread.submit(lanes.execute, apart).result, choice)
    if choice.third:
        thirds.Turn().passed(choice.third)


def generate() -> None:
    """Generate the CRDs, the chart's copies and the tables of the references in docs/ from the models."""
    python_env.ensure()
    _write_crds(_CRDS, _CHART_CRDS)
    print_line("wrote the CRDs and the chart's copies")
    for writer in ("reference", "metrics_page", "cli_page", "chart", "compose_page"):
        capture([str(VENV / "bin" / "python"), "-m", f"hack.generate.{writer}"], cwd=ROOT)
    print_line("wrote the reference tables in docs/ and the chart's schema")


def _write_crds(*directories: Path) -> None:
    capture([str(VENV / "bin" / "python"), "-m", "hack.generate.crds", *map(str, directories)], cwd=ROOT)


def _crds_are_current() -> None:
    with TemporaryDirectory() as directory:
        _write_crds(Path(directory))
        wanted = {file.name: file.read_text() for file in Path(directory).iterdir()}
    for place in (_CRDS, _CHART_CRDS):
        if {file.name: file.read_text() for file in place.iterdir()} != wanted:
            raise Failure(f"{place.relative_to(ROOT)} is out of date with the models; run: make generate")


def _gofmt() -> None:
    files = [str(file) for file in files_below(*_GO) if file.suffix == ".go"]
    unformatted = capture([str(go().with_name("gofmt")), "-l", *files])
    if unformatted:
        raise Failure(f"not formatted (gofmt -w FILE):\n{unformatted}")


def _go_test(module: Path, *arguments: str) -> str:
    """Run Go tests. Return a text about failures, or "". A skipped test counts as failed."""
    # With -trimpath, Go uses the cache of other checkouts. `make lint` runs go vet.
    command = [str(go()), "test", "-json", "-trimpath", "-vet=off", *arguments]
    env = go_environment(CGO_ENABLED="1" if "-race" in arguments else "0")  # the race detector needs cgo, which releases do not use
    started = time.monotonic()
    done = subprocess.run(command, cwd=module, env=env, stdout=subprocess.PIPE, text=True, check=False)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    ends = Counter(event["Action"] for event in events if event.get("Test") and event["Action"] in ("pass", "fail", "skip"))
    what = f"go test {' '.join(arguments)} in {module.name}"
    if done.returncode or ends["fail"] or ends["skip"] or not ends["pass"]:
        return f"{_output_of_bad_tests(events)}\n{what}: {dict(ends)}, exit code {done.returncode}"
    slowest = max((event for event in events if event.get("Test") and "Elapsed" in event), key=lambda event: event["Elapsed"])
    took = f"{time.monotonic() - started:.1f} s, of which {slowest['Test']} {slowest['Elapsed']:.1f} s"
    kept = sum(event["Action"] == "output" and "\t(cached)" in event["Output"] for event in events)
    unchanged = f"; {kept} packages have not changed since they passed" if kept else ""
    print_line(f"    {what}: {ends['pass']} tests passed in {took}{unchanged}")
    return ""


def _output_of_bad_tests(events: Sequence[dict[str, str]]) -> str:
    def key(event: dict[str, str]) -> tuple[str | None, str | None]:
        return event.get("Package") or event.get("ImportPath"), event.get("Test")

    def is_bad(event: dict[str, str]) -> bool:
        return event["Action"] == "build-fail" or (event["Action"] in ("fail", "skip") and "Test" in event)

    bad = {key(event) for event in events if is_bad(event)}
    return "".join(event["Output"] for event in events if event["Action"] in ("output", "build-output") and key(event) in bad)


def _python_program(name: str, *arguments: str) -> None:
    _run([str(VENV / "bin" / name), *arguments])


def _run(command: Sequence[str], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    code = subprocess.run(command, cwd=cwd, env=env, check=False).returncode
    if code:
        raise Failure(f"`{' '.join(command)}` ended with exit code {code}")
