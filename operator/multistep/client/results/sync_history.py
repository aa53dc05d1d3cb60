"""Copies the history of namespaces into the local database. Packs that have not changed are not read again."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from multistep.api.common.history_address import KEY, LABEL
from multistep.client.connection import Cluster
from multistep.client.results.fetch import read_whole
from multistep.errors import NotFound, StoreError
from multistep.kube.resources import CONFIG_MAPS
from multistep.store.files.history_pack import MAX_BYTES

if TYPE_CHECKING:
    from multistep.report.history_database import HistoryDatabase

_AT_ONCE: Final = 64  # packs per transaction, so that an interrupted copy continues where it stopped
_AT_ONCE_BYTES: Final = 64 << 20  # after as many bytes of packs a transaction ends, too, so that memory is bounded


async def sync_history(cluster: Cluster, namespace: str | None, database: HistoryDatabase) -> list[str]:
    """Update the copy of the history of a namespace, or with None of all namespaces, and return warnings.

    Raises ClusterError if the addresses cannot be listed.
    """
    warnings = list[str]()
    async for source, url in _addresses(cluster, namespace):
        try:
            await _sync(cluster, source, url, database)
        except NotFound:
            warnings.append(f"ConfigMap {source}: nothing answers at its address: delete it if its operator was uninstalled")
        except StoreError as error:
            warnings.append(f"ConfigMap {source}: {error}")
    return warnings


async def _addresses(cluster: Cluster, namespace: str | None) -> AsyncIterator[tuple[str, str]]:
    """Yield the name and the address of each history."""
    async for found in cluster.iterate(CONFIG_MAPS, namespace, label_selector=f"{LABEL}=true"):
        if url := (found.get("data") or {}).get(KEY):
            yield f"{found['metadata']['namespace']}/{found['metadata']['name']}", str(url)


async def _sync(cluster: Cluster, source: str, url: str, database: HistoryDatabase) -> None:
    # The open lines are read first: a line that is packed meanwhile is then in both, but never in none.
    opened = await read_whole(cluster, url, "/open", MAX_BYTES)
    now = _versions(await read_whole(cluster, url, "", MAX_BYTES))
    known = database.versions(source)
    gone = [name for name in known if name not in now]
    changed = [name for name, version in now.items() if known.get(name) != version]
    packs, size = dict[str, tuple[str, bytes]](), 0
    for name in changed:
        data = await read_whole(cluster, url, f"/packs/{quote(name)}", MAX_BYTES)
        packs[name], size = (now[name], data), size + len(data)
        if len(packs) >= _AT_ONCE or size >= _AT_ONCE_BYTES:
            database.update(source, gone, packs, opened)
            packs, size = {}, 0
    database.update(source, gone, packs, opened)


def _versions(listed: bytes) -> dict[str, str]:
    try:
        packs: Any = json.loads(listed)
        return {str(pack["name"]): str(pack["version"]) for pack in packs}
    except (ValueError, TypeError, KeyError) as error:
        raise StoreError(f"the list of the history's packs is invalid: {error}") from None
