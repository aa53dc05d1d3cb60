"""A replica that does not lead changes nothing on the volume: each write checks the lease first, in any thread."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from multistep.errors import NotLeading, StoreError
from multistep.store.files.trial_key import TrialKey
from multistep.store.results_volume import ResultsVolume
from tests.unit.store.helpers import Step

KEY = TrialKey("ns", "t", "uid-1")


class Gate:
    leading = True

    def check(self) -> None:
        if not self.leading:
            raise NotLeading("not leading")


async def store_step(volume: ResultsVolume) -> None:
    async with volume.collections.spool(KEY) as spool:
        await spool.write(bytes(1024))  # the end marker of a tar stream
        await volume.collections.store_step(KEY, spool, attempt=1, step=Step(), types=["missing"] * 2)


WRITES: dict[str, Callable[[ResultsVolume], Awaitable[object]]] = {
    "store_step": store_step,
    "store_records": lambda volume: volume.collections.store_records(KEY, attempt=1, step=Step(), records=[]),
    "start_attempt": lambda volume: volume.start_attempt(KEY, 2),
    "finish": lambda volume: volume.finish(KEY, {"result.json": b"{}"}),
    "append_log": lambda volume: volume.append_log(KEY, "a line"),
    "redact": lambda volume: volume.redact(KEY, ["secret"]),
    "remove": lambda volume: volume.remove(KEY),
}


@pytest.mark.parametrize("name", WRITES)
async def test_a_replica_that_does_not_lead_changes_nothing(tmp_path: Path, name: str) -> None:
    gate = Gate()
    volume = ResultsVolume(tmp_path, check=gate.check)
    await volume.finish(KEY, {"result.json": b'{"a": "secret"}'})
    before = contents(tmp_path)
    gate.leading = False
    with pytest.raises(NotLeading):
        await WRITES[name](volume)
    assert contents(tmp_path) == before
    gate.leading = True
    await WRITES[name](volume)
    volume.close()


def contents(root: Path) -> dict[str, bytes]:
    return {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}


async def test_the_write_check_leaves_nothing(tmp_path: Path) -> None:
    volume = ResultsVolume(tmp_path / "v")
    before = contents(tmp_path)
    await volume.disk.try_to_write()
    assert contents(tmp_path) == before
    (tmp_path / "v").rename(tmp_path / "w")
    with pytest.raises(StoreError, match="results directory"):
        await volume.disk.try_to_write()
    volume.close()


@pytest.mark.parametrize(("code", "ready"), [(errno.ENOSPC, True), (errno.EDQUOT, True), (errno.EROFS, False)])
async def test_a_volume_without_inodes_serves_its_results(
    volume: ResultsVolume, monkeypatch: pytest.MonkeyPatch, code: int, *, ready: bool
) -> None:
    def fail(**_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    with nullcontext() if ready else pytest.raises(StoreError):
        await volume.disk.try_to_write()
