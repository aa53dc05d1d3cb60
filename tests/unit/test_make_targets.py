"""Which cluster the Makefile's targets may use, and what they refuse to do there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hack import cli, deployment, image, python_env
from hack.deployment import Cluster
from hack.stages import Failure
from localkube import targets
from localkube.config import load_config

CURRENT, KIND = targets.Current(load_config({}), {"KUBECONFIG": "/k"}), targets.Kind(Path("/nonexistent"))


@pytest.mark.parametrize(("asked", "used"), [("", "own"), ("auto", "own"), ("current", "current")])
@pytest.mark.parametrize("name", ["test", "test-long", "test-agents", "e2e", "bench", "chaos", "conformance"])
def test_tests_use_a_cluster_of_others_only_if_it_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: str, used: str
) -> None:
    found: list[str] = []

    def interrupted() -> None:
        found.append(os.environ["CLUSTER"])
        raise KeyboardInterrupt

    monkeypatch.setattr(python_env, "ensure", interrupted)  # the first thing that each target does
    monkeypatch.setenv("CLUSTER", asked)
    assert cli.main([name]) == 130
    assert found == [used]


def test_a_cluster_that_pulls_its_images_needs_a_repository_before_anything_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGE_REPOSITORY", raising=False)
    with pytest.raises(Failure, match=r"the nodes of the cluster of /k pull images from a registry: .*IMAGE_REPOSITORY="):
        image.check_deliverable(CURRENT)
    image.check_deliverable(KIND)
    monkeypatch.setenv("IMAGE_REPOSITORY", "registry.example/multistep-operator")
    image.check_deliverable(CURRENT)


@pytest.mark.parametrize(
    ("found", "cluster", "refused"),
    [
        ("registry.example/multistep-operator:0.1.0", "", True),
        ("registry.example:5000/multistep-operator", "auto", True),
        ("registry.example/multistep-operator:0.1.0", "current", False),
        ("registry.example/multistep-operator:dev-0123456789ab", "", False),
        ("", "", False),
    ],
)
def test_an_operator_that_was_not_deployed_from_a_checkout_is_replaced_only_in_a_named_cluster(
    monkeypatch: pytest.MonkeyPatch, found: str, cluster: str, refused: bool
) -> None:
    monkeypatch.setattr(deployment, "capture", lambda *_: found)
    used = Cluster(CURRENT, "kubectl", {"CLUSTER": cluster})
    if not refused:
        deployment.refuse_to_replace(used)
        return
    with pytest.raises(Failure, match=f"has an operator already, of the image {found}: name the cluster with CLUSTER=current"):
        deployment.refuse_to_replace(used)
