"""What is read of a pod, in the shapes that kubelets write."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.cluster.edge import Object
from multistep.cluster.pods import facts


def pod(spec: Object | None = None, **status: Any) -> Object:
    metadata = {"name": "t-1", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def main(state: Object, **more: Any) -> list[Object]:
    return [{"name": "sidecar", "restartCount": 3, "state": {"running": {}}}, {"name": "main", "state": state, **more}]


def test_how_a_container_ended_and_what_it_said_last() -> None:
    said = {"exitCode": 128, "reason": "StartError", "message": "x" * 600 + "no such file\n"}
    found = facts(pod(containerStatuses=main({"terminated": said})))
    assert (found.terminated, found.restarted, found.exit_code, found.exit_reason) == (True, False, 128, "StartError")
    assert found.exit_message.endswith("xno such file") and len(found.exit_message) < 501


@pytest.mark.parametrize(
    ("last", "wanted"),
    [
        ({"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, (137, "OOMKilled")),
        ({}, (None, "Restarted")),
    ],
)
def test_a_container_started_again_has_ended(last: Object, wanted: tuple[int | None, str]) -> None:
    found = facts(pod(containerStatuses=main({"running": {}}, restartCount=1, lastState=last)))
    assert (found.running, found.terminated, found.restarted) == (True, True, True)
    assert (found.exit_code, found.exit_reason) == wanted


def test_a_failed_init_container_is_told_from_the_trials_own() -> None:
    ended = {"exitCode": 3, "reason": "Error"}
    found = facts(pod(phase="Failed", initContainerStatuses=[{"name": "install-runner", "state": {"terminated": ended}}]))
    assert (found.init_failed, found.terminated, found.exit_code) == (True, True, 3)


def test_a_pod_that_its_node_refused_has_no_containers() -> None:
    found = facts(pod(phase="Failed", reason="OutOfcpu", message="no room"))
    assert (found.reason, found.message, found.init_failed, found.exit_code) == ("OutOfcpu", "no room", False, None)


def test_the_containers_limit_is_as_the_manifest_has_it() -> None:
    limited = {"containers": [{"name": "main", "resources": {"limits": {"memory": "64Mi"}}}]}
    assert facts(pod(limited)).memory_limit == "64Mi"
    assert facts(pod({"containers": [{"name": "main"}]})).memory_limit == ""


def test_the_image_is_the_one_that_the_kubelet_resolved() -> None:
    resolved = "docker.io/library/debian@sha256:" + "12" * 32
    assert facts(pod(containerStatuses=main({"running": {}}, imageID=resolved))).image_id == resolved
    assert facts(pod(containerStatuses=main({"waiting": {}}, imageID=""))).image_id == ""
