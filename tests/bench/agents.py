"""Compare trials that have an agent host with pods in which the same agent processes run alone; measure the agent hosts' memory.

The agent is claude-code with claude.sh in place of its program, so that no network and no installation distort the measurement. The
model is tests.support.fake_model on the node: trials call it through the model gateway, and the agent processes in the pods call it
directly.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.table import Table

from multistep.api.task.task_toml import EnvironmentConfig
from multistep.api.trial.trial import parse_trial
from multistep.client.reconnecting_watch import WatchingClient
from multistep.kube.resources import TRIALS
from multistep.pods import agent_host, pod_identity
from multistep.pods import pod_manifest as pods
from multistep.settings import Settings
from tests.bench import trials
from tests.bench.measure import DEADLINE_SECONDS, remove_trials, until_without_pods
from tests.bench.trials import Comparison, Manifests
from tests.e2e.given import IMAGE, Step, finished, in_agent, trial
from tests.support import servers

COUNT: Final = 40
STEPS: Final = ("one", "two", "three")
MAX_BARE_RATIO: Final = 1.5  # maximum wall time of trials, relative to bare pods in which the agent runs alone
MAX_HOST_BYTES: Final = 64 << 20
MAX_EXECS_PER_STEP: Final = 1.0  # maximum for short steps
SHORT, LONG = 6, 12  # seconds between an agent's model requests; a session stays open for short steps, but not for long ones
LONG_ROUNDS: Final = 1
POLL_SECONDS: Final = 0.2
HELD_SECONDS: Final = 15  # duration of the last step in the trials in which the agent host's memory is read
_PROGRAM: Final = Path(__file__).with_name("claude.sh")
_OWN: Final = Path(__file__).parents[2] / "examples" / "own-agent" / "own_agent.py"
_SECRET, _FILES = "model-keys", "agents"
_CHECKED: Final = "#!/bin/sh\n[ -e /tmp/{0} ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt\n"
# Prints the memory that the container's control group is charged for, then each process's name and resident memory.
_READ_MEMORY: Final = """
for file in /sys/fs/cgroup/memory/memory.stat /sys/fs/cgroup/memory.stat; do
  [ ! -r $file ] || grep -E '^(total_rss|total_mapped_file|anon|file_mapped) ' $file
done
for each in /proc/[0-9]*; do
  [ $each = /proc/$$ ] || grep -hE '^(Name|VmRSS):' $each/status 2>/dev/null || true
done
"""

Object = dict[str, Any]


@dataclass(frozen=True)
class HostMemory:
    """Resident memory of one agent host in bytes. charged: memory of the container's control group, including mapped files;
    None if it cannot be read. processes: name and resident memory of each process, largest first."""

    charged: int | None
    processes: Sequence[tuple[str, int]]

    @property
    def bytes(self) -> int:
        """Return `charged`; if it is None, the sum over the processes, which counts shared memory more than once."""
        return sum(size for _, size in self.processes) if self.charged is None else self.charged


@dataclass(frozen=True)
class Found:
    """All measurements. short, long: trials of short and of long steps; installed: memory of the agent host that runs claude-code;
    own: memory of the agent host that runs the class of examples/own-agent."""

    short: Comparison
    long: Comparison
    installed: HostMemory
    own: HostMemory


def host_memory(printed: str) -> HostMemory:
    """Return the memory from the output of _READ_MEMORY."""
    charged, processes, name = dict[str, int](), list[tuple[str, int]](), ""
    for line in printed.splitlines():
        key, value, *_ = line.split()
        if key == "Name:":
            name = value
        elif key == "VmRSS:":
            processes.append((name, int(value) * 1024))
        else:
            charged[key] = int(value)
    resident = [charged[each] for each in ("total_rss", "total_mapped_file", "anon", "file_mapped") if each in charged]
    return HostMemory(sum(resident) if resident else None, sorted(processes, key=lambda each: -each[1]))


def hosted_trial(model_url: str, pause_seconds: int) -> Object:
    """Return the trial: three gated steps, in each of which the stand-in for claude-code makes three model requests with pauses."""
    return _trial(_claude(model_url), [_step(name, f"touch /tmp/{name}") for name in STEPS], _program_spec(pause_seconds))


def _claude(model_url: str) -> Object:
    return {"name": "claude-code", "model": "anthropic/claude-sonnet-4-5", "preinstalled": True, **_model("ANTHROPIC", model_url)}


def _own(model_url: str) -> Object:
    return {"importPath": "own_agent:OwnAgent", "model": "openai/gpt-5", **_model("OPENAI", f"{model_url}/v1")}


def _model(provider: str, url: str) -> Object:
    reference = {"secretKeyRef": {"name": _SECRET, "key": "key"}}
    return {"baseURL": url, "credentials": [{"name": f"{provider}_API_KEY", "valueFrom": reference}]}


def _trial(agent: Object, steps: Sequence[Step], pod: Object) -> Object:
    return trial(*steps, agent=agent, environment={"image": IMAGE, "podTemplate": {"spec": pod}})


def _step(name: str, instruction: str) -> Step:
    return Step(name, instruction=f"{instruction}\n", test=_CHECKED.format(name), config={"min_reward": 1.0})


def _program_spec(pause_seconds: int) -> Object:
    """Return the part of a pod's spec that puts the stand-in for claude-code on the environment's PATH."""
    mount = {"name": _FILES, "mountPath": "/usr/local/bin/claude", "subPath": "claude"}
    container = {"name": pod_identity.CONTAINER, "env": [_pause(pause_seconds)], "volumeMounts": [mount]}
    return {"volumes": [_volume()], "containers": [container]}


def _pause(seconds: int) -> Object:
    return {"name": "PAUSE_SECONDS", "value": str(seconds)}


def _own_spec() -> Object:
    """Return the part of a pod's spec that puts the class of examples/own-agent on the agent host's PYTHONPATH."""
    container = {
        "name": agent_host.CONTAINER,
        "env": [{"name": "PYTHONPATH", "value": "/own"}],
        "volumeMounts": [{"name": _FILES, "mountPath": "/own"}],
    }
    return {"volumes": [_volume()], "containers": [container]}


def _volume() -> Object:
    return {"name": _FILES, "configMap": {"name": _FILES, "defaultMode": 0o755}}


def shape_pod(made: Object, settings: Settings, model_url: str, pause_seconds: int) -> Object:
    """Return a pod like the trial's, but without a runner in the container main: the container itself starts the agent's processes,
    one after the other.

    made: the trial. The pod's agent host runs its runner, but gets no request.
    """
    parsed = parse_trial(
        {**made, "metadata": {**made["metadata"], "namespace": "bench"}, "status": {"podName": "idle", "attempt": 1}}
    )
    pod = pods.pod_manifest(pods.PodRequest(parsed, EnvironmentConfig(), IMAGE, "bench", settings))
    pod["metadata"] = {"name": "idle", "labels": {"bench": "idle"}}
    main, *others = pod["spec"]["containers"]
    del main["readinessProbe"]  # the container runs no runner that could answer the probe
    pod["spec"]["containers"] = [{**main, **_alone(model_url, pause_seconds)}, *others]
    return pod


def bare_pod(shape: Object) -> Object:
    """Return a minimal pod in which the agent's processes run: one container, no init container, no grace period."""
    main, volumes = shape["spec"]["containers"][0], [each for each in shape["spec"]["volumes"] if each["name"] == _FILES]
    mounts = [each for each in main["volumeMounts"] if each["name"] == _FILES]
    container = {**{name: main[name] for name in ("name", "image", "command", "env", "resources")}, "volumeMounts": mounts}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": shape["metadata"], "spec": spec}


def _alone(model_url: str, pause_seconds: int) -> Object:
    runs = [f"echo 'touch /tmp/{name}' | claude --print" for name in STEPS]
    env = {"ANTHROPIC_BASE_URL": f"{model_url}/anthropic", "ANTHROPIC_API_KEY": "none"}
    return {
        "command": ["bash", "-ec", "; ".join(runs)],
        "env": [_pause(pause_seconds), *({"name": name, "value": value} for name, value in env.items())],
    }


def agent_ended(pod: Mapping[str, Any]) -> bool:
    """Return whether the agent's processes in the pod have ended. Raises RuntimeError if they failed."""
    for each in pod.get("status", {}).get("containerStatuses", []):
        ended = each.get("state", {}).get("terminated")
        if each["name"] == pod_identity.CONTAINER and ended is not None:
            if ended["exitCode"]:
                raise RuntimeError(f"the agent's processes failed in pod {pod['metadata']['name']}: {ended}")
            return True
    return False


async def measure(client: WatchingClient, namespace: str, settings: Settings) -> Found:
    """Run the measurements. settings: the images of the operator and the agent host, and any gateway URL, for the pods that are
    compared with trials; nothing calls this URL."""
    async with servers.model(servers.node()) as model:
        for each in _objects(namespace):
            await client.create(each)
        short = await _compare(client, namespace, settings, model.url, SHORT, trials.ROUNDS)
        long = await _compare(client, namespace, settings, model.url, LONG, LONG_ROUNDS)
        installed = _trial(_claude(model.url), _held_steps(f"sleep {HELD_SECONDS}; touch /tmp/{STEPS[-1]}"), _program_spec(SHORT))
        own = _trial(_own(model.url), [_scripted(name) for name in STEPS], _own_spec())
        return Found(short, long, *[await _memory(client, namespace, each) for each in (installed, own)])


async def _compare(
    client: WatchingClient, namespace: str, settings: Settings, model_url: str, pause_seconds: int, rounds: int
) -> Comparison:
    hosted = hosted_trial(model_url, pause_seconds)
    shape = shape_pod(hosted, settings, model_url, pause_seconds)
    manifests = Manifests(hosted, shape, bare_pod(shape), len(STEPS))
    return await trials.compare(client, namespace, manifests, COUNT, rounds, done=agent_ended)


def table(found: Found) -> Table:
    """Return a table of the agent hosts' memory."""
    made = Table("agent", "MiB", "its processes, MiB", title="resident memory of the agent host in the last step")
    for name, memory in (("claude-code, preinstalled", found.installed), ("importPath, examples/own-agent", found.own)):
        processes = ", ".join(f"{process} {size / 2**20:.1f}" for process, size in memory.processes)
        made.add_row(name, f"{memory.bytes / 2**20:.1f}", processes)
    return made


def judgement(found: Found) -> tuple[bool, list[str]]:
    """Return whether the limits on memory and execs hold, and one line per limit. A slow run does not fail the bench, because
    times depend on the machine."""
    memory, most = found.installed.bytes, (found.long.steps + 1) / found.long.steps
    short, long = found.short.execs_per_step, found.long.execs_per_step
    promises = [
        (memory <= MAX_HOST_BYTES, f"{memory / 2**20:.1f} MiB of an installed agent's host, at most {MAX_HOST_BYTES >> 20}"),
        (short <= MAX_EXECS_PER_STEP, f"{short:.2f} execs per short step, at most {MAX_EXECS_PER_STEP:g}"),
        (long <= most, f"{long:.2f} execs per long step, at most {most:.2f}: one per step and one at the start"),
    ]
    lines = [trials.line(holds, words) for holds, words in [_time("short", found.short), _time("long", found.long), *promises]]
    return all(holds for holds, _ in promises), lines


def _time(name: str, found: Comparison) -> tuple[bool, str]:
    ratio = median(found.of_bare)
    words = f"{found.count} trials of {name} steps take {ratio:.2f} times as long as the agent alone in bare pods"
    return ratio <= MAX_BARE_RATIO, f"{words}, at most {MAX_BARE_RATIO:g}"


def _objects(namespace: str) -> list[Object]:
    """Return the Secret with the provider's key, and the ConfigMap with the agents' files."""
    files = {"claude": _PROGRAM.read_text(), "own_agent.py": _OWN.read_text()}
    key = {"key": base64.b64encode(b"key-of-the-bench").decode()}
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET, "namespace": namespace}, "data": key},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _FILES, "namespace": namespace}, "data": files},
    ]


def _held_steps(last: str) -> list[Step]:
    return [*(_step(name, f"touch /tmp/{name}") for name in STEPS[:-1]), _step(STEPS[-1], last)]


def _scripted(name: str) -> Step:
    """Return a step whose instruction contains the fake model's script."""
    held = f"run: sleep {HELD_SECONDS}\n" if name == STEPS[-1] else ""
    return _step(name, f"FAKE-MODEL\n{held}run: touch /tmp/{name}\nsay: done\nEND")


async def _memory(client: WatchingClient, namespace: str, made: Object) -> HostMemory:
    """Run one trial, and read the memory of its agent host while the agent works on the last step."""
    name = made["metadata"]["name"]
    await client.create({**made, "metadata": {**made["metadata"], "namespace": namespace}})
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not (in_agent(found := await client.get(TRIALS, namespace, name)) and found["status"]["currentStep"] == STEPS[-1]):
            if finished(found):
                raise RuntimeError(f"{name} ended too early: {found['status']}")
            await asyncio.sleep(POLL_SECONDS)
        memory = host_memory(await _in_host(client, namespace, found["status"]["podName"]))
        while not finished(found := await client.get(TRIALS, namespace, name)):
            await asyncio.sleep(POLL_SECONDS)
    if found["status"].get("rewards") != {"reward": 1.0}:
        raise RuntimeError(f"{name} went wrong: {found['status']}")
    await remove_trials(client, namespace)
    await until_without_pods(client, namespace, pod_identity.LABEL_TRIAL)
    return memory


async def _in_host(client: WatchingClient, namespace: str, pod: str) -> str:
    """Return what _READ_MEMORY prints in the agent host's container."""
    stream = await client.open_exec(namespace, pod, agent_host.CONTAINER, ("sh", "-c", _READ_MEMORY))
    printed = b""
    while received := await stream.receive():
        printed += received
    await stream.close()
    return printed.decode()
