"""Test the values of the chart from which builders' pods are made."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.pods import builder_pod
from multistep.settings import Settings
from tests.unit.chart.chart_objects import variables_of
from tests.unit.chart.conftest import Object, Render


def pod_spec(render: Render, monkeypatch: pytest.MonkeyPatch, values: Object) -> dict[str, Any]:
    """Return the spec of the builders' pods that an operator with these values creates."""
    monkeypatch.setenv("MULTISTEP_BUILDS", variables_of(render(values))["MULTISTEP_BUILDS"])
    return dict(builder_pod.builder_manifest("0" * 64, "default/t", Settings())["spec"])


def test_quantities_may_be_numbers(render: Render, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML reads cpu: 2 as a number. An operator that rejected numbers would not start."""
    resources = {"requests": {"cpu": 2, "memory": "1Gi"}, "limits": {"cpu": 2.5, "memory": 4294967296}}
    spec = pod_spec(render, monkeypatch, {"builds": {"resources": resources}})
    assert spec["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "1Gi"},
        "limits": {"cpu": "2.5", "memory": "4294967296"},
    }


def test_builders_pull_their_images_with_the_secrets_of_the_operators_images(
    render: Render, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = [{"name": "registry"}]
    assert pod_spec(render, monkeypatch, {"imagePullSecrets": secrets})["imagePullSecrets"] == secrets
    for none in ({}, {"imagePullSecrets": None}):  # an operator that rejected null would not start
        assert "imagePullSecrets" not in pod_spec(render, monkeypatch, none)
