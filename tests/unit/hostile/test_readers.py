"""Parsers of untrusted input return a valid result, or raise one of Multistep's errors with a message of bounded size."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from multistep.api.task.task_toml import parse_task
from multistep.api.trial.runner_records import HealthcheckResult, Hello, PhaseResult, Record
from multistep.api.trial.trial import parse_status, parse_trial
from multistep.engine.score.rewards import RewardError, parse_reward_files
from multistep.errors import InvalidSpec, InvalidTask, MultistepError, RunnerError, SourceError, StoreError
from multistep.runner_client.frame_stream import HEADER, FrameReader, encode_json
from multistep.sources.task.bundle import Bundle, BundleEntry, BundleLimits, digest_of
from multistep.sources.task.task import load_task
from multistep.store.files.read_tar import tar_members
from tests.support.fake_runner import FakeRunner
from tests.support.hostile import json_values, spoilt, spoilt_bytes
from tests.support.phase_results import DEFAULTS
from tests.support.tar_streams import odd_files
from tests.support.world import manifest

MAX_MESSAGE_CHARACTERS = 20_000


def read(reader: Callable[[], object], *errors: type[Exception]) -> None:
    try:
        reader()
    except errors as error:
        assert 0 < len(str(error)) <= MAX_MESSAGE_CHARACTERS
        assert isinstance(error, MultistepError | RewardError)


# -- messages of a runner


@given(st.binary(max_size=60) | spoilt_bytes(encode_json(b"J", {"ok": True}) * 3), st.integers(1, 20))
def test_frames(data: bytes, size: int) -> None:
    reader = FrameReader()

    def feed() -> None:
        for start in range(0, len(data), size):
            reader.feed(data[start : start + size])
            for frame in reader:
                if frame.kind != b"D":
                    frame.json()
        assert len(reader._buffer) <= len(data)

    read(feed, RunnerError)


@pytest.mark.parametrize("length", [2**32 - 1, 2**24 + 1, 2**20 + 1])
def test_a_frame_that_would_be_too_large_is_refused_by_its_header(length: int) -> None:
    reader = FrameReader()
    reader.feed(HEADER.pack(b"D", length))
    with pytest.raises(RunnerError, match=str(length)):
        reader.next()


def test_json_of_very_many_small_values_is_refused() -> None:
    reader = FrameReader()
    reader.feed(encode_json(b"J", {"ok": True, "record": [[]] * 300_000}))
    frame = reader.next()
    assert frame is not None
    with pytest.raises(RunnerError, match="250000 values"):
        frame.json()


def good_record(op: str = "start") -> Any:
    started = {"id": "1/a/x", "op": op, "state": "done", "startedAt": 1.5, "endedAt": 2, "acknowledged": True}
    capture = {"/r": {"base64": "MQ==", "size": 1, "truncated": False}, "/none": None}
    return {**started, "result": {**DEFAULTS[op], **({"captures": capture} if op == "start" else {})}}


HELLO = FakeRunner().answer({"op": "hello", "protocols": [1]}) | {"records": [good_record(), good_record("healthcheck")]}


def read_record(value: Any) -> None:
    record = Record.from_json(value)
    json.dumps(record.to_json())
    if record.done:
        (PhaseResult if record.op == "start" else HealthcheckResult).from_record(record)


@given(json_values | spoilt(HELLO))
def test_hello(value: Any) -> None:
    read(lambda: Hello.from_json(value), RunnerError)


@given(json_values | spoilt(good_record()) | spoilt(good_record("healthcheck")))
def test_records(value: Any) -> None:
    read(lambda: read_record(value), RunnerError)


# -- reward files

GOOD_REWARD = b'{"reward": 0.5, "style": 1, "deep": [{"a": null}]}'
NUMBERS = [
    b"1e400",
    b"-1e400",
    b"NaN",
    b"Infinity",
    b"9" * 5000,
    b"0x1",
    b"1_0",
    b"\xff",
    b"\xef\xbb\xbf1",
    b"1\0",
    b" 1 ",
    b"True",
]
rewards = (
    st.binary(max_size=40)
    | st.sampled_from(NUMBERS)
    | spoilt_bytes(GOOD_REWARD)
    | json_values.map(lambda v: json.dumps(v).encode())
)


@given(st.none() | rewards, st.none() | rewards)
@example(b'{"reward": ' + b"9" * 5000 + b"}", None)
@example(b'{"reward": 1e400}', None)
@example(b'{"' + b"k" * 60_000 + b'": "x"}', None)
@example(b'{"\\ud800": "x"}', None)
def test_reward_files(as_json: bytes | None, as_text: bytes | None) -> None:
    read(lambda: parse_reward_files(as_json, as_text), RewardError)


@pytest.mark.parametrize("depth", [10, 500, *range(930, 1010, 4), 5000, 30_000])
def test_nested_rewards(depth: int) -> None:
    for data in (
        b"[" * depth + b"]" * depth,
        b'{"a":' * depth + b"1" + b"}" * depth,
        b'{"a":' + b"[" * depth + b"]" * depth + b"}",
    ):
        with pytest.raises(RewardError):
            parse_reward_files(data, None)


# -- tasks and resources

TOML = """
version = "1.0"
artifacts = ["/app/out", {source = "/x", exclude = ["*.o"]}]
[environment]
docker_image = "img"
cpus = 1
memory_mb = 512
[environment.healthcheck]
command = "true"
[verifier.env]
A = "${B:-c}"
[[steps]]
name = "a"
min_reward = {reward = 0.5}
[steps.agent]
timeout_sec = 10.5
[[steps]]
name = "b"
"""


@given(st.text(max_size=60) | spoilt_bytes(TOML.encode()).map(lambda data: data.decode(errors="surrogateescape")))
@example("a = " + "[" * 5000)
@example("a." * 5000 + "b = 1")
def test_task_toml(text: str) -> None:
    read(lambda: parse_task(text), InvalidTask)


@given(st.binary(max_size=40) | spoilt_bytes(TOML.encode()))
@example(b"\xff\xfe")
def test_task_directories(data: bytes) -> None:
    entries = {"task.toml": BundleEntry("file", data=data), "steps/a/instruction.md": BundleEntry("file", data=data)}
    read(lambda: load_task(Bundle.from_entries(entries), verification=True, oracle=True), InvalidTask, SourceError)


GOOD_SPEC = manifest({"agent": {"name": "command", "command": ["x"]}, "verifier": {"env": [{"name": "A", "value": "b"}]}})["spec"]
GOOD_STATUS = {
    "phase": "Running", "attempt": 1, "podName": "t-1", "podUID": "uid-1", "startTime": "2026-01-01T00:00:00Z",
    "conditions": [{"type": "Failed", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "x"}],
    "steps": [{"name": "a", "rewards": {"reward": 1}, "exception": {"type": "x", "message": "y"}}],
    "attempts": [{"number": 1, "completionTime": "2026-01-01T00:00:00Z"}], "verifier": {"podName": "t-1-v0"},
}  # fmt: skip


@given(json_values | spoilt(GOOD_SPEC), json_values | spoilt(GOOD_STATUS))
def test_resources(spec: Any, status: Any) -> None:
    metadata = {"name": "t", "namespace": "n", "uid": "u"}
    read(lambda: parse_trial({"metadata": metadata, "spec": spec}), InvalidSpec)
    read(lambda: parse_status({"status": status}), InvalidSpec)


# -- tar streams


def odd_tar() -> bytes:
    """Return a tar with members that no regular runner sends."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.LNKTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE):
            member = tarfile.TarInfo(f"kind-{kind.decode()}")
            member.type, member.linkname = kind, "../../etc/passwd"
            tar.addfile(member)
        long = tarfile.TarInfo("n" * 10_000)
        long.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "99999", "size": "7"}
        long.size = 600
        tar.addfile(long, io.BytesIO(b"1\n0\n9\n".ljust(600, b"\0")))
    return out.getvalue()


def mended(data: bytes) -> bytes:
    """Return the data with correct checksums in all blocks that look like tar headers, so that the parser accepts these headers."""
    blocks = [bytearray(data[start : start + 512]) for start in range(0, len(data), 512)]
    for block in blocks:
        if len(block) == 512 and block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            block[148:156] = b"%06o\0 " % sum(block)
    return b"".join(bytes(block) for block in blocks)


tars = st.binary(max_size=1600) | st.sampled_from([odd_files(), odd_tar()]).flatmap(lambda good: spoilt_bytes(good).map(mended))


@given(tars)
@example(odd_tar())
def test_tars_of_a_runner(data: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()

        def names() -> None:
            for member in tar_members(file.fileno()):
                assert 0 <= member.offset <= member.offset + member.size <= len(data)
                os.fsencode(member.name)

        read(names, StoreError)


@given(tars)
@example(odd_tar())
@example(odd_files())
def test_bundles(data: bytes) -> None:
    packed = gzip.compress(data, 1)
    read(lambda: Bundle.from_archive(packed, digest_of(packed), BundleLimits(1 << 20, 1 << 20, 100)), SourceError)


@given(spoilt_bytes(gzip.compress(odd_files())))
def test_bundles_that_are_no_gzip(data: bytes) -> None:
    read(lambda: Bundle.from_archive(data, digest_of(data), BundleLimits(1 << 20, 1 << 20, 100)), SourceError)
