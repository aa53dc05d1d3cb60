"""Tests of the protocol's frames and their errors."""

from __future__ import annotations

import asyncio
import io
from unittest.mock import AsyncMock, Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from multistep_host.frames import Connection, GuestError, RefusedError, TransferError
from multistep_host.output import BoundedOutput
from runner import frame


def connection(received: bytes) -> tuple[Connection, bytearray]:
    """Return a connection that receives these bytes, and a buffer that gets the bytes that it sends."""
    reader, sent = asyncio.StreamReader(), bytearray()
    reader.feed_data(received)
    reader.feed_eof()
    writer = Mock(write=sent.extend, drain=AsyncMock())
    return Connection(reader, writer), sent


@given(st.binary(max_size=2000))
async def test_a_body_arrives_as_it_was_sent(content: bytes) -> None:
    sender, sent = connection(b"")
    await sender.send_body(io.BytesIO(content))
    receiver, _ = connection(bytes(sent))
    received = bytearray()
    await receiver.receive_body(received.extend, len(content))
    assert received == content


@given(st.binary(max_size=60))
async def test_no_bytes_of_a_runner_raise_anything_but_a_guest_error(received: bytes) -> None:
    with pytest.raises(GuestError):
        await connection(received)[0].receive_body(lambda _: None, 1000)
    with pytest.raises(GuestError):
        await connection(received)[0].answer()


async def test_a_body_over_the_limit_is_an_error() -> None:
    with pytest.raises(TransferError, match="larger than 3 bytes"):
        await connection(frame(b"D", b"1234"))[0].receive_body(lambda _: None, 3)


async def test_an_aborted_body_is_an_error_with_the_runners_reason() -> None:
    with pytest.raises(GuestError, match="the disk failed"):
        await connection(frame(b"E", b'{"size":0,"error":"the disk failed"}'))[0].receive_body(lambda _: None, 3)


async def test_a_frame_over_the_limit_is_not_read() -> None:
    with pytest.raises(GuestError, match="invalid frame"):
        await connection(b"D\xff\xff\xff\xff")[0].frame()


async def test_a_refusal_has_the_protocols_code() -> None:
    refusal = frame(b"J", b'{"ok":false,"error":{"code":"Refused","message":"not root"}}')
    with pytest.raises(RefusedError, match="not root") as raised:
        await connection(refusal)[0].answer()
    assert raised.value.code == "Refused"


@given(st.lists(st.binary(max_size=50)), st.integers(0, 40), st.integers(1, 40))
def test_output_keeps_the_start_and_the_end(blocks: list[bytes], head: int, tail: int) -> None:
    output = BoundedOutput(head, tail)
    for block in blocks:
        output.write(block)
    everything = b"".join(blocks)
    left_out = max(0, len(everything) - head - tail)
    gap = f"\n[... {left_out} bytes left out ...]\n".encode()
    expected = everything[:head] + gap + everything[-tail:] if left_out else everything
    assert output.text() == expected.decode(errors="replace")
