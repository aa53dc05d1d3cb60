"""Try to reach servers on localkube's node from a trial's pod, in each way that egress/attacks_test.go lists."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from hack.paths import ROOT, cached, digest_of, files_below
from hack.tools import go, go_environment
from localkube.commands import stream
from tests.support.machine import localkube, on_node

RESOLVER, GOOD, EVIL = "10.99.0.1", "10.99.0.10", "10.99.0.66"  # the same addresses as in egress/world_test.go
GOOD_NAME: Final = "good.example.com"
_ADDRESSES: Final = (RESOLVER, GOOD, EVIL, "fd99::66")
_PROGRAM_AT: Final = f"/dev/tcp/{GOOD}/7002"
_PLACE: Final = "/tmp/ways-out"

GET: Final = f"cat < {_PROGRAM_AT} > {_PLACE} && chmod 755 {_PLACE}"
"""A bash command that fetches the program into the pod."""
TRY: Final = f"EGRESS_TEST_AGENT=all {_PLACE}"
"""A command that tries all ways and prints the results, which ``reached`` parses."""
POD: Final[Mapping[str, Any]] = {
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": [RESOLVER]},
    "securityContext": {"sysctls": [{"name": "net.ipv4.ping_group_range", "value": "0 2147483647"}]},
}
"""Pod spec fields that some ways need to reach their targets: an outside DNS resolver, and permission for every user to ping."""
UNREACHABLE: Final = frozenset({"IPv6", "IPv6 by HTTP", "UDP over IPv6", "ping over IPv6", "past the routing table"})
"""Ways that never reach their target in localkube: its pods have no IPv6 address, and no target is on the pods' link."""


def reached(printed: str) -> dict[str, bool]:
    """Return whether each way reached its target, by the name of the way."""
    return {name: error == "" for name, error in json.loads(printed).items()}


@asynccontextmanager
async def targets() -> AsyncIterator[None]:
    """Run the servers that the pod tries to reach, each on its own address."""
    program = await asyncio.to_thread(_program)
    for each in _ADDRESSES:
        await localkube("node", "ip", "address", "replace", each, "dev", "lo")
    try:
        async with on_node(["env", "EGRESS_TEST_OUTSIDE=1", str(program)]):
            await localkube("node", "timeout", "60", "bash", "-c", f"until exec 3<>{_PROGRAM_AT}; do sleep 0.1; done 2>/dev/null")
            yield
    finally:
        for each in _ADDRESSES:
            await localkube("node", "ip", "address", "delete", each, "dev", "lo")


def _program() -> Path:
    """Return the path of the compiled tests of egress/; build them if they are not in the cache."""
    digest = digest_of(files_below(ROOT / "egress"))
    return cached("ways-out", digest, _build) / "ways-out"


def _build(directory: Path) -> None:
    stream([str(go()), "test", "-c", "-o", str(directory / "ways-out"), "."], env=go_environment(), cwd=ROOT / "egress")
