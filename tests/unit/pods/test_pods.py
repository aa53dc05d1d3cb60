"""Facts read from a pod's status as kubelets write it, and the manifest of a trial's pod."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.task.task_toml import EnvironmentConfig
from multistep.api.trial.status import VerifierStatus
from multistep.api.trial.trial import parse_trial
from multistep.kube.cluster_protocols import Object
from multistep.pods.pod_facts import pod_facts
from multistep.pods.pod_manifest import PodRequest, pod_manifest
from multistep.settings import Settings
from tests.support import world


def pod(spec: Object | None = None, **status: Any) -> Object:
    metadata = {"name": "t-1", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def main(state: Object, **more: Any) -> list[Object]:
    return [{"name": "sidecar", "restartCount": 3, "state": {"running": {}}}, {"name": "main", "state": state, **more}]


def test_how_a_container_ended_and_its_last_output() -> None:
    output = {"exitCode": 128, "reason": "StartError", "message": "x" * 600 + "no such file\n"}
    found = pod_facts(pod(containerStatuses=main({"terminated": output})))
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
    found = pod_facts(pod(containerStatuses=main({"running": {}}, restartCount=1, lastState=last)))
    assert (found.running, found.terminated, found.restarted) == (True, True, True)
    assert (found.exit_code, found.exit_reason) == wanted


def test_a_failed_init_container_is_distinguished_from_the_trials_own() -> None:
    ended = {"exitCode": 3, "reason": "Error"}
    found = pod_facts(pod(phase="Failed", initContainerStatuses=[{"name": "install-runner", "state": {"terminated": ended}}]))
    assert (found.init_failed, found.terminated, found.exit_code) == (True, True, 3)


@pytest.mark.parametrize(
    ("container", "service"),
    [("fill-svc-db", "db"), ("fill-main", "main"), ("fill-files", ""), ("install-runner", ""), ("mine", "")],
)
def test_an_init_container_that_fills_volumes_names_its_service(container: str, service: str) -> None:
    ended = {"name": container, "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}
    found = pod_facts(pod(phase="Failed", initContainerStatuses=[ended]))
    assert (found.init_failed, found.unfilled) == (True, service)


def test_the_images_are_those_that_the_kubelet_resolved() -> None:
    containers = [{"name": "main", "imageID": "task@sha256:1"}, {"name": "agent-host", "imageID": "host@sha256:2"}]
    installer = {"name": "install-runner", "imageID": "operator@sha256:3"}
    found = pod_facts(pod(containerStatuses=containers, initContainerStatuses=[installer]))
    assert (found.image_id, found.host_image_id, found.runner_image_id) == ("task@sha256:1", "host@sha256:2", "operator@sha256:3")


def test_a_pod_that_its_node_refused_has_no_containers() -> None:
    found = pod_facts(pod(phase="Failed", reason="OutOfcpu", message="no room"))
    assert (found.reason, found.message, found.init_failed, found.exit_code) == ("OutOfcpu", "no room", False, None)


def test_the_containers_limit_is_as_the_manifest_has_it() -> None:
    limited = {"containers": [{"name": "main", "resources": {"limits": {"memory": "64Mi"}}}]}
    assert pod_facts(pod(limited)).memory_limit == "64Mi"
    assert pod_facts(pod({"containers": [{"name": "main"}]})).memory_limit == ""


def test_the_image_is_the_one_that_the_kubelet_resolved() -> None:
    resolved = "docker.io/library/debian@sha256:" + "12" * 32
    assert pod_facts(pod(containerStatuses=main({"running": {}}, imageID=resolved))).image_id == resolved
    assert pod_facts(pod(containerStatuses=main({"waiting": {}}, imageID=""))).image_id == ""


def created(environment: Object) -> Object:
    """Return the pod manifest for a trial's third attempt. environment: the trial's spec.environment."""
    trial = world.manifest({"environment": environment})
    status = {"attempt": 3, "podName": "t-3"}
    request = PodRequest(
        parse_trial({**trial, "status": status}), EnvironmentConfig(), "img:1", "task", Settings(operator_image="op:1")
    )
    return pod_manifest(request)


@pytest.mark.parametrize(
    ("environment", "installs"),
    [
        ({}, {"image": "op:1", "imagePullPolicy": "IfNotPresent"}),
        ({"runnerInImage": True}, {"image": "img:1"}),
        ({"runnerInImage": True, "imagePullPolicy": "Never"}, {"image": "img:1", "imagePullPolicy": "Never"}),
    ],
)
def test_the_runner_is_executed_from_a_mount_that_the_container_cannot_write(environment: Object, installs: Object) -> None:
    spec = created(environment)["spec"]
    (container,), (init,) = spec["containers"], spec["initContainers"]
    (mount,) = container["volumeMounts"]
    assert (mount["mountPath"], mount["readOnly"]) == ("/multistep", True) and container["command"][0] == "/multistep/runner"
    assert {name: init.get(name) for name in installs} == installs and ("imagePullPolicy" in init) == (
        "imagePullPolicy" in installs
    )
    assert [each["name"] for each in spec["volumes"]] == [mount["name"]] == [init["volumeMounts"][0]["name"]]


def test_the_container_does_not_know_which_trial_or_attempt_it_is() -> None:
    spec = created({})["spec"]
    (container,) = spec["containers"]
    assert spec["hostname"] == "multistep" and "t-3" not in str(spec)
    assert container["env"] == [{"name": "MULTISTEP_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]


def test_a_pod_template_may_choose_the_host_name() -> None:
    assert created({"podTemplate": {"spec": {"hostname": "box"}}})["spec"]["hostname"] == "box"


def test_a_name_in_a_pod_template_has_no_effect() -> None:
    given = {"podTemplate": {"metadata": {"name": "x", "namespace": "y"}}}
    plain, named = created({})["metadata"], created(given)["metadata"]
    assert [named.get(each) for each in ("name", "namespace")] == [plain["name"], plain["namespace"]]


def agents_pod(how: str, verifier: bool = False, template: Object | None = None) -> Object:
    """Return the spec of a pod of a trial whose agent has an image. how: how the image is mounted; verifier: whether the pod is the
    verifier's; template: the trial's pod template."""
    agent = {"name": "codex", "model": "openai/gpt-5", "access": "Direct", "image": "registry.example/codex:1"}
    spec = {"agent": agent, **({"environment": {"podTemplate": template}} if template else {})}
    trial = parse_trial({**world.manifest(spec), "status": {"attempt": 1, "podName": "t-1"}})
    settings = Settings(operator_image="op:1", agent_host_image="host:1", agent_image_mount=how)
    separate = VerifierStatus(pod_name="t-1-v") if verifier else None
    created: Object = pod_manifest(PodRequest(trial, EnvironmentConfig(), "img:1", "task", settings, separate))["spec"]
    return created


def test_an_agents_image_is_mounted_read_only_into_the_environment_only() -> None:
    spec = agents_pod("Volume")
    environment, host = spec["containers"]
    mount = {"name": "multistep-agent", "mountPath": "/multistep-agent", "readOnly": True, "subPath": "multistep-agent"}
    assert mount in environment["volumeMounts"] and mount not in host["volumeMounts"]
    assert {"name": "multistep-agent", "image": {"reference": "registry.example/codex:1"}} in spec["volumes"]
    assert [each["name"] for each in spec["initContainers"]] == ["install-runner"]
    assert "registry.example/codex:1" not in str(agents_pod("Volume", verifier=True))


def test_a_templates_agent_host_changes_the_agents_pod_only() -> None:
    """In the verifier's pod it would be a container without an image, which the API server rejects after the agent ran."""
    template = {
        "spec": {"containers": [{"name": "agent-host", "env": [{"name": "A", "value": "1"}]}, {"name": "log", "image": "x"}]}
    }
    main, host, log = agents_pod("Volume", template=template)["containers"]
    assert (host["name"], log["name"]) == ("agent-host", "log") and {"name": "A", "value": "1"} in host["env"]
    of_verifier = agents_pod("Volume", verifier=True, template=template)["containers"]
    assert [each["name"] for each in of_verifier] == [main["name"], "log"]


def test_without_image_volumes_an_init_container_copies_the_agents_program() -> None:
    spec = agents_pod("Copy")
    _, copy = spec["initContainers"]
    assert copy["image"] == "registry.example/codex:1"
    assert copy["command"] == ["/multistep/runner", "copy", "/multistep-agent", "/multistep-agent-copy"]
    mount = {"name": "multistep-agent", "mountPath": "/multistep-agent", "readOnly": True}
    assert mount in spec["containers"][0]["volumeMounts"]


def test_a_task_with_devices_gets_nodes_that_have_them_and_the_trials_amounts() -> None:
    trial = parse_trial(world.manifest({"environment": {"image": "i", "resources": {"gpus": 4}}}))
    environment = EnvironmentConfig(gpus=1, gpu_types=["H100"])
    found = pod_manifest(PodRequest(trial, environment, "i", "task", Settings()))["spec"]
    assert found["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert "NVIDIA-H200" not in str(found["affinity"]) and "NVIDIA-H100-PCIe" in str(found["affinity"])
    assert "affinity" not in pod_manifest(PodRequest(trial, EnvironmentConfig(gpus=1), "i", "task", Settings()))["spec"]
