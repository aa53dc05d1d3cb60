"""Cause a real failure of each class before or in a trial's phases; check class, reason and message
(docs/reference/failures.md)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from localkube.packages import ensure_packages
from multistep.errors import ClusterError
from tests.e2e.given import IMAGE, Given, Object, Step, condition, holds, trial
from tests.support.machine import on_node
from tests.support.waiting import eventually

LOCKED, OPEN, NOBODYS = 5105, 5106, 5107  # ports on the node: a registry with a password, one without, and no server
NOBODY = "nobody:$2y$05$abcdefghijklmnopqrstuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuuu\n"  # htpasswd line: no password matches this hash

Row = tuple[Object, str, str, str]  # trial; expected failure class, reason, and part of the message


@pytest.fixture(scope="module")
def _registry_program() -> None:
    ensure_packages({"docker-registry": "docker-registry"})


@pytest.fixture
async def registries(_registry_program: None, tmp_path: Path) -> AsyncIterator[None]:
    """Run two empty registries on the node, one of which requires credentials."""
    (tmp_path / "htpasswd").write_text(NOBODY)
    auth = f"auth: {{htpasswd: {{realm: e2e, path: {tmp_path}/htpasswd}}}}\n"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(_registry(tmp_path, LOCKED, auth))
        await stack.enter_async_context(_registry(tmp_path, OPEN, ""))
        yield


@asynccontextmanager
async def _registry(directory: Path, port: int, more: str) -> AsyncIterator[None]:
    config = directory / f"{port}.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {directory}/{port}}}}}\n"
    config.write_text(f"version: 0.1\nlog: {{level: error}}\n{storage}http: {{addr: 127.0.0.1:{port}}}\n{more}")
    async with on_node(("docker-registry", "serve", str(config))):
        yield


def failure(done: Object) -> tuple[str, str]:
    """Return the failure class and reason of a finished trial."""
    found = done["status"]["failure"]
    return found["class"], found["reason"]


async def assert_all_fail(given: Given, rows: dict[str, Row]) -> dict[str, Object]:
    """Run all trials concurrently and assert that each fails with its class, reason and message, and without any reward."""
    ended = await asyncio.gather(*(given.ended(manifest) for manifest, *_ in rows.values()))
    done = dict(zip(rows, ended, strict=True))
    for name, (_, failure_class, reason, output) in rows.items():
        failed = condition(done[name], "Failed")
        assert (failed["status"], failed["reason"], failure(done[name])) == ("True", reason, (failure_class, reason)), (
            name,
            failed,
        )
        assert output in failed["message"], (name, failed["message"])
        assert "rewards" not in done[name]["status"] and "reward" not in done[name]["status"], name
    return done


def in_image(image: str, **environment: Any) -> Object:
    return trial(Step("a"), environment={"image": image, **environment})


def in_pod(template: Object, **spec: Any) -> Object:
    return trial(Step("a"), environment={"image": IMAGE, "podTemplate": {"spec": template}}, **spec)


FAILS_INIT = [{"name": "mine", "image": IMAGE, "command": ["sh", "-c", "exit 3"], "imagePullPolicy": "IfNotPresent"}]


@pytest.mark.long
async def test_what_keeps_a_pod_from_running_fails_the_trial_by_its_reason(given: Given, registries: None, policy: Object) -> None:
    away = {"environment": {"build_timeout_sec": 120}}  # by then, a slow machine, too, has tried to pull the image
    slow = trial(Step("a"), environment={"image": f"127.0.0.1:{NOBODYS}/none:1"}, config=away)
    sick = trial(Step("a"), config={"environment": {"healthcheck": {"command": "echo no port; exit 1", "retries": 1}}})
    forbidden = trial(Step("a"), environment={"image": IMAGE, "podTemplate": {"metadata": policy}})
    await assert_all_fail(
        given,
        {
            "no such image": (in_image(f"127.0.0.1:{OPEN}/none:1"), "Task", "ImageNotFound", "none:1"),
            "no credentials": (in_image(f"127.0.0.1:{LOCKED}/none:1"), "Task", "ImageAccessDenied", "none:1"),
            "never pulled": (
                in_image("localhost/no-such-image:1", imagePullPolicy="Never"), "Task", "ErrImageNeverPull", "no-such-image",
            ),
            "no image's name": (in_image("Bad!Name"), "Task", "InvalidImageName", "Bad!Name"),
            "registry away": (slow, "Infrastructure", "EnvironmentStartTimeout", f"{NOBODYS}/none:1"),
            "unhealthy": (sick, "Task", "EnvironmentFailed", "no port"),
            "malformed": (trial(Step("a", config={"min_reward": [1]})), "Task", "InvalidSpec", "steps[0].min_reward"),
            "no pod can be so": (in_pod({"nodeSelector": {"a b": "c"}}), "Task", "InvalidSpec", "nodeSelector"),
            "forbidden": (forbidden, "Infrastructure", "PodForbidden", "unwanted here"),
            "no init": (
                in_pod({"initContainers": FAILS_INIT}, infrastructureRetries=0),
                "Infrastructure", "RunnerInstallFailed", "status 3",
            ),
        },
    )  # fmt: skip


@pytest.fixture
async def policy(given: Given) -> AsyncIterator[Object]:
    """Create a ValidatingAdmissionPolicy that denies pods with a certain label; yield pod metadata with that label."""
    api, name = "admissionregistration.k8s.io/v1", given.namespace
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    mine = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    unwanted = {"expression": "!has(object.metadata.labels) || !('unwanted' in object.metadata.labels)", "message": "unwanted here"}
    rules = {"matchConstraints": {"resourceRules": [rule], **mine}, "validations": [unwanted]}
    binding = {"policyName": name, "validationActions": ["Deny"]}
    made = [
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": rules},
        {"apiVersion": api, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": binding},
    ]
    for each in made:
        await given.client.apply(each)
    unwanted_pod = {"labels": {"unwanted": "yes"}}
    await _until_denied(given, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe", **unwanted_pod}, "spec": BARE})
    yield unwanted_pod
    for each in made:
        await given.client.delete(await given.client.resource_of(each), None, name)


BARE = {"containers": [{"name": "main", "image": IMAGE}]}


async def _until_denied(given: Given, pod: Object) -> None:
    """Wait until the policy denies the pod. A denial because the new namespace has no ServiceAccount yet does not count."""
    body = {**pod, "metadata": {**pod["metadata"], "namespace": given.namespace}}

    async def denied() -> bool:
        return "unwanted here" in await _refusal(given, body)

    await eventually(denied)


async def _refusal(given: Given, body: Object) -> str:
    """Return the API server's error for this pod, or an empty string."""
    try:
        await given.client.apply(body, dry_run=True)
    except ClusterError as error:
        return str(error)
    return ""


async def test_what_the_kubelet_refuses_is_tried_again_until_no_retry_is_left(given: Given) -> None:
    """The pods set nodeName, so that they bypass the scheduler and the kubelet rejects them."""
    wrong = {"nodeName": "node1", "nodeSelector": {"no": "such"}}
    large = {"nodeName": "node1", "containers": [{"name": "main", "resources": {"requests": {"cpu": "1000"}}}]}
    done = await assert_all_fail(
        given,
        {
            "wrong": (in_pod(wrong, infrastructureRetries=1), "Infrastructure", "NodeAffinity", "this was attempt 2 of 2"),
            "large": (in_pod(large, infrastructureRetries=1), "Infrastructure", "OutOfcpu", "this was attempt 2 of 2"),
        },
    )
    for name, reason in (("wrong", "NodeAffinity"), ("large", "OutOfcpu")):
        attempts = done[name]["status"]["attempts"]
        assert [(each["number"], each["reason"]) for each in attempts] == [(1, reason), (2, reason)]
        assert all(each["startTime"] <= each["completionTime"] for each in attempts)


FILL = "#!/bin/sh\nhead -c 100000000 /dev/zero > /fill; sleep 600\n"


async def test_an_agent_that_fills_its_disk_fails_by_itself_and_is_not_tried_again(given: Given) -> None:
    """What else a phase does to itself needs no kubelet: tests/process/test_failures.py."""
    done = await given.ended(trial(Step("a"), Step("b", solve=FILL), Step("c"), config={"environment": {"storage_mb": 50}}))
    status = done["status"]
    assert holds(done, "Complete") and status["failure"] == {"class": "Agent", "reason": "OutOfDiskError", "step": "b"}, status
    assert status["score"] == pytest.approx(1 / 3) and status["attempt"] == 1 and not status.get("attempts"), status
    exception = status["steps"][-1]["exception"]
    assert exception["phase"] == "agent" and "exceed" in exception["message"], exception
