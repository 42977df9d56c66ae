"""Real keys for tests: signers and verifiers."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.trust.authority import Authority
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageSigner, Verifier
from tests.doubles.certificates import Issued
from tests.doubles.ports import FakeClock

ALICE = SignerName.parse("alice")
WEB01 = SignerName.parse("web01.example.com")


@dataclass
class Person:
    """A person with a key."""

    name: SignerName
    key: Ed25519PrivateKey

    @property
    def signer(self) -> MessageSigner:
        return MessageSigner(self.name, self.key)


def person(name: str) -> Person:
    return Person(SignerName.parse(name), Ed25519PrivateKey.generate())


def certified(issued: Issued, name: str) -> MessageSigner:
    return MessageSigner(SignerName.parse(name), issued.key, certificate=issued.der)


def trusting(directory: Path, *people: Person) -> TrustedKeys:
    trusted = TrustedKeys(directory)
    for person_ in people:
        trusted.pin(person_.name, person_.key.public_key())
    return trusted


def verifier(directory: Path, *people: Person, authority: Authority | None = None) -> Verifier:
    return Verifier(trusting(directory / "trusted", *people), authority, FakeClock())


def encode(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def decode(data: bytes) -> bytes:
    return base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))


def forge(key: Ed25519PrivateKey, header: dict[str, Any] | bytes, payload: bytes = b"{}") -> bytes:
    """Return a message with any header, and a valid signature of it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = encode(raw) + b"." + encode(payload)
    return body + b"." + encode(key.sign(body))
