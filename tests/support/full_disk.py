"""Files whose data does not fit on the disk."""

from __future__ import annotations

from io import DEFAULT_BUFFER_SIZE, BufferedWriter, FileIO


def file_on_a_full_disk(buffer_bytes: int = DEFAULT_BUFFER_SIZE) -> BufferedWriter:
    """Open a file on a full disk. Only flushing its buffer fails: when the buffer is full, and when the file is closed."""
    return BufferedWriter(FileIO("/dev/full", "w"), buffer_bytes)
