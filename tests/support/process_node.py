"""A node without kubelet and container runtime: it runs the main container of each pod of a FakeCluster as a process in namespaces.

A container has the image's files under an overlay, the pod's volumes, environment, working directory and user, a container's usual
capabilities, and PID, mount, IPC, UTS and network namespaces of its own. An exec session is a process that enters these namespaces.
The node sets the pod's status as a kubelet does. It has no init containers but the runner's, no other containers, no memory limits
and no pod network: what depends on these is tested on a real cluster.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shlex
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from multistep.errors import ClusterError, StreamLost
from multistep.kube.cluster_protocols import ExitStatus, Object
from multistep.pods import runner_mount
from multistep.pods.pod_identity import CONTAINER
from tests.support.fake_cluster import FakeCluster
from tests.support.image_trees import ImageTree

Images = Callable[[str], ImageTree]

PROBE_SECONDS: Final = 0.2  # between two readiness probes; a kubelet's period is a second
_CHUNK: Final = 1 << 20
_CLONE_NEWNET: Final = 0x40000000
_CAPABILITIES: Final = (  # those that container runtimes give by default
    "chown", "dac_override", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap", "net_bind_service", "net_raw", "sys_chroot",
    "mknod", "audit_write", "setfcap",
)  # fmt: skip
_NAMESPACES: Final = ("mount", "pid", "net", "ipc", "uts")
_DEVICES: Final = {"null": "c 1 3", "zero": "c 1 5", "full": "c 1 7", "random": "c 1 8", "urandom": "c 1 9", "tty": "c 5 0"}
_HOSTS: Final = "127.0.0.1 localhost\n::1 localhost\n"


@dataclass
class Container:
    """A pod's main container. pid: of its PID 1, as this machine sees it."""

    process: asyncio.subprocess.Process
    environment: Mapping[str, str]
    workdir: str
    user: int
    group: int
    pid: int = 0


class Node:
    """Runs the pods of a cluster. directory: for the node's files; runner: the runner's program; images: function that returns the
    image of a name."""

    def __init__(self, cluster: FakeCluster, directory: Path, runner: Path, images: Images) -> None:
        self._cluster = cluster
        self._directory = directory
        self._runner = runner
        self._images = images
        self._containers: dict[str, Container] = {}  # by the pod's UID
        self._pods: dict[str, asyncio.Task[None]] = {}  # by the pod's UID
        self._streams: list[asyncio.Task[ProcessStream]] = []
        self._netns = ThreadPoolExecutor(1)  # its thread enters the pods' network namespaces
        self._devices = directory / "dev"
        self._devices.mkdir(parents=True)

    async def start(self) -> None:
        nodes = "; ".join(f"mknod -m 666 {name} {kind}" for name, kind in _DEVICES.items())
        links = "ln -s /proc/self/fd fd; ln -s fd/0 stdin; ln -s fd/1 stdout; ln -s fd/2 stderr; mkdir -m 1777 shm"
        made = await asyncio.create_subprocess_exec("sh", "-euc", f"{nodes}; {links}", cwd=self._devices)
        assert await made.wait() == 0

    async def stop(self) -> None:
        for task in self._pods.values():
            task.cancel()
        await asyncio.gather(*self._pods.values(), return_exceptions=True)
        for opening in self._streams:  # their pods have ended; the event loop must not close what it still watches
            await (await opening).end()
        self._netns.shutdown()

    def pod_event(self, pod: Object, type: str) -> None:
        """Start or end the pod."""
        uid = pod["metadata"]["uid"]
        if type == "ADDED":
            self._pods[uid] = asyncio.create_task(self._run(pod))
        elif type == "DELETED" and uid in self._pods:
            self._pods[uid].cancel()

    async def open_exec(self, pod: Object, argv: Sequence[str]) -> ProcessStream:
        """Run a command in the pod's container."""
        container = self._containers.get(pod["metadata"]["uid"])
        if container is None:
            raise ClusterError(f"pod {pod['metadata']['name']} does not run", status=400, reason="BadRequest")
        user = [f"--setuid={container.user}", f"--setgid={container.group}"] if container.user else []
        target = [f"--target={container.pid}", *(f"--{each}" for each in _NAMESPACES), "--root"]
        command = ["nsenter", *target, f"--wdns={container.workdir}", *user, "--", *argv]
        opening = asyncio.create_task(_open(command, container.environment))
        self._streams.append(opening)
        return await asyncio.shield(opening)  # a process whose start was cancelled would have no owner

    # -- a pod

    async def _run(self, pod: Object) -> None:
        uid, directory = pod["metadata"]["uid"], self._directory / pod["metadata"]["uid"]
        try:
            container = self._containers[uid] = await self._started(pod, directory)
            probing = asyncio.create_task(self._probe(pod, container))
            try:
                code = await container.process.wait()
            finally:
                probing.cancel()
            ended = {"exitCode": code if code >= 0 else 128 - code, "reason": "Completed" if code == 0 else "Error"}
            self._set_status(pod, "Failed" if code else "Succeeded", {"terminated": ended}, ready=False)
        finally:
            if (ran := self._containers.pop(uid, None)) is not None:
                with suppress(ProcessLookupError):
                    ran.process.kill()
                await ran.process.wait()
            await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)

    async def _started(self, pod: Object, directory: Path) -> Container:
        spec = next(each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
        image = self._images(spec["image"])
        security = {**(pod["spec"].get("securityContext") or {}), **(spec.get("securityContext") or {})}
        workdir = spec.get("workingDir") or image.workdir
        user, group = _user(image, security)
        environment = {**image.environment, "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"]}
        environment.setdefault("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        environment.setdefault("HOME", "/root")
        for each in spec.get("env") or []:
            environment[each["name"]] = _value(pod, each, environment)
        script = self._script(pod, spec, directory, image, workdir)
        gains = [] if security.get("allowPrivilegeEscalation", True) else ["--no-new-privs"]
        bounds = ["--inh-caps=-all", "--bounding-set=-all," + ",".join(f"+{each}" for each in _CAPABILITIES), *gains]
        switch = [f"--setuid={user}", f"--setgid={group}"] if user else []
        entering = ["setpriv", *bounds, "unshare", f"--root={directory / 'root'}", f"--wd={workdir}", *switch, "--"]
        command = [_expanded(each, environment) for each in (*spec["command"], *spec.get("args", ()))]
        apart = [f"--{each}" for each in _NAMESPACES]
        outside = ["setpriv", "--pdeathsig=KILL", "unshare", *apart, "--fork", "--kill-child"]
        with (directory / "log").open("wb") as log:
            starting = asyncio.create_task(asyncio.create_subprocess_exec(
                *outside, "sh", "-euc", f'{script}\nexec "$@"', "container", *entering, *command,
                env=environment, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            ))  # fmt: skip
            process = await _even_if_cancelled(starting)
        container = Container(process, environment, workdir, user, group)
        self._containers[pod["metadata"]["uid"]] = container
        await self._until_runner(container, directory / "log")
        self._set_status(pod, "Running", {"running": {"startedAt": _now()}}, ready=True)
        return container

    def _script(self, pod: Object, spec: Mapping[str, Any], directory: Path, image: ImageTree, workdir: str) -> str:
        """Return the commands that mount a container's files, in its new namespaces. Make what they mount."""
        root = directory / "root"
        for each in ("root", "upper", "work", "volumes"):
            (directory / each).mkdir(parents=True)
        for volume in pod["spec"].get("volumes") or []:
            if "hostPath" in volume:
                (directory / "volumes" / volume["name"]).symlink_to(volume["hostPath"]["path"])
            else:
                assert "emptyDir" in volume, f"the node has no volumes like {volume}"
                (directory / "volumes" / volume["name"]).mkdir(mode=0o777)
        program = directory / "volumes" / runner_mount.VOLUME / "runner"
        shutil.copyfile(self._runner, program)
        program.chmod(0o111)
        (directory / "hosts").write_text(_HOSTS)
        layers = f"lowerdir={image.root},upperdir={directory / 'upper'},workdir={directory / 'work'}"
        lines = [
            f"mount -t overlay overlay -o {shlex.quote(layers)} {root}",
            f"mount -t proc proc {root}/proc",
            f"mount -t sysfs -o ro sysfs {root}/sys",
            f"mount -t tmpfs -o mode=755 tmpfs {root}/dev",
            f"cp -a {self._devices}/. {root}/dev",
            f"touch {root}/etc/hosts",
            f"mount --bind {directory}/hosts {root}/etc/hosts",
            "ip link set lo up",
            f"hostname {shlex.quote(pod['spec'].get('hostname') or pod['metadata']['name'])}",
            f"mkdir -p {shlex.quote(f'{root}{workdir}')}",
        ]
        for mount in spec.get("volumeMounts") or []:
            source, target = directory / "volumes" / mount["name"], shlex.quote(f"{root}{mount['mountPath']}")
            read_only = "-o ro " if mount.get("readOnly") else ""
            lines.append(f"mkdir -p {target}; mount --bind {read_only}{source} {target}")
        return "\n".join(lines)

    async def _until_runner(self, container: Container, log: Path) -> None:
        """Wait until the container's PID 1 executes its command, and note its PID."""
        while not (pid := _child(container.process.pid, "runner")):
            assert container.process.returncode is None, f"the container did not start: {_text(log)}"
            await asyncio.sleep(0.005)
        container.pid = pid

    async def _probe(self, pod: Object, container: Container) -> None:
        """Set the pod's readiness, as the kubelet's probe does."""
        spec = next(each for each in pod["spec"]["containers"] if each["name"] == CONTAINER)
        probe, ready = spec["readinessProbe"]["httpGet"], True
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            loop = asyncio.get_running_loop()
            now = await loop.run_in_executor(self._netns, _answers_well, container.pid, probe["port"], probe["path"])
            if now != ready and container.process.returncode is None:
                ready = now
                self._set_status(pod, "Running", {"running": {"startedAt": _now()}}, ready=ready)

    def _set_status(self, pod: Object, phase: str, state: Object, *, ready: bool) -> None:
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        with suppress(KeyError):  # the pod is deleted
            now = self._cluster.objects["Pod", namespace, name]
            before = ((now["status"].get("containerStatuses") or [{}])[0].get("state") or {}).get("running")
            images = {each["name"]: each["image"] for each in pod["spec"]["containers"] + pod["spec"].get("initContainers", [])}
            main = {
                "name": CONTAINER,
                "ready": ready,
                "restartCount": 0,
                "state": {"running": before} if before and "running" in state else state,
                "imageID": f"{images[CONTAINER]}@sha256:{self._images(images[CONTAINER]).digest}",
                "containerID": f"process://{pod['metadata']['uid']}",
            }
            installer = {
                "name": runner_mount.INSTALLER,
                "imageID": f"runner@sha256:{'0' * 64}",
                "state": {"terminated": {"exitCode": 0}},
            }
            conditions = [{"type": type_, "status": str(ready)} for type_ in ("Ready", "ContainersReady")]
            conditions.append(
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod["metadata"]["creationTimestamp"]}
            )
            self._cluster.set_pod_status(
                namespace, name, phase=phase, conditions=conditions, containerStatuses=[main], initContainerStatuses=[installer]
            )


class ProcessStream:
    """An ExecStream (multistep.kube.cluster_protocols) of a process on this machine."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._stderr = asyncio.create_task(self._last_of_stderr())
        self._details = ""
        self.status: ExitStatus | None = None

    @property
    def exit_details(self) -> str:
        return self._details

    async def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise StreamLost(f"exec: {error}") from error

    async def send_eof(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def receive(self) -> bytes:
        assert self._process.stdout is not None
        if data := await self._process.stdout.read(_CHUNK):
            return data
        code = await self._process.wait()
        self._details = await self._stderr
        self.status = ExitStatus(code if code >= 0 else 128 - code)
        return b""

    async def close(self) -> None:
        await self.send_eof()

    async def end(self) -> None:
        """Kill the process if it runs, and release what the event loop has of it."""
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()
        await self._stderr
        self._process._transport.close()  # type: ignore[attr-defined]

    async def _last_of_stderr(self) -> str:
        assert self._process.stderr is not None
        return (await self._process.stderr.read()).decode(errors="replace").strip()[-4096:]


async def _open(command: Sequence[str], environment: Mapping[str, str]) -> ProcessStream:
    pipe = asyncio.subprocess.PIPE
    return ProcessStream(
        await asyncio.create_subprocess_exec(*command, env=dict(environment), stdin=pipe, stdout=pipe, stderr=pipe, limit=_CHUNK)
    )


async def _even_if_cancelled(starting: asyncio.Task[asyncio.subprocess.Process]) -> asyncio.subprocess.Process:
    """Return the process that the task starts. If the caller is cancelled meanwhile, end the process: it would have no owner."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        process = await starting
        process.kill()
        await process.wait()
        raise


def _answers_well(pid: int, port: int, path: str) -> bool:
    """Return whether an HTTP server in a process's network namespace answers with 200. Call it in a thread of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if libc.setns(namespace, _CLONE_NEWNET) != 0:
            return False
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return b" 200 " in connection.recv(64)
    except OSError:
        return False
    finally:
        os.close(namespace)


def _child(parent: int, program: str) -> int:
    """Return the PID of a process's child that executes this program; 0 if there is none."""
    children = _text(Path(f"/proc/{parent}/task/{parent}/children")).split()
    return next((int(each) for each in children if _text(Path(f"/proc/{each}/comm")) == f"{program}\n"), 0)


def _text(path: Path) -> str:
    """Return a file's content; "" if there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _user(image: ImageTree, security: Mapping[str, Any]) -> tuple[int, int]:
    """Return the user and group of a container: those of its security context, or those of its image."""
    name, _, group = str(security.get("runAsUser", image.user or 0)).partition(":")
    accounts = [line.split(":") for line in _text(image.root / "etc/passwd").splitlines()]
    found = next((each for each in accounts if name in (each[0], each[2])), [name, "", name, "0"])
    return int(found[2]), int(security.get("runAsGroup", group or found[3]))


def _value(pod: Object, variable: Mapping[str, Any], environment: Mapping[str, str]) -> str:
    if (source := variable.get("valueFrom")) is None:
        return _expanded(variable.get("value") or "", environment)
    found: Any = pod
    for part in source["fieldRef"]["fieldPath"].split("."):
        found = found[part]
    return str(found)


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """Return the text with each $(NAME) replaced by the variable's value and each $$ by $, as the kubelet does."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]), text)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
