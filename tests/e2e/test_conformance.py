"""Run some conformance cases on the real cluster: those that depend on images, the kubelet, exec sessions or the results server.
tests/conformance runs all cases without a cluster."""

from __future__ import annotations

from tests.conformance.judging import Verdict
from tests.conformance.run import Settings, run
from tests.conformance.test_conformance import CASE_SECONDS, CASES

CHOSEN = (
    "env-precedence",  # the image's, the pod's and the phases' variables
    "hello-advanced",  # an image's build, and all parts of a task
    "large-output",  # much data through exec sessions of a kubelet
    "binary-files",
    "load-no-test-script",  # a refusal
    "modes",  # files' modes in the image, in uploads and in results
    "persist-background-process",
    "agent-timeout-below-min",
    "separate-mixed-with-shared",  # two pods
    "tests-in-image",  # an image of its own
    "unicode-and-space-names",
    "users-per-step",  # users of the image
    "workdir-symlink",
)


async def test_chosen_cases_agree_on_the_cluster() -> None:
    reports = await run([CASES / name for name in CHOSEN], Settings(jobs=4, limit_seconds=CASE_SECONDS))
    lines = {report.name: report.lines for report in reports if report.verdict is not Verdict.AGREE}
    assert not lines and len(reports) == len(CHOSEN), lines
