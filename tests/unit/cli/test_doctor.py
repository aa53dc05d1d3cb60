"""Test the findings of `multistep doctor`: each fault has a fix, and a check whose objects cannot be read is "unknown"."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from multistep.cli.doctor.checks import run_checks
from multistep.cli.doctor.observe import Finding, Observation, free_bytes
from multistep.cli.doctor.permissions import Permission

CRDS = Path(__file__).parents[3] / "crds"

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def judged(**seen: Any) -> dict[str, Finding]:
    """Return the worst finding of each check, by the check's name. seen: fields of the observation."""
    order = ["ok", "unknown", "warning", "fault"]
    found = sorted(run_checks(Observation(NOW, "n", **seen)), key=lambda each: order.index(each.verdict))
    return {each.check: each for each in found}


@pytest.mark.parametrize(
    ("seen", "check", "text", "fix"),
    [
        ({"version": "v1.26.3"}, "kubernetes", "v1.26.3 is too old", "upgrade the cluster"),
        ({"server_time": NOW + timedelta(minutes=5)}, "clock", "300 s behind", "chrony"),
        ({"server_time": NOW - timedelta(minutes=5)}, "clock", "300 s ahead", "chrony"),
        ({"crds": {}}, "crds", "does not exist", "kubectl apply"),
        ({"operators": []}, "operator", "no operator is installed", "helm install"),
        ({"nodes": []}, "nodes", "none of 0 nodes", "kubectl describe nodes"),
        ({"namespace_object": {"metadata": {"deletionTimestamp": "x"}}}, "namespace", "is being deleted", "--namespace"),
        (
            {"rights": {Permission("create", "multisteptrials", "multistep.dev", "run trials"): False}, "user": "ann"},
            "your rights",
            "ann may not run trials",
            "kubectl create rolebinding multistep-user --clusterrole=edit --user=ann -n n",
        ),
        (
            {"rights": {Permission("get", "pods"): False}, "user": "system:serviceaccount:a:b"},
            "your rights",
            "get pods",
            "--serviceaccount=a:b",
        ),
    ],
)
def test_each_fault_is_found_with_its_fix(seen: dict[str, Any], check: str, text: str, fix: str) -> None:
    found = judged(**seen)[check]
    assert found.verdict == "fault" and text in found.message and fix in found.fix


def test_a_trial_that_fits_no_node_is_a_fault_with_the_schedulers_reason() -> None:
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: Insufficient cpu."}
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    pods = [
        {"metadata": {"name": name}, "status": {"conditions": [condition]}}
        for name, condition in (("t-1", unscheduled), ("u-1", gated), ("v-1", {"type": "PodScheduled", "status": "True"}))
    ]
    found = judged(trial_pods=pods)["scheduling"]
    assert found.verdict == "fault" and "1 pod fits no node of the cluster, such as t-1: 0/1 nodes: " in found.message
    assert "--override-cpus" in found.fix and "spec.activeDeadlineSeconds" in found.fix
    assert judged(trial_pods=pods[1:])["scheduling"].verdict == "ok" and judged()["scheduling"].verdict == "unknown"


def test_an_old_crd_lacks_fields() -> None:
    old = {"spec": {"versions": [{"served": True, "schema": {"openAPIV3Schema": {"properties": {"spec": {"properties": {}}}}}}]}}
    names = ("multisteptrials.multistep.dev", "trialsweeps.multistep.dev")
    found = judged(crds=dict.fromkeys(names, old))["crds"]
    assert found.verdict == "fault" and "it lacks spec." in found.message and "crds/" in found.fix


def test_the_crds_of_this_checkout_lack_nothing() -> None:
    found = [yaml.safe_load(file.read_text()) for file in CRDS.iterdir()]
    assert judged(crds={each["metadata"]["name"]: each for each in found})["crds"].verdict == "ok"


def test_what_cannot_be_read_is_unknown_and_no_fault() -> None:
    found = run_checks(Observation(NOW, "n", errors={"quotas": "forbidden"}))
    assert not [each for each in found if each.verdict == "fault"]
    assert "forbidden" in {each.check: each for each in found}["quota"].message


def quota(name: str, used: str, hard: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"used": {"pods": used, "cpu": "1"}, "hard": {"pods": hard, "memory": "1Gi"}}}


def test_a_quota_that_is_used_up_is_a_fault() -> None:
    found = judged(quotas=[quota("a", "1k", "1000"), quota("b", "500m", "1")])["quota"]
    assert found.verdict == "fault" and "are used up (a: 1k of 1000 pods)" in found.message


@pytest.mark.parametrize(("used", "hard", "field"), [("many", "2", "used of pods, 'many'"), ("1", "few", "hard of pods, 'few'")])
def test_a_quantity_that_cannot_be_read_is_named_and_is_not_used_up(used: str, hard: str, field: str) -> None:
    [found] = [each for each in run_checks(Observation(NOW, "n", quotas=[quota("a", used, hard)])) if each.check == "quota"]
    assert (found.verdict, found.message) == ("unknown", f"cannot be checked: quota a: status.{field}, is not a quantity")


class Metrics:
    """A client that only reads the metrics of pods. values: of multistep_results_free_bytes, by pod."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    async def raw_stream(self, path: str) -> AsyncIterator[bytes]:
        pod = path.split("/")[6].removesuffix(":8081")
        yield f"# HELP x y\nmultistep_results_free_bytes {self._values[pod]}\n".encode()


@pytest.mark.parametrize(
    ("values", "free"), [({"a": "NaN"}, None), ({"a": "NaN", "b": "2.5e+09"}, 2.5e9), ({"a": "0.0"}, 0.0)], ids=str
)
async def test_the_free_space_is_that_which_the_leader_measured(values: Mapping[str, str], free: float | None) -> None:
    client: Any = Metrics(values)
    assert await free_bytes(client, "system", list(values)) == free
