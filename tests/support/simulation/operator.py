"""Operators of this checkout as processes of this machine, each with a shard of the trials and the rights of the deployed one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import aiohttp
import yaml

from localkube.config import load_config
from multistep.kube.client import ClusterClient
from tests.support import forked, servers
from tests.support.waiting import eventually

Object = dict[str, Any]
SYSTEM: Final = os.environ.get("MULTISTEP_TEST_NAMESPACE", "multistep-system")
ACCOUNT: Final = "multistep"
TOKEN_SECONDS: Final = 24 * 3600
LEASE: Final = "multistep"
MAX_EXITS: Final = 20


@dataclass(frozen=True)
class Shard:
    """A shard of the cluster's trials. name: the value of the label, and the namespace of its lease; kubeconfig: with the token of
    the deployed operator's ServiceAccount; directory: for the files of its operators."""

    name: str
    kubeconfig: Path
    directory: Path


async def made_shard(client: ClusterClient, name: str, directory: Path) -> Shard:
    """Create the namespace of a shard's lease, in which the deployed operator's ServiceAccount may have one."""
    group, metadata = "rbac.authorization.k8s.io", {"name": "lease", "namespace": name}
    rule = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]}
    role = {"apiGroup": group, "kind": "Role", "name": "lease"}
    binding = {"roleRef": role, "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": SYSTEM}]}
    await client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await client.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]})
    await client.create({"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata, **binding})
    await asyncio.to_thread(_write_kubeconfig, directory / "kubeconfig")
    return Shard(name, directory / "kubeconfig", directory)


def _write_kubeconfig(file: Path) -> None:
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text())
    command = ["kubectl", "create", "token", ACCOUNT, "--namespace", SYSTEM, f"--duration={TOKEN_SECONDS}s"]
    token = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    file.write_text(yaml.safe_dump(config))


@dataclass
class Operator:
    """An operator's process, which is started again when it ends by itself, as by a kubelet.

    settings: MULTISTEP_ variables without the prefix; name: that of its replica.
    """

    shard: Shard
    name: str = "operator"
    settings: Mapping[str, str] = field(default_factory=dict)
    exit_codes: list[int] = field(default_factory=list)  # of the processes that have ended

    def __post_init__(self) -> None:
        self._ports = servers.free_port(), servers.free_port()
        self._runs = False
        self._process: forked.Program | None = None
        self._supervisor: threading.Thread | None = None
        self.directory = self.shard.directory / self.name
        self.log = self.directory / "operator.log"

    @property
    def results(self) -> Path:
        """Return the directory of the results volume, which all replicas of the shard share."""
        return self.shard.directory / "results"

    @property
    def url(self) -> str:
        """Return the URL of the operator's metrics port."""
        return f"http://127.0.0.1:{self._ports[1]}"

    async def has_no_results(self, trial: Object, path: str = "") -> bool:
        """Return whether nothing exists at this path below the trial's directory on the results volume."""
        of = trial["metadata"]
        return not (self.results / of["namespace"] / of["name"] / of["uid"] / path).exists()

    @property
    def results_url(self) -> str:
        """Return the URL of the operator's results port."""
        return f"http://127.0.0.1:{self._ports[0]}"

    async def start(self) -> None:
        """Start the process, and wait until it serves; it may be a standby then."""
        assert not self._runs
        self.directory.mkdir(exist_ok=True)
        variables = {
            "LEASE_NAME": LEASE,
            "LEASE_NAMESPACE": self.shard.name,
            "LISTEN_HOST": "127.0.0.1",
            "METRICS_PORT": str(self._ports[1]),
            "OPERATOR_IMAGE": os.environ["MULTISTEP_TEST_IMAGE"],
            "POD_NAME": self.name,
            "POD_UID": self.name,  # so that a process that was killed is replaced at once
            "RESULTS_DIR": str(self.results),
            "RESULTS_PORT": str(self._ports[0]),
            "RESULTS_URL": self.results_url,
            "SHARD": self.shard.name,
            "METRICS_LABELS": json.dumps(["namespace", "agent"]),
            "TASK_INSECURE_HOSTS": json.dumps([f"{load_config().network.api_address}:*"]),  # the tests' servers on the node
            "TASK_CACHE_DIR": str(self.directory / "tasks"),
            **self.settings,
        }
        environment = {f"MULTISTEP_{key}": value for key, value in variables.items()}
        self._runs, self._process = True, None
        env = os.environ | environment | {"KUBECONFIG": str(self.shard.kubeconfig)}
        self._supervisor = threading.Thread(target=self._supervise, args=(env,), name=self.name, daemon=True)
        self._supervisor.start()
        await eventually(self._serves)

    def _supervise(self, env: Mapping[str, str]) -> None:
        while self._runs:
            self._process = forked.start(forked.OPERATOR, (), env, self.log, self.log)
            self.exit_codes.append(self._process.exit_code())

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the process, wait until it has ended, and return its exit code. It is not started again."""
        assert self._supervisor is not None
        self._runs = False
        self.signal(number)
        await asyncio.to_thread(self._supervisor.join)
        return self.exit_codes[-1]

    async def kill(self) -> None:
        """Kill the process, as the kernel does. It is not started again."""
        await self.stop(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.signal(number)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """End the process if it runs."""
        if self._runs:
            await self.stop(signal.SIGKILL)

    async def text(self, path: str) -> str:
        """Return the body at this path of the operator's metrics port."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/{path}") as response:
            return await response.text()

    async def samples(self) -> dict[str, float]:
        """Return the values of the operator's metrics by name with labels."""
        pairs = [line.rsplit(" ", 1) for line in (await self.text("metrics")).splitlines() if line and not line.startswith("#")]
        return {name: float(value) for name, value in pairs}

    async def _serves(self) -> bool:
        assert len(self.exit_codes) < MAX_EXITS, self.log.read_text(errors="replace")[-4000:]
        with suppress(aiohttp.ClientError):
            return bool(await self.text("healthz"))
        return False
