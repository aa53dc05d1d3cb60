"""With any resource, file or runner message, a trial ends with a condition, and no unexpected exception is raised."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from multistep.api.trial.status import TrialStatus
from multistep.api.trial.status_journal import joined
from multistep.engine.score.rewards import REWARD_JSON, REWARD_TXT
from multistep.errors import MultistepError
from multistep.kube.cluster_protocols import Cluster, ExecStream
from multistep.runner_client.frame_stream import DATA, END, MESSAGE, encode, encode_json
from tests.support.fake_runner import Json
from tests.support.hostile import json_values, spoilt
from tests.support.virtual_time import in_virtual_time
from tests.support.world import CONFIG, SEPARATE, World, manifest
from tests.support.wrapped_cluster import Wrapped
from tests.unit.hostile.test_readers import GOOD_SPEC, GOOD_STATUS, rewards

few = settings(settings.default, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
few = settings(few, max_examples=few.max_examples // 2)


async def assert_clear_end(world: World) -> None:
    """Run the trial, and check that it ends with a condition and that each exception raised until then is one of Multistep's."""
    await world.run(most=120)
    assert [error for error in world.errors if not isinstance(error, MultistepError)] == []
    kind, reason, message = world.condition
    assert kind in ("Complete", "Failed")
    assert reason and message
    assert len(message) <= 1024
    assert kind == "Complete" or world.status.rewards is None
    whole = joined(TrialStatus, world.object["status"])
    json.dumps(whole, ensure_ascii=False).encode()  # fails if the status cannot be sent to the API server


# -- a runner that violates the protocol


@dataclass
class Lying(Wrapped):
    """A cluster that changes the runners' output. lie: returns a chunk's replacement, given its number (from 1) and its bytes."""

    lie: Callable[[int, bytes], bytes]
    heard: int = 0

    async def open_exec(self, namespace: str, pod: str, *rest: Any) -> ExecStream:
        stream = await self.cluster.open_exec(namespace, pod, *rest)
        receive = stream.receive

        async def lied() -> bytes:
            data = await receive()
            self.heard += 1
            return self.lie(self.heard, data)

        stream.receive = lied  # type: ignore[method-assign]
        return stream


OTHER: Json = {"id": "9/z/z", "op": "note", "state": "done", "startedAt": 1, "acknowledged": True, "result": {}}
VIOLATIONS = {
    "no frame": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a body": encode(DATA, b"x"),
    "an end": encode_json(END, {}),
    "no JSON": encode(MESSAGE, b"{"),
    "no object": encode(MESSAGE, b"[]"),
    "nested": encode(MESSAGE, b'{"ok":' + b"[" * 100_000),
    "a number like none": encode(MESSAGE, b'{"ok": true, "protocol": ' + b"9" * 10_000 + b"}"),
    "nothing": encode(MESSAGE, b"{}"),
    "yes": encode_json(MESSAGE, {"ok": True}),
    "no": encode_json(MESSAGE, {"ok": False}),
    "a conflict": encode_json(MESSAGE, {"ok": False, "error": {"code": "Conflict", "message": "\ud800" * 3000}}),
    "another's record": encode_json(MESSAGE, {"ok": True, "record": OTHER}),
    "too large": b"J\xff\xff\xff\xff",
}


def lying(lie: Callable[[int, bytes], bytes], **options: Any) -> World:
    return World(wrap=lambda cluster: cast(Cluster, Lying(cluster, lie)), **options)


@pytest.mark.parametrize("output", VIOLATIONS.values(), ids=VIOLATIONS)
@pytest.mark.parametrize("first", [1, 12, 60])
@in_virtual_time  # after an answer that never arrives, a session waits for a minute
async def test_a_runner_that_violates_the_protocol_for_good_ends_the_trial_without_a_reward(first: int, output: bytes) -> None:
    world = lying(lambda number, data: output if number >= first else data)
    await assert_clear_end(world)
    assert world.condition[:2] == ("Failed", "RunnerBroken")
    assert (world.status.rewards, world.status.attempts, world.pods) == (None, [], [])
    assert world.reconciles < 15
    assert all(set(runner.starts.values()) <= {1} for runner in world.cluster.runners.values())


@pytest.mark.parametrize("output", VIOLATIONS.values(), ids=VIOLATIONS)
async def test_a_short_protocol_violation_changes_nothing(output: bytes) -> None:
    world = lying(lambda number, data: output if number in (1, 2, 40, 90) else data)
    await assert_clear_end(world)
    assert (world.condition[1], world.status.rewards) == ("TrialComplete", {"reward": 0.5, "style": 1 / 3})
    assert set(world.runner.starts.values()) == {1}


@pytest.mark.parametrize("apart", [False, True])
@few
@given(st.data())
async def test_any_answer_may_be_spoilt(apart: bool, data: st.DataObject) -> None:
    at, for_good = data.draw(st.integers(1, 120)), data.draw(st.booleans())

    def lie(number: int, output: bytes) -> bytes:
        if output[:1] not in (MESSAGE, END) or number < at or (number > at and not for_good):
            return output
        return encode_json(output[:1], data.draw(spoilt(json.loads(output[5:]))))

    trial = manifest({"activeDeadlineSeconds": 900}, config=SEPARATE if apart else CONFIG)
    await assert_clear_end(lying(lie, trial=trial))


# -- phases with invalid results

RESULTS = {"exitCode": 0, "signal": None, "timedOut": False, "tail": "x", "outputBytes": 1, "oomKills": 0, "durationSeconds": 1.0}
CAPTURED = {REWARD_JSON: {"base64": "MQ==", "size": 1, "truncated": False}, REWARD_TXT: None}
PHASES = [
    "/healthcheck",
    "/prepare",
    "a/setup",
    "a/agent",
    "a/verifier",
    "a/collect",
    "a/end",
    "a/begin",
    "b/step-tests",
    "b/verifier",
]


@few
@given(st.sampled_from(PHASES), spoilt({**RESULTS, "captures": CAPTURED, "error": None}))
async def test_any_result_may_be_odd(phase: str, result: Json) -> None:
    await assert_clear_end(World(trial=manifest({"activeDeadlineSeconds": 900}), results={phase: result}))


@few
@given(st.none() | rewards, st.none() | rewards)
async def test_any_reward_file_may_be_odd(as_json: bytes | None, as_text: bytes | None) -> None:
    def captured(data: bytes | None) -> Json | None:
        return None if data is None else {"base64": b64encode(data).decode(), "size": len(data), "truncated": False}

    captures = {REWARD_JSON: captured(as_json), REWARD_TXT: captured(as_text)}
    await assert_clear_end(World(results={"b/verifier": {"captures": captures}}))


# -- arbitrary specs and statuses


@few
@given(json_values | spoilt(GOOD_SPEC))
async def test_any_spec_ends_clearly(spec: Any) -> None:
    world = World(trial={**manifest(), "spec": spec} if spec is not None else manifest())
    if isinstance(spec, dict) and spec.get("suspend") is True:
        return
    await assert_clear_end(world)


@pytest.mark.parametrize("apart", [False, True])
@few
@given(st.data())
async def test_any_status_that_another_client_writes_ends_clearly(apart: bool, data: st.DataObject) -> None:
    """After any number of the operator's status writes, another client overwrites the status with an arbitrary one."""
    config = SEPARATE if apart else CONFIG
    trial = manifest({"activeDeadlineSeconds": 900}, config=config)
    world = World(trial=trial, durations={"a/agent": 50.0, "a/verifier/verifier": 50.0, "b/agent": 50.0})
    writes = data.draw(st.integers(0, 14))
    await world.run(until=lambda: world.status_writes >= writes)
    there = world.object.get("status") or GOOD_STATUS
    world.cluster.put({**world.object, "status": data.draw(json_values | spoilt(there) | spoilt(GOOD_STATUS))})
    await world.run(most=world.reconciles + 120)
    assert [error for error in world.errors if not isinstance(error, MultistepError)] == []
    json.dumps(world.object, ensure_ascii=False).encode(errors="replace")


def change_status(world: World, **changes: Any) -> None:
    world.cluster.put({**world.object, "status": {**world.object["status"], **changes}})


@pytest.mark.parametrize("step", ["nowhere", None])
async def test_a_verifier_of_no_step_that_has_one_fails_the_trial(step: str | None) -> None:
    world = World(trial=manifest(config=SEPARATE), durations={"a/agent": 50.0})
    await world.run(until=lambda: world.status.current_step)
    change_status(world, verifier={"podName": "t-1-v0"}, currentStep=step)
    await assert_clear_end(world)
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert "status.verifier" in world.condition[2]
