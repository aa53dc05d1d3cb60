"""The agent host's end of sealed requests, implemented from docs/internals/runner-protocol.md alone."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cryptography.hazmat.primitives.ciphers.aead import AESGCM


@dataclass
class SealedHost:
    """The agent host's runner, to which the environment's runner forwards sealed requests. key: in hex digits, "" if no agent
    host runs; forged: whether the environment's runner forges the answer."""

    key: str = ""
    forged: bool = False

    def answer(self, message: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        """Return the sealed response to a sealed request. answer: function that returns the response to a request."""
        if not self.key:
            return {"ok": False, "error": {"code": "NoHost", "message": "nobody listens"}}
        if self.forged:
            return {"ok": True, "sealed": base64.b64encode(b"an answer of the environment").decode()}
        cipher, sealed, nonce = AESGCM(bytes.fromhex(self.key)), base64.b64decode(message), os.urandom(12)
        found = answer(json.loads(cipher.decrypt(sealed[:12], sealed[12:], b"request")))
        made = nonce + cipher.encrypt(nonce, json.dumps(found).encode(), b"answer" + sealed[:12])
        return {"ok": True, "sealed": base64.b64encode(made).decode()}
