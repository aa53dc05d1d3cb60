"""Listen in the cluster's network namespace, and redirect the pods' connections to the API server."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

from localkube.config import Network

_CLONE_NEWNET = 0x40000000
_TABLE = "multistep_chaos"
_HOLD_SECONDS = 20  # the redirection expires after this time, even if this process is killed
_RENEW_SECONDS = 5


def listen(net: Network) -> socket.socket:
    """Return a listening socket on the node's address, which every pod reaches.

    Only a temporary thread enters the network namespace.
    """
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_listen, net).result()


def _listen(net: Network) -> socket.socket:
    with _namespace(net).open("rb") as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {net.namespace}")
    return socket.create_server((net.node_address, 0), backlog=512)


@asynccontextmanager
async def api_server_redirected(net: Network, port: int) -> AsyncIterator[None]:
    """While the block runs, redirect pods' new connections to the API server's Service to a port of the node."""
    await _nft(net, _rules(net, port))
    renewing = asyncio.create_task(_renew(net))
    try:
        yield
    finally:
        renewing.cancel()
        await _nft(net, f"delete table ip {_TABLE}")


def _rules(net: Network, port: int) -> str:
    """Return nftables rules that redirect before kube-proxy's DNAT, until the Service's address expires in the set `redirected`."""
    return f"""\
table ip {_TABLE}
delete table ip {_TABLE}
table ip {_TABLE} {{
    set redirected {{ type ipv4_addr; flags timeout; }}
    chain prerouting {{
        type nat hook prerouting priority dstnat - 10;
        ip saddr {net.pod_cidr} ip daddr @redirected tcp dport 443 redirect to :{port}
    }}
}}
{_redirection(net)}
"""


def _redirection(net: Network) -> str:
    element = f"{{ {net.first_service_address} timeout {_HOLD_SECONDS}s }}"
    return f"flush set ip {_TABLE} redirected\nadd element ip {_TABLE} redirected {element}"


async def _renew(net: Network) -> None:
    while True:
        await asyncio.sleep(_RENEW_SECONDS)
        await _nft(net, _redirection(net))


async def _nft(net: Network, rules: str) -> None:
    command = ["nsenter", f"--net={_namespace(net)}", "nft", "-f", "-"]
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    _, output = await process.communicate(rules.encode())
    if process.returncode:
        raise OSError(os.EX_OSERR, f"nft: {output.decode()}")


def _namespace(net: Network) -> Path:
    return Path("/run/netns", net.namespace)
