"""The services of a compose file in a pod: their containers in the manifest, and how they ended in the pod's status."""

from __future__ import annotations

from typing import Any

import pytest

from multistep.api.task.layout import Dependency, Host, Mount, Service, ServiceHealthcheck, Services
from multistep.api.task.task_toml import EnvironmentConfig
from multistep.api.trial.trial import parse_trial
from multistep.engine.lifecycle.decisions import ServiceEnd
from multistep.engine.plan.plan_services import plan_services
from multistep.errors import InvalidSpec
from multistep.kube.cluster_protocols import Object
from multistep.pods.container_statuses import RESTARTING
from multistep.pods.pod_facts import pod_facts
from multistep.pods.pod_manifest import PodRequest, pod_manifest
from multistep.settings import Settings
from tests.support import world
from tests.unit.pods.test_pods import pod


def sidecar(state: Object, *, started: str = "00", finished: str = "09", code: int = 137, **status: Any) -> Object:
    """Return a pod whose main container waits for the service db. The startup probe of db fails after 10 s."""
    times = {"startedAt": f"2026-01-01T00:00:{started}Z", "finishedAt": f"2026-01-01T00:00:{finished}Z"}
    ended = {"name": "svc-db", "restartCount": 1, "state": state, "lastState": {"terminated": {"exitCode": code, **times}}}
    spec = {
        "initContainers": [
            {"name": "svc-db", "restartPolicy": "Always", "startupProbe": {"periodSeconds": 1, "failureThreshold": 10}}
        ]
    }
    return pod(spec, initContainerStatuses=[{"name": "install-runner"}, ended], **status)


def test_a_service_that_ended_is_named() -> None:
    found = pod_facts(sidecar({"running": {}}, code=3, finished="02", phase="Running")).service
    assert found == ServiceEnd("db", "ended with status 3 (no reason given)", 3)
    assert pod_facts(pod(initContainerStatuses=[{"name": "svc-db", "state": {"running": {}}}])).service is None


def test_a_service_that_ran_as_long_as_its_healthcheck_allows_was_unhealthy() -> None:
    found = pod_facts(sidecar({"waiting": {"reason": "CrashLoopBackOff"}})).service
    assert found and found.unhealthy and found.how == "did not become healthy in time; it ended with status 137"
    soon = pod_facts(sidecar({"waiting": {"reason": "CrashLoopBackOff"}}, finished="08")).service
    assert soon and not soon.unhealthy


def test_a_service_may_end_if_its_file_lets_it_start_again() -> None:
    ended = sidecar({"running": {}})
    ended["metadata"]["annotations"] = {RESTARTING: "svc-web,svc-db"}
    assert pod_facts(ended).service is None


def test_a_job_may_end_with_success_only() -> None:
    def job(code: int) -> Object:
        return pod({"initContainers": [{"name": "svc-seed"}]}, initContainerStatuses=[
            {"name": "svc-seed", "state": {"terminated": {"exitCode": code, "reason": "x", "message": "no table\n"}}}
        ], phase="Failed" if code else "Pending")  # fmt: skip

    assert pod_facts(job(0)).service is None
    found = pod_facts(job(1))
    assert found.service == ServiceEnd("seed", "ended with status 1 (x): no table", 1) and not found.init_failed


def test_a_service_that_cannot_start_is_named() -> None:
    """The kubelet's message names the image only, which the task's author may not know."""
    waiting = {"waiting": {"reason": "ErrImageNeverPull", "message": 'Container image "redis" is not present'}}
    containers = [{"name": "svc-db", "state": waiting}]
    facts = pod_facts(pod(containerStatuses=[{"name": "main", "state": {"waiting": {}}}], initContainerStatuses=containers))
    assert (facts.waiting_reason, facts.waiting_message) == (
        "ErrImageNeverPull",
        'service db: Container image "redis" is not present',
    )


def test_a_service_that_is_not_ready_is_no_result() -> None:
    unready = [{"type": "Ready", "status": "False"}]
    containers = [{"name": "main", "ready": True}, {"name": "agent-host", "ready": True}]
    assert pod_facts(pod(conditions=unready, containerStatuses=containers)).ready
    containers[1]["ready"] = False
    assert not pod_facts(pod(conditions=unready, containerStatuses=containers)).ready
    assert not pod_facts(pod(conditions=unready)).ready


def composed(*services: Service, files: str = "", **spec: Any) -> Object:
    """Return the manifest of a trial's pod with these services."""
    trial = parse_trial(world.manifest({"environment": {"image": "i", "imagePullPolicy": "Never"}, **spec}))
    planned = plan_services(Services("environment/docker-compose.yaml", services, (Host("x", "192.0.2.1"),), files), "i", {}, {})
    found: Object = pod_manifest(PodRequest(trial, EnvironmentConfig(), "i", "task", Settings(), services=planned))
    return found


DB = Service(
    "db", "redis", names=("db", "cache"), entrypoint=("tini",), command=("redis", "$(HOME)"),
    environment={"B": "$(A)", "A": "1", "C": "a$$b$$(A)"},
    user="1000:1001", cpus=0.5, memory_bytes=64, cpu_request=0.1, memory_request=32, working_dir="/x", stdin=True, tty=True,
    read_only=True, no_new_privileges=True, cap_add=("KILL",), cap_drop=("CHOWN",),
    healthcheck=ServiceHealthcheck(("ping",), interval=2, timeout=3, start_period=4, start_interval=2, retries=5),
    mounts=(Mount("volume", "/data", "data"), Mount("file", "/etc/a", "0", read_only=True), Mount("tmpfs", "/tmp", size_bytes=9)),
)  # fmt: skip


def test_a_service_is_a_native_sidecar_with_all_that_its_file_says() -> None:
    containers = {each["name"]: each for each in composed(DB)["spec"]["initContainers"]}
    db = containers["svc-db"]
    assert (db["restartPolicy"], db["image"]) == ("Always", "redis")
    assert (db["command"], db["args"], db["workingDir"], db["stdin"], db["tty"]) == (
        ["tini"],
        ["redis", "$$(HOME)"],
        "/x",
        True,
        True,
    )
    assert db["env"][1:] == [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$$(A)"},
        {"name": "C", "value": "a$$$$b$$$$(A)"},  # the kubelet replaces each $$ by $
    ]
    assert db["resources"] == {"requests": {"cpu": "0.1", "memory": "32"}, "limits": {"cpu": "0.5", "memory": "64"}}
    assert db["startupProbe"] == {"exec": {"command": ["ping"]}, "periodSeconds": 2, "timeoutSeconds": 3, "failureThreshold": 7}
    assert db["securityContext"] == {
        "capabilities": {"drop": ["CHOWN", "NET_RAW"], "add": ["KILL"]}, "runAsUser": 1000, "runAsGroup": 1001,
        "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
    }  # fmt: skip
    assert [each["mountPath"] for each in db["volumeMounts"]] == ["/data", "/etc/a", "/tmp", "/multistep", "/run/multistep-service"]


def test_only_the_image_of_the_trial_is_never_pulled() -> None:
    """`multistep run` loads the trial's image into the nodes, but not those of services."""
    made = composed(DB, Service("own", "i", mounts=(Mount("volume", "/own", "o"),)))["spec"]
    policies = {each["name"]: each.get("imagePullPolicy") for each in (*made["initContainers"], *made["containers"])}
    assert {name: policy for name, policy in policies.items() if name != "install-runner"} == {
        **{"fill-svc-db": "IfNotPresent", "svc-db": "IfNotPresent"},
        **{"fill-svc-own": "Never", "svc-own": "Never", "main": "Never"},
    }


def test_an_empty_entrypoint_is_not_the_images() -> None:
    made = composed(Service("db", "redis", entrypoint=(), command=("serve", "x")))["spec"]["initContainers"]
    db = next(each for each in made if each["name"] == "svc-db")
    assert db["command"] == ["serve", "x"] and "args" not in db


def test_volumes_are_filled_before_the_first_service_that_mounts_them() -> None:
    data = Mount("volume", "/own", "data")
    pod = composed(DB, Service("main", mounts=(data, Mount("volume", "/new", "new"))), files="eA==")
    names = [each["name"] for each in pod["spec"]["initContainers"]]
    assert names == ["install-runner", "fill-files", "fill-svc-db", "svc-db", "fill-main"]
    fill = {each["name"]: each["command"] for each in pod["spec"]["initContainers"]}
    assert fill["fill-files"] == ["/multistep/runner", "unpack", "/multistep-files", "eA=="]
    assert fill["fill-svc-db"] == ["/multistep/runner", "populate", "/data", "/multistep-volumes/svc-volume-0"]
    assert fill["fill-main"] == ["/multistep/runner", "populate", "/new", "/multistep-volumes/svc-volume-1"]
    main = pod["spec"]["containers"][0]["volumeMounts"]
    assert [each["mountPath"] for each in main] == ["/multistep", "/own", "/new"]
    memory = [each["emptyDir"] for each in pod["spec"]["volumes"] if each["emptyDir"].get("medium")]
    assert memory == [{"medium": "Memory", "sizeLimit": "9"}]


def test_all_names_are_of_one_address() -> None:
    assert composed(DB)["spec"]["hostAliases"] == [
        {"ip": "127.0.0.1", "hostnames": ["db", "cache"]},
        {"ip": "192.0.2.1", "hostnames": ["x"]},
    ]


def test_a_job_is_a_plain_init_container() -> None:
    seed, app = Service("seed", "s", names=("seed",)), Service("app", "a", depends_on=(Dependency("seed", "completed"),))
    containers = {each["name"]: each for each in composed(seed, app)["spec"]["initContainers"]}
    assert "restartPolicy" not in containers["svc-seed"] and containers["svc-seed"]["volumeMounts"] == []


def test_services_that_may_end_are_noted() -> None:
    pod = composed(Service("db", "d"), Service("web", "w", restarts=True), Service("x", "x", restarts=True, cap_drop=("ALL",)))
    assert pod["metadata"]["annotations"][RESTARTING] == "svc-web,svc-x"
    assert pod["spec"]["initContainers"][-1]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_the_default_user_of_main_is_that_of_the_file() -> None:
    main = composed(Service("main", user="1000", working_dir="/srv"))["spec"]["containers"][0]
    assert {"name": "MULTISTEP_DEFAULT_USER", "value": "1000"} in main["env"]
    assert (main["securityContext"]["runAsUser"], main["workingDir"]) == (0, "/srv")


def test_the_limits_of_main_in_the_file_replace_those_of_the_task() -> None:
    main = Service("main", cpus=0.5, memory_bytes=(64 << 20) + 1, no_new_privileges=True)
    found = composed(main)["spec"]["containers"][0]
    assert found["resources"]["limits"] == {"cpu": "0.5", "memory": "65Mi"}
    assert found["securityContext"] == {"allowPrivilegeEscalation": False}
    overridden = composed(main, environment={"image": "i", "resources": {"cpus": 2}})["spec"]["containers"][0]
    assert overridden["resources"]["limits"] == {"cpu": "2", "memory": "65Mi"}


@pytest.mark.parametrize(("port", "purpose"), [("9876/tcp", "the runner"), ("9877/tcp", "the agent host")])
def test_ports_that_the_pod_needs_are_refused(port: str, purpose: str) -> None:
    with pytest.raises(InvalidSpec, match=rf"services.db.ports: \d+ is the port of {purpose}"):
        composed(Service("db", "d", ports=("53/udp", port)))
    assert composed(Service("db", "d", ports=("9876/udp",)))
