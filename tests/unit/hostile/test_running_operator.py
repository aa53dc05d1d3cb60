"""Whatever users write into pods, trials and sweeps, the operator's process starts, goes on, and runs the objects of others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from multistep.api.common.base_model import API_VERSION
from multistep.kube.cluster_protocols import Object
from tests.support.cluster_server import Load, serve_cluster
from tests.support.fake_cluster import FakeCluster
from tests.support.fake_runner import FakeRunner
from tests.support.played import rewarded
from tests.unit.hostile.test_tenants import pods, sweeps, trials
from tests.unit.reconcile.test_load import operator

FILES = {"instruction.md": "do it\n", "tests/test.sh": "true\n", "solution/solve.sh": "true\n"}
TASK = {"config": {"environment": {"docker_image": "img"}}, "files": FILES}
WRITABLE = ("namespace", "labels", "annotations", "ownerReferences")
LONG_LEASE = {"MULTISTEP_LEASE_SECONDS": "600"}  # a busy machine must not make the operator lose it
ONCE = settings(max_examples=100, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])


def honest(kind: str, name: str, uid: str, spec: Object) -> Object:
    metadata = {"name": name, "namespace": "default", "uid": uid, "generation": 1}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


TRIAL = honest("MultiStepTrial", "t", "trial-uid", {"task": {"inline": TASK}})
SWEEP = honest(
    "TrialSweep",
    "s",
    "sweep-uid",
    {"tasks": [{"name": "t", "inline": TASK}], "agents": [{"name": "a", "agent": {"name": "nop"}}], "attempts": 2},
)


def runner_of(pod: Object) -> FakeRunner:
    return FakeRunner(pod["metadata"]["uid"], results={"1/task/verifier": rewarded(txt="1")})


def writes(cluster: FakeCluster) -> Callable[[], None]:
    """Return a test that writes or deletes an object of a hostile user at each call. Its owners and labels may be those of the
    honest trial and sweep."""

    @ONCE
    @given(found=pods | trials | sweeps, number=st.integers(0, 20), deleted=st.sampled_from([False] * 5 + [True]))
    def write(found: Object, number: int, deleted: bool) -> None:
        kind, name = found["kind"], f"hostile-{number}"
        known = cluster.objects.get((kind, "default", name))
        if deleted and known:
            cluster.remove(kind, "default", name)
            return
        written = {key: value for key, value in found["metadata"].items() if key in WRITABLE}
        uid = {"uid": known["metadata"]["uid"]} if known else {}
        with suppress(ValueError):  # a number that no API server sends
            json.dumps(found, allow_nan=False)
            cluster.put({**found, "metadata": {**written, **uid, "name": name, "creationTimestamp": "2026-01-01T00:00:00Z"}})

    return write


async def test_a_running_operator_outlasts_whatever_users_write(tmp_path: Path) -> None:
    cluster, load = FakeCluster(make_runner=runner_of), Load(capacity=64, start=0.0)
    write = writes(cluster)
    write()
    async with serve_cluster(cluster, load) as url, operator(url, tmp_path, **LONG_LEASE), asyncio.timeout(550):
        while load.watches < 3:
            await asyncio.sleep(0.1)
        write()
        cluster.put(SWEEP)
        write()
        cluster.put(TRIAL)
        for kind, name in (("MultiStepTrial", "t"), ("TrialSweep", "s")):
            while (cluster.objects[kind, "default", name].get("status") or {}).get("phase") != "Complete":
                await asyncio.sleep(0.2)
    sweep = cluster.objects["TrialSweep", "default", "s"]["status"]
    assert cluster.objects["MultiStepTrial", "default", "t"]["status"]["score"] == 1.0
    assert (sweep["trials"]["created"], sweep["trials"]["finished"]) == (2, 2)
    assert "critical" not in (tmp_path / "log").read_text().lower(), "a task of the operator ended"
