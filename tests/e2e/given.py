"""Helpers for the end-to-end tests, which run against the deployed operator in a real cluster."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from multistep.api.common.base_model import API_VERSION
from multistep.api.trial.trial import KIND
from multistep.client.reconnecting_watch import WatchingClient
from multistep.errors import ClusterError, NotFound
from multistep.kube.resources import PODS, SWEEPS, TRIALS, Resource
from multistep.kube.shard import LABEL_SHARD
from multistep.pods import pod_identity
from tests.e2e.recorder import Recorder, is_so
from tests.support.waiting import DEADLINE_SECONDS as DEADLINE_SECONDS
from tests.support.waiting import eventually
from tests.support.whole_status import whole

IMAGE = "debian:bookworm-slim"
_RECHECK_SECONDS = 2.0  # interval of checks in `Given.when`, because some conditions change without a watch event

_HELD = "e2e.multistep.dev/held"  # a finalizer

SERVICE_ACCOUNTS = Resource("v1", "ServiceAccount", "serviceaccounts")

Object = dict[str, Any]
T = TypeVar("T")

REWARD_ONE = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
SOLVE_NOTHING = "#!/bin/sh\n"
# A script for an agent that runs until the test calls Given.go, so that a test always sees it running, even on a slow machine.
WAITS = "#!/bin/sh\nwhile [ ! -e /tmp/go ]; do sleep 0.05; done\n"
STAYS_IN_FIRST_POD = "#!/bin/sh\ncase $POD_NAME in *-1) sleep 600 ;; esac\n"
# Agents do not know the number of their attempt. `trial` and `named_pods` pass them POD_NAME, which ends in that number.
NAMED: dict[str, Any] = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@dataclass
class Step:
    """A step of an inline task: its scripts and its table in task.toml."""

    name: str
    solve: str = SOLVE_NOTHING
    test: str | None = REWARD_ONE
    setup: str | None = None
    instruction: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """Return the contents of the step's files by path in the task directory."""
        found = {
            "instruction.md": self.instruction or f"Do {self.name}.\n",
            "solution/solve.sh": self.solve,
            "tests/test.sh": self.test,
            "workdir/setup.sh": self.setup,
        }
        return {f"steps/{self.name}/{path}": text for path, text in found.items() if text is not None}


def named_pods(environment: Mapping[str, Any]) -> Object:
    """Return a spec.environment whose pods also have the variable POD_NAME, the pod's name."""
    template = environment.get("podTemplate") or {}
    containers = [{"name": pod_identity.CONTAINER, "env": [NAMED]}]
    return {**environment, "podTemplate": {**template, "spec": {"containers": containers, **(template.get("spec") or {})}}}


def trial(*steps: Step, name: str = "", config: Mapping[str, Any] | None = None, **spec: Any) -> Object:
    """Return a trial of an inline task.

    Args:
        config: Contents of task.toml without the steps.
        spec: Fields of the trial's spec, which override the defaults.
    """
    files: dict[str, str] = {}
    for step in steps:
        files |= step.files()
    if any("$POD_NAME" in text for text in files.values()):
        spec["environment"] = named_pods(spec.get("environment") or {"image": IMAGE})
    table = {**(config or {}), "steps": [{"name": step.name, **step.config} for step in steps]}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name or f"t-{secrets.token_hex(3)}"},
        "spec": {
            "task": {"inline": {"config": table, "files": files}},
            "agent": {"name": "oracle"},
            "environment": {"image": IMAGE},
            **spec,
        },
    }


def in_shard(shard: str, manifest: Object) -> Object:
    """Return the trial with the label of an operator's shard."""
    return {**manifest, "metadata": {**manifest["metadata"], "labels": {LABEL_SHARD: shard}}}


def reward(value: float) -> str:
    """Return a test.sh that writes the value as the reward."""
    return f"#!/bin/sh\necho {value} > /logs/verifier/reward.txt\n"


def reward_for_text(path: str, text: str) -> str:
    """Return a test.sh that writes reward 1 if the file contains exactly this text, and else 0; its output shows the file."""
    holds = f'[ "$(cat {path})" = "{text}" ]'
    return f"#!/bin/sh\ncat {path}\n{holds} && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"


def in_agent(obj: Object) -> bool:
    """Return whether a trial's last step is in the agent phase."""
    steps = (obj.get("status") or {}).get("steps") or []
    return bool(steps) and steps[-1].get("phase") == "Agent"


def holds(obj: Object, condition: str) -> bool:
    """Return whether the object's condition of this type has the status True."""
    return any(each["type"] == condition and each["status"] == "True" for each in (obj.get("status") or {}).get("conditions") or [])


def finished(obj: Object) -> bool:
    """Return whether a trial is finished."""
    return holds(obj, "Complete") or holds(obj, "Failed")


def lost_attempt(obj: Object) -> bool:
    """Return whether an attempt of the trial has failed, or has lost its pod during a suspension."""
    return bool((obj.get("status") or {}).get("attempts"))


def condition(obj: Object, type_: str) -> Object:
    """Return the object's condition of this type."""
    return next(each for each in obj["status"]["conditions"] if each["type"] == type_)


class Given:
    """A test's namespace in the cluster, and the test's actions on the trials in it."""

    def __init__(self, client: WatchingClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.recorder = Recorder(client, namespace)  # needed by `until` and `when`; callers must enter it (async with)
        self._seen: dict[tuple[str, str], int] = {}  # recorder.count at the end of the last `until`, by kind and name

    async def applied(self, manifest: Object) -> Object:
        """Apply the manifest in the test's namespace and return the stored object."""
        body = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        return await self.client.apply(body, field_manager="e2e")

    async def get(self, name: str) -> Object:
        """Return the trial's current state."""
        return whole(await self.client.get(TRIALS, self.namespace, name))

    async def until(self, name: str, done: Callable[[Object], bool], resource: Resource = TRIALS) -> Object:
        """Wait until the trial or sweep satisfies `done` and return it in that state.

        The state may be a past one: the search includes every state recorded since the last `until` for this object.
        """
        since, uid = self._seen.get((resource.kind, name), 0), ""

        def so(found: Object) -> bool:
            return done(whole(found))

        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                with suppress(ClusterError):  # the object may not exist yet, or the API server may be unavailable
                    found = await self.client.get(resource, self.namespace, name)
                    if is_so(so, found):
                        return whole(found)
                    uid = found["metadata"]["uid"]
                return whole(await self.recorder.first(resource, name, so, since=since, uid=uid))
        except TimeoutError as error:
            history = "\n".join(map(str, self.recorder.states(resource, name)))
            raise TimeoutError(f"{name} did not get there in {DEADLINE_SECONDS:.0f} s; its states were:\n{history}") from error
        finally:
            self._seen[resource.kind, name] = self.recorder.count

    async def sweep_until(self, name: str, done: Callable[[Object], bool]) -> Object:
        """Wait until the sweep satisfies `done` and return it."""
        return await self.until(name, done, SWEEPS)

    async def sweep_ended(self, name: str) -> Object:
        """Wait until the sweep is finished and return it. The timeout applies to each of its trials: on a slow machine, all of them
        together may take longer."""
        found: Object = {}
        while not finished(found):
            found = await self.sweep_until(name, partial(_has_progressed, _trials_finished(found)))
        return found

    async def when(self, check: Callable[[], Awaitable[T]]) -> T:
        """Repeat a check after each change of an object in the namespace, and return its first true result."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                count = self.recorder.count
                if found := await check():
                    return found
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.recorder.after(count), _RECHECK_SECONDS)

    async def ended(self, manifest: Object) -> Object:
        """Apply the trial, wait until it is finished and return it."""
        await self.applied(manifest)
        return await self.until(manifest["metadata"]["name"], finished)

    async def go(self, trial_name: str) -> None:
        """Let the trial's waiting agent (WAITS) finish."""
        await self.in_pod(trial_name, "touch", "/tmp/go")

    async def in_pod(self, trial_name: str, *command: str) -> None:
        """Run a command in the trial's pod and wait until it exits."""
        pod = (await self.get(trial_name))["status"]["podName"]
        stream = await self.client.open_exec(self.namespace, pod, "main", command)
        while await stream.receive():
            pass
        await stream.close()

    async def pods(self, trial_name: str) -> list[Object]:
        """Return the trial's existing pods."""
        return await self.client.list_all(
            PODS, self.namespace, label_selector=f"{pod_identity.LABEL_TRIAL}={pod_identity.label_value(trial_name)}"
        )

    @asynccontextmanager
    async def held(self, pod: str) -> AsyncIterator[None]:
        """Keep the pod's object until the context ends, so that the operator can read why the pod was deleted in the context."""
        await self.client.patch(PODS, self.namespace, pod, {"metadata": {"finalizers": [_HELD]}})
        try:
            yield
        finally:
            await self.client.patch(PODS, self.namespace, pod, {"metadata": {"finalizers": []}})

    async def without_pods(self, trial_name: str) -> None:
        """Wait until the trial's pods are deleted."""

        async def gone() -> bool:
            return not await self.pods(trial_name)

        await self.when(gone)

    async def events(self, trial_name: str) -> list[Object]:
        """Return the Events about a trial, oldest first."""
        resource = await self.client.resource_of({"apiVersion": "events.k8s.io/v1", "kind": "Event"})
        listed = await self.client.list_all(resource, self.namespace)
        about = [each for each in listed if (each.get("regarding") or each.get("involvedObject") or {}).get("name") == trial_name]
        return sorted(about, key=lambda each: str(each.get("eventTime") or each.get("lastTimestamp") or ""))

    async def reported(self, name: str, last: str) -> list[str]:
        """Wait until the trial has an Event with the reason `last`, and return the reasons of all its Events, oldest first.

        The operator updates the status before it creates this Event.
        """

        async def reasons() -> list[str]:
            found = [each["reason"] for each in await self.events(name)]
            return found if last in found else []

        return await self.when(reasons)

    async def changed(self, name: str, **spec: object) -> None:
        """Patch fields of the trial's spec."""
        await self.client.patch(TRIALS, self.namespace, name, {"spec": spec})

    async def deleted(self, name: str) -> None:
        """Delete the trial if it exists."""
        with suppress(NotFound):
            await self.client.delete(TRIALS, self.namespace, name)


def _trials_finished(sweep: Object) -> int:
    """Return how many of the sweep's trials are finished."""
    return int(((sweep.get("status") or {}).get("trials") or {}).get("finished", 0))


def _has_progressed(before: int, sweep: Object) -> bool:
    return finished(sweep) or _trials_finished(sweep) > before


async def made_namespace(client: WatchingClient, name: str, **metadata: Any) -> None:
    """Create a namespace and wait until it accepts pods: pods are denied until its default ServiceAccount exists."""
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}})

    async def usable() -> bool:
        with suppress(NotFound):
            return bool(await client.get(SERVICE_ACCOUNTS, name, "default"))
        return False

    await eventually(usable)


async def granted(client: WatchingClient, user: str, verb: str, resource: str, namespace: str) -> None:
    """Wait until RBAC allows the user this verb on the resource, or on a subresource such as ``pods/exec``.

    The API server honours a role binding only a moment after its creation.
    """
    name, _, subresource = resource.partition("/")
    group = "" if name == "pods" else TRIALS.api_version.partition("/")[0]
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": name, "subresource": subresource}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}}

    async def allowed() -> bool:
        answer = await client.create({**review, "spec": {"user": user, "resourceAttributes": asked}})
        return bool(answer["status"]["allowed"])

    await eventually(allowed)


def tree(directory: Path) -> dict[str, bytes]:
    """Return the contents of all regular files below a directory by relative path."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
