"""The cluster builds the images of tasks with Dockerfiles, and pushes them to a real registry that requires credentials."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import PODS, SWEEPS, TRIALS
from tests.e2e.given import REWARD_ONE, Given, Object, Step, condition, finished, holds, reward, trial
from tests.e2e.operators import SYSTEM, kubectl, with_values
from tests.e2e.test_cli import multistep
from tests.support import node_registries, servers
from tests.support.waiting import eventually

pytestmark = pytest.mark.alone

BASE = "debian:bookworm-slim"  # an image of docker.io, which the tests' registry mirrors
PUSH_SECRET = "e2e-builds"
FROM = f"FROM {BASE}\n"
_TIME = r"\[(\d+/\w+/\d+:\d+:\d+:\d+ [+-]\d+)\]"


class Registries:
    """The registry of built images, which a test stops and starts, and the registry of base images."""

    def __init__(self, directory: Path, base: servers.Registry) -> None:
        place = servers.node()
        self.base = base
        self.built = servers.registry_at(directory, f"{place.address}:{servers.free_port()}", private=True)
        self.host = self.built.host
        self._command = [*place.prefix, *servers.registry_command(self.built)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.built.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    @property
    def log(self) -> str:
        """Return the log of the registry of built images."""
        return self.built.log.read_text(errors="replace")

    @property
    def pushed(self) -> list[str]:
        """Return the tags (builds' digests) of the manifests that were pushed, in order."""
        return re.findall(r'"PUT /v2/multistep/builds/manifests/(\w+) HTTP', self.log)

    @property
    def login(self) -> dict[str, Any]:
        return {"auths": {self.host: {"username": self.built.username, "password": self.built.password}}}


def login_secret(name: str, login: dict[str, Any]) -> Object:
    data = {".dockerconfigjson": base64.b64encode(json.dumps(login).encode()).decode()}
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/dockerconfigjson", "data": data}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def registries(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Registries]:
    """Run the registries, and configure the deployed operator to build images."""
    async with AsyncExitStack() as stack:
        base = await stack.enter_async_context(servers.registry(servers.node()))
        found = Registries(tmp_path_factory.mktemp("registry"), base)
        found.start()
        stack.callback(found.stop)
        stack.enter_context(node_registries.plain(found.host))
        push = ["buildah", "push", "--quiet", "--tls-verify=false", f"localhost/{BASE}"]
        await asyncio.to_thread(subprocess.run, [*push, f"docker://{base.host}/library/{BASE}"], check=True)
        client = await stack.enter_async_context(await WatchingClient.connect())
        secret = login_secret(PUSH_SECRET, found.login)
        secret["metadata"]["namespace"] = SYSTEM
        await client.apply(secret, field_manager="e2e")
        stack.callback(kubectl, "--namespace", SYSTEM, "delete", "secret", PUSH_SECRET)
        values = (
            f"builds.registry={found.host}/multistep/builds",
            f"builds.pushSecret={PUSH_SECRET}",
            f"builds.baseMirrors.docker\\.io[0]={base.host}",
            "builds.resources.requests.cpu=100m",
        )
        await stack.enter_async_context(with_values(*values))
        yield found


@pytest.fixture
async def pulls(given: Given, registries: Registries) -> Given:
    """Give the pods of the test's namespace the credentials of the registry."""
    await given.applied(login_secret("pull", registries.login))
    secret = [{"name": "pull"}]
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}, "imagePullSecrets": secret}
    await given.applied(account)
    return given


def with_dockerfile(name: str, dockerfile: str, *, test: str = REWARD_ONE, **files: str) -> Object:
    """Return a trial whose task has a Dockerfile and no image. files: further files of environment/."""
    made = trial(Step("a", test=test), name=name, environment={})
    more = {f"environment/{path.replace('_', '.')}": text for path, text in files.items()}
    made["spec"]["task"]["inline"]["files"] |= {"environment/Dockerfile": dockerfile, **more}
    return made


def build_of(found: Object) -> str:
    """Return the digest of the build of the environment's image."""
    return next(str(each["build"]) for each in found["status"]["images"] if each["name"] == "environment")


async def builders_of(given: Given, *builds: str) -> list[Object]:
    """Return the existing builder pods of these builds."""
    found = await given.client.list_all(PODS, SYSTEM, label_selector="multistep.dev/build")
    return [each for each in found if each["metadata"]["annotations"]["multistep.dev/build"] in builds]


@pytest.mark.long
async def test_the_images_of_environment_and_verifier_are_built_once(pulls: Given, registries: Registries) -> None:
    nonce = secrets.token_hex(8)
    check = f"#!/bin/sh\n[ $(cat /nonce) = {nonce} ] && echo 1 > /logs/verifier/reward.txt\n"
    before = len(registries.pushed)
    for name in ("one", "two", "three"):
        each = trial(Step("a", test=None), name=name, environment={})
        each["spec"]["task"]["inline"]["config"]["verifier"] = {"environment_mode": "separate"}
        each["spec"]["task"]["inline"]["files"] |= {
            "environment/Dockerfile": f"{FROM}COPY nonce /nonce\nRUN test $(id -u) = 0 && id -u nobody\n",
            "environment/nonce": nonce,
            "tests/Dockerfile": f"{FROM}COPY nonce test.sh /tests/\nRUN mv /tests/nonce /nonce && chmod +x /tests/test.sh\n",
            "tests/test.sh": check,
            "tests/nonce": nonce,
        }
        await pulls.applied(each)
    for name in ("one", "two", "three"):
        done = await pulls.until(name, finished)
        assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 1.0}, done["status"]
        images = {image["name"]: image for image in done["status"]["images"]}
        assert set(images) == {"environment", "tests"}
        assert done["status"]["imageID"] == images["environment"]["image"]
    tags = [image["build"] for image in images.values()]
    assert sorted(registries.pushed[before:]) == sorted(tags), "each image was pushed once"

    async def no_builders() -> bool:  # on a busy machine, builder pods may end after the trials
        return not await builders_of(pulls, *tags)

    await eventually(no_builders)


COMPOSE = """\
services:
  main: {volumes: ["data:/data"]}
  db:
    build: {context: ./db, args: {NONCE: "${NONCE}"}}
    command: [sleep, infinity]
    volumes: ["data:/data"]
    healthcheck: {test: [CMD, test, -s, /data/nonce], interval: 1s}
volumes: {data: {}}
"""


@pytest.mark.long
async def test_the_image_of_a_service_is_built(pulls: Given, registries: Registries) -> None:
    nonce = secrets.token_hex(8)
    check = f"#!/bin/sh\n[ $(cat /data/nonce) = {nonce} ] && echo 1 > /logs/verifier/reward.txt\n"
    made = with_dockerfile("served", f"{FROM}RUN echo main-{nonce}\n", test=check)
    task = made["spec"]["task"]["inline"]
    task["config"]["environment"] = {"env": {"NONCE": nonce}}
    task["files"] |= {
        "environment/docker-compose.yaml": COMPOSE,
        "environment/db/Dockerfile": f"{FROM}ARG NONCE\nRUN mkdir /data && echo $NONCE > /data/nonce\n",
    }
    before = len(registries.pushed)
    done = await pulls.ended(made)
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 1.0}, done["status"]
    images = {image["name"]: image["build"] for image in done["status"]["images"]}
    assert set(images) == {"environment", "environment/docker-compose.yaml/db"}
    assert sorted(registries.pushed[before:]) == sorted(images.values())


@pytest.mark.long
async def test_a_broken_dockerfile_fails_its_own_trials_with_the_last_lines(pulls: Given) -> None:
    nonce = secrets.token_hex(8)
    broken = f"{FROM}RUN sleep 10 && echo this-goes-wrong-{nonce} && false\n"  # long enough that the status shows ImageBuilding
    await pulls.applied(with_dockerfile("broken", broken))
    await pulls.applied(with_dockerfile("broken-too", broken))
    await pulls.applied(with_dockerfile("good", f"{FROM}RUN echo {nonce} > /nonce\n"))
    waiting = await pulls.until("broken", lambda obj: condition(obj, "Reconciling")["reason"] == "ImageBuilding")
    assert "environment/Dockerfile" in condition(waiting, "Reconciling")["message"]
    for name in ("broken", "broken-too"):
        done = await pulls.until(name, finished)
        shown = condition(done, "Failed")
        assert shown["reason"] == "ImageBuildFailed" and f"this-goes-wrong-{nonce}" in shown["message"], shown
        assert done["status"]["failure"]["class"] == "Task" and "rewards" not in done["status"]
        code, out, err = await multistep("logs", "--build", name, "-n", pulls.namespace)
        assert code == 0 and "STEP 2/2" in out and f"this-goes-wrong-{nonce}" in out, err
    assert holds(await pulls.until("good", finished), "Complete")


SEARCH = """\
needle="regis""try-pass""word"
encoded=$(printf 'somebody:%s' "$needle" | base64)
printf '%s' "$needle" > /tmp/decoy
grep -q "$needle" /tmp/decoy && rm /tmp/decoy && touch /searched
search() {
  grep -rlaFs -e "$needle" -e "$encoded" --exclude-dir=proc --exclude-dir=sys / 
  for process in /proc/[0-9]*; do
    tr '\\0' '\\n' < $process/environ 2>/dev/null | grep -aFl -e "$needle" -e "$encoded"
    tr '\\0' '\\n' < $process/cmdline 2>/dev/null | grep -aFl -e "$needle" -e "$encoded"
    for directory in auth build out run tmp etc var/run; do
      grep -rlaFs -e "$needle" -e "$encoded" $process/root/$directory
    done
  done
  env | grep -aF -e "$needle" -e "$encoded"
}
search > /found 2>/dev/null
beat() {
  exec 3<>/dev/tcp/HOST/PORT
  printf 'GET /v2/heartbeat/%s HTTP/1.0\\r\\n\\r\\n' $EPOCHSECONDS >&3
  cat <&3 | grep -q HTTP && : > /beaten
}
export -f beat
(setsid bash -c 'while :; do beat; sleep 0.2; done' > /dev/null 2>&1 &)
until [ -e /beaten ]; do sleep 0.1; done
"""


@pytest.mark.long
async def test_no_run_finds_the_push_secret_and_none_survives_until_the_push(pulls: Given, registries: Registries) -> None:
    host, _, port = registries.base.host.partition(":")
    files = {"search_sh": SEARCH.replace("HOST", host).replace("PORT", port) + f"# {secrets.token_hex(8)}\n"}
    check = "#!/bin/sh\ncat /found\n[ -e /searched ] && [ ! -s /found ] && echo 1 > /logs/verifier/reward.txt\n"
    hostile = f"{FROM}COPY search.sh /\nRUN bash /search.sh\n"
    before = len(registries.log)
    done = await pulls.ended(with_dockerfile("hostile", hostile, test=check, **files))
    assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 1.0}, done["status"]
    # The times at which the process sent its requests: the registry may get to the last one after the process has ended.
    beats = [int(found) for found in re.findall(r'"GET /v2/heartbeat/(\d+) HTTP', registries.base.log.read_text())]
    pushes = _times("(?:POST|PUT|PATCH) /v2/multistep", registries.log[before:])
    assert beats and pushes and max(beats) <= min(pushes), "a process of the build ran while the credentials were in the pod"


def _times(request: str, log: str) -> list[float]:
    return [datetime.strptime(found, "%d/%b/%Y:%H:%M:%S %z").timestamp() for found in re.findall(f'{_TIME} "{request}', log)]


@pytest.mark.long
async def test_a_registry_that_is_away_for_a_while_loses_nothing(pulls: Given, registries: Registries) -> None:
    before = len(registries.pushed)
    until_away = f"while : < /dev/tcp/{registries.host.replace(':', '/')}; do sleep 0.2; done"  # so that the push finds no registry
    running = with_dockerfile("running", f"{FROM}RUN bash -c '{until_away}' && echo {secrets.token_hex(8)}\n")
    await pulls.applied(running)
    build = build_of(await pulls.until("running", lambda obj: "STEP" in condition(obj, "Reconciling")["message"]))
    [former] = await builders_of(pulls, build)
    registries.stop()
    await pulls.applied(with_dockerfile("later", f"{FROM}RUN echo {secrets.token_hex(8)}\n"))
    for name in ("running", "later"):
        found = await pulls.until(name, lambda obj: condition(obj, "Reconciling")["reason"] == "ImageBuildRetrying")
        assert condition(found, "Reconciling")["message"]
    [pod] = await builders_of(pulls, build)
    assert pod["metadata"]["uid"] == former["metadata"]["uid"], "the pod with the built image is kept"
    registries.start()
    for name in ("running", "later"):
        done = await pulls.until(name, finished)
        assert holds(done, "Complete") and done["status"]["rewards"] == {"reward": 1.0}, done["status"]
    assert len(registries.pushed) == before + 2


@pytest.mark.long
async def test_the_command_line_leaves_the_build_to_the_cluster_where_it_has_no_engine(
    pulls: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = tmp_path / "task"
    files = with_dockerfile("x", f"{FROM}RUN echo {secrets.token_hex(8)}\n")["spec"]["task"]["inline"]["files"]
    for path, text in {**files, "task.toml": '[[steps]]\nname = "a"\n'}.items():
        (task / path).parent.mkdir(parents=True, exist_ok=True)
        (task / path).write_text(text)
    monkeypatch.setenv("PATH", str(tmp_path))  # a PATH without a container engine
    code, _, err = await multistep("run", str(task), "--agent", "oracle", "--name", "cli", "-n", pulls.namespace)
    assert code == 0 and "the cluster builds it" in err, err
    assert (await pulls.get("cli"))["status"]["images"][0]["image"]


@pytest.mark.long
async def test_a_sweep_builds_each_image_once_and_a_second_sweep_builds_none(pulls: Given, registries: Registries) -> None:
    nonce = secrets.token_hex(8)
    tasks = []
    for number in range(21):
        wrong = " && false" if number == 20 else ""
        value = reward(1 if number % 2 else 0.5)
        made = with_dockerfile("x", f"{FROM}RUN echo {nonce} {number} > /n{wrong}\n", test=value)
        tasks.append({"name": f"task-{number}", "inline": made["spec"]["task"]["inline"]})
    before = len(registries.pushed)
    for name in ("first", "second"):
        spec = {"tasks": tasks, "agents": [{"name": "o", "agent": {"name": "oracle"}}], "attempts": 3, "parallelism": 12}
        await pulls.applied({"apiVersion": SWEEPS.api_version, "kind": SWEEPS.kind, "metadata": {"name": name}, "spec": spec})
        await pulls.sweep_ended(name)
        listed = await pulls.client.list_all(TRIALS, pulls.namespace, label_selector=f"multistep.dev/sweep={name}")
        failed = [each["metadata"]["annotations"]["multistep.dev/task"] for each in listed if holds(each, "Failed")]
        assert len(listed) == 63 and failed == ["task-20"] * 3
        assert len(registries.pushed) - before == len(set(registries.pushed[before:])) == 20
