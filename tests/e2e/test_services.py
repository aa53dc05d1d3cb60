"""Tasks with services: compose files as sidecars of the trial's pod, in a namespace under Pod Security baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.given import IMAGE, Given, Object, Step, condition, finished, holds, in_agent, tree, trial
from tests.e2e.test_cli import multistep
from tests.support.waiting import eventually

TASKS = Path(__file__).parent / "compose_tasks"
FILE = "environment/docker-compose.yaml"


@pytest.fixture
async def baseline(given: Given) -> Given:
    labels = {f"pod-security.kubernetes.io/{mode}": "baseline" for mode in ("enforce", "warn")}
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": given.namespace, "labels": labels}}
    await given.client.apply(manifest, field_manager="e2e")
    return given


def composed(compose: str, *steps: Step, files: dict[str, str] | None = None, **spec: Any) -> Object:
    """Return a trial of an inline task with a compose file."""
    made = trial(*(steps or (Step("a"),)), config={"environment": {"docker_image": IMAGE}}, **spec)
    made["spec"]["task"]["inline"]["files"] |= {FILE: compose, **(files or {})}
    return made


@pytest.mark.long
@pytest.mark.parametrize("task", sorted(each.name for each in TASKS.iterdir()))
async def test_the_oracle_solves_a_task_with_services(baseline: Given, task: str, tmp_path: Path) -> None:
    arguments = ("--agent", "oracle", "-n", baseline.namespace, "--results", str(tmp_path / "out"))
    code, out, err = await multistep("run", str(TASKS / task), *arguments)
    files = tree(tmp_path / "out")
    assert code == 0 and b'"reward": 1' in files["result.json"], (out, err, files.get("verifier/test-stdout.txt"))


SERVES = "services:\n  db:\n    image: debian:bookworm-slim\n"
ENDS = SERVES + "    command: [bash, -c, 'echo no disk; exit 3']\n"
UNHEALTHY = SERVES + "    command: [sleep, infinity]\n    healthcheck: {test: [CMD, 'false'], interval: 1s, retries: 2}\n"
JOB = (
    ENDS
    + "  web:\n    image: debian:bookworm-slim\n    command: [sleep, infinity]\n"
    + ("    depends_on: {db: {condition: service_completed_successfully}}\n")
)


@pytest.mark.parametrize(
    ("compose", "why"),
    [
        (ENDS, "service db ended with status 3"),
        (UNHEALTHY, "service db did not become healthy in time"),
        (JOB, "service db ended with status 3"),
    ],
    ids=["ends", "unhealthy", "job"],
)
async def test_a_service_that_does_not_start_fails_the_trial_as_the_tasks_failure(given: Given, compose: str, why: str) -> None:
    done = await given.ended(composed(compose))
    failed = condition(done, "Failed")
    assert failed["reason"] == "ServiceFailed" and why in failed["message"], failed
    assert (done["status"]["failure"]["class"], done["status"]["attempt"]) == ("Task", 1)
    if compose != UNHEALTHY:
        code, out, err = await multistep("logs", done["metadata"]["name"], "--service", "db", "-n", given.namespace)
        assert (code, out) == (0, "no disk\n"), err


# A service that ends when a client connects. Its exit status, 137, does not show whether its program ended by itself or was killed
# from outside of the container.
_PROGRAM = "IO::Socket::INET->new(LocalPort => 7000, Listen => 1, ReuseAddr => 1)->accept; exit 137"
FRAGILE = f"{SERVES}    command: [perl, -MIO::Socket::INET, -e, '{_PROGRAM}']\n"


@pytest.mark.long
async def test_a_service_that_an_agent_ends_is_the_agents_failure_and_no_finished_phase(given: Given) -> None:
    kills = Step("a", solve="#!/bin/bash\nuntil exec 3<>/dev/tcp/db/7000; do sleep 0.2; done 2>/dev/null\nsleep 600\n")
    done = await given.ended(composed(FRAGILE, kills, Step("b")))
    [step] = done["status"]["steps"]
    assert step["exception"]["type"] == "ServiceEndedError" and "service db ended with status 137" in step["exception"]["message"]
    assert step["exception"]["phase"] == "agent" and "rewards" not in step and done["status"]["attempt"] == 1
    assert holds(done, "Complete") and done["status"]["failure"]["class"] == "Agent"


@pytest.mark.long
async def test_a_service_that_may_end_is_started_again_while_an_agent_works(given: Given) -> None:
    again = FRAGILE + "    restart: on-failure\n"
    knock = "until exec 3<>/dev/tcp/db/7000; do sleep 0.2; done 2>/dev/null"
    ended = "cat <&3 || true"  # until the service has ended; else, it could still accept the second connection
    knocks = Step("a", solve=f"#!/bin/bash\nfor _ in 1 2; do {knock}; {ended}; done\n")
    done = await given.ended(composed(again, knocks))
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 1.0}, done["status"]


@pytest.mark.long
async def test_a_running_services_output_can_be_read(given: Given) -> None:
    talks = SERVES + "    command: [bash, -c, 'echo ready; exec sleep infinity']\n"
    waits = Step("a", solve="#!/bin/sh\nwhile [ ! -e /tmp/go ]; do sleep 0.05; done\n")
    manifest = composed(talks, waits)
    name = manifest["metadata"]["name"]
    await given.applied(manifest)
    await given.until(name, in_agent)

    async def printed() -> str:
        code, out, err = await multistep("logs", name, "--service", "db", "-n", given.namespace)
        assert code == 0, err
        return out

    assert await eventually(printed) == "ready\n"
    await given.go(name)
    await given.until(name, finished)
    code, out, err = await multistep("logs", name, "--service", "db", "-n", given.namespace)
    assert (code, out) == (0, "ready\n"), err


async def test_keys_that_a_pod_cannot_have_fail_the_trial_by_name_and_line(given: Given) -> None:
    done = await given.ended(composed(SERVES + "    privileged: true\n    user: nobody\n"))
    message = condition(done, "Failed")["message"]
    assert f"{FILE}:4: services.db.privileged: must be false" in message
    assert f"{FILE}:5: services.db.user: must be a number" in message
    assert not await given.pods(done["metadata"]["name"])
