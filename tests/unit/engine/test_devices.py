"""Test the conversion of a task's resources and devices to a container's resources and a required node affinity."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.api.task.layout import Service
from multistep.api.task.task_toml import GPU_TYPES, TPU_TYPES, EnvironmentConfig
from multistep.api.trial.spec import ResourcesSpec
from multistep.engine.plan.container_resources import node_affinity, node_terms, requests_and_limits, with_limits, with_overrides
from multistep.errors import InvalidTask

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def environment(**fields: Any) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate(fields)


def fits(labels: dict[str, str], found: dict[str, Any]) -> bool:
    """Return whether the scheduler allows a pod with this affinity on a node with these labels."""
    terms = found["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    return any(all(labels.get(each["key"]) in each["values"] for each in term["matchExpressions"]) for term in terms)


def test_amounts_are_requests_and_limits_and_a_tpus_chips_follow_from_its_topology() -> None:
    tpu = {"type": "v6e", "topology": "2x4"}
    found = requests_and_limits(environment(cpus=1.5, memory_mb=512, storage_mb=1024, gpus=2, tpu=tpu))
    assert (
        found["requests"]
        == found["limits"]
        == {
            "cpu": "1.5",
            "memory": "512Mi",
            "ephemeral-storage": "1024Mi",
            "nvidia.com/gpu": "2",
            "google.com/tpu": "8",
        }
    )
    assert requests_and_limits(environment()) == {}


def test_a_trials_resources_replace_the_tasks_one_by_one() -> None:
    task = environment(cpus=1, memory_mb=512, gpus=1, gpu_types=["T4"])
    found = with_overrides(task, ResourcesSpec.model_validate({"cpus": 2, "gpus": 0, "tpu": {"type": "v4", "topology": "2x2x1"}}))
    assert requests_and_limits(found)["limits"] == {"cpu": "2", "memory": "512Mi", "google.com/tpu": "4"}
    assert with_overrides(task, ResourcesSpec()) == task


def test_limits_of_main_in_a_compose_file_replace_the_tasks_one_by_one() -> None:
    task = environment(cpus=1, memory_mb=512)
    found = with_limits(task, Service("main", cpus=0.5))
    assert requests_and_limits(found)["limits"] == {"cpu": "0.5", "memory": "512Mi"}
    assert requests_and_limits(with_limits(task, Service("main", memory_bytes=(64 << 20) + 1)))["limits"] == {
        "cpu": "1",
        "memory": "65Mi",
    }


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
        {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"},
        {"karpenter.k8s.aws/instance-gpu-name": "h100"},
        {"nvidia.com/gpu.product": "NVIDIA-H200"},
    ],
)
def test_a_node_with_any_of_the_types_fits_and_no_other(labels: dict[str, str]) -> None:
    found = node_affinity(node_terms(environment(gpus=1, gpu_types=["H100", "h200"]), GPU_TYPES), {})
    assert fits(labels, found)
    assert not fits({"nvidia.com/gpu.product": "Tesla-T4"}, found) and not fits({}, found)


def test_types_matter_only_with_gpus() -> None:
    assert node_terms(environment(gpu_types=["H100"]), GPU_TYPES) == node_terms(environment(gpus=1), GPU_TYPES) == []


@pytest.mark.parametrize("type_", ["v6e", "Trillium", "tpu-v6e-slice"])
def test_a_tpu_is_found_by_its_alias_or_its_name(type_: str) -> None:
    [term] = node_terms(environment(tpu={"type": type_, "topology": "2x2"}), GPU_TYPES)
    assert {each["key"].rpartition("/")[2]: each["values"] for each in term} == {
        "gke-tpu-accelerator": ["tpu-v6e-slice"],
        "gke-tpu-topology": ["2x2"],
    }


def test_an_unknown_type_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InvalidTask, match=r"environment\.gpu_types: 'RTX' is not a known type: t4, .*settings.gpuTypes"):
        node_terms(environment(gpus=1, gpu_types=["RTX"]), GPU_TYPES)
    known = {**GPU_TYPES, "rtx": {"label": ("RTX-1",)}}
    assert node_terms(environment(gpus=1, gpu_types=["RTX"]), known) == [[{"key": "label", "operator": "In", "values": ["RTX-1"]}]]
    with pytest.raises(InvalidTask, match=r"environment\.tpu\.type: 'v99' is not a known type: v3"):
        node_terms(environment(tpu={"type": "v99", "topology": "2x2"}), GPU_TYPES)
    assert set(TPU_TYPES.values()) >= {"tpu7x"}


@given(st.sampled_from(sorted(GPU_TYPES)), st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2, unique=True))
def test_what_the_pod_template_requires_of_nodes_still_holds(type_: str, zones: list[str]) -> None:
    terms = node_terms(environment(gpus=1, gpu_types=[type_]), GPU_TYPES)
    template = {
        "podAffinity": {"kept": True},
        "nodeAffinity": {
            "preferred": [],
            REQUIRED: {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in zones]
            },
        },
    }
    found = node_affinity(terms, template)
    label, values = next(iter(GPU_TYPES[type_].items()))
    assert all(fits({"zone": zone, label: value}, found) for zone in zones for value in values)
    assert not fits({label: values[0]}, found) and not fits({"zone": zones[0]}, found)
    assert not fits({"zone": "c", label: values[0]}, found)
    assert found["podAffinity"] == {"kept": True} and found["nodeAffinity"]["preferred"] == []
