"""Expensive tasks affect their own trial only: the event loop is not blocked, and the reading process is bounded."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import os
import signal
import tarfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from multistep.api.common.base_model import Metadata
from multistep.api.trial.content_references import Content
from multistep.api.trial.task_source import InlineSource
from multistep.errors import InvalidSpec, InvalidTask, MultistepError, SourceError
from multistep.reconcile.loading.load_tasks import TRIES, Reads
from multistep.sources.reader import fork_server
from multistep.sources.reader.fork_server import ForkServer, ReadFailed
from multistep.sources.reader.read_messages import ReadOrder
from multistep.sources.reader.read_task import FORK_SERVER, ReadTask, TaskReader
from multistep.sources.task.bundle import BundleEntry, digest_of, tar_chunks
from multistep.sources.task.task import IgnoreRules, strip_canary
from tests.support.work import superlinear
from tests.unit.sources.trees import tree

TOML = '[environment]\ndocker_image = "img"\n[[steps]]\nname = "a"\n'
STALL_SECONDS = (
    1.0  # maximum CPU seconds between two turns of the event loop; reading in the operator's process took 2.8 s to minutes
)
SLOW_PATTERN = "*a" * 14 + "b"


class Loop:
    """A measurement of the most CPU seconds that the event loop's thread took between two turns of a timer: the loop was blocked
    for as long. Unlike time on the clock, these do not depend on what else the machine does."""

    def __init__(self) -> None:
        self.stall = 0.0

    @asynccontextmanager
    async def measured(self) -> AsyncIterator[Loop]:
        """Measure while the with block runs."""

        async def tick() -> None:
            before = time.thread_time()
            while True:
                await asyncio.sleep(0.01)
                now = time.thread_time()
                self.stall, before = max(self.stall, now - before), now

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0.02)
        try:
            yield self
            await asyncio.sleep(0.02)
        finally:
            ticking.cancel()


async def read(directory: Path, data: bytes, server: ForkServer = FORK_SERVER, **options: Any) -> ReadTask:
    path = directory / digest_of(data)
    path.write_bytes(data)
    checks = {"verification": True, "oracle": False} | options
    return await TaskReader(directory, server.read).file("bundle", path, digest_of(data), **checks)


@pytest.fixture
def strict() -> Iterator[ForkServer]:
    """Return a server whose reads have 2 s of CPU time: the operator's 10 s would prove no more, and take five times as long."""
    server = ForkServer(cpu_seconds=2)
    yield server
    server.close()


def packed(entries: dict[str, bytes]) -> bytes:
    files = {"task.toml": TOML.encode(), "steps/a/instruction.md": b"do", "steps/a/tests/test.sh": b""} | entries
    chunks = tar_chunks([(path, BundleEntry("file", 0o644, data=data)) for path, data in sorted(files.items())])
    return gzip.compress(b"".join(chunks), 1)


async def test_a_slow_ignore_pattern_fails_its_trial_only(tmp_path: Path, strict: ForkServer) -> None:
    files = {"steps/a/tests/test.sh": "", "steps/a/instruction.md": "do", f"steps/a/tests/{'a' * 120}": ""}
    source = InlineSource(config={"steps": [{"name": "a"}]}, files=files | {"steps/a/tests/.harborignore": SLOW_PATTERN})
    quick, loop = source.model_copy(update={"files": files}), Loop()
    with closing(ForkServer(cpu_seconds=3600)) as patient:  # so the slow read cannot end before the other one
        reader = TaskReader(tmp_path, patient.read)
        await reader.inline(quick, verification=True, oracle=False)  # starts the server
        async with loop.measured():
            slow = asyncio.create_task(reader.inline(source, verification=True, oracle=False))
            other = await reader.inline(quick, verification=True, oracle=False)
            assert other.layout.steps["a"].test_script and not slow.done()
        slow.cancel()
        await asyncio.wait([slow])
    async with loop.measured():
        with pytest.raises(InvalidSpec, match=r"more than 2 s of CPU time: make patterns in \.harborignore simpler"):
            await TaskReader(tmp_path, strict.read).inline(source, verification=True, oracle=False)
    assert loop.stall < STALL_SECONDS


async def test_a_key_of_task_toml_with_very_many_parts_fails_its_trial_only(tmp_path: Path, strict: ForkServer) -> None:
    async with Loop().measured() as loop:
        with pytest.raises(InvalidTask, match="more than the allowed 1000 parts"):
            await read(tmp_path, packed({"task.toml": b"a." * 120_000 + b"b = 1\n"}), strict)
    assert loop.stall < STALL_SECONDS


async def test_many_entries_do_not_stall_the_loop(tmp_path: Path) -> None:
    data = packed({f"environment/{number}": b"" for number in range(49_000)})
    async with Loop().measured() as loop:
        found = await read(tmp_path, data)
        size = 0
        async for chunk in as_async(found, "environment"):
            size += len(chunk)
    assert found.layout.environment_files and size == 49_000 * 512 + 1024
    assert loop.stall < STALL_SECONDS and found.memory < 10_000


async def test_the_digest_of_an_upload_is_that_of_its_stream(tmp_path: Path) -> None:
    small = await read(tmp_path, packed({}))
    large = await read(tmp_path, packed({"environment/large": bytes(5 << 20)}))
    tests = Content("tests", "a")
    assert small.file < 0 <= large.file
    assert await small.sha256(tests) == await large.sha256(tests) == hashlib.sha256(b"".join(small.content(tests))).hexdigest()  # type: ignore[arg-type]
    digest = hashlib.sha256()
    async for chunk in as_async(large, "environment"):
        digest.update(chunk)
    assert await large.sha256(Content("environment")) == await large.sha256(Content("environment")) == digest.hexdigest()
    with pytest.raises(SourceError, match="no directory tests/"):
        await small.sha256(Content("tests"))


async def as_async(found: ReadTask, kind: Any) -> AsyncIterator[bytes]:
    chunks = found.content(Content(kind))
    assert isinstance(chunks, AsyncIterator)
    async for chunk in chunks:
        yield chunk


async def test_a_small_bundle_that_unpacks_to_250_mib_takes_no_memory_of_the_operator(tmp_path: Path) -> None:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w:gz", compresslevel=9) as tar:
        for path, size in {"task.toml": len(TOML), "steps/a/instruction.md": 2, "steps/a/tests/test.sh": 0}.items():
            info = tarfile.TarInfo(path)
            info.size = size
            tar.addfile(info, io.BytesIO(TOML.encode()[:size]))
        info = tarfile.TarInfo("environment/zeros")
        info.size = 250 << 20
        tar.addfile(info, Zeros())  # type: ignore[arg-type]
    assert len(whole.getvalue()) < 300_000
    before = resident()
    found = await read(tmp_path, whole.getvalue())
    assert resident() - before < 32 << 20 and found.disk < 251 << 20


class Zeros:
    """An endless file of zeros."""

    def read(self, size: int) -> bytes:
        return bytes(size)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_an_instruction_of_newlines_is_read_and_one_too_large_is_refused(tmp_path: Path) -> None:
    async with Loop().measured() as loop:
        found = await read(tmp_path, packed({"steps/a/instruction.md": b"\n" * 600_000}))
        with pytest.raises(SourceError, match="more than the limit") as caught:
            await read(tmp_path, packed({"steps/a/instruction.md": b"x" * (3 << 20)}))
    assert found.layout.steps["a"].instruction == "" and caught.value.reason == "TaskTooLarge"
    assert loop.stall < STALL_SECONDS


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"steps/a/instruction.md": bytes(200 << 20)}, "more memory than|more than the limit"),
        ({"task.toml": b"x = '" + b"y" * (300 << 10) + b"'\n" + TOML.encode()}, "task.toml has .* more than the limit"),
        (
            {"task.toml": (TOML + "".join(f'[[steps]]\nname = "s{n}"\n' for n in range(1500))).encode()},
            "more than the limit of 1000",
        ),
    ],
)
async def test_what_would_be_large_in_the_operator_is_too_large(tmp_path: Path, entries: dict[str, bytes], message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        await read(tmp_path, packed(entries), verification=False)
    assert caught.value.reason == "TaskTooLarge" and not caught.value.transient


async def test_a_server_that_was_killed_is_started_again(tmp_path: Path) -> None:
    server = ForkServer()
    path = tmp_path / "bundle"
    path.write_bytes(packed({}))
    for _ in range(2):
        reader = TaskReader(tmp_path, server.read)
        await reader.file("bundle", path, digest_of(path.read_bytes()), verification=True, oracle=False)
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGKILL)
        server._process.wait()
    server.close()


# -- the limit of concurrent reads


def asker(name: str, namespace: str = "a") -> Metadata:
    return Metadata(name=name, namespace=namespace, uid=f"{namespace}-{name}")


async def never() -> ReadTask:
    await asyncio.Event().wait()
    raise AssertionError


async def refused(reads: Reads, who: Metadata, run: Callable[[], Awaitable[ReadTask]]) -> MultistepError:
    with pytest.raises(MultistepError) as caught:
        await reads.get(who, (who.uid,), run)
    return caught.value


async def test_slow_reads_of_one_namespace_leave_a_slot_for_others(tmp_path: Path) -> None:
    reads = Reads(lambda _: None, patience_seconds=0.01)
    for number in range(10):
        assert "is being read" in str(await refused(reads, asker(str(number)), never))

    async def quick() -> ReadTask:
        return await TaskReader(tmp_path).inline(InlineSource(config={"steps": [{"name": "a"}]}), verification=False, oracle=False)

    reads.patience_seconds = 30.0
    assert (await reads.get(asker("x", "b"), ("x",), quick)).config.steps
    await reads.stop()


async def test_a_server_that_hangs_is_replaced_after_the_read_that_it_left_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = ForkServer()
    reader = TaskReader(tmp_path, server.read)
    task = InlineSource(config={"steps": [{"name": "a"}]})
    await reader.inline(task, verification=False, oracle=False)
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(fork_server, "WALL_SECONDS", 0.0)
        patched.setattr(fork_server, "_LONGER_SECONDS", 0.1)
        with pytest.raises(ReadFailed):
            await reader.inline(task, verification=False, oracle=False)
    assert (await reader.inline(task, verification=False, oracle=False)).config.steps
    server.close()


async def test_a_read_that_never_ends_frees_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multistep.reconcile.loading.load_tasks.MAX_SECONDS", 0.01)
    reads = Reads(lambda _: None, patience_seconds=60.0)

    async def hang() -> ReadTask:
        await asyncio.Event().wait()
        raise AssertionError

    assert "took more than" in str(await refused(reads, asker("x"), hang))
    assert "took more than" in str(await refused(reads, asker("y"), hang)), "it had the namespace's only slot"


async def test_a_process_that_dies_again_and_again_fails_the_trial() -> None:
    reads = Reads(lambda _: None, patience_seconds=60.0)

    async def die() -> ReadTask:
        raise ReadFailed("the process that read the task was killed")

    for _ in range(TRIES - 1):
        error = await refused(reads, asker("x"), die)
        assert isinstance(error, SourceError) and error.transient
    error = await refused(reads, asker("x"), die)
    assert isinstance(error, InvalidSpec) and f"{TRIES} times in a row" in str(error)


async def test_a_trial_is_requeued_when_its_read_ends_and_gets_its_error() -> None:
    woken: list[Any] = []
    reads = Reads(woken.append, patience_seconds=0.01)
    gate = asyncio.Event()

    async def run() -> ReadTask:
        await gate.wait()
        raise InvalidSpec("spec.task: no")

    assert (await refused(reads, asker("x"), run)).reason == "TaskFetching"  # type: ignore[attr-defined]
    gate.set()
    while not woken:
        await asyncio.sleep(0.01)
    assert woken == [("a", "x")]
    assert str(await refused(reads, asker("x"), run)) == "spec.task: no"


async def test_an_answer_that_is_none_is_a_failed_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = ForkServer()

    async def exchange(order: bytes) -> tuple[bytes, int | None]:
        return b'{"task": ' + b"[" * 100_000, 0

    monkeypatch.setattr(server, "_exchange", exchange)
    with pytest.raises(ReadFailed, match="gave no answer"):
        await server.read(ReadOrder("bundle", "a", "b"))


# -- parsers take linear time


@pytest.mark.parametrize("line", ["\n", "# canary\n", "<!-- canary canary -->\n", "\r\n", "<!-- canary"])
def test_instructions_take_linear_time(line: str) -> None:
    assert superlinear(lambda number: strip_canary(line * number), 50_000) == ""


@pytest.mark.parametrize("name", ["a" * 10, "b/" * 5 + "c"])
def test_ignore_rules_take_linear_time_in_their_number(name: str) -> None:
    def check(number: int) -> object:
        bundle = tree({"tests/.harborignore": f"{name}\n" * number, "tests/x": ""})
        return IgnoreRules(bundle).excludes("tests/x")

    assert superlinear(check, 500) == ""
