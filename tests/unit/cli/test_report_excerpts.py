"""Test the outputs and failing tests on the HTML page of `multistep sweep report`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from multistep.cli.sweep import report_excerpts
from multistep.cli.sweep.report_excerpts import AGENT_BYTES, TAIL_BYTES
from multistep.errors import Unavailable
from tests.unit.report.samples import step

from .conftest import Invoke
from .fakes import CliCluster
from .test_sweep_report import put

RESULTS = "/api/v1/namespaces/m/services/op:80/proxy/r"


def put_sweep(cluster: CliCluster, *rewards: float | None) -> list[str]:
    """Create sweep "s" with one trial per reward; return the trials' names. rewards: of step "two"; None: the trial is active."""
    put(cluster, "s", {("t", "mine"): list(rewards)})
    names = [f"s-s-t-mine-{attempt}" for attempt in range(1, len(rewards) + 1)]
    for name, reward in zip(names, rewards, strict=True):
        if reward is not None:
            steps = [step("one", 1.0), step("two", reward)]
            cluster.objects["MultiStepTrial", name]["status"] |= {"steps": steps, "results": f"service://m/op:80/r/{name}"}
    return names


def serve(cluster: CliCluster, trial: str, path: str, data: bytes, *, tail: bool = True) -> None:
    size = AGENT_BYTES if "/agent/" in path else TAIL_BYTES
    part = f"-{size}&limit={size}" if tail else "0&limit=1048576"
    cluster.served[f"{RESULTS}/{trial}/files/{path}?offset={part}"] = data


def report(invoke: Invoke, directory: Path, *options: str) -> tuple[str, str]:
    """Run `sweep report`; return the HTML page and the command's stderr."""
    result = invoke("sweep", "report", "s", "-o", directory / "x.html", *options)
    assert result.exit_code == 0, result.stderr
    return (directory / "x.html").read_text(), result.stderr


def test_the_page_has_the_outputs_and_failing_tests_of_steps_without_a_pass(
    tmp_path: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    passed, failed, _ = put_sweep(cluster, 1.0, 0.0, None)
    tests = {"results": {"tests": [{"name": "test_greets", "status": "failed", "message": "expected <hello>"}]}}
    for name in (passed, failed):
        serve(cluster, name, "steps/two/agent/output.txt", f"agent of {name}\n".encode())
        serve(cluster, name, "steps/two/verifier/test-stdout.txt", f"verifier of {name}\n".encode())
        serve(cluster, name, "steps/one/agent/output.txt", b"of a step that passed\n")
        serve(cluster, name, "steps/two/verifier/ctrf.json", json.dumps(tests).encode(), tail=False)
    page, printed = report(invoke, tmp_path)
    assert f"agent of {failed}" in page and f"verifier of {failed}" in page
    assert f"agent of {passed}" not in page and "of a step that passed" not in page
    # the failing test's name occurs twice: in the list of tests, and as the label of its message
    assert page.count("test_greets") == 2 and page.count("expected &lt;hello&gt;") == 1
    assert "reading the output of trials without a pass: 1 of 1" in printed
    assert "service://" not in page  # the results' URI contains a token


def test_the_json_in_which_an_agent_reports_is_text_on_the_page(tmp_path: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (failed,) = put_sweep(cluster, 0.0)
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": "I look."}]}}
    serve(cluster, failed, "steps/two/agent/output.txt", json.dumps(said, separators=(",", ":")).encode() + b"\nplain\n")
    assert "I look.\nplain</pre>" in report(invoke, tmp_path)[0]


def test_an_agents_last_words_are_on_the_page_although_a_long_line_of_json_follows_them(
    tmp_path: Path, invoke: Invoke, cluster: CliCluster
) -> None:
    (failed,) = put_sweep(cluster, 0.0)
    words = "word " * 700 + "The end."
    said = {"type": "assistant", "message": {"content": [{"type": "text", "text": words}]}}
    ended = {"type": "result", "subtype": "success", "is_error": False, "result": words}
    output = b"".join(json.dumps(each, separators=(",", ":")).encode() + b"\n" for each in (said, said, ended))
    serve(cluster, failed, "steps/two/agent/output.txt", output)
    page, _ = report(invoke, tmp_path)
    assert "The end.\n[success]</pre>" in page and f"last {TAIL_BYTES} bytes" in page


def test_the_outputs_can_be_left_out_and_other_formats_need_none(tmp_path: Path, invoke: Invoke, cluster: CliCluster) -> None:
    (failed,) = put_sweep(cluster, 0.0)
    serve(cluster, failed, "steps/two/agent/output.txt", b"printed\n")
    assert "printed" in report(invoke, tmp_path)[0]
    page, printed = report(invoke, tmp_path, "--no-logs")
    assert "<pre" not in page and "reading" not in printed
    assert "reading" not in invoke("sweep", "report", "s", "-o", "json").stderr


def test_endless_output_is_cut_wherever_it_comes_from(
    tmp_path: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_sweep(cluster, 0.0)

    async def endless(_: str) -> AsyncGenerator[bytes, None]:
        while True:
            yield b"\x1b[2J<script>alert(1)</script>\n" * 10_000

    monkeypatch.setattr(cluster, "raw_stream", endless)
    page, _ = report(invoke, tmp_path)
    assert len(page) < 200_000 and "last 4096 bytes" in page
    assert "<script>alert" not in page and "\x1b" not in page


def test_the_number_of_trials_is_bounded(
    tmp_path: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_excerpts, "MAX_TRIALS", 2)
    names = put_sweep(cluster, 0.0, 0.1, 0.2, 1.0)
    for name in names:
        serve(cluster, name, "steps/two/agent/output.txt", f"agent of {name}\n".encode())
    page, printed = report(invoke, tmp_path)
    assert [f"agent of {name}" in page for name in names] == [True, True, False, False]
    assert "the page has the output of 2 of 3 trials without a pass: `multistep logs` shows others" in printed


@pytest.mark.parametrize("slow", [False, True])
def test_a_server_that_is_away_or_slow_costs_the_outputs_not_the_report(
    tmp_path: Path, invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    put_sweep(cluster, 0.0, 0.0)

    async def away(_: str) -> AsyncGenerator[bytes, None]:
        if slow:
            await asyncio.Event().wait()
        raise Unavailable("no endpoint")
        yield b""

    monkeypatch.setattr(cluster, "raw_stream", away)
    monkeypatch.setattr(report_excerpts, "MAX_SECONDS", 0.0 if slow else 60.0)
    page, printed = report(invoke, tmp_path)
    assert "multistep logs -n evals s-s-t-mine-1" in page
    why = "reading took longer than 0 s" if slow else "no endpoint"
    assert f"warning: the output of 2 trials is not on the page: {why}" in printed


def test_trials_that_are_gone_or_without_results_have_no_outputs(tmp_path: Path, invoke: Invoke, cluster: CliCluster) -> None:
    put(cluster, "s", {("t", "mine"): ["Infrastructure", 0.0]})
    page, printed = report(invoke, tmp_path)
    assert "Failing tests" not in page and "warning: the output" not in printed
