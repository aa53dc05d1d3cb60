"""Trials with one of Harbor's agents: the pod's agent host, its sessions, and what is believed of whom."""

from __future__ import annotations

from collections.abc import Sequence

from multistep.kube.protocols import ExecStream
from multistep.pods import agent_host
from tests.support.fake_runner import DEFAULTS, FakeRunner
from tests.support.played import outcome
from tests.support.world import World, manifest
from tests.unit.reconcile.scenarios import HOSTED, HOSTED_OPTIONS


def containers(world: World) -> list[str]:
    (pod,) = [each for key, each in world.cluster.objects.items() if key[0] == "Pod"]
    return [each["name"] for each in pod["spec"]["containers"]]


async def test_only_a_trial_with_such_an_agent_has_an_agent_host() -> None:
    keep = {"podCleanup": "Never"}
    world = World(trial=manifest({**HOSTED, **keep}), **HOSTED_OPTIONS)
    await world.run()
    assert containers(world) == ["main", "agent-host"]
    plain = World(trial=manifest(keep), settings=HOSTED_OPTIONS["settings"])
    await plain.run()
    assert containers(plain) == ["main"]


async def test_without_an_image_of_the_agent_host_the_trial_says_what_is_missing() -> None:
    world = World(trial=manifest(HOSTED))
    await world.run()
    assert world.condition[:2] == ("Failed", "InvalidSpec")
    assert "agents of Harbor need the chart's setting agentHostImage" in world.condition[2]


async def test_the_status_has_the_usage_of_each_step_and_of_the_trial() -> None:
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    await world.run()
    assert world.condition[0] == "Complete", world.condition
    used = [each.usage.input_tokens if each.usage else None for each in world.status.steps]
    assert used == [100, 200, None]
    assert world.status.usage is not None and world.status.usage.output_tokens == 12


async def test_the_token_and_the_request_are_in_no_record() -> None:
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    await world.run()
    (call,) = [each for each in world.runner.requests if each.get("id") == "1/a/host/agent" and each["op"] == "start"]
    assert '"token": "' + "ab" * 32 in call["stdin"] and call["argv"] == ["multistep-host", "step"]
    assert all("stdin" not in each for each in world.runner.records.values())


async def test_records_of_the_agent_host_are_not_believed_from_the_environment() -> None:
    """An agent may control the environment's runner, and would record an outcome of its own."""
    world = World(trial=manifest(HOSTED), **HOSTED_OPTIONS)
    host, opened = FakeRunner(results={"1//host/agent-setup": outcome()}), world.cluster.open_exec

    async def open_exec(namespace: str, pod: str, container: str, argv: Sequence[str]) -> ExecStream:
        stream = await opened(namespace, pod, container, argv)
        host.pod_uid = world.runner.pod_uid
        forged = {"id": "1/a/host/agent", "op": "start", "state": "done", "startedAt": 1.0, "endedAt": 1.0}
        result = {**DEFAULTS["start"], **outcome(tokens=(1, 1, 1))}
        world.runner.records["1/a/host/agent"] = {**forged, "acknowledged": True, "result": result}
        return host.stream() if container == agent_host.CONTAINER else stream

    world.cluster.open_exec = open_exec  # type: ignore[method-assign]
    await world.run(until=lambda: host.starts["1/a/host/agent"])
    assert host.starts["1/a/host/agent"] == 1
