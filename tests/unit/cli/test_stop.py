"""Test `multistep stop` and `show --follow` with an in-memory cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from multistep.client.reconnecting_watch import WatchEvent

from .conftest import Invoke
from .fakes import FAILED, GATE, GOOD, CliCluster, status, step

STOPPED = status("Failed", step("a"), reason="Stopped", message="the trial was stopped")
RUNNING = status("Running", step("a", "Agent"))


def trial(cluster: CliCluster, name: str, found: Any = RUNNING) -> None:
    cluster.put("MultiStepTrial", name, status=dict(found), spec={})


def stops(cluster: CliCluster) -> list[str]:
    return [each["metadata"]["name"] for each in cluster.of("MultiStepTrial") if each["spec"].get("stop")]


def test_trials_are_stopped_and_waited_for(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    trial(cluster, "u")
    cluster.story = [RUNNING, STOPPED]
    result = invoke("stop", "t", "u", "t")
    assert (result.exit_code, result.stdout, stops(cluster)) == (0, "", ["t", "u"])
    assert sorted(result.stderr.splitlines()) == [
        "t: Failed: Stopped: the trial was stopped",
        "t: stopping",
        "u: Failed: Stopped: the trial was stopped",
        "u: stopping",
    ]


def test_what_became_of_them_is_one_document(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    cluster.story = [STOPPED]
    (document,) = json.loads(invoke("stop", "t", "-o", "json").stdout)
    assert document.items() >= {"name": "t", "phase": "Failed", "exitCode": 3, "why": "Stopped: the trial was stopped"}.items()


def test_nobody_needs_to_wait(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    result = invoke("stop", "--no-wait", "t")
    assert (result.exit_code, stops(cluster), result.stderr) == (0, ["t"], "t: stopping\n")


def test_a_trial_that_is_finished_stays_as_it_is(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t", GOOD)
    result = invoke("stop", "t")
    assert (result.exit_code, stops(cluster), result.stderr) == (0, [], "t: is Complete already\n")


def test_none_is_stopped_when_one_is_not_there(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    result = invoke("stop", "t", "none")
    assert (result.exit_code, stops(cluster)) == (2, [])
    assert "trial 'none' does not exist" in result.stderr


def test_another_trial_of_the_name_is_not_stopped(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    cluster.replace_before_patch = True
    result = invoke("stop", "t")
    assert (result.exit_code, stops(cluster)) == (2, [])


def test_one_that_is_deleted_meanwhile_is_reported(invoke: Invoke, cluster: CliCluster) -> None:
    trial(cluster, "t")
    cluster.story = [status("Deleted")]
    assert invoke("stop", "t").exit_code == 3


def test_ctrl_c_shows_that_they_will_stop(invoke: Invoke, cluster: CliCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: Any, **__: Any) -> AsyncGenerator[WatchEvent, None]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)
        yield WatchEvent("MODIFIED", {})

    trial(cluster, "t")
    monkeypatch.setattr(cluster, "watch", silent)
    result = invoke("stop", "t")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "stop was requested: the operator stops the trials")


@pytest.mark.parametrize(("end", "code"), [(GOOD, 0), (GATE, 1), (FAILED, 3)])
def test_a_trial_can_be_followed_again(invoke: Invoke, cluster: CliCluster, end: Any, code: int) -> None:
    trial(cluster, "t")
    cluster.story = [RUNNING, end]
    result = invoke("show", "--follow", "t")
    assert result.exit_code == code
    assert result.stderr.splitlines()[0] == "step 1 a: Agent"
    assert any(line.startswith("t ") for line in result.stdout.splitlines())
    assert invoke("show", "t").exit_code == 0
