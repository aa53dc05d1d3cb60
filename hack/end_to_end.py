"""Run the end-to-end tests on one or two clusters, in parallel where possible.

Tests with the mark `alone` run without other tests on their cluster: they stop or change shared objects, or count them.
A failed test is repeated once after all others have finished (hack.flaky).
Tests with the mark `long` run in `make test-long`, the same way; those with the mark `agents` in `make test-agents`, and those with
the mark `measures` in `make bench`.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hack import deployment, load
from hack.flaky import Rerun, run_again
from hack.history import History
from hack.lanes import PYTEST, Ended, Run, environment, execute
from hack.paths import ROOT
from hack.report import report
from hack.stages import print_line, stage, summary
from localkube import targets
from localkube.commands import capture
from localkube.config import load_config, second_cluster

DIRECTORIES = ("tests/e2e", "tests/conformance", "tests/rights")
_EACH_RUN = "not long and not measures and not agents"
_CASES_AT_ONCE = 2  # concurrent conformance cases per pytest-xdist worker; a case mostly waits
_FIRST = "tests/e2e/test_nodes.py"  # runs first: a new node copies all images of the cluster, which are few at the start


def run() -> None:
    """Deploy the operator and run the tests of `make test` against it."""
    first = deployment.deploy()
    print_line(f"stages so far:\n{summary()}")
    with stage("end-to-end tests"):
        tests = _Stage(first, _EACH_RUN, History())
        ended = tests.ended()
    report(ended, tests.again)


def run_long(before: Sequence[Ended]) -> None:
    """Run the tests that `make test` omits because they take long. before: finished runs of the long tests that need no cluster.
    The totals include those of this checkout's last `make test`."""
    past = History(continued=True)
    first = deployment.deploy()
    with stage("long end-to-end tests"):
        tests = _Stage(first, "long", past)
        ended = tests.ended()
    report([*before, *ended], tests.again, past)


def run_agents() -> None:
    """Run the tests of more agents sequentially, because these tests build images."""
    env = environment(deployment.deploy().environment)
    with stage("end-to-end tests of more agents"):
        ended = [execute(Run("agents", ["tests/e2e", "-m", "agents", "-v"], env))]
        again = run_again(ended, env, execute)
    report(ended, again, History(continued=True))


class _Stage:
    """Runs the end-to-end tests with these marks (pytest's -m), those marked `alone` last. With localkube, a second cluster runs a
    part of the `alone` tests. past: the history; the operator's RBAC rights are checked against the audit logs since the start of
    the run that the history extends."""

    def __init__(self, first: deployment.Cluster, marks: str, past: History) -> None:
        self._first, self._marks, self._since = first, marks, past.newest_start()
        self._ours = isinstance(first.target, targets.Local)
        self._workers = load.workers()
        print_line(f"{self._workers} workers of pytest-xdist")
        self._alone = deque(self._files_of_tests_alone())
        self._ended: list[Ended] = []
        self.again: list[Rerun] = []
        self._lock = threading.Lock()

    @property
    def _is_long(self) -> bool:
        return self._marks != _EACH_RUN

    def ended(self) -> list[Ended]:
        """Run the tests and, unless these are the long tests, the conformance cases; return the finished runs."""
        clusters = [self._on_first, *([self._on_second] if self._ours else [])]
        with ThreadPoolExecutor(len(clusters)) as threads:
            for lane in [threads.submit(cluster) for cluster in clusters]:
                lane.result()
        self.again = run_again(self._ended, environment(self._first.environment), execute)
        if self._ours:
            self._prove_rights()
        return self._ended

    def _on_first(self) -> None:
        env = environment(self._first.environment)
        side_by_side = ("-n", str(self._workers), "--dist", "loadgroup", "-m", f"not alone and {self._marks}", "-v")
        runs = [Run("side by side", ["tests/e2e", *side_by_side], env)]
        if not self._is_long:
            cases = {"MULTISTEP_TEST_CASES": str(_CASES_AT_ONCE * self._workers)}
            runs.append(Run("conformance", ["tests/conformance"], env | cases))
        with ThreadPoolExecutor(len(runs)) as threads:
            list(threads.map(self._execute, runs))
        self._run_alone(env)

    def _on_second(self) -> None:
        self._run_alone(environment(deployment.deploy(second_cluster(os.environ)).environment))

    def _run_alone(self, env: Mapping[str, str]) -> None:
        """Run files of tests marked `alone` sequentially, from the queue that both clusters share."""
        while file := self._next():
            name = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
            self._execute(Run(name, [file, "-m", f"alone and {self._marks}", "-v"], env))

    def _prove_rights(self) -> None:
        """Check the operator's RBAC rights against the audit logs, which only local clusters have. Only after the long tests, check
        also that each right was used."""
        logs = [load_config(variables).paths.logs for variables in (os.environ, second_cluster(os.environ))]
        asked = {"MULTISTEP_TEST_LOGS": os.pathsep.join(map(str, logs)), "MULTISTEP_TEST_SINCE": self._since}
        marks = "" if self._is_long else _EACH_RUN
        self._execute(Run("rights", ["tests/rights", "-m", marks, "-v"], environment(self._first.environment) | asked))

    def _files_of_tests_alone(self) -> list[str]:
        listing = [*PYTEST, "--collect-only", "-q", "-m", f"alone and {self._marks}", "tests/e2e"]
        listed = capture(listing, env=environment(self._first.environment), cwd=ROOT)
        files = dict.fromkeys(line.partition("::")[0] for line in listed.splitlines() if "::" in line)
        return in_order(files, History().seconds())

    def _next(self) -> str:
        with suppress(IndexError):  # the queue is empty
            return self._alone.popleft()
        return ""

    def _execute(self, run: Run) -> None:
        ended = execute(run)
        with self._lock:
            self._ended.append(ended)


def in_order(files: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Sort files by their last duration, longest first, so that no cluster is idle at the end. A new file counts as the longest."""
    return sorted(files, key=lambda file: (file != _FIRST, -seconds.get(file, float("inf"))))
