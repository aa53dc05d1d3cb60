"""Messages for the agent host's runner that pass through the environment's runner.

The protocol is in docs/internals/runner-protocol.md, Sealed requests. An agent may control the environment's container. So messages
are encrypted and authenticated, and each answer is bound to one request.
"""

from __future__ import annotations

import base64
import json
import os
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from multistep.errors import RunnerError
from multistep.runner_client.frames import MESSAGE, Frame

KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12


@dataclass(frozen=True)
class Request:
    """A sealed request. nonce: the request's nonce; only an answer that was encrypted for this nonce is authentic."""

    message: Mapping[str, Any]
    nonce: bytes


class Seal:
    """Seals requests and opens answers with the key that the agent host's container got from the operator, in hex digits."""

    def __init__(self, key: str) -> None:
        self._cipher = AESGCM(bytes.fromhex(key))

    def request(self, request: Mapping[str, Any]) -> Request:
        """Encrypt a request, and return the ``host`` request that contains it. Raises ValueError for NaN or infinity."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, json.dumps(request, allow_nan=False).encode(), b"request")
        return Request({"op": "host", "message": {"sealed": base64.b64encode(sealed).decode()}}, nonce)

    def answer(self, message: Mapping[str, Any], request: Request) -> Frame:
        """Return the frame with the decrypted answer to the request. Raises RunnerError if the answer is not authentic."""
        try:
            sealed = base64.b64decode(message["sealed"], validate=True)
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], b"answer" + request.nonce)
        except (KeyError, TypeError, ValueError, Base64Error, InvalidTag):
            raise RunnerError("the agent host's answer is not authentic", code="Protocol") from None
        return Frame(MESSAGE, plain)


def new_key() -> str:
    """Return a new key in hex digits."""
    return os.urandom(KEY_BYTES).hex()
