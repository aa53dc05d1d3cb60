"""Signs statements with the operator's private key, and verifies signatures. The format is the DSSE envelope, which in-toto's own
tools also read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import FormatError, VerificationError
from securesystemslib.signer import CryptoSigner, SSlibKey

from multistep.errors import MultistepError, StoreError, UsageError

PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
_HOW = "create one with `openssl genpkey -algorithm ed25519 -out signing-key.pem`"


class InvalidEnvelope(MultistepError):
    """An envelope is malformed, or the key did not sign it. The message is the reason."""


@dataclass(frozen=True)
class Signer:
    """The operator's private key."""

    signer: CryptoSigner
    public: bytes
    """The matching public key, as PEM."""

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Load an unencrypted private key (PEM): Ed25519, ECDSA or RSA. Raises StoreError."""
        try:
            private: PrivateKeyTypes = load_pem_private_key(path.read_bytes(), None)
            signer = CryptoSigner(private)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise StoreError(f"the key that signs evidence, {path}, cannot be used: {error}; {_HOW}") from error
        return cls(signer, private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def envelope(self, statement: bytes) -> bytes:
        """Return an envelope with the statement and its signature."""
        envelope = Envelope(statement, PAYLOAD_TYPE, {})
        envelope.sign(self.signer)
        return json.dumps(envelope.to_dict()).encode() + b"\n"


@dataclass(frozen=True)
class PublicKey:
    """The public key of an operator, which verifies envelopes."""

    key: SSlibKey

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Load a public key (PEM). Raises UsageError."""
        try:
            public: PublicKeyTypes = load_pem_public_key(path.read_bytes())
            return cls(SSlibKey.from_crypto(public))
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UsageError(f"{path} is not a public key (PEM) that can verify evidence: {error}") from error

    def verify(self, data: bytes) -> None:
        """Check that this key signed an envelope. Raises InvalidEnvelope."""
        envelope = parse_envelope(data)
        try:
            envelope.verify([self.key], 1)
        except (VerificationError, ValueError, TypeError) as error:
            known = ", ".join(str(key_id)[:64] for key_id in list(envelope.signatures)[:3]) or "none"
            raise InvalidEnvelope(f"is not signed by the key {self.key.keyid}; keys of its signatures: {known}") from error


def envelope_statement(data: bytes) -> bytes:
    """Return the statement in an envelope without verifying the signature. Raises InvalidEnvelope."""
    return parse_envelope(data).payload


def parse_envelope(data: bytes) -> Envelope:
    """Parse an envelope. Raises InvalidEnvelope."""
    try:
        envelope = Envelope.from_dict(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, FormatError) as error:
        raise InvalidEnvelope(f"is not a DSSE envelope: {type(error).__name__}") from error
    if envelope.payload_type != PAYLOAD_TYPE:
        raise InvalidEnvelope(f"has the payload type {str(envelope.payload_type)[:100]!r} instead of {PAYLOAD_TYPE!r}")
    return envelope
