"""Sign and verify messages: JWS compact serialisation (RFC 7515), by joserfc and cryptography.

- The payload is bytes; this module does not parse it.
- The receiver's key for the signer determines the algorithm; a header with another algorithm is
  rejected. No key exists for `none` or HMAC.
- The header holds `alg`, `kid` (the signer's name), `typ` (the message kind) and, for certificates,
  `x5c` (only the signer's certificate). Other fields are rejected, so the header cannot name a key,
  a URL or another payload encoding.
- A message of one kind is never accepted as another.
- If a key is pinned for a name, certificates for this name are rejected.
"""

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.strict_json import compact, parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus import bus_limits as limits
from localpuppet.fleet.trust.key_files import TrustedKeys, public_pem

if TYPE_CHECKING:
    # joserfc and cryptography take 55 ms and 19 MiB: import them only to sign or verify.
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
    from joserfc.jwk import ECKey, RSAKey

    from localpuppet.fleet.trust.authority import Authority


_TOKEN = re.compile(rb"(([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*))\.([A-Za-z0-9_-]*)")
_HEADER = ("alg", "kid", "typ", "x5c")
# Bytes of the size before each part of a stored message.
_SIZE = 4


class MessageKind(StrEnum):
    """The purpose of a message: its `typ`."""

    TRIGGER = "lp-trigger"
    REQUEST = "lp-request"
    REPLY = "lp-reply"
    PRESENCE = "lp-presence"
    INVENTORY = "lp-inventory"
    TOMBSTONE = "lp-tombstone"
    CHECKPOINT = "lp-checkpoint"
    COMMAND = "lp-command"
    RUN_HISTORY = "lp-run-history"
    AUDIT_HISTORY = "lp-audit-history"


class Signed(Value):
    """The content of a verified message."""

    signer: SignerName
    payload: bytes


class _Key(Value):
    """A key and the algorithms for its kind; the first one signs. joserfc has those of a JWK."""

    jwk: "Ed25519PrivateKey | Ed25519PublicKey | RSAKey | ECKey"
    algorithms: tuple[str, ...]


class MessageSigner:
    """Signs messages under one name, by a kind and size of key that verifiers accept."""

    def __init__(
        self, name: SignerName, key: "PrivateKeyTypes", *, certificate: bytes | None = None
    ) -> None:
        self.name = name
        self._key = _usable(key, certified=certificate is not None)
        self._certificate = certificate

    def sign(self, payload: bytes, kind: MessageKind) -> bytes:
        """Return a signed message; raise `InvalidInputError` if the payload is too large."""
        if len(payload) > limits.MAX_SIGNED_PAYLOAD:
            raise InvalidInputError(
                f"a {kind} of {len(payload)} bytes: the limit is {limits.MAX_SIGNED_PAYLOAD}",
                where="signature",
            )
        algorithm = self._key.algorithms[0]
        header: dict[str, object] = {"alg": algorithm, "kid": self.name, "typ": kind.value}
        if self._certificate is not None:
            header["x5c"] = [base64.b64encode(self._certificate).decode()]
        signed = b".".join(map(_encoded, (compact(header).encode(), payload)))
        return signed + b"." + _encoded(_algorithm(algorithm).sign(signed, self._key.jwk))


@dataclass(slots=True, eq=False)
class Verifier:
    """Verifies messages.

    Attributes:
        authority: The CA whose certificates are trusted; `None` to reject certificates.
        own: This node's name and public key, trusted without a pinned file.
    """

    trusted: TrustedKeys
    authority: "Authority | None"
    clock: Clock
    _: KW_ONLY
    own: "tuple[SignerName, Ed25519PublicKey] | None" = None

    def verify(self, token: bytes, kind: MessageKind) -> Signed:
        """Verify a message; return its signer and payload.

        Raises:
            IntegrityError: The message is invalid, or its signature is invalid or not trusted.
            NotInForceError: The signer's certificate or the CRL of its CA has expired.
            InvalidInputError: A local file is invalid (a pinned key, the CA).
        """
        signed, payload, signature = _parts(token)
        header = _header(signed.partition(b".")[0])
        if header.get("typ") != kind.value:
            raise _refused(f"typ is {_show(header.get('typ'))} where {kind.value} is needed")
        name = _signer(header.get("kid"))
        key = self._key(name, header)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in key.algorithms:
            allowed = " or ".join(key.algorithms)
            raise _refused(f"alg is {_show(algorithm)}, {name}'s key is for {allowed}")
        if not _algorithm(algorithm).verify(signed, _decoded(signature, "signature"), key.jwk):
            raise _refused(f"the signature does not match {name}'s key")
        return Signed(signer=name, payload=_decoded(payload, "payload"))

    def _key(self, name: SignerName, header: Mapping[str, Json]) -> _Key:
        pinned = self._pinned(name)
        if pinned is not None:
            if "x5c" in header:
                raise _refused(f"signed with a certificate, but a key of {name} is pinned")
            return _pinned(pinned)
        if "x5c" not in header or self.authority is None:
            raise IntegrityError(
                f"no key of {name} is trusted here",
                where="signature",
                hint=f"'localpuppet keys trust {name} FILE'",
            )
        certified, signer = self._identified(self.authority, _certificate(header))
        if certified != name:
            raise _refused(f"kid is {name}, the certificate is {certified}'s")
        return signer

    def _identified(self, authority: "Authority", der: bytes) -> tuple[SignerName, _Key]:
        name, key = authority.identify(der, now=self.clock.now())
        try:
            return name, _certified(key)
        except InvalidInputError as error:
            raise _refused(f"the certificate of {name} {error.what}") from error

    def holder(self, der: bytes) -> SignerName:
        """Return the name in a certificate whose key the caller of this function has verified."""
        if self.authority is None:
            raise IntegrityError("this node trusts no certificates", hint="set identity.ca")
        name, _ = self._identified(self.authority, der)
        if self._pinned(name) is not None:
            raise IntegrityError(f"a certificate, but a key of {name} is pinned")
        return name

    def _pinned(self, name: SignerName) -> "Ed25519PublicKey | None":
        return self.own[1] if self.own and self.own[0] == name else self.trusted.get(name)


def certificate_end(token: bytes) -> float | None:
    """Return when the certificate in a verified message ends; `None` if a pinned key signed it."""
    from cryptography.x509 import load_der_x509_certificate

    header = _header(token.partition(b".")[0])
    if "x5c" not in header:
        return None
    return load_der_x509_certificate(_certificate(header)).not_valid_after_utc.timestamp()


def claimed_payload(token: bytes) -> bytes:
    """Return the payload of a message without verifying it; raise `IntegrityError` for other bytes.

    Use it only for cheap checks before verification, such as the form of a trigger; act only on
    payloads from `Verifier.verify`.
    """
    return _decoded(_parts(token)[1], "payload")


def without_base64(token: bytes) -> bytes:
    """Return a verified message in three quarters of its size, to store it."""
    parts = [base64.urlsafe_b64decode(part + b"==") for part in token.split(b".")]
    return b"." + b"".join(len(part).to_bytes(_SIZE) + part for part in parts)


def with_base64(stored: bytes) -> bytes:
    """Return a message from its stored form, or from itself."""
    if not stored.startswith(b"."):
        return stored
    parts, start = [], 1
    while start < len(stored):
        end = start + _SIZE + int.from_bytes(stored[start : start + _SIZE])
        parts.append(_encoded(stored[start + _SIZE : end]))
        start = end
    return b".".join(parts)


def _parts(token: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the signed bytes of a message (header, dot, payload), the payload, the signature."""
    if len(token) > limits.MAX_TOKEN:
        raise _refused(f"a message of {len(token)} bytes: the limit is {limits.MAX_TOKEN}")
    parts = _TOKEN.fullmatch(token)
    if (
        parts is None
        or len(parts.group(2)) > limits.MAX_HEADER
        or len(parts.group(4)) > limits.MAX_SIGNATURE
    ):
        raise _refused("not a signed message: it must have three base64url parts")
    return parts.group(1), parts.group(3), parts.group(4)


def _header(raw: bytes) -> dict[str, Json]:
    """Return the header of a message, which is not verified yet."""
    try:
        header = parse_object(_decoded(raw, "header"), where="header", limit=limits.MAX_HEADER)
    except InvalidInputError as error:
        raise _refused(f"the header {error.what}") from error
    for key in header:
        if key not in _HEADER:
            raise _refused(f"{_show(key)} in the header")
    return header


def _encoded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _decoded(text: bytes, part: str) -> bytes:
    """Return the bytes of a part, which has characters of base64url only."""
    end = len(text) - len(text) % 4
    with suppress(ValueError):
        data = base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
        # Only the last characters could be another spelling of the same bytes.
        if _encoded(data[end // 4 * 3 :]) == text[end:]:
            return data
    raise _refused(f"the {part} is not base64url")


def _signer(kid: Json) -> SignerName:
    if not isinstance(kid, str):
        raise _refused("no kid in the header")
    try:
        return SignerName.parse(kid)
    except InvalidInputError as error:
        raise _refused(f"kid {error.what}") from error


def _certificate(header: Mapping[str, Json]) -> bytes:
    chain = header["x5c"]
    if not isinstance(chain, list) or len(chain) != 1 or not isinstance(chain[0], str):
        raise _refused("x5c must hold the signer's certificate and no other")
    try:
        return base64.b64decode(chain[0].encode("ascii"), validate=True)
    except ValueError as error:
        raise _refused("x5c is not base64") from error


def _show(value: Json) -> str:
    return repr(value)[:40] if isinstance(value, str | None) else "no text"


def _refused(what: str) -> IntegrityError:
    return IntegrityError(what, where="signature")


def _usable(key: "PrivateKeyTypes", *, certified: bool) -> _Key:
    """Return a private key for signing."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    if isinstance(key, Ed25519PrivateKey) and not certified:
        return _pinned(key)
    if isinstance(key, Ed25519PrivateKey) or not certified:
        raise InvalidInputError("a key is Ed25519 without a certificate, RSA or EC with one")
    return _certified(key)


def _pinned(key: "Ed25519PrivateKey | Ed25519PublicKey") -> _Key:
    return _Key(jwk=key, algorithms=("EdDSA",))


def _certified(key: "PublicKeyTypes | PrivateKeyTypes") -> _Key:
    """Return the key of a certificate; raise `InvalidInputError` for a rejected kind or size."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from joserfc.jwk import ECKey, RSAKey

    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < limits.MIN_RSA_BITS:
            raise InvalidInputError(f"has an RSA key of less than {limits.MIN_RSA_BITS} bits")
        return _Key(jwk=RSAKey.import_key(_pem(key)), algorithms=("PS256", "RS256"))
    if isinstance(key, ec.EllipticCurvePublicKey | ec.EllipticCurvePrivateKey):
        if not isinstance(key.curve, ec.SECP256R1):
            raise InvalidInputError("has an EC key of another curve than P-256")
        return _Key(jwk=ECKey.import_key(_pem(key)), algorithms=("ES256",))
    raise InvalidInputError("has a key that is neither RSA nor EC")


def _pem(
    key: "RSAPublicKey | RSAPrivateKey | EllipticCurvePublicKey | EllipticCurvePrivateKey",
) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        return public_pem(key)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class _Pinned:
    """EdDSA by a pinned key. joserfc makes a JWK of it for each message: a third of the time."""

    @staticmethod
    def sign(data: bytes, key: "Ed25519PrivateKey") -> bytes:
        return key.sign(data)

    @staticmethod
    def verify(data: bytes, signature: bytes, key: "Ed25519PublicKey") -> bool:
        from cryptography.exceptions import InvalidSignature

        with suppress(InvalidSignature):
            key.verify(signature, data)
            return True
        return False


def _algorithm(name: str) -> Any:  # noqa: ANN401 - `_Pinned` or a `JWSAlgModel`
    """Return an algorithm; the caller has compared it with the kind of key.

    RFC 9864 names the curve in the algorithm. A pinned key is always Ed25519, so the header cannot
    choose another curve.
    """
    if name == "EdDSA":
        return _Pinned
    from joserfc.jws import JWSRegistry

    return JWSRegistry.algorithms[name]
