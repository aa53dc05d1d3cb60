"""Which trials commands count for a sweep whose plan is in a ConfigMap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from multistep.client.sweep_trials import Owned, owned_trials
from multistep.engine.sweep.trial_grid import TrialGrid
from multistep.errors import ClusterError, NotFound, Unavailable
from multistep.kube.cluster_protocols import Object
from multistep.kube.resources import CONFIG_MAPS, Resource
from multistep.sources.task.bundle import digest_of
from tests.unit.cli.fakes import CliCluster

RECORD = "t"
NAME = TrialGrid(["t"], ["a"], 1).trial_name("s", 0)
OWNER = {"apiVersion": "multistep.dev/v1alpha1", "kind": "TrialSweep", "name": "s", "uid": "uid-s", "controller": True}
WARNING = "a ConfigMap that the sweep's status names is missing or was changed: 2 trials count by the owner reference alone"


class Cluster(CliCluster):
    """A cluster with a sweep of one task from git, its trial and a forged trial. error: what reads of ConfigMaps raise."""

    def __init__(self, error: Exception | None, record: str | None = RECORD) -> None:
        super().__init__()
        self.error = error
        pinned = {"revision": "r", "count": 1, "configMap": "c", "digest": digest_of(RECORD.encode())}
        agents, source = [{"name": "a", "agent": {"name": "nop"}}], {"git": {"url": "https://git.example/r.git", "path": "tasks"}}
        self.sweep = self.put("TrialSweep", "s", spec={"agents": agents, "tasksFrom": source}, status={"tasksFrom": pinned})
        if record is not None:
            self.put("ConfigMap", "c", data={"tasks": record})
        for name in (NAME, "forged"):
            its = self.put("MultiStepTrial", name)["metadata"]
            its |= {"labels": {"multistep.dev/sweep": "s", "multistep.dev/number": "0"}, "ownerReferences": [OWNER]}

    async def get(self, resource: Resource, namespace: str | None, name: str) -> Object:
        if resource == CONFIG_MAPS and self.error is not None:
            raise self.error
        return await super().get(resource, namespace, name)

    async def owned(self) -> Owned[str]:
        def name(trial: Mapping[str, Any]) -> str:
            return str(trial["metadata"]["name"])

        return await owned_trials(self, "default", "s", self.sweep, name)


async def test_with_the_record_only_the_planned_trials_count() -> None:
    found = await Cluster(None).owned()
    (warning,) = found.warnings()
    assert (found.trials, found.foreign) == ([("uid-s", NAME)], ["forged"])
    assert "claims" in warning


@pytest.mark.parametrize("record", [None, "changed"])
async def test_without_the_record_the_owner_decides_and_a_warning_says_so(record: str | None) -> None:
    found = await Cluster(None, record).owned()
    assert len(found.trials) == 2
    assert list(found.warnings()) == [WARNING]


@pytest.mark.parametrize(
    "error",
    [Unavailable("no answer"), ClusterError("no role", status=403, reason="Forbidden"), NotFound("a proxy's page", status=404)],
    ids=lambda error: type(error).__name__,
)
async def test_a_record_that_cannot_be_read_is_an_error_and_opens_the_sweep_to_nobody(error: ClusterError) -> None:
    with pytest.raises(type(error)):
        await Cluster(error).owned()
