"""Test `multistep dashboard`: watches update its rows, and its server rejects requests without the token or for another host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from multistep.cli.dashboard import board as boards
from multistep.cli.dashboard.board import Board
from multistep.cli.dashboard.server import serve
from multistep.cli.trial.output_formats import MAX_TAIL_BYTES
from multistep.client.connection import Cluster
from multistep.client.reconnecting_watch import WatchEvent
from multistep.errors import ClusterError, Unavailable, UsageError
from multistep.kube.resources import SWEEPS, TRIALS, Resource
from tests.support.fake_runner import FakeRunner

from .conftest import Invoke
from .fakes import GATE, GOOD, CliCluster, status, step
from .test_logs import running, stored

LABELS = {"multistep.dev/sweep": "nightly"}


def trial(name: str, reported: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "labels": LABELS}
    return {"kind": TRIALS.kind, "metadata": metadata, "spec": {"agent": {"name": "oracle"}}, "status": reported}


def sweep(**reported: Any) -> dict[str, Any]:
    return {"kind": SWEEPS.kind, "metadata": {"name": "nightly", "namespace": "default"}, "status": reported}


async def test_a_page_gets_every_row_once_and_then_what_changes() -> None:
    board = Board()
    board.apply(WatchEvent("ADDED", sweep(phase="Running", trials={"total": 2, "finished": 0})))
    board.apply(WatchEvent("ADDED", trial("one", status("Running", step("a", "Agent"), currentStep="a", taskSteps=["a", "b"]))))
    first = await board.changes(0)
    assert [(row["kind"], row["name"], row["phase"]) for row in first["rows"]] == [
        ("sweep", "nightly", "Running"),
        ("trial", "one", "Running"),
    ]
    assert [row["step"] for row in first["rows"][1:]] == ["1/2 a"] and first["rows"][1]["sweep"] == "nightly"
    waiting = asyncio.create_task(board.changes(first["version"]))
    await asyncio.sleep(0)
    assert not waiting.done()
    board.apply(WatchEvent("MODIFIED", trial("one", GOOD)))
    board.apply(WatchEvent("DELETED", trial("two", GATE)))
    second = await waiting
    assert [(row["name"], row.get("phase"), row.get("deleted", False)) for row in second["rows"]] == [
        ("one", "Complete", False),
        ("two", None, True),
    ]


async def test_rows_of_deleted_objects_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a page missed a deletion that the board no longer remembers, it gets all rows, and ``all`` is true."""
    monkeypatch.setattr(boards, "MAX_DELETED", 2)
    board = Board()
    board.apply(WatchEvent("ADDED", trial("stays", GOOD)))
    away = (await board.changes(0))["version"]
    for number in range(9):
        board.apply(WatchEvent("ADDED", trial(f"t{number}", GOOD)))
        board.apply(WatchEvent("DELETED", trial(f"t{number}", GOOD)))
    assert len(board._rows) + len(board._deleted) == 3
    for since in (0, away):
        found = await board.changes(since)
        assert (found["all"], [row["name"] for row in found["rows"]]) == (True, ["stays"])
    found = await board.changes(board.version - 1)
    assert (found["all"], [(row["name"], row["deleted"]) for row in found["rows"]]) == (False, [("t8", True)])
    board.apply(WatchEvent("ADDED", trial("t8", GOOD)))
    assert [row.get("deleted") for row in (await board.changes(board.version - 2))["rows"]] == [None]


async def test_a_status_that_cannot_be_read_is_a_row_that_says_so() -> None:
    board = Board()
    board.apply(WatchEvent("ADDED", trial("odd", {"steps": 3})))
    [row] = (await board.changes(0))["rows"]
    assert row["name"] == "odd" and "its status cannot be read: status.steps" in row["message"]


class Watched(CliCluster):
    """A cluster whose first watch of trials fails after two trials. The second watch no longer reports the trial "gone"."""

    watches = 0

    async def watch(
        self, resource: Resource, namespace: str | None = None, *, label_selector: str = "", field_selector: str = ""
    ) -> AsyncGenerator[WatchEvent, None]:
        if resource == TRIALS:
            self.watches += 1
            yield WatchEvent("ADDED", trial("there", GOOD))
            if self.watches == 1:
                yield WatchEvent("ADDED", trial("gone", GOOD))
                raise Unavailable("the API server restarts")
        await asyncio.Event().wait()


async def test_after_a_broken_watch_the_rows_are_those_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "RETRY_SECONDS", 0.0)
    board = Board()
    task = asyncio.create_task(board.follow(Watched(), None))
    rows: dict[str, dict[str, Any]] = {}
    version, unavailable = 0, set()
    while not (rows.get("gone", {}).get("deleted") and rows.get("there", {}).get("phase") == "Complete"):
        found = await board.changes(version)
        version = found["version"]
        unavailable.add(found["unavailable"])
        rows |= {row["name"]: row for row in found["rows"]}
    assert unavailable <= {"", "the API server restarts"}
    task.cancel()


def test_who_may_not_read_the_trials_gets_the_error(invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch(*given: Any, **options: Any) -> AsyncGenerator[WatchEvent, None]:
        raise ClusterError("trials are forbidden", status=403)
        yield

    monkeypatch.setattr(cluster, "watch", watch)
    result = invoke("dashboard", "--no-browser")
    assert (result.exit_code, result.stderr.splitlines()[1:]) == (2, ["error: trials are forbidden"])


@asynccontextmanager
async def visited(
    cluster: Cluster, namespace: str | None = "default", where: str = ""
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """Yield an HTTP session that has opened the dashboard's URL and so has its cookie, and the server's URL without the token."""
    jar = aiohttp.CookieJar(unsafe=True)  # unsafe: accept cookies from an IP address
    async with serve(cluster, Board(), namespace, 0, where) as url, aiohttp.ClientSession(cookie_jar=jar) as session:
        async with session.get(url) as answer:
            assert answer.status == 200 and "token" not in str(answer.url)
        yield session, url.partition("?")[0]


async def test_without_the_token_or_by_another_name_nothing_is_answered(cluster: CliCluster) -> None:
    cluster.put("MultiStepTrial", "t", spec={"agent": {"name": "oracle"}}, status=GOOD)
    async with visited(cluster) as (session, address), aiohttp.ClientSession() as stranger:
        for path in ("", "dashboard.js", "changes", "trials/default/t", "trials/default/t/logs", "?token=guess"):
            async with stranger.get(address + path) as answer:
                assert answer.status == 403, path
        async with session.get(f"{address}trials/default/t", headers={"Host": "evil.example:80"}) as answer:
            assert answer.status == 403
        async with session.get(f"{address}trials/default/t") as answer:
            assert answer.status == 200 and (await answer.json())["rewards"] == {"reward": 1.0}


async def test_the_page_names_the_cluster_and_the_namespace(cluster: CliCluster) -> None:
    where = "default of <kind> (https://127.0.0.1:6443)"
    async with visited(cluster, where=where) as (session, address), session.get(address) as answer:
        assert "default of &lt;kind&gt; (https://127.0.0.1:6443)" in await answer.text()


async def test_a_trial_shows_its_cost_its_artifacts_and_the_hosts_that_were_refused(cluster: CliCluster) -> None:
    refused = {"refused": [{"protocol": "tls", "host": "example.com", "port": 443, "count": 3}], "others": 2}
    a = step("a", artifacts={"count": 2, "bytes": 1500}, egress=refused)
    b = step("b", artifacts={"count": 1, "bytes": 500}, egress=refused)
    usage = {"inputTokens": 10, "cachedTokens": 0, "outputTokens": 2, "costUSD": 0.5, "source": "Gateway"}
    reported = status("Complete", a, b, usage=usage, results=GOOD["results"], resultsStore="s3://bucket/t")
    cluster.put("MultiStepTrial", "t", spec={"agent": {"name": "oracle"}}, status=reported)
    cluster.put("MultiStepTrial", "new", spec={"agent": {"name": "oracle"}})
    async with visited(cluster) as (session, address):
        async with session.get(f"{address}trials/default/t") as answer:
            assert (await answer.json())["facts"] == [
                "used 10 input tokens (0 cached), 2 output tokens, $0.5000, counted by the gateway",
                "artifacts: 3 files, 2 kB",
                "refused by the network's limits: tls example.com:443 (6), 4 others",
                "its results are in the object store: s3://bucket/t",
                "its files: multistep results t DIRECTORY -n default",
            ]
        async with session.get(f"{address}trials/default/new") as answer:
            assert (await answer.json())["facts"] == []


async def test_only_the_chosen_namespace_is_shown(cluster: CliCluster) -> None:
    async with visited(cluster) as (session, address):
        for path, status in (("trials/default/none", 404), ("trials/other/t", 404), ("trials/other/t/logs", 404)):
            async with session.get(address + path) as answer:
                assert answer.status == status, path


async def test_output_is_sent_while_the_trial_runs_and_escaped(cluster: CliCluster) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", b"\x1b]0;owned\x07work\n", done=False)
    pod: dict[str, Any] = {"podName": "t-1", "podUID": "pod-uid", "attempt": 1}
    found = cluster.put(
        "MultiStepTrial", "t", spec={"agent": {"name": "oracle"}}, status=status("Running", step("a", "Agent"), **pod)
    )
    async with visited(cluster) as (session, address), session.get(f"{address}trials/default/t/logs") as answer:
        assert b"^[]0;owned^Gwork\n" in await answer.content.readuntil(b"work\n")
        stored(cluster, "steps/a/verifier/test-stdout.txt", b"fine\n", -MAX_TAIL_BYTES)
        found["status"] = status("Complete", step("a"), results=GOOD["results"], **pod)
        assert b"fine\n" in await answer.content.read()


async def test_the_output_of_a_trial_that_is_deleted_meanwhile_ends_with_the_reason(cluster: CliCluster) -> None:
    runner = cluster.runners["t-1"] = FakeRunner()
    running(runner, "1/a/agent", b"work\n", done=False)
    running_status = status("Running", step("a", "Agent"), podName="t-1", podUID="pod-uid", attempt=1)
    cluster.put("MultiStepTrial", "t", spec={"agent": {"name": "oracle"}}, status=running_status)
    async with visited(cluster) as (session, address), session.get(f"{address}trials/default/t/logs") as answer:
        await answer.content.readuntil(b"work\n")
        del cluster.objects["MultiStepTrial", "t"]
        assert b"trial t in namespace default was deleted before it finished\n" in await answer.content.read()


async def test_a_port_that_is_in_use_is_an_error_of_the_option(cluster: CliCluster) -> None:
    async with serve(cluster, Board(), None, 0) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(UsageError, match=f"--port {port}: cannot listen on it"):
            async with serve(cluster, Board(), None, port):
                pass
