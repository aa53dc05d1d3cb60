"""Test switches of trials' networks: the operator's requests to the egress sidecar, and its reaction to the sidecar's failures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from multistep.errors import EgressError, EgressRefused, StreamLost
from tests.support.fake_sidecar import FakeSidecar
from tests.support.world import KEY, World, manifest
from tests.unit.reconcile.scenarios import LIMITED

SIDECAR = {"egress": "Sidecar"}


def world(**options: object) -> World:
    return World(trial=manifest(config=LIMITED), settings=SIDECAR, **options)  # type: ignore[arg-type]


async def test_each_switch_is_confirmed_before_its_phase_starts() -> None:
    trial = world(durations={"a/agent": 50.0})
    await trial.reconcile()
    assert [each["mode"] for each in trial.runner.sidecar.switches] == ["public", "no-network"]
    switch = {"id": "1/a/network-agent", "mode": "no-network", "hosts": [], "gateway": False}
    assert trial.runner.sidecar.switches[-1] == switch
    records = list(trial.runner.records)
    assert records.index("1/a/network-agent") < records.index("1/a/agent")
    assert trial.runner.records["1/a/network-agent"]["result"]["boot"] == "boot-1"


async def test_all_switches_of_a_session_share_one_exec_session() -> None:
    trial = world()
    await trial.run()
    trace = trial.cluster.faults.trace
    opened = [each for each in trace if each.startswith("open_exec ")]
    assert (len(opened), trace.count("switch before") > 3) == (2, True), trace  # one session with the sidecar, one with the runner


async def test_what_was_refused_is_in_the_status_and_the_result() -> None:
    trial = world()
    await trial.run()
    assert trial.condition[0] == "Complete"
    target = {"protocol": "dns", "host": "evil.example", "port": 53}
    first = trial.status.steps[0].egress
    assert first is not None and [each.model_dump(exclude={"count"}) for each in first.refused] == [target]
    wanted = {"refused": [{**target, "count": first.refused[0].count}], "others": 0}
    result = json.loads(trial.kept.files["result.json"])
    assert result["step_results"][0]["egress"] == wanted


async def test_a_sidecar_that_restarted_gets_no_further_switch_on_record() -> None:
    trial = world(durations={"a/agent": 50.0})
    await trial.reconcile()
    trial.runner.sidecar.restart()
    trial.now += 51.0
    trial.end_phases()
    await trial.reconcile()
    assert [type(each) for each in trial.errors] == [EgressError]
    assert "has restarted" in str(trial.errors[0])
    assert "1/a/network-hooks" not in trial.runner.records
    (name,) = trial.pods
    killed = {"terminated": {"exitCode": 137, "reason": "Error"}}
    restarted = {"name": "egress", "state": {"running": {}}, "restartCount": 1, "lastState": killed}
    trial.cluster.set_pod_status(KEY[0], name, initContainerStatuses=[restarted])
    await trial.run()
    assert trial.condition[0] == "Complete"
    assert [each.reason for each in trial.status.attempts] == ["EgressEnded"]


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        (b'{"boot": "b", "refused": [], "error": "nftables: no"}\n', EgressRefused, "refuses public: nftables: no"),
        (b'{"boot": 1}\n', EgressRefused, "switch: refused is not"),
        (b"[]\n", EgressRefused, "invalid answer"),
        (b"{\n", EgressRefused, "invalid answer"),
        (b"half a line", StreamLost, "gave no answer"),
    ],
)
async def test_a_switch_without_a_confirmation_is_retried(answer: bytes, error: type[Exception], why: str) -> None:
    trial = world(pods_run=False)
    await trial.reconcile()
    (name,) = trial.pods
    trial.cluster.run_pod(KEY[0], name)
    trial.runner.sidecar.answer = answer
    await trial.reconcile()
    assert [type(each) for each in trial.errors] == [error] and why in str(trial.errors[0])
    trial.runner.sidecar.answer = None
    await trial.run()
    assert trial.condition[0] == "Complete" and not trial.status.attempts


@pytest.mark.parametrize(
    ("answer", "retries", "class_", "reason", "attempts"),
    [
        ({"boot": "b", "error": "nftables: no"}, 0, "Infrastructure", "EgressRefused", ["EgressRefused"]),
        ({"boot": "b", "error": "nftables: no"}, 1, "Infrastructure", "EgressRefused", ["EgressRefused", "EgressRefused"]),
        ({"boot": "b", "error": "hosts: 'x/y' is not a CIDR", "invalidHosts": True}, 1, "Task", "InvalidSpec", []),
        ({"boot": 1}, 0, "Infrastructure", "EgressRefused", ["EgressRefused"]),
    ],
)
@pytest.mark.parametrize("refused", ["//network", "/a/network-hooks"])
async def test_a_switch_that_is_refused_for_good_ends_the_trial_without_a_reward(
    answer: dict[str, Any],
    retries: int,
    class_: str,
    reason: str,
    attempts: list[str],
    refused: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take = FakeSidecar.take

    def refuse(sidecar: FakeSidecar, line: bytes) -> bytes:
        return json.dumps(answer).encode() + b"\n" if json.loads(line)["id"].endswith(refused) else take(sidecar, line)

    monkeypatch.setattr(FakeSidecar, "take", refuse)
    trial = World(trial=manifest({"infrastructureRetries": retries}, config=LIMITED), settings=SIDECAR)
    await trial.run()
    kind, found, message = trial.condition
    assert (kind, found, [each.reason for each in trial.status.attempts]) == ("Failed", reason, attempts)
    assert answer.get("error", "invalid answer") in message
    assert trial.status.failure is not None and trial.status.failure.class_ == class_
    assert (trial.status.rewards, trial.status.score) == (None, None)
