"""Run the end-to-end tests on one cluster, in parallel where possible.

Tests with the mark `alone` run after the others, one file at a time, because they stop, change or count shared objects.
A failed test is repeated once after all others have finished (hack.flaky).
Tests with the mark `long` run in `make test-long` in the same way, those with the mark `agents` in `make test-agents`, and those
with the mark `measures` in `make bench`.
"""

import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from hack import deployment, load
from hack.flaky import Rerun, run_again
from hack.history import History
from hack.lanes import NO_TESTS, PYTEST, Ended, Run, environment, execute
from hack.paths import CACHE, ROOT
from hack.report import report
from hack.stages import print_line, stage
from hack.thirds import ALL, Choice
from localkube import targets
from localkube.config import load_config

_SIMULATED = "tests/simulated"
PLACES = ("tests/e2e", "tests/rights", _SIMULATED)  # directories of tests that need a cluster
_EACH_RUN = "not long and not measures and not agents"
_SIMULATED_WORKERS = 4  # each worker has an operator and a node. The tests wait for four fifths of their time
_EVERY = Choice()
_USED = CACHE / "used-rights"  # rights that the operator used in the last run of each third of the long tests
# This file runs first, because a new node copies all images of the cluster, of which there are few at the start.
_FIRST = "tests/e2e/test_nodes.py"


def run() -> None:
    """Deploy the operator and run the tests of `make test` against it."""
    deployment.deploy()
    with stage("end-to-end tests"):
        ended, again = each_run()
    report(ended, again)


def each_run(workers: int = 0, others: Callable[[], object] = lambda: None) -> tuple[list[Ended], list[Rerun]]:
    """Run the tests of `make test` against the deployed operator. Return the finished runs and the repetitions of failed tests.

    ``workers`` is the number of pytest-xdist's workers, 0 for as many as suit the machine's load. ``others`` waits for tests that
    run in parallel.
    """
    return _Stage(_EACH_RUN, History(), workers=workers).ended(others)


def run_long(workers: int, others: Callable[[], Ended], choice: Choice) -> None:
    """Run the chosen tests of those that take too long for `make test`. ``workers`` is as for each_run. ``others`` waits for the
    long tests that need no cluster. The totals include those of this checkout's last `make test`."""
    past = History(continued=True)
    deployment.deploy()
    with stage("long tests"):
        ended, again = _Stage("long", past, choice, workers=workers).ended(others)
    report([others(), *ended], again, past)


def run_agents() -> None:
    """Run the tests of more agents sequentially, because these tests build images."""
    env = environment(deployment.deploy().environment)
    with stage("end-to-end tests of more agents"):
        ended = [execute(Run("agents", ["tests/e2e", "-m", "agents", "-v"], env))]
        again = run_again(ended, env, execute)
    report(ended, again, History(continued=True))


class _Stage:
    """Runs the end-to-end tests with these marks (pytest's -m), those marked `alone` last. The operator's RBAC rights are checked
    against the audit logs since the start of the run that the history ``past`` extends."""

    def __init__(self, marks: str, past: History, choice: Choice = _EVERY, *, workers: int = 0) -> None:
        cluster = deployment.deployed()
        self._marks, self._choice, self._since = marks, choice, past.newest_start()
        self._is_ours = isinstance(cluster.target, targets.Local)
        self._env = environment(cluster.environment)
        self._workers = workers or load.workers()
        print_line(f"{self._workers} workers of pytest-xdist")

    @property
    def _is_long(self) -> bool:
        return self._marks != _EACH_RUN

    def ended(self, others: Callable[[], object] = lambda: None) -> tuple[list[Ended], list[Rerun]]:
        """Run the tests. Return the finished runs, and the repetitions of failed tests. ``others`` waits for tests that run in
        parallel."""
        runs = [*self._side_by_side(), *self._simulated()]
        with ThreadPoolExecutor(len(runs)) as threads:
            ended = list(threads.map(execute, runs))
        ended += map(execute, self._alone())
        others()  # repeat the tests when no others run, because a busy machine can make tests fail
        again = run_again(ended, self._env, execute)
        if self._is_ours:
            ended.append(execute(self._rights()))
        return ended, again

    def _side_by_side(self) -> Iterator[Run]:
        options = (*_workers(self._workers), *self._selected("not alone"))
        yield Run("side by side", ["tests/e2e", "-v", *options], self._env, may_be_empty=self._is_long)

    def _simulated(self) -> Iterator[Run]:
        """Yield the run of the tests on simulated nodes, which need an API server that reaches this machine."""
        if self._is_ours:
            options = (*_workers(_SIMULATED_WORKERS), *self._selected())
            yield Run("simulated", [_SIMULATED, "-v", *options], self._env, may_be_empty=self._is_long)

    def _alone(self) -> Iterator[Run]:
        """Yield a run for each file of tests marked `alone`."""
        files = _files_of_tests(("tests/e2e", *self._selected("alone")), self._env)
        for file in in_order(files, History().seconds()):
            name = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
            yield Run(name, [file, "-v", *self._selected("alone")], self._env)

    def _rights(self) -> Run:
        """Return the check of the operator's RBAC rights against the audit log. After all long tests, it also checks that each
        right was used."""
        asked = {"MULTISTEP_TEST_LOGS": str(load_config().paths.logs), "MULTISTEP_TEST_SINCE": self._since}
        judges_all = self._is_long
        if third := self._choice.third:
            asked["MULTISTEP_TEST_USED"] = str(_USED / f"{third}.json")
            judges_all = all((_USED / f"{each}.json").exists() for each in ALL if each != third)
        return Run("rights", ["tests/rights", "-m", "" if judges_all else _EACH_RUN, "-v"], self._env | asked)

    def _selected(self, *marks: str) -> tuple[str, ...]:
        """Return pytest's options that select the stage's tests with these marks."""
        return ("-m", " and ".join([*marks, self._marks]), *self._choice.options)


def _files_of_tests(options: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the files of the tests that pytest selects with these options. If pytest cannot collect them, return the directory of
    all tests, for which pytest then shows the reason."""
    done = subprocess.run(
        [*PYTEST, "--collect-only", "-q", *options], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode not in (0, NO_TESTS):
        return ["tests/e2e"]
    return list(dict.fromkeys(line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line))


def _workers(number: int) -> tuple[str, ...]:
    """Return pytest's options for this number of workers. One worker runs all tests of an xdist_group."""
    return ("-n", str(number), "--dist", "loadgroup")


def in_order(files: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Return the files sorted by their last duration, longest first, so that no cluster is idle at the end. A new file counts as
    the longest."""
    return sorted(files, key=lambda file: (file != _FIRST, -seconds.get(file, float("inf"))))
