"""Run the end-to-end tests on one or two clusters, in parallel where possible.

Tests with the mark `alone` run without other tests on their cluster: they stop, change or count shared objects.
A failed test is repeated once after all other tests have finished (hack.flaky).
Tests with the mark `long` run in `make test-long`, those with the mark `agents` in `make test-agents`, and those with the mark
`measures` in `make bench`.
"""

import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime

from hack import deployment, load
from hack.flaky import Again, run_again
from hack.history import History
from hack.lanes import PYTEST, Ended, Run, environment, execute
from hack.places import ROOT
from hack.report import report
from hack.stages import print_line, stage, summary
from localkube import targets
from localkube.commands import capture
from localkube.config import load_config, second_cluster

DIRECTORIES = ("tests/e2e", "tests/conformance", "tests/rights")
_EACH_RUN = "not long and not measures and not agents"
_CASES_AT_ONCE = 2  # concurrent conformance cases per pytest-xdist worker; a case mostly waits
_FIRST = "tests/e2e/test_nodes.py"  # runs first: a new node copies all images of the cluster, and at the start it has few


def run() -> None:
    """Deploy the operator and run the end-to-end tests against it."""
    first = deployment.deploy()
    print_line(f"stages so far:\n{summary()}")
    with stage("end-to-end tests"):
        tests = _Stage(first)
        ended = tests.ended()
    report(ended, tests.again)


def run_marked(mark: str) -> None:
    """Run the tests with this mark sequentially; `make test` omits them. The totals include those of the last `make test`."""
    env = environment(deployment.deploy().environment)
    with stage(f"end-to-end tests with the mark {mark}"):
        ended = [execute(Run(mark, ["tests/e2e", "-m", mark, "-v"], env))]
        again = run_again(ended, env, execute)
    report(ended, again, History(continued=True))


class _Stage:
    """Runs the end-to-end tests, those marked `alone` last. With localkube, a second cluster runs some of the `alone` tests."""

    def __init__(self, first: deployment.Cluster) -> None:
        self._first = first
        self._ours = isinstance(first.target, targets.Local)
        self._workers = load.workers()
        print_line(f"{self._workers} workers of pytest-xdist")
        self._since = datetime.now(UTC).isoformat()
        self._alone = deque(_files_of_tests_alone(environment(first.environment)))
        self._ended: list[Ended] = []
        self.again: list[Again] = []
        self._lock = threading.Lock()

    def ended(self) -> list[Ended]:
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
        side_by_side = ("-n", str(self._workers), "--dist", "loadgroup", "-m", f"not alone and {_EACH_RUN}", "-v")
        cases = {"MULTISTEP_TEST_CASES": str(_CASES_AT_ONCE * self._workers)}
        runs = [Run("conformance", ["tests/conformance"], env | cases), Run("side by side", ["tests/e2e", *side_by_side], env)]
        with ThreadPoolExecutor(len(runs)) as threads:
            list(threads.map(self._execute, runs))
        self._run_alone(env)

    def _on_second(self) -> None:
        self._run_alone(environment(deployment.deploy(second_cluster(os.environ)).environment))

    def _run_alone(self, env: Mapping[str, str]) -> None:
        """Run files of tests marked `alone` sequentially, from the queue that both clusters share."""
        while file := self._next():
            name = file.rpartition("/")[2].removeprefix("test_").removesuffix(".py")
            self._execute(Run(name, [file, "-m", f"alone and {_EACH_RUN}", "-v"], env))

    def _prove_rights(self) -> None:
        """Check the operator's RBAC rights against the audit logs, which only local clusters expose."""
        logs = [load_config(variables).paths.logs for variables in (os.environ, second_cluster(os.environ))]
        asked = {"MULTISTEP_TEST_LOGS": os.pathsep.join(map(str, logs)), "MULTISTEP_TEST_SINCE": self._since}
        self._execute(Run("rights", ["tests/rights", "-v"], environment(self._first.environment) | asked))

    def _next(self) -> str:
        with suppress(IndexError):  # the queue is empty
            return self._alone.popleft()
        return ""

    def _execute(self, run: Run) -> None:
        ended = execute(run)
        with self._lock:
            self._ended.append(ended)


def _files_of_tests_alone(env: Mapping[str, str]) -> list[str]:
    listed = capture([*PYTEST, "--collect-only", "-q", "-m", f"alone and {_EACH_RUN}", "tests/e2e"], env=dict(env), cwd=ROOT)
    files = dict.fromkeys(line.partition("::")[0] for line in listed.splitlines() if "::" in line)
    return in_order(files, History().seconds())


def in_order(files: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """Sort files by their last duration, longest first, so that no cluster is idle at the end. A new file counts as the longest."""
    return sorted(files, key=lambda file: (file != _FIRST, -seconds.get(file, float("inf"))))
