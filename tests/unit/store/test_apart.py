"""A step with a separate verifier: the results collected from the agent's pod and the verifier's pod, and the verifier's input."""

from __future__ import annotations

import io
import tarfile

import pytest

from multistep.engine.journal.operations import Part
from multistep.errors import StoreError
from multistep.store.results_volume import ResultsVolume
from tests.unit.store.helpers import KEY, Step, directory, entries, link, member, tar, trial_path

ENTRIES = entries("/logs/artifacts", "/app/out", "/app/dir", "/app/none")
STEP = Step(artifacts=ENTRIES)
TYPES = ("directory", "directory", "file", "directory", "missing")
STREAM = tar(
    directory("0"),
    member("0/log.txt", b"agents log"),
    directory("1"),
    member("1/published", b"p"),
    member("2", b"out"),
    directory("3"),
    directory("3/sub"),
    member("3/sub/x", b"x", mode=0o755),
    link("3/sub/inside", "../sub/x"),
    link("3/outside", "../../tests/test.sh"),
    link("3/absolute", "/logs/verifier/reward.txt"),
    link("3/sub/up", ".."),
    link("3/through", "sub/up/../../tests/expected"),  # ../../ starts at the target of 3/sub/up, not at 3/sub/up
)


async def keep(volume: ResultsVolume, stream: bytes, types: tuple[str, ...], part: Part, step: Step = STEP) -> None:
    async with volume.collections.spool(KEY) as spool:
        await spool.write(stream)
        await volume.collections.store_step(KEY, spool, attempt=1, step=step, types=types, part=part)


async def handed_over(volume: ResultsVolume, entry: int) -> dict[str, bytes | str | None]:
    """Return the files, links and directories that the verifier's pod receives for an artifact entry.

    Each path maps to the file's contents, to the link's target, or to None for a directory.
    """
    data = b"".join([chunk async for chunk in volume.collections.collected(KEY, attempt=1, step=STEP, entry=entry)])
    with tarfile.open(fileobj=io.BytesIO(data)) as stream:
        return {
            each.name: each.linkname if each.issym() else file.read() if (file := stream.extractfile(each)) else None
            for each in stream.getmembers()
        }


@pytest.mark.parametrize(
    "forged",
    [member("0/tokens.msgpack.zst", b"forged"), directory("0/tokens.msgpack.zst"), link("0/tokens.msgpack.zst", "log.txt")],
    ids=["file", "directory", "link"],
)
@pytest.mark.parametrize("records", [b"", b"records"], ids=["without", "with"])
async def test_token_records_replace_what_the_agent_wrote_in_their_place(
    volume: ResultsVolume, forged: bytes, records: bytes
) -> None:
    async with volume.collections.spool(KEY) as spool, volume.collections.spool(KEY) as tokens:
        await spool.write(tar(directory("0"), forged, member("0/log.txt", b"agents log")))
        await tokens.write(records)
        types = ("directory", *["missing"] * (len(TYPES) - 1))
        await volume.collections.store_step(KEY, spool, attempt=1, step=STEP, types=types, part="agent", tokens=tokens)
    (agent,) = trial_path(volume).rglob("agent")
    assert {path.name: path.read_bytes() for path in agent.iterdir()} == {
        "log.txt": b"agents log",
        **({"tokens.msgpack.zst": records} if records else {}),
    }


@pytest.mark.parametrize("records", [b"", b"records"], ids=["without", "with"])
async def test_token_records_are_stored_although_the_agent_replaced_the_directory_of_its_logs_by_a_file(
    volume: ResultsVolume, records: bytes
) -> None:
    """Regression: the trial waited for a volume that can be written, for which its deadline does not count."""
    async with volume.collections.spool(KEY) as spool, volume.collections.spool(KEY) as tokens:
        await spool.write(tar(member("0", b"no directory")))
        await tokens.write(records)
        types = ("file", *["missing"] * (len(TYPES) - 1))
        await volume.collections.store_step(KEY, spool, attempt=1, step=STEP, types=types, part="agent", tokens=tokens)
    (agent,) = trial_path(volume).rglob("agent")
    assert [path.read_bytes() for path in agent.iterdir()] == ([records] if records else [])


async def test_each_entry_is_handed_over_without_what_leads_out_of_it(volume: ResultsVolume) -> None:
    await keep(volume, STREAM, TYPES, "agent")
    assert await handed_over(volume, 0) == {"published": b"p"}
    assert await handed_over(volume, 1) == {"out": b"out"}
    assert await handed_over(volume, 2) == {"sub": None, "sub/x": b"x", "sub/inside": "../sub/x", "sub/up": ".."}
    assert await handed_over(volume, 3) == {}


async def test_the_parts_make_one_step(volume: ResultsVolume) -> None:
    await keep(volume, STREAM, TYPES, "agent")
    verdict = tar(directory("0"), member("0/reward.txt", b"1"))
    for _ in range(2):
        await keep(volume, verdict, ("directory",), "verifier")
    await keep(volume, STREAM, TYPES, "agent")
    step = volume.root / str(KEY) / "steps/one"
    assert {path.name for path in step.iterdir()} == {"agent", "verifier", "artifacts"}
    assert (step / "verifier/reward.txt").read_bytes() == b"1"
    assert (step / "agent/log.txt").read_bytes() == b"agents log"
    assert (step / "artifacts/manifest.json").exists()


async def test_of_a_single_step_task_the_parts_are_at_the_top(volume: ResultsVolume) -> None:
    step = Step(name="task", directory=None, artifacts=ENTRIES)
    await keep(volume, STREAM, TYPES, "agent", step)
    await keep(volume, tar(directory("0")), ("directory",), "verifier", step)
    shown = {path.name for path in (volume.root / str(KEY)).iterdir() if not path.name.startswith(".")}
    assert shown == {"agent", "verifier", "artifacts"}


async def test_nothing_to_hand_over_is_an_error(volume: ResultsVolume) -> None:
    with pytest.raises(StoreError, match="no longer exist"):
        await handed_over(volume, 0)


async def test_records_are_kept_by_attempt_and_step(volume: ResultsVolume) -> None:
    assert (await volume.collections.stored(KEY, 1)).records == {}
    for _ in range(2):
        await volume.collections.store_records(KEY, attempt=1, step=Step(), records=[{"id": "a"}])
    await volume.collections.store_records(KEY, attempt=1, step=Step(index=12), records=[{"id": "b"}])
    await volume.collections.store_records(KEY, attempt=2, step=Step(), records=[{"id": "c"}])
    assert (await volume.collections.stored(KEY, 1)).records == {0: [{"id": "a"}], 12: [{"id": "b"}]}
    await volume.start_attempt(KEY, 2)
    assert (await volume.collections.stored(KEY, 2)).records == {0: [{"id": "c"}]}


async def test_the_volume_knows_which_steps_it_has_collected_for_a_verifier(volume: ResultsVolume) -> None:
    assert list((await volume.collections.stored(KEY, 1)).collected) == []
    await keep(volume, STREAM, TYPES, "agent")
    assert list((await volume.collections.stored(KEY, 1)).collected) == [0]
    assert list((await volume.collections.stored(KEY, 2)).collected) == []


async def test_nobody_else_sees_them(volume: ResultsVolume) -> None:
    await keep(volume, STREAM, TYPES, "agent")
    await volume.collections.store_records(KEY, attempt=1, step=Step(), records=[])
    data = b"".join([chunk async for chunk in volume.archive(KEY)])
    with tarfile.open(fileobj=io.BytesIO(data)) as stream:
        assert not [name for name in stream.getnames() if name.startswith(".")]
