"""Install, test, upgrade, roll back and uninstall the chart with the real helm on the real cluster while trials run.

The release is limited to one namespace. The suite's operator is scaled down meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from hack import peers
from hack.deployment import CHART
from multistep.kube.resources import CRDS, LEASES, NAMESPACES, PODS
from multistep.runner_client.session import PROTOCOLS
from tests.e2e import operators
from tests.e2e.given import DEADLINE_SECONDS, Given, Object, Step, finished, trial
from tests.e2e.replicas import Replicas
from tests.support import next_release
from tests.support.waiting import eventually

pytestmark = [pytest.mark.alone, pytest.mark.long]

IMAGE = os.environ["MULTISTEP_TEST_IMAGE"]
PATIENCE = f"{DEADLINE_SECONDS:.0f}s"
OUR_CRDS = ("multisteptrials.multistep.dev", "trialsweeps.multistep.dev")
STEPS = ("one", "two", "three")
RUNS = {"one": 1, "two": 1, "three": 1}

# Each agent counts its runs and waits for a file that the test creates, so that no test depends on how long steps take.
SOLVE = "#!/bin/sh\necho run >> /tmp/{step}.runs\nwhile [ ! -e /tmp/{step}.go ]; do sleep 0.1; done\n"
TEST = '#!/bin/sh\nruns=$(cat /tmp/{step}.runs | wc -l)\necho "{{\\"runs\\": $runs}}" > /logs/verifier/reward.json\n'

# Chart values that enable every object the chart can create. The test cluster does not enforce network policies.
EVERYTHING: Object = {
    "crds": {"install": True},
    "drain": "Wait",
    "metrics": {"podMonitor": {"enabled": True, "interval": "30s"}, "rules": {"enabled": True}, "dashboard": {"enabled": True}},
    "networkPolicy": {
        "resultsFrom": [{"namespaceSelector": {}}],
        "metricsNamespaces": ["monitoring"],
        "egress": {"enabled": True, "apiServer": {"cidrs": ["10.0.0.0/8"]}, "to": [{"ports": [{"port": 9000}]}]},
    },
    "trials": {"egress": "NetworkPolicy", "egressPolicy": {"enabled": True}},
    "podDisruptionBudget": {"enabled": True},
    "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
    "test": {"timeoutSeconds": 180},
}


async def run(*command: str, stdin: str = "") -> str:
    """Run a program, assert that it succeeds, and return its output."""
    pipe = asyncio.subprocess.PIPE
    given = pipe if stdin else asyncio.subprocess.DEVNULL  # writing to a program that does not read stdin may fail
    process = await asyncio.create_subprocess_exec(*command, stdin=given, stdout=pipe, stderr=pipe)
    out, err = await process.communicate(stdin.encode() or None)
    assert process.returncode == 0, f"{' '.join(command)}: {out.decode()}{err.decode()}"
    return out.decode()


@dataclass
class Release:
    """A release in its own namespace that handles the trials of one other namespace."""

    given: Given
    values: Path
    name: str = field(default_factory=lambda: f"r{secrets.token_hex(3)}")

    @property
    def namespace(self) -> str:
        return f"{self.given.namespace}-system"

    @property
    def operator(self) -> str:
        return f"{self.name}-multistep"

    async def helm(self, *arguments: str) -> str:
        return await run("helm", "--namespace", self.namespace, *arguments)

    def to(self, image: str) -> list[str]:
        """Return helm's arguments for installing or upgrading the release with this image."""
        repository, _, tag = image.rpartition(":")
        chosen = ["--values", str(self.values), "--set", f"image.repository={repository},image.tag={tag}"]
        return [self.name, str(CHART), *chosen, "--wait", "--timeout", PATIENCE]

    async def images(self) -> set[str]:
        """Return the images of the pods of the operator and of the gateway."""
        found = await self.given.client.list_all(PODS, self.namespace, label_selector=f"app.kubernetes.io/instance={self.name}")
        return {each["spec"]["containers"][0]["image"] for each in found if not each["metadata"].get("deletionTimestamp")}

    async def keys(self) -> dict[str, str]:
        """Return the data of the Secret that the operator shares with the model gateway."""
        shown = await run("kubectl", "get", "secret", f"{self.operator}-gateway", "-n", self.namespace, "-o", "jsonpath={.data}")
        return dict(json.loads(shown))

    async def left(self) -> set[str]:
        """Return the names of all objects in the cluster with the release's label, and of all objects in the release's
        namespace."""
        kinds = {
            scope: [
                each
                for each in (await run("kubectl", "api-resources", "--verbs=list", f"--namespaced={scope}", "-o", "name")).split()
                if not each.startswith(("events", "endpoint", "pods.metrics", "nodes.metrics"))
            ]
            for scope in ("true", "false")
        }
        label = f"app.kubernetes.io/instance={self.name}"
        found = await asyncio.gather(
            run("kubectl", "get", ",".join(kinds["true"] + kinds["false"]), "-A", "-l", label, "-o", "name"),
            run("kubectl", "get", ",".join(kinds["true"]), "-n", self.namespace, "-o", "name"),
        )
        return {line for each in found for line in each.split()} - {"configmap/kube-root-ca.crt", "serviceaccount/default"}


@pytest.fixture
async def monitoring(given: Given) -> AsyncIterator[None]:
    """Install the Prometheus operator's CRDs."""
    files = [str(file) for file in await asyncio.to_thread(peers.monitoring_crds)]
    arguments = [each for file in files for each in ("-f", file)]
    await run("kubectl", "apply", "--server-side", *arguments)
    await run("kubectl", "wait", "--for=condition=Established", f"--timeout={PATIENCE}", *arguments)
    yield
    await run("kubectl", "delete", "--wait=false", *arguments)


@pytest.fixture
async def release(given: Given, monitoring: None, tmp_path: Path) -> AsyncIterator[Release]:
    """Yield a release that is not installed yet; restore the CRDs and the suite's operator afterwards."""
    values = tmp_path / "values.json"
    values.write_text(json.dumps(EVERYTHING | {"namespaces": [given.namespace]}))
    made = Release(given, values)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}  # the operator's pod and the pod of `helm test` must comply
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": made.namespace, "labels": labels}}
    owners = {name: (await given.client.get(CRDS, None, name))["metadata"] for name in OUR_CRDS}
    with operators.without_deployed():
        await given.client.delete(LEASES, operators.SYSTEM, "multistep")
        await given.client.create(namespace)
        try:
            yield made
        finally:
            with suppress(AssertionError):  # the test may have uninstalled the release
                await made.helm("uninstall", made.name, "--wait")
            await given.client.delete(NAMESPACES, None, made.namespace)
            for name, owner in owners.items():
                taken = {"labels": owner["labels"], "annotations": owner["annotations"]}
                await given.client.patch(CRDS, None, name, {"metadata": taken})
    await Replicas(given.client).scale(1)  # there is one replica already: this only waits until it is the leader
    # The lease was deleted above, and the suite's operator has recreated it: it must not have a chart's labels.
    assert (await given.client.get(LEASES, operators.SYSTEM, "multistep"))["metadata"].get("labels") is None


def gated(name: str) -> Object:
    """Return a trial of three steps, each of which waits for the file that GatedTrial.may creates."""
    steps = [Step(step, solve=SOLVE.format(step=step), test=TEST.format(step=step)) for step in STEPS]
    return trial(*steps, name=name, config={"multi_step_reward_strategy": "final"})


class GatedTrial:
    """A running trial and the pod in which it started."""

    def __init__(self, given: Given, name: str) -> None:
        self.given, self.name, self.pod = given, name, ""

    async def starts(self) -> None:
        await self.given.applied(gated(self.name))
        self.pod = (await self.reaches("one"))["status"]["podUID"]

    async def reaches(self, step: str) -> Object:
        def reached(found: Object) -> bool:
            steps = (found.get("status") or {}).get("steps") or []
            return bool(steps) and (steps[-1]["name"], steps[-1].get("phase")) == (step, "Agent")

        return await self.given.until(self.name, reached)

    async def may(self, *steps: str) -> None:
        """Create the files for which the agents of these steps wait."""
        await self._exec("touch", *(f"/tmp/{step}.go" for step in steps))

    async def protocols(self) -> list[int]:
        """Return the protocol versions that the runner in the pod supports."""
        reported = (await self._exec("/multistep/runner", "version")).partition("protocols [")[2]
        return [int(each) for each in reported.strip(" ]\n").split()]

    async def ended_undisturbed(self) -> None:
        """Assert that every phase ran once, in the first pod, whichever operator reconciled it."""
        found = await self.given.until(self.name, finished)
        status = found["status"]
        assert (status["phase"], status["attempt"], status.get("attempts")) == ("Complete", 1, None)
        assert {each["name"]: each["rewards"]["runs"] for each in status["steps"]} == RUNS
        assert status["podUID"] == self.pod
        assert not any(each.get("exception") for each in status["steps"])

    async def _exec(self, *command: str) -> str:
        return await run("kubectl", "-n", self.given.namespace, "exec", f"{self.name}-1", "-c", "main", "--", *command)


async def test_a_release_is_installed_tested_upgraded_rolled_back_and_removed_and_no_trial_is_disturbed(
    release: Release, tmp_path: Path
) -> None:
    given, directory = release.given, tmp_path / "next"
    directory.mkdir()
    building = asyncio.create_task(asyncio.to_thread(next_release.deliver, directory))
    await every_object_is_taken_as_it_is(release)
    await release.helm("install", *release.to(IMAGE), "--take-ownership", "--force-conflicts")
    assert await release.images() == {IMAGE}
    keys = await release.keys()
    assert "Succeeded" in await release.helm("test", release.name, "--timeout", PATIENCE)

    old = GatedTrial(given, "began-before")
    await old.starts()
    upgrade = await building
    await release.helm("upgrade", *release.to(upgrade))
    assert await release.images() == {upgrade}
    assert await release.keys() == keys
    await old.may("one")
    await old.reaches("two")  # the upgraded operator continues the trial in its pod

    new, ours = GatedTrial(given, "began-after"), sorted(PROTOCOLS)
    await new.starts()
    assert (await old.protocols(), await new.protocols()) == (ours, [*ours, next_release.NEW])
    await release.helm("rollback", release.name, "1", "--wait", "--timeout", PATIENCE)
    assert await release.images() == {IMAGE}
    assert await release.keys() == keys
    await asyncio.gather(old.may(*STEPS), new.may(*STEPS))
    await asyncio.gather(old.ended_undisturbed(), new.ended_undisturbed())

    await release.helm("uninstall", release.name, "--wait", "--cascade=foreground")
    crds = {f"customresourcedefinition.apiextensions.k8s.io/{name}" for name in OUR_CRDS}
    claims = (f"{release.operator}-results", f"ledger-{release.operator}-gateway-0")
    kept = {*crds, *(f"persistentvolumeclaim/{name}" for name in claims)}
    await eventually(partial(leaves, release, kept))  # helm may return while the last pods still end
    assert finished(await given.get("began-before"))


async def leaves(release: Release, kept: set[str]) -> bool:
    """Return whether of the release's objects exactly these exist."""
    return await release.left() == kept


async def every_object_is_taken_as_it_is(release: Release) -> None:
    """Assert that the API server accepts every rendered object with strict validation, which rejects unknown fields."""
    rendered = await release.helm("template", *release.to(IMAGE)[:-3], "--set", "replicaCount=2", "--no-hooks")
    mine = ["--dry-run=server", "--validate=strict", "--force-conflicts", "--field-manager=helm"]
    applied = await run("kubectl", "apply", "--server-side", *mine, "-f", "-", stdin=rendered)
    for kind in ("podmonitor", "prometheusrule", "poddisruptionbudget", "networkpolicy", "configmap", "lease", "statefulset"):
        assert f"\n{kind}" in f"\n{applied}", applied
