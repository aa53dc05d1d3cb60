"""The fence: a replica that is not the leader can read, but not write."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from multistep.errors import NotLeading
from multistep.kube.fence import Fenced
from multistep.kube.protocols import Cluster
from multistep.runner_client.session import Session
from tests.support.cluster_contract import CASES, make_pod, make_trial
from tests.support.fake_cluster import FakeCluster

READS = {
    "get_trial",
    "list_trials",
    "list_metadata",
    "each_trial",
    "get_sweep",
    "get_pod",
    "list_pods",
    "get_config_map",
    "get_secret",
    "get_network_policy",
}
WRITES: dict[str, dict[str, Any]] = {
    "apply_status": {"namespace": "ns", "name": "t", "uid": "u", "resource_version": "1", "status": {}},
    "delete_trial": {"namespace": "ns", "name": "t"},
    "patch_trial": {"namespace": "ns", "name": "t", "changes": {}},
    "delete_sweep": {"namespace": "ns", "name": "s", "uid": "u"},
    "create_pod": {"pod": {}},
    "delete_pod": {"namespace": "ns", "name": "p"},
    "create": {"manifest": {}},
    "delete_disruption_budget": {"namespace": "ns", "name": "p"},
    "create_event": {"regarding": {}, "reason": "R", "message": "m"},
    "open_exec": {"namespace": "ns", "pod": "p", "container": "c", "argv": []},
}


class Gate:
    leading = True

    def check(self) -> None:
        if not self.leading:
            raise NotLeading("not leading")


def test_every_call_of_a_cluster_is_known_here_as_a_read_or_a_write() -> None:
    calls = {name for name, _ in inspect.getmembers(Cluster, inspect.isfunction) if not name.startswith("_")}
    assert calls == READS | WRITES.keys()


@pytest.mark.parametrize("name", WRITES)
async def test_a_write_of_one_that_does_not_lead_is_not_even_sent(name: str) -> None:
    gate, cluster = Gate(), FakeCluster()
    gate.leading = False
    with pytest.raises(NotLeading):
        await getattr(Fenced(cluster, gate.check), name)(**WRITES[name])
    assert cluster.faults.trace == []


@pytest.mark.parametrize("name", [name for name in CASES if "lease" not in name and "metadata" not in name])
async def test_for_the_leader_it_is_a_cluster_like_any_other(name: str) -> None:
    await CASES[name](Fenced(FakeCluster(pods_run=False), Gate().check), "default")


async def test_reading_is_for_everybody() -> None:
    gate, cluster = Gate(), FakeCluster()
    await make_trial(cluster, "default", "t")
    gate.leading = False
    fenced = Fenced(cluster, gate.check)
    assert (await fenced.get_trial("default", "t"))["metadata"]["name"] == "t"
    assert len(await fenced.list_trials()) == 1
    assert await fenced.list_pods() == []


async def test_a_session_that_is_open_starts_nothing_once_the_lease_is_lost() -> None:
    gate, cluster = Gate(), FakeCluster()
    pod = await make_pod(cluster, "default", "p")
    stream = await Fenced(cluster, gate.check).open_exec("default", "p", "main", ["x"])
    runner = cluster.runners[pod["metadata"]["uid"]]
    async with Session(stream, pod_uid=pod["metadata"]["uid"]) as session:
        await session.hello()
        gate.leading = False
        with pytest.raises(NotLeading):
            await session.start({"id": "1/a/agent", "argv": ["true"]})
    assert not runner.starts
    assert runner.streams[0].eof and runner.streams[0].closed
