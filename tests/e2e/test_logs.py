"""Test `multistep logs` with real pods: following, reading after deletion, terminal escapes, and permissions."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from multistep.kube.resources import PODS
from tests.e2e.given import DEADLINE_SECONDS, WAITS, Given, Step, granted, in_agent, trial
from tests.e2e.test_cli import multistep

HOSTILE = "\\033]0;owned\\007\\377"
SETUP = "echo prepared\n"
FIRST = f"#!/bin/bash\nprintf 'begun{HOSTILE}\\n'\n{WAITS}seq 1 30000\n"
SECOND = "#!/bin/bash\necho second\n"
TEST = "#!/bin/bash\necho judging\necho 1 > /logs/verifier/reward.txt\n"
PRINTED = b"begun\x1b]0;owned\x07\xff\n" + b"".join(b"%d\n" % n for n in range(1, 30001))


@asynccontextmanager
async def following(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run `multistep logs -f` with these arguments and yield the process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "multistep.cli", "logs", "-f", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def test_logs_of_a_pod_that_runs_and_of_one_that_is_gone(given: Given, tmp_path: Path) -> None:
    """One trial serves all checks. The agent of its first step waits until the checks of a running pod are done."""
    manifest = trial(Step("a", solve=FIRST, test=TEST, setup=SETUP), Step("b", solve=SECOND, test=TEST), name="logs")
    await given.applied(manifest)
    options = ("logs", "-n", given.namespace)  # arguments after `multistep logs`: the trial is named "logs", too
    async with following(*options, "--raw") as follower:
        assert follower.stdout is not None
        while b"begun" not in (heard := await asyncio.wait_for(follower.stdout.readline(), DEADLINE_SECONDS)):
            assert heard in (b"==> step 1 a, setup <==\n", b"prepared\n", b"==> step 1 a, agent <==\n")
        await given.until("logs", in_agent)
        only_agent = ("logs", *options, "--step", "1", "--phase", "agent")
        terminal, refused = await asyncio.gather(on_a_terminal(*only_agent), as_a_viewer(given, tmp_path, "logs", *options))
        assert terminal == b"begun^[]0;owned^G\\xff\r\n"
        assert refused[0] == 2 and "pods/exec in namespace" in refused[2]
        await given.go("logs")
        rest, reported = await asyncio.wait_for(follower.communicate(), DEADLINE_SECONDS)
    assert follower.returncode == 0, reported
    assert heard + rest == (
        PRINTED + b"==> step 1 a, verifier <==\njudging\n==> step 2 b, agent <==\nsecond\n==> step 2 b, verifier <==\njudging\n"
    ), reported
    code, out, err = await multistep("logs", *options, "-o", "json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and lines[0] == {"attempt": 1, "step": "a", "phase": "setup", "text": "prepared"}, err
    assert [line["text"] for line in lines if (line["step"], line["phase"]) == ("b", "agent")] == ["second"]
    process = await asyncio.create_subprocess_exec(*command(*only_agent, "--raw"), stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == PRINTED
    code, out, err = await multistep(*only_agent, "--tail", "2")
    assert (code, out) == (0, "29999\n30000\n"), err


async def test_every_line_of_the_operators_log_parses_and_shows_of_which_trial_it_is(given: Given) -> None:
    """Check the operator's log of all tests so far, of a finished trial, and of a trial with an invalid task."""
    complete, failed = trial(Step("only", solve=SECOND), name="good"), trial(Step("only", test=None), name="bad")
    ended = await asyncio.gather(given.ended(complete), given.ended(failed))
    uids = {each["metadata"]["uid"] for each in ended}
    reported: set[str] = set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not uids <= reported:
            lines = await operators_log(given)
            reported = {line.get("uid", "") for line in lines if line["message"].startswith(ENDS)}
    for line in lines:
        assert {"time", "level", "logger", "message"} <= line.keys() <= {*FIELDS, "error"}, line
        if given.namespace in json.dumps(line):
            assert line["namespace"] == given.namespace and line["trial"] in ("good", "bad"), line
    about_good = [line for line in lines if line.get("uid") == ended[0]["metadata"]["uid"]]
    assert {line.get("step") for line in about_good} >= {"only"} and all(line["reconcile"] for line in about_good)
    assert {line.get("attempt") for line in about_good} >= {1}


async def test_the_operators_log_has_no_traceback(given: Given) -> None:
    """kopf and asyncio log exceptions of handlers and callbacks, and continue. So check the log of all tests so far."""
    await given.ended(trial(Step("only", solve=SECOND), name="good"))
    tracebacks = [line for line in await operators_log(given) if "error" in line]
    assert not tracebacks, json.dumps(tracebacks[:3], indent=2)


FIELDS = ("time", "level", "logger", "message", "namespace", "sweep", "trial", "uid", "attempt", "step", "reconcile")
ENDS = ("TrialComplete", "InvalidSpec")


async def operators_log(given: Given) -> list[dict[str, Any]]:
    """Return every line of the operator's logs. Raise ValueError if a line is not JSON."""
    namespace = os.environ["MULTISTEP_TEST_NAMESPACE"]
    found: list[dict[str, Any]] = []
    for pod in await given.client.list_all(PODS, namespace, label_selector="app.kubernetes.io/name=multistep"):
        path = f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}/log"
        async with aclosing(given.client.raw_stream(path)) as chunks:
            text = b"".join([chunk async for chunk in chunks]).decode()
        found += [json.loads(line) for line in text.splitlines()]
    return found


def command(*arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "multistep.cli", *arguments)


async def on_a_terminal(*arguments: str) -> bytes:
    """Run a command on a pseudo-terminal and return what it wrote."""
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(*command(*arguments), stdout=theirs)
    os.close(theirs)
    written = b""
    with suppress(OSError):  # read fails once the process has closed the terminal
        while data := await asyncio.to_thread(os.read, ours, 4096):
            written += data
    os.close(ours)
    assert await process.wait() == 0
    return written


async def as_a_viewer(given: Given, tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the command as a user who may read trials but not exec into pods."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "viewer", "namespace": given.namespace}}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "viewer", "namespace": given.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": given.namespace}],
    }
    await given.client.create(account)
    await given.client.create(binding)
    await granted(given.client, f"system:serviceaccount:{given.namespace}:viewer", "get", "multisteptrials", given.namespace)
    write_kubeconfig(tmp_path / "viewer", await token(given))
    return await multistep(*arguments, "--kubeconfig", str(tmp_path / "viewer"))


def write_kubeconfig(file: Path, token: str) -> None:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    file.write_text(yaml.safe_dump(config))


async def token(given: Given) -> str:
    path = f"/api/v1/namespaces/{given.namespace}/serviceaccounts/viewer/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = await given.client._http.send("create", PODS, path, {}, body)
    return str(answer["status"]["token"])
