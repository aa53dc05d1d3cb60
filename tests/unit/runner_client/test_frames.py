from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep.errors import RunnerError
from multistep.runner_client.frame_stream import (
    DATA,
    END,
    HEADER,
    MAX_PAYLOAD_BYTES,
    MESSAGE,
    Frame,
    FrameReader,
    encode,
    encode_json,
)

FRAMES = st.lists(st.builds(Frame, st.sampled_from([MESSAGE, DATA, END]), st.binary(max_size=300)), max_size=8)


@given(frames=FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(encode(frame.kind, frame.payload) for frame in frames)
    reader, got, at, turn = FrameReader(), [], 0, 0
    while at < len(data):
        step = cuts[turn % len(cuts)]
        reader.feed(data[at : at + step])
        got += list(reader)
        at, turn = at + step, turn + 1
    assert got == frames
    assert len(reader._buffer) == 0


@given(data=st.binary(max_size=2000))
def test_any_bytes_at_all_are_frames_or_a_protocol_error(data: bytes) -> None:
    reader = FrameReader()
    reader.feed(data)
    try:
        frames = list(reader)
    except RunnerError as error:
        assert error.code == "Protocol"
    else:
        assert b"".join(encode(frame.kind, frame.payload) for frame in frames) == data[: len(data) - len(reader._buffer)]


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    reader = FrameReader()
    reader.feed(encode(DATA, bytes(MAX_PAYLOAD_BYTES)))
    assert reader.next() == Frame(DATA, bytes(MAX_PAYLOAD_BYTES))
    with pytest.raises(ValueError, match="exceeds the limit of 1048576"):
        encode(DATA, bytes(MAX_PAYLOAD_BYTES + 1))
    reader.feed(HEADER.pack(DATA, MAX_PAYLOAD_BYTES + 1))  # rejected by its header: the payload is not buffered
    with pytest.raises(RunnerError, match="1048577 bytes"):
        reader.next()


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"[]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 500_000, b"9" * 10_000],
    ids=["empty", "cut", "list", "text", "no UTF-8", "NaN", "nested", "huge number"],
)
def test_what_is_no_json_object_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(RunnerError) as caught:
        Frame(MESSAGE, payload).json()
    assert caught.value.code == "Protocol"


def test_a_json_frame_is_compact() -> None:
    assert encode_json(MESSAGE, {"op": "hello", "protocols": [1]}) == b'J\x00\x00\x00\x1e{"op":"hello","protocols":[1]}'


def test_a_json_frame_never_holds_what_json_has_not() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        encode_json(MESSAGE, {"timeoutSeconds": float("inf")})
