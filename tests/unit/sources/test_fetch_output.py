"""The file that a fetch writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep.sources.fetch.output_file import OutputFile
from tests.support.full_disk import file_on_a_full_disk


def test_what_does_not_fit_on_the_disk_is_deleted(tmp_path: Path) -> None:
    """Closing the file fails as well, because that writes the buffered bytes. Files that stayed would fill the disk for good."""
    with pytest.raises(OSError, match="No space left on device"), OutputFile(tmp_path) as output:
        output._stream.close()
        output._stream = file_on_a_full_disk()
        output.write(b"x")
        output._stream.flush()
    with pytest.raises(OSError, match="No space left on device"), OutputFile(tmp_path) as output:
        output._stream.close()
        output._stream = file_on_a_full_disk()
        output.write(b"x")  # stays in the buffer until the file is closed
    assert list(tmp_path.iterdir()) == []
