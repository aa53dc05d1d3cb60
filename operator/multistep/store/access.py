"""Who may read a trial's results: whoever knows its token, which only the trial's status tells."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from secrets import token_bytes, token_hex

KEY_FILE = ".access-key"
_KEY_BYTES = 32
_TOKEN_CHARACTERS = 32  # of hexadecimal: 128 bits


def load_or_make_key(path: Path) -> bytes:
    """The secret in a file, readable by its owner only; made if it is not there. Two at once get the same one."""
    if not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(f"{path} does not hold {_KEY_BYTES} bytes; delete it, and former result addresses end")
    return key


def _make_key(path: Path) -> None:
    scratch = path.with_name(f"{path.name}-{token_hex(8)}")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, token_bytes(_KEY_BYTES))
        os.fsync(fd)
        os.link(scratch, path)
    except FileExistsError:
        pass  # somebody was faster
    finally:
        os.close(fd)
        scratch.unlink()


def token(key: bytes, subject: str) -> str:
    """The token for a subject."""
    return hmac.new(key, subject.encode(), hashlib.sha256).hexdigest()[:_TOKEN_CHARACTERS]
