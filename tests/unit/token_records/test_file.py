"""Files of token records: what is written is read again, also after a crash; a forged file costs bounded memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from multistep.token_records.frames import frame_of
from multistep.token_records.read_file import read
from multistep.token_records.record import StepRecords
from multistep.token_records.write_file import Writer

HEAD = {"step": "one"}


def fields(order: int, ids: list[int], **more: Any) -> dict[str, Any]:
    """Return the fields of a record with some ids."""
    logprobs = array("f", [-0.5] * len(ids))
    values = {"answer": f"a{order}", "order": order, "began": 1.0, "ended": 2.0, "step": "one", "choice": 0, "context": "main"}
    values |= {"id": f"r{order}", "finish": "stop", "state": "Done", "seen": 1}
    return {**values, "ids": array("I", ids), "logprobs": logprobs, **more}


def write(writer: Writer, order: int, prompt: list[int], ids: list[int], **more: Any) -> None:
    writer.record(writer.prompt(array("I", prompt)), **fields(order, ids, **more))


def conversation(writer: Writer, orders: range) -> dict[int, list[int]]:
    """Write requests whose prompts grow by 303 tokens each, and return their prompts."""
    prompts = {order: list(range(1000 + 303 * order)) for order in orders}
    for order, prompt in prompts.items():
        write(writer, order, prompt, [order, order + 1])
    return prompts


def test_a_closed_file_has_all_that_was_written(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tokens", {**HEAD, "server": "vLLM"})
    write(writer, 0, [1, 2], [3, 4], versions=[(0, "7"), (1, "8")], sampling={"temperature": 0.5, "stop": ["x"], "seed": 10**30})
    prompts = conversation(writer, range(1, 20))
    writer.close()
    found = read(tmp_path / "tokens")
    assert found.complete and found.head == {"v": 1, "step": "one", "server": "vLLM"}
    first, *others = found.records
    assert (list(first.prompt), list(first.ids), list(first.logprobs)) == ([1, 2], [3, 4], [-0.5, -0.5])
    assert (first.versions, first.sampling, first.state) == ([(0, "7"), (1, "8")], {"temperature": 0.5}, "Done")
    assert {each.order: list(each.prompt) for each in others} == prompts
    assert (tmp_path / "tokens").stat().st_size == writer.size < sum(map(len, prompts.values()))  # a quarter of the ids' bytes


def test_records_are_sorted_in_the_order_of_their_requests(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tokens", HEAD)
    for order in (2, 0, 1):
        write(writer, order, [order], [5])
    writer.close()
    assert [each.order for each in read(tmp_path / "tokens").records] == [0, 1, 2]


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=700), max_size=6), st.data())
def test_after_a_crash_at_any_byte_a_file_continues_with_the_records_before_it(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("crash") / "tokens"
    writer = Writer(path, HEAD)
    ends = []
    for order, prompt in enumerate(prompts):
        write(writer, order, prompt, [order])
        ends.append(writer.size)
    writer.stop()
    cut = data.draw(st.integers(0, writer.size))
    path.write_bytes(path.read_bytes()[:cut])
    short = read(path)
    assert not short.complete and len(short.records) == sum(end <= cut for end in ends)
    again = Writer(path, HEAD)
    assert {name for name, _ in again.recorded} == {each.id for each in short.records}
    for order, prompt in enumerate(prompts):
        write(again, order, prompt, [order])  # what the file has is not written twice
    again.close()
    found = read(path)
    assert found.complete and [list(each.prompt) for each in found.records] == prompts
    assert again.size == path.stat().st_size


def test_a_continued_file_has_the_tokens_of_each_version(tmp_path: Path) -> None:
    for number, versions in enumerate([[(0, "1"), (2, "2")], [], [(0, "2")]]):
        writer = Writer(tmp_path / "tokens", HEAD)
        write(writer, number, [1], [2, 3, 4], versions=versions)
        writer.stop()
    assert writer.versions == {"1": 2, "2": 4}


def test_a_closed_file_stays_closed(tmp_path: Path) -> None:
    Writer(tmp_path / "tokens", HEAD).close()
    first = (tmp_path / "tokens").read_bytes()
    again = Writer(tmp_path / "tokens", HEAD)
    assert again.closed
    with pytest.raises(ValueError, match="closed"):
        write(again, 1, [1], [2])
    again.close()
    again.close()
    assert (tmp_path / "tokens").read_bytes() == first and read(tmp_path / "tokens").complete


def test_what_exceeds_the_limit_is_counted(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tokens", HEAD, lambda size, added: "Step" if size + added > 4000 else "")
    conversation(writer, range(30))
    assert 0 < len(writer.recorded) < 30 and writer.size <= 4000
    writer.close()
    found = read(tmp_path / "tokens")
    assert found.why == f"0 requests have no record, and {writer.dropped['Step']} records exceeded a limit of bytes"
    assert len(found.records) + writer.dropped["Step"] == 30


def test_a_request_without_a_record_makes_the_file_incomplete(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tokens", HEAD)
    write(writer, 1, [1], [2])
    writer.close(["r2"])
    found = read(tmp_path / "tokens")
    assert not found.complete and len(found.records) == 1


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tokens", HEAD)
    size = writer.size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, hard))  # Python ignores SIGXFSZ
    try:
        with pytest.raises(OSError):
            write(writer, 1, [1], [2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert writer.size == (tmp_path / "tokens").stat().st_size == size and not writer.recorded
    write(writer, 1, [1], [2])
    writer.close()
    assert read(tmp_path / "tokens").complete


def forged(path: Path, *objects: Any) -> StepRecords:
    path.write_bytes(frame_of([{"t": "head", "v": 1}]) + b"".join(frame_of([each]) for each in objects))
    return read(path)


RECORD = {"t": "record", "blocks": b"", "rest": b"", **fields(1, []), "ids": b"", "logprobs": b""}
CLOSE = {"t": "close", "records": 0, "tokens": 0, "dropped": 0, "missing": []}


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([{"t": "head", "v": 1}], "does not start with its only head"),
        ([{"t": "block", "ids": b"1234"}], "a block does not have 1024 bytes"),
        ([{**RECORD, "blocks": b"\0\0\0\0"}], "an object is invalid: list index out of range"),
        ([{**RECORD, "rest": bytes(1024)}], "not shorter than a block"),
        ([{**RECORD, "rest": bytes(3)}], "not shorter than a block"),
        ([{**RECORD, "ids": b"123"}], "an object is invalid"),
        ([{**RECORD, "ids": [1]}], "an object is invalid"),
        ([{**RECORD, "state": "Fine"}], "an object is invalid"),
        ([RECORD, RECORD], "request r1 has two records"),
        ([CLOSE, RECORD], "objects follow the file's end"),
        ([RECORD, CLOSE], "the file has 1 records and 0 tokens instead of 0 and 0"),
        ([{**CLOSE, "missing": 3}], "an object is invalid"),
        ([{"t": "more"}], "unknown kind 'more'"),
        ([{"t": ["more"]}], "unknown kind"),
        ([{"v": 1}], "an object is invalid: 't'"),
        ([[]], "it is not a map"),
        ([{"t": "block", "ids": [[]] * 4000 + [[[]] * 100]}], "more than 4096 items"),
        ([{"t": "block", "ids": msgpack.Timestamp(1)}], "an object is invalid"),
    ],
)
def test_a_forged_object_ends_the_file(tmp_path: Path, objects: list[Any], why: str) -> None:
    found = forged(tmp_path / "tokens", *objects)
    assert not found.complete and why in found.why


def test_a_file_of_another_version_or_format_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(frame_of([{"t": "head", "v": 2}]))
    assert read(path).why == "the file has version 2, and only version 1 can be read"
    path.write_bytes(frame_of([RECORD]))
    assert read(path).why == "the file does not start with its only head"
    path.write_bytes(b"not a frame")
    assert "the frame at byte 0 is damaged" in read(path).why
    path.write_bytes(b"")
    assert "the file has no end" in read(path).why


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "tokens", HEAD)
    conversation(writer, range(3))
    writer.close()
    good = (tmp_path / "tokens").read_bytes()
    for place in range(0, len(good), 11):
        (tmp_path / "tokens").write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        found = read(tmp_path / "tokens")
        assert not found.complete and found.records == read(tmp_path / "tokens").records


READ = """
import resource, sys
from pathlib import Path
from multistep.token_records.read_file import read
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + (320 << 20),) * 2)
print(read(Path(sys.argv[1])).why)
"""
A_THOUSAND = b"\xdc\x03\xe8"  # the head of a list of 1,000 items
HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "zeros": (lambda: zstandard.compress(bytes(256 << 20)), "has more than 67108864 bytes"),
    "many objects": (lambda: frame_of([{"t": "head", "v": 1}]) + zstandard.compress(b"\x80" * (60 << 20)), "'t'"),
    "long list": (lambda: zstandard.compress(b"\xdd\xff\xff\xff\xff"), "exceeds max_array_len"),
    "deep list": (lambda: zstandard.compress(b"\x91" * (60 << 20)), "an object is invalid"),
    "many lists": (
        lambda: zstandard.compress(b"\x81\xa1x\xdc\x00\x3c" + (A_THOUSAND + (A_THOUSAND + bytes(1000)) * 1000) * 60),
        "more than 4096 items",
    ),
    "long prompt": (
        lambda: frame_of([{"t": "head", "v": 1}, {"t": "block", "ids": bytes(1024)}, {**RECORD, "blocks": bytes(60 << 20)}]),
        "the prompts have too many tokens",
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_forged_file_costs_bounded_memory(tmp_path: Path, kind: str) -> None:
    content, why = HOSTILE[kind]
    (tmp_path / "tokens").write_bytes(content())
    done = subprocess.run([sys.executable, "-c", READ, tmp_path / "tokens"], capture_output=True, text=True, check=True)
    assert why in done.stdout


def test_files_are_written_in_several_threads_at_once(tmp_path: Path) -> None:
    def write(number: int) -> bool:
        path = tmp_path / str(number)
        writer = Writer(path, {})
        for start in range(20):
            writer.prompt(array("I", range(start, start + 20_000)))
        writer.close()
        return read(path).complete

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(write, range(8)))
