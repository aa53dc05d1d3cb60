"""The signing keys in a mounted Secret, and their rotation while the gateway runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from multistep.gateway.keys.tokens import Keyring, read_signing_keys


def write(directory: Path, **keys: bytes) -> None:
    """Write the files of a Secret; each content is repeated to 32 bytes."""
    for name, content in keys.items():
        (directory / name).write_bytes(content * 32)


def test_signing_keys_are_the_files_k_and_a_number_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    write(tmp_path, k10=b"c", k9=b"b", k1=b"a", key=b"d", kx=b"e")
    (tmp_path / "admin-token").write_text("short")
    assert list(read_signing_keys(tmp_path).items()) == [("k1", b"a" * 32), ("k9", b"b" * 32), ("k10", b"c" * 32)]


@pytest.mark.parametrize(
    ("file", "content", "message"), [("k2", b"short", "k2: .* fewer than 32"), ("other", b"x", "no signing key")]
)
def test_a_directory_without_a_usable_key_is_an_error(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Keyring(tmp_path)


def test_a_key_that_is_added_or_removed_counts_within_seconds(tmp_path: Path) -> None:
    now = [0.0]
    write(tmp_path, k1=b"a")
    ring = Keyring(tmp_path, lambda: now[0])
    write(tmp_path, k2=b"b")
    assert list(ring.secrets()) == ["k1"]
    now[0] += 11
    assert list(ring.secrets()) == ["k1", "k2"]
    (tmp_path / "k1").unlink()
    now[0] += 11
    assert list(ring.secrets()) == ["k2"]


def test_a_bad_key_in_a_rotation_leaves_the_former_keys_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    write(tmp_path, k1=b"a")
    ring = Keyring(tmp_path, lambda: now[0])
    (tmp_path / "k2").write_bytes(b"short")
    now[0] += 11
    assert list(ring.secrets()) == ["k1"] and "fewer than 32 bytes" in caplog.text
    write(tmp_path, k2=b"b")
    now[0] += 11
    assert list(ring.secrets()) == ["k1", "k2"]
