"""The network targets that the egress sidecar refused, as a step's status lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from multistep.api.common.base_model import Model


class RefusedTarget(Model):
    """A network target that the egress sidecar refused."""

    protocol: str
    """dns (a lookup of the host), tls or http (the server's name), tcp, udp, icmp, or a protocol's number."""
    host: str
    """Name or address, as the pod's processes chose it."""
    port: int | None = None
    """Port; unset for protocols without ports."""
    count: int
    """Number of attempts: lookups, connections, or packets."""


class EgressStatus(Model):
    """Network targets that the egress sidecar refused to processes of the step's pods. A refusal is no failure of the step
    (docs/how-to/egress.md)."""

    refused: list[RefusedTarget] = []
    """The targets that were refused most often."""
    others: int = 0
    """Number of refused connections to targets that ``refused`` does not list."""


def total(parts: Iterable[EgressStatus], most: int) -> EgressStatus:
    """Return the sum of the parts. most: maximum number of targets to list, the most frequent first."""
    counts, others = Counter[tuple[str, str, int | None]](), 0
    for part in parts:
        others += part.others
        for each in part.refused:
            counts[each.protocol, each.host, each.port] += each.count
    ordered = sorted(counts.items(), key=lambda item: (-item[1], *map(str, item[0])))
    kept = [RefusedTarget(protocol=protocol, host=host, port=port, count=count) for (protocol, host, port), count in ordered[:most]]
    return EgressStatus(refused=kept, others=others + sum(count for _, count in ordered[most:]))
