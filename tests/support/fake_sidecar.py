"""A fake egress sidecar of a pod."""

from __future__ import annotations

import json
from typing import Any

from multistep.errors import StreamLost
from multistep.kube.cluster_protocols import ExitStatus
from tests.support.faults import Faults

Json = dict[str, Any]


class FakeSidecar:
    """Accepts every switch of the network, and reports one refused DNS lookup at each switch. answer: replaces the response."""

    def __init__(self) -> None:
        self.boot = "boot-1"
        self.switches: list[Json] = []  # the requests; a request that repeats the one before is omitted
        self.answer: bytes | None = None

    def restart(self) -> None:
        """Restart the sidecar: the new process has no network and knows no earlier request."""
        self.boot += "'"
        self.switches.clear()

    def take(self, line: bytes) -> bytes:
        """Return the response to a request; both are one line of JSON."""
        request = json.loads(line)
        if self.switches[-1:] != [request]:
            self.switches.append(request)
        target = {"protocol": "dns", "host": "evil.example", "port": 53, "count": 1}
        return self.answer or json.dumps({"boot": self.boot, "refused": [target]}).encode() + b"\n"


class SidecarStream:
    """One exec session with a fake sidecar."""

    def __init__(self, sidecar: FakeSidecar, faults: Faults) -> None:
        self._sidecar, self._faults = sidecar, faults
        self._answers = b""
        self.status: ExitStatus | None = None
        self.exit_details = ""

    async def send(self, data: bytes) -> None:
        self._faults.point("switch before")
        self._answers = self._sidecar.take(data)
        self._faults.point("switch after")

    async def send_eof(self) -> None:
        raise StreamLost("nobody closes stdin")

    async def receive(self) -> bytes:
        half = len(self._answers) // 2 + 1
        part, self._answers = self._answers[:half], self._answers[half:]
        return part

    async def close(self) -> None:
        pass
