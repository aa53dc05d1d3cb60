"""Creates and checks the tokens that give access to a trial's results, and the secret from which they are derived."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from secrets import token_bytes, token_hex

from multistep.store.files.trial_key import TrialKey

KEY_FILE = ".access-key"
_KEY_BYTES = 32
_TOKEN_CHARACTERS = 32  # hexadecimal digits, 128 bits


class AccessTokens:
    """Creates and checks the access tokens of results and histories. ``key`` is the secret from which tokens are derived."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def token(self, key: TrialKey) -> str:
        """Return the token that gives access to these results, 32 hexadecimal characters."""
        return self._token(str(key))

    def _token(self, about: str) -> str:
        return hmac.new(self._key, about.encode(), hashlib.sha256).hexdigest()[:_TOKEN_CHARACTERS]

    def history_token(self, namespace: str) -> str:
        """Return the token that gives access to the history of a namespace. No trial has it, because a trial's key has a name."""
        return self._token(f"history/{namespace}")

    def grants(self, key: TrialKey, shown: str) -> bool:
        """Return whether ``shown`` is the trial's token. The comparison takes constant time."""
        return _are_equal(self.token(key), shown)

    def grants_history(self, namespace: str, shown: str) -> bool:
        """Return whether ``shown`` is the token of the namespace's history. The comparison takes constant time."""
        return _are_equal(self.history_token(namespace), shown)

    def uri(self, base: str, key: TrialKey) -> str:
        """Return the URL of the results. ``base`` is the URL of the operator's HTTP server."""
        return f"{base.rstrip('/')}/results/{key}/{self.token(key)}"

    def history_uri(self, base: str, namespace: str) -> str:
        """Return the URL of a namespace's history. ``base`` is the URL of the operator's HTTP server."""
        return f"{base.rstrip('/')}/history/{namespace}/{self.history_token(namespace)}"

    def build_uri(self, base: str, key: TrialKey, build: str) -> str:
        """Return the URL of a build's log for this trial. ``base`` is the URL of the operator's HTTP server."""
        return f"{base.rstrip('/')}/builds/{key}/{self.token(key)}/{build}"


def _are_equal(token: str, shown: str) -> bool:
    return hmac.compare_digest(token.encode(), shown.encode(errors="replace"))


def load_or_make_key(path: Path) -> bytes:
    """Return the secret in a file that only its owner can read. Create the file if it is missing. Concurrent callers get the same
    secret."""
    if not path.exists():
        _make_key(path)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise OSError(
            f"{path} does not hold {_KEY_BYTES} bytes; delete it to create a new key, which invalidates all result addresses"
        )
    return key


def _make_key(path: Path) -> None:
    scratch = path.with_name(f"{path.name}-{token_hex(8)}")
    fd = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, token_bytes(_KEY_BYTES))
        os.fsync(fd)
        os.link(scratch, path)
    except FileExistsError:
        pass  # another process created it first
    finally:
        os.close(fd)
        scratch.unlink()
