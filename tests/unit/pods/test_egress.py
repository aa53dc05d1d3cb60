"""Test the egress sidecar: its container in a pod's manifest, and its termination in a pod's status."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.task.task_toml import EnvironmentConfig
from multistep.api.trial.trial import parse_trial
from multistep.engine.plan.network_types import Network
from multistep.errors import InvalidSpec
from multistep.pods import egress_sidecar
from multistep.pods.pod_facts import pod_facts
from multistep.pods.pod_manifest import PodRequest, pod_manifest
from multistep.settings import Settings
from tests.support.world import manifest as trial_manifest

SETTINGS = Settings(
    operator_image="op:1", agent_host_image="host:1", gateway_url="http://gateway.system.svc:8080", egress="Sidecar"
)
MODEL = {"name": "terminus-2", "model": "openai/m", "credentials": [{"name": "OPENAI_API_KEY", "value": "k"}]}


def pod(template: Any = None, *, sidecar: bool = True, **spec: Any) -> Any:
    """Return the manifest of a trial's pod. template: spec of its pod template."""
    whole = trial_manifest({**spec, "environment": {"podTemplate": {"spec": template or {}}}})
    trial = parse_trial({**whole, "status": {"podName": "t-1", "attempt": 1}})
    request = PodRequest(trial, EnvironmentConfig(), "img", "task", SETTINGS, network=Network("no-network"), sidecar=sidecar)
    return pod_manifest(request)


def test_the_sidecar_is_the_first_container_and_runs_as_long_as_the_pod() -> None:
    [first] = pod()["spec"]["initContainers"]
    assert (first["name"], first["image"], first["restartPolicy"]) == ("egress", "op:1", "Always")
    assert first["command"] == ["/multistep/egress", "serve", "--runner", "/multistep-install", "--probes", "9876"]
    assert {"name": "multistep-runner", "mountPath": "/multistep-install"} in first["volumeMounts"]
    assert first["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert pod(sidecar=False)["spec"]["initContainers"][0]["name"] == "install-runner"


def test_only_a_pod_whose_programs_call_the_model_gateway_can_reach_it() -> None:
    judge = {"judge": {"model": "openai/m", "credentials": MODEL["credentials"]}}
    for spec, reaches in (({}, False), ({"models": judge}, True), ({"agent": MODEL}, True)):
        command = pod(**spec)["spec"]["initContainers"][0]["command"]
        assert ("gateway.system.svc:8080" in command) is reaches


def test_no_other_container_has_raw_sockets() -> None:
    template = {
        "containers": [{"name": "log", "image": "x", "securityContext": {"capabilities": {"drop": ["CHOWN"], "add": ["KILL"]}}}],
        "initContainers": [{"name": "seed", "image": "x"}],
    }
    spec = pod(template)["spec"]
    dropped = {
        each["name"]: each["securityContext"]["capabilities"]["drop"] for each in spec["initContainers"] + spec["containers"]
    }
    assert dropped == {
        "egress": ["ALL"],
        "seed": ["NET_RAW"],
        "main": ["NET_RAW"],
        "log": ["CHOWN", "NET_RAW"],
    }


def test_the_kubelet_reaches_all_probes() -> None:
    probes = {
        "readinessProbe": {"httpGet": {"port": "web"}},
        "livenessProbe": {"tcpSocket": {"port": 99}},
        "startupProbe": {"exec": {"command": ["true"]}},
    }
    template = {"containers": [{"name": "web", "image": "x", "ports": [{"name": "web", "containerPort": 8000}], **probes}]}
    assert pod(template)["spec"]["initContainers"][0]["command"][5] == "99,8000,9876"


def test_only_a_pod_whose_agent_calls_the_gateway_reaches_it() -> None:
    command = pod(agent=MODEL)["spec"]["initContainers"][0]["command"]
    assert command[5:] == ["9876,9877", "--gateway", "gateway.system.svc:8080"]


def main(**context: Any) -> Any:
    return {"containers": [{"name": "main", "securityContext": context}]}


@pytest.mark.parametrize(
    ("template", "named"),
    [
        ({"hostNetwork": True}, r"spec\.hostNetwork: must not be true"),
        (
            {"containers": [{"name": "main", "securityContext": {"privileged": True}}]},
            r"containers\[main\]\.securityContext\.privileged",
        ),
        (
            {"containers": [{"name": "x", "securityContext": {"capabilities": {"add": ["NET_RAW"]}}}]},
            "add: NET_RAW must not be added",
        ),
        ({"containers": [{"name": "x", "securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}}}]}, "add: CAP_SYS_ADMIN"),
        ({"containers": [{"name": "x", "volumeMounts": [{"name": "multistep-egress"}]}]}, r"containers\[x\]\.volumeMounts"),
    ],
)
def test_a_template_with_power_over_the_network_is_refused_by_name(template: Any, named: str) -> None:
    with pytest.raises(InvalidSpec, match=named):
        pod(template)


def status(**container: Any) -> Any:
    metadata = {"name": "t-1", "uid": "u", "namespace": "default"}
    return {
        "metadata": metadata,
        "spec": {},
        "status": {"phase": "Failed", "initContainerStatuses": [{"name": egress_sidecar.CONTAINER, **container}]},
    }


def test_its_end_is_not_that_of_an_init_container() -> None:
    facts = pod_facts(status(state={"terminated": {"exitCode": 2, "reason": "Error"}}))
    assert (facts.init_failed, facts.exit_code) == (False, None)
    assert (facts.egress_ended, facts.egress_exit_code) == ("ended with status 2 (Error)", 2)


def test_a_restart_shows_how_it_ended_before() -> None:
    killed = {"lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    facts = pod_facts(status(state={"running": {}}, restartCount=1, **killed))
    assert (facts.egress_ended, facts.egress_out_of_memory) == ("ended with status 137 (OOMKilled)", True)
    assert pod_facts(status(state={"running": {}}, restartCount=0)).egress_ended == ""


def test_the_runner_comes_from_the_sidecars_image() -> None:
    assert pod_facts(status(imageID="operator@sha256:3")).runner_image_id == "operator@sha256:3"


@pytest.mark.parametrize("name", ["SYS_PTRACE", "SYS_MODULE", "NET_ADMIN", "BPF", "ALL"])
def test_a_capability_beyond_the_baseline_is_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match=f"add: {name} must not be added"):
        pod({"containers": [{"name": "x", "securityContext": {"capabilities": {"add": [name]}}}]})


@pytest.mark.parametrize("sidecar", [True, False])
def test_no_container_of_a_trial_gets_a_token_of_the_api_server(sidecar: bool) -> None:
    assert pod(sidecar=sidecar)["spec"]["automountServiceAccountToken"] is False
    assert pod({"automountServiceAccountToken": True}, sidecar=sidecar)["spec"]["automountServiceAccountToken"] is False
