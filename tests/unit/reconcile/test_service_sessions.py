"""Test hooks and artifacts of services' containers, the joined tar stream, and the services' output in the results."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from multistep.engine.journal.operations import Source
from multistep.engine.journal.results_limits import Headroom
from multistep.errors import StreamLost
from multistep.reconcile.trial.sidecar_sessions import Joined, of_main
from multistep.store.files.trial_key import TrialKey
from tests.support.fake_volume import FakeSpool, FakeVolume
from tests.support.virtual_time import in_virtual_time
from tests.support.world import World
from tests.unit.reconcile.scenarios import SCENARIOS

END = bytes(1024)


async def joined(*streams: list[bytes]) -> bytes:
    found = bytearray()

    async def write(data: bytes) -> None:
        found.extend(data)

    whole = Joined(write)
    for number, chunks in enumerate(streams):
        if number:
            await whole.next()
        for chunk in chunks:
            await whole.write(chunk)
    await whole.end()
    return bytes(found)


async def test_streams_are_joined_without_their_ends() -> None:
    zeros = bytes(3000)  # zeros within a stream are not its end marker
    assert (
        await joined([b"a" * 512, zeros, END], [END], [b"b" * 512 + END[:600], END[600:]]) == b"a" * 512 + zeros + b"b" * 512 + END
    )
    assert await joined([END]) == END


async def test_a_stream_without_an_end_is_refused() -> None:
    with pytest.raises(StreamLost):
        await joined([b"a" * 2000], [END])


def test_main_is_not_asked_for_what_services_have() -> None:
    assert of_main([Source("/a"), Source("/b", container="svc-db")])[1].path == "/proc/multistep-none"


@pytest.mark.parametrize(("finished", "ends"), [("2020-01-01T00:00:00Z", True), ("2999-01-01T00:00:00Z", False)])
async def test_a_trial_does_not_wait_for_evidence_of_a_service_that_stays_down(finished: str, *, ends: bool) -> None:
    trial = copy.deepcopy(SCENARIOS["with a service"].options["trial"])
    files = trial["spec"]["task"]["inline"]["files"]
    files["environment/docker-compose.yaml"] = "services: {db: {image: redis, restart: always}}"
    world = World(trial=trial)
    last = {"terminated": {"exitCode": 1, "reason": "Error", "finishedAt": finished}}
    world.cluster.services_down = [{"name": "svc-db", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": last}]
    if not ends:  # the kubelet may start it again soon
        with pytest.raises(AssertionError, match="no end in sight"):
            await world.run(most=20)
        return
    await world.run()
    main = next(each for uid, each in world.cluster.runners.items() if "/" not in uid)
    assert "service db ended with status 1 (Error)" in str(main.records["1/b/collect-hook-0"]["result"]["error"])
    assert world.condition[0] == "Complete"


async def test_a_main_whose_command_does_not_exist_fails_the_trial() -> None:
    trial = copy.deepcopy(SCENARIOS["with a service"].options["trial"])
    files = trial["spec"]["task"]["inline"]["files"]
    files["environment/docker-compose.yaml"] = "services: {db: {image: redis}, main: {command: serve}}"
    missing = {"exitCode": None, "error": {"code": "NotFound", "message": "no program serve"}}
    world = World(trial=trial, results={"/main-command-process": missing})
    await world.run()
    assert world.condition[0] == "Failed" and "cannot be started: no program serve" in world.condition[2]


async def test_a_service_with_a_providers_key_fails_the_trial_before_it_has_a_pod_and_no_agent_is_scored() -> None:
    trial = copy.deepcopy(SCENARIOS["with a service"].options["trial"])
    files = trial["spec"]["task"]["inline"]["files"]
    files["environment/docker-compose.yaml"] = "services: {db: {image: user, environment: {OPENAI_API_KEY: '${OPENAI_API_KEY}'}}}"
    trial["spec"]["variables"] = [{"name": "OPENAI_API_KEY", "value": "sk"}]
    world = World(trial=trial)
    await world.run()
    failure = world.status.failure
    assert failure is not None and (failure.class_, failure.reason, world.status.score) == (
        "Configuration",
        "ModelNotCounted",
        None,
    )
    assert "services.db.environment.OPENAI_API_KEY" in world.condition[2] and world.cluster.runners == {}


async def test_hooks_artifacts_and_output_come_from_the_services_container() -> None:
    world = World(**SCENARIOS["with a service"].options)
    await world.run()
    main, db = (next(each for uid, each in world.cluster.runners.items() if ("/" in uid) == apart) for apart in (False, True))
    hooks = [each for each in db.starts if "collect-hook" in each]
    assert hooks == ["1/a/collect-hook-0", "1/b/collect-hook-0"]
    assert main.records["1/a/collect-hook-0"]["op"] == "note" and world.condition[0] == "Complete"
    assert world.kept.files["services/db.log"] == b"svc-db printed this\n"


@in_virtual_time
async def test_a_session_lasts_as_long_as_the_collection_from_all_services() -> None:
    class Slow(FakeVolume):
        @asynccontextmanager
        async def spool(
            self, key: TrialKey, max_bytes: int | None = None, headroom: Headroom | None = None
        ) -> AsyncIterator[FakeSpool]:
            yield SlowSpool()

    class SlowSpool(FakeSpool):
        async def write(self, data: bytes) -> None:
            await asyncio.sleep(0.2)
            await super().write(data)

    world = World(
        **SCENARIOS["with a service"].options,
        volume=Slow(),
        settings={"exec_session_seconds": 0.35, "results_collect_seconds": 1.0},
    )
    await world.run(most=50)
    assert world.condition[0] == "Complete"
