"""Test how `multistep run`, `show` and `results` fetch and show results."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from multistep.cli.trial.results import fetch
from multistep.cli.trial.results.fetch import ServicePath, WebAddress, locate
from multistep.errors import StoreError, Unavailable

from .conftest import Invoke
from .fakes import FAILED, GATE, GOOD, RESULTS, RESULTS_PATH, CliCluster, status, tar_of


def test_results_are_fetched(task: Path, invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    assert invoke("run", task, "--results", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out/result.json").read_text() == "{}"


@pytest.mark.parametrize(("end", "code"), [(GOOD, 4), (GATE, 1)])
def test_lost_results_do_not_hide_the_outcome(
    task: Path, invoke: Invoke, cluster: CliCluster, tmp_path: Path, end: Mapping[str, Any], code: int
) -> None:
    cluster.story, cluster.served = [end], {}
    result = invoke("run", task, "--results", tmp_path / "out")
    assert result.exit_code == code and "Complete" in result.stdout
    assert "error: results were not fetched: no results exist at service://multistep/..." in result.stderr


def test_show(invoke: Invoke, cluster: CliCluster) -> None:
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    assert invoke("show", "t").stdout.endswith("t Complete: passed, score 1, reward 1: ran 1 step\n")
    assert json.loads(invoke("show", "t", "-o", "json").stdout)["outcome"] == "Passed"
    assert invoke("show", "other").exit_code == 2


def test_the_place_of_the_results_in_an_object_store_is_reported(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    cluster.put("MultiStepTrial", "t", status={**GOOD, "resultsStore": "s3://b/p/evals/t/1"})
    reported = "its results are in the object store: s3://b/p/evals/t/1\n"
    assert invoke("show", "t").stdout.endswith(reported)
    assert invoke("results", "t", tmp_path / "out").stderr.endswith(reported)


def test_results_of_a_trial(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    result = invoke("results", "t", tmp_path / "out")
    assert result.exit_code == 0 and result.stderr.endswith(f"1 file (2 B) in {tmp_path / 'out'}\n")
    again = invoke("results", "t", tmp_path / "out")
    assert again.exit_code == 2 and "is not empty" in again.stderr
    assert invoke("results", "t", tmp_path / "out", "--force").exit_code == 0


def test_results_that_lack_what_a_finished_trial_has_are_reported(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    """The results volume was put back from a copy that was made while the trial ran."""
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    cluster.served = {RESULTS_PATH: tar_of({"steps/a/agent/log.txt": b"x"})}
    result = invoke("results", "t", tmp_path / "out")
    assert result.exit_code == 0 and "warning: result.json is missing" in result.stderr
    cluster.served = {RESULTS_PATH: tar_of({"result.json": b"{}"})}
    assert "warning" not in invoke("results", "t", tmp_path / "whole").stderr


@pytest.mark.parametrize(("document", "code", "reported"), [(status("Running"), 2, "is Running"), (FAILED, 4, "has no results")])
def test_there_are_no_results(
    invoke: Invoke, cluster: CliCluster, tmp_path: Path, document: dict[str, Any], code: int, reported: str
) -> None:
    cluster.put("MultiStepTrial", "t", status=document)
    result = invoke("results", "t", tmp_path / "out")
    assert result.exit_code == code and reported in result.stderr


def test_results_of_a_deleted_trial_are_elsewhere(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    result = invoke("results", "t", tmp_path / "out", "-n", "evals")
    assert result.exit_code == 2
    assert "trial 't' does not exist in namespace 'evals'" in result.stderr
    assert "may still be on the operator's volume, in evals/t/" in result.stderr and "docs/how-to/operations.md" in result.stderr
    assert not (tmp_path / "out").exists()


def test_results_that_are_no_tar(invoke: Invoke, cluster: CliCluster, tmp_path: Path) -> None:
    cluster.put("MultiStepTrial", "t", status=dict(GOOD))
    cluster.served[RESULTS_PATH] = b"<html>"
    assert invoke("results", "t", tmp_path / "out").exit_code == 4


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        (RESULTS, ServicePath(RESULTS_PATH)),
        ("http://127.0.0.1:8080/results/x", WebAddress("http://127.0.0.1:8080/results/x")),
        ("service://a/b:80/x/%2e", ServicePath("/api/v1/namespaces/a/services/b:80/proxy/x/%2e")),
    ],
)
def test_where_results_are(uri: str, place: object) -> None:
    assert locate(uri) == place


@pytest.mark.parametrize("uri", ["s3://bucket/x", "service://ns", "service://ns/svc", "file:///etc/passwd", "http:///x", ""])
def test_where_results_cannot_be(uri: str) -> None:
    with pytest.raises(StoreError, match="does not support"):
        locate(uri)


class Replaced(CliCluster):
    """A cluster in which the first requests to the operator fail with the HTTP statuses in `codes`."""

    def __init__(self, *codes: int) -> None:
        super().__init__()
        self.codes = list(codes)
        self.served = {"/api/v1/namespaces/m/services/s:http/proxy/results/t": b"body"}

    async def raw_stream(self, path: str) -> AsyncGenerator[bytes, None]:
        if self.codes:
            raise Unavailable("no endpoints available", status=self.codes.pop(0))
        async for chunk in super().raw_stream(path):
            yield chunk


@pytest.mark.parametrize(("codes", "patience", "comes"), [([503, 503], 20.0, True), ([503], -1.0, False), ([500], 20.0, False)])
async def test_an_operator_that_is_being_replaced_is_waited_for(
    codes: list[int], patience: float, comes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(fetch, "_PATIENCE_SECONDS", patience)
    with nullcontext() if comes else pytest.raises(Unavailable, match="no endpoints"):
        found = [chunk async for chunk in fetch._read(Replaced(*codes), "service://m/s:http/results/t")]
        assert found == [b"body"]


@pytest.mark.parametrize(("status_code", "reported"), [(200, ""), (404, "no results exist at")])
async def test_results_over_http(status_code: int, reported: str) -> None:
    from aiohttp import web
    from aiohttp.test_utils import TestServer

    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status_code, body=b"body")

    app = web.Application()
    app.router.add_get("/results/t", answer)
    async with TestServer(app) as server:
        url = str(server.make_url("/results/t"))
        if reported:
            with pytest.raises(StoreError, match=reported):
                [chunk async for chunk in fetch._read(CliCluster(), url)]
        else:
            assert b"".join([chunk async for chunk in fetch._read(CliCluster(), url)]) == b"body"
