"""Test that kubectl alone is enough: it creates trials, waits for them, reads their results, and ends them."""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import secrets
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.waiting import DEADLINE_SECONDS

EXAMPLES = Path(__file__).parents[2] / "examples"
_TIMEOUT = f"--timeout={DEADLINE_SECONDS:.0f}s"


class Kubectl:
    """kubectl in a namespace of the test."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace

    async def __call__(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl with a text as stdin, assert that it succeeds, and return its output."""
        pipe = asyncio.subprocess.PIPE
        command = ("kubectl", "-n", self.namespace, *arguments)
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)
        out, err = await process.communicate(stdin.encode())
        assert process.returncode == 0, f"{' '.join(command)}: {err.decode()}"
        return out.decode()

    async def status(self, name: str) -> dict[str, Any]:
        """Return the trial's status."""
        status: dict[str, Any] = json.loads(await self("get", "mst", name, "-o", "json"))["status"]
        return status


@pytest.fixture
async def kubectl() -> AsyncIterator[Kubectl]:
    """Yield kubectl in a new namespace in which pods can be created; delete the namespace afterwards."""
    kubectl = Kubectl(f"e2e-kubectl-{secrets.token_hex(4)}")
    await kubectl("create", "namespace", kubectl.namespace)
    try:
        await kubectl("wait", "--for=create", "serviceaccount/default", _TIMEOUT)
        yield kubectl
    finally:
        await kubectl("delete", "namespace", kubectl.namespace, "--wait=false")


async def test_an_inline_trial_is_applied_waited_for_and_its_result_read(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", str(EXAMPLES / "inline-trial.yaml"))
    await kubectl("wait", "mst/hello-inline", "--for=condition=Complete", _TIMEOUT)
    status = await kubectl.status("hello-inline")
    assert status["rewards"] == {"reward": 1}
    assert [(each["name"], each["rewards"]) for each in status["steps"]] == [("write", {"reward": 1}), ("extend", {"reward": 1})]
    place = urlsplit(status["results"])  # service://NAMESPACE/SERVICE:PORT/PATH
    service, _, path = place.path.lstrip("/").partition("/")
    files = f"/api/v1/namespaces/{place.netloc}/services/{service}/proxy/{path}/files"
    result = json.loads(await kubectl("get", "--raw", f"{files}/result.json?offset=0&limit=1000000"))
    assert [each["step_name"] for each in result["step_results"]] == ["write", "extend"]
    assert result["verifier_result"]["rewards"]["reward"] == 1


async def test_a_task_in_a_config_map_of_kubectl_runs(kubectl: Kubectl, tmp_path: Path) -> None:
    """The archive is one that `tar -cz` writes, not one of `multistep package`. The agent does nothing, so the first gate fails."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(EXAMPLES / "hello-multi-step-advanced", arcname=".")
    packed, part = archive.getvalue(), tmp_path / "part"
    part.write_bytes(packed)
    await kubectl("create", "configmap", "task", f"--from-file={part}")
    bundle = {"configMaps": ["task"], "digest": f"sha256:{hashlib.sha256(packed).hexdigest()}"}
    spec = {"task": {"name": "hello", "bundle": bundle}, "agent": {"name": "nop"}, "environment": {"image": "debian:bookworm-slim"}}
    trial = {"apiVersion": "multistep.dev/v1alpha1", "kind": "MultiStepTrial", "metadata": {"name": "hello"}, "spec": spec}
    await kubectl("apply", "-f", "-", stdin=json.dumps(trial))
    await kubectl("wait", "mst/hello", "--for=condition=Complete", _TIMEOUT)
    status = await kubectl.status("hello")
    assert (status["outcome"], [each["name"] for each in status["steps"]]) == ("GateNotMet", ["scaffold"])


async def test_a_running_trial_is_stopped_by_a_patch_and_deleted_with_its_objects(kubectl: Kubectl) -> None:
    files = {"steps/a/instruction.md": "Wait.\n", "steps/a/solution/solve.sh": "#!/bin/sh\nsleep 3600\n"}
    inline = {"config": {"steps": [{"name": "a"}]}, "files": {**files, "steps/a/tests/test.sh": "#!/bin/sh\n"}}
    spec = {"task": {"inline": inline}, "agent": {"name": "oracle"}, "environment": {"image": "debian:bookworm-slim"}}
    trial = {"apiVersion": "multistep.dev/v1alpha1", "kind": "MultiStepTrial", "metadata": {"name": "waits"}, "spec": spec}
    await kubectl("apply", "-f", "-", stdin=json.dumps(trial))
    await kubectl("wait", "mst/waits", "--for=jsonpath={.status.phase}=Running", _TIMEOUT)
    pod = (await kubectl.status("waits"))["podName"]
    await kubectl("patch", "mst", "waits", "--type=merge", "--patch", '{"spec": {"stop": true}}')
    await kubectl("wait", "mst/waits", "--for=condition=Failed", _TIMEOUT)
    (failed,) = [each for each in (await kubectl.status("waits"))["conditions"] if each["type"] == "Failed"]
    assert failed["reason"] == "Stopped"
    await kubectl("wait", f"pod/{pod}", "--for=delete", _TIMEOUT)
    await kubectl("delete", "mst", "waits")
    assert await kubectl("get", "mst", "-o", "name") == ""
