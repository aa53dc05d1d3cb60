"""The fakes fulfil the same contract as the real cluster (tests/e2e/cluster/test_contract.py), and fail on demand."""

from __future__ import annotations

import pytest

from multistep.errors import NotFound, StreamLost, Unavailable
from multistep.kube.resources import CONFIG_MAPS, PODS, TRIALS
from multistep.runner_client.session import Session
from tests.support.cluster_contract import CASES, make_pod, make_trial
from tests.support.fake_cluster import FakeCluster
from tests.support.faults import Faults, Killed


@pytest.mark.parametrize("name", CASES)
async def test_contract(name: str) -> None:
    await CASES[name](FakeCluster(pods_run=False), "default")


async def test_what_a_trial_owns_goes_with_it() -> None:
    cluster = FakeCluster()
    trial = await make_trial(cluster, "default", "owner")
    await make_pod(cluster, "default", "owned", trial)
    await cluster.delete(TRIALS, "default", "owner")
    with pytest.raises(NotFound):
        await cluster.get(PODS, "default", "owned")


async def test_a_pod_has_a_runner_and_is_unready_while_a_result_waits() -> None:
    cluster = FakeCluster()
    pod = await make_pod(cluster, "default", "p")
    session = Session(await cluster.open_exec("default", "p", "main", ["x"]), pod_uid=pod["metadata"]["uid"])
    await session.hello()
    await session.start({"id": "1/a/agent", "argv": ["true"]})
    assert await ready(cluster) == "True"
    await session.wait("1/a/agent", 1)
    assert await ready(cluster) == "False"
    session.ack("1/a/agent")
    await session.close()
    assert await ready(cluster) == "True"


async def ready(cluster: FakeCluster) -> object:
    return (await cluster.get(PODS, "default", "p"))["status"]["conditions"][0]["status"]


async def work(faults: Faults) -> FakeCluster:
    cluster = FakeCluster(faults=faults)
    cluster.put({"kind": "ConfigMap", "metadata": {"name": "bundle"}})
    try:
        await cluster.get(CONFIG_MAPS, "default", "bundle")
        pod = await make_pod(cluster, "default", "p")
        stream = await cluster.open_exec("default", "p", "main", ["x"])
        await Session(stream, pod_uid=pod["metadata"]["uid"]).start({"id": "1/a/agent", "argv": ["true"]})
    except (Killed, Unavailable, StreamLost):
        pass
    return cluster


async def test_every_point_can_fail() -> None:
    calm = Faults()
    await work(calm)
    assert calm.trace == [
        "get ConfigMap default/bundle",
        "create Pod default/p before",
        "create Pod default/p after",
        "open_exec default/p",
        "send start 1/a/agent",
        "receive",
    ]
    pods, starts = [], []
    for at in range(1, len(calm.trace) + 1):
        cluster = await work(Faults().fail(at, Killed()))
        pods.append(len(cluster.runners))
        starts.append(sum(sum(runner.starts.values()) for runner in cluster.runners.values()))
    assert pods == [0, 0, 1, 1, 1, 1]
    assert starts == [0, 0, 0, 0, 0, 1]


async def test_a_write_may_have_happened_though_the_response_was_lost() -> None:
    cluster = await work(Faults().fail(3, Unavailable("no answer")))
    assert (await cluster.get(PODS, "default", "p"))["status"]["phase"] == "Running"
