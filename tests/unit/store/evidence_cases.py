"""Results with evidence, as fetched, for tests that change them."""

from __future__ import annotations

import asyncio
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

from multistep.client.results.unpack import unpack
from multistep.store.evidence.signing import Signer
from multistep.store.evidence.verify_results import EvidenceCheck
from multistep.store.results_volume import ResultsVolume
from tests.harbor.samples import FIRST, SAMPLES, make_results
from tests.support.signing_keys import write_keys

BY_NAME = {sample.name: sample for sample in SAMPLES}
SAMPLE = BY_NAME["rewards"]
ARTIFACT = f"steps/{FIRST}/artifacts/x"
EVIDENCE = ("evidence.json", "evidence.files.jsonl", "evidence.dsse.json")


class Signed:
    """Results of all samples, as fetched, signed by `signer`."""

    def __init__(self, top: Path) -> None:
        private, self.public = write_keys(top)
        _, self.other = write_keys(top, "other")
        self.signer = Signer.load(private)
        self.results = {
            name: fetched(path, top / "out" / name) for name, path in make_results(top / "v", self.signer.envelope).items()
        }


def fetched(path: Path, to: Path) -> Path:
    """Copy a trial's directory on a volume as `multistep results` fetches it."""

    async def archive() -> bytes:
        volume = ResultsVolume(path.parents[2])
        try:
            key = next(key for key in await volume.trials() if volume.root / str(key) == path)
            async with aclosing(volume.archive(key)) as chunks:
                return b"".join([chunk async for chunk in chunks])
        finally:
            volume.close()

    assert not unpack(io.BytesIO(asyncio.run(archive())), to).left_out
    return to


@contextmanager
def copy_of(path: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as top:
        yield Path(shutil.copytree(path, Path(top, "trial"), symlinks=True))


def problems(checked: EvidenceCheck) -> dict[str, str]:
    return {each.file: each.problem for each in checked.findings}
