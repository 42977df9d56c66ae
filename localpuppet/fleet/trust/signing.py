"""Signed messages: JWS in its compact form (RFC 7515), by joserfc and cryptography.

Owns: the form of the header, which algorithm belongs to which key, and whose signature it is.
Refuses to know: what is signed; the payload is bytes, and stays unparsed until its signature holds.

Invariants:

- The algorithm follows from the key that the receiver has for a signer; the header may agree
  or the message is refused. There is no key for `none` or for HMAC.
- The header holds `alg`, `kid` (the signer's name), `typ` (what the message is for) and, for
  certificates, `x5c` (the signer's own, one); nothing else, so nothing in it can name a key, a
  URL or another form of the payload.
- A message of one kind is never taken for another.
- A name with a pinned key is known by that key alone: no certificate stands in for it.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.bus.key_value import MAX_VALUE
from localpuppet.fleet.trust.authority import Authority
from localpuppet.fleet.trust.keys import TrustedKeys, public_pem

if TYPE_CHECKING:
    # joserfc and cryptography cost 55 ms and 19 MiB: only who signs or verifies pays.
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
    from joserfc.jwa import JWSAlgModel
    from joserfc.jwk import ECKey, OKPKey, RSAKey
    from joserfc.jws import JWSRegistry

# What a store takes; base64 makes a third more of the payload.
MAX_TOKEN = MAX_VALUE
MAX_PAYLOAD = 360 * 1024
MAX_HEADER = 12 * 1024
MAX_SIGNATURE = 2 * 1024
MIN_RSA_BITS = 2048

_TOKEN = re.compile(rb"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]*)\.([A-Za-z0-9_-]*)")
_HEADER = ("alg", "kid", "typ", "x5c")


class MessageKind(StrEnum):
    """What a message is for: its `typ`."""

    TRIGGER = "lp-trigger"
    REQUEST = "lp-request"
    REPLY = "lp-reply"
    PRESENCE = "lp-presence"
    INVENTORY = "lp-inventory"
    FORGOTTEN = "lp-forgotten"
    ROLLOUT = "lp-rollout"
    WORD = "lp-word"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """What was in a message whose signature holds.

    Attributes:
        signer: Whose signature it is.
        payload: The bytes that were signed.
    """

    signer: SignerName
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A key as joserfc takes it, and the algorithms that belong to its kind; the first signs."""

    jwk: "OKPKey | RSAKey | ECKey"
    algorithms: tuple[str, ...]


class MessageSigner:
    """Signs in one name.

    Args:
        name: The name.
        key: Its private key: Ed25519, or that of its certificate.
        certificate: The certificate, DER; `None` for a key that others have pinned.

    Raises:
        InvalidInputError: The key is of a kind or size that nobody would accept.
    """

    def __init__(
        self, name: SignerName, key: "PrivateKeyTypes", *, certificate: bytes | None = None
    ) -> None:
        self.name = name
        self._key = _usable(key, certified=certificate is not None)
        self._certificate = certificate

    def sign(self, payload: bytes, kind: MessageKind) -> bytes:
        """Return the message: header, payload and signature.

        Raises:
            InvalidInputError: The payload is too large.
        """
        from joserfc import jws

        if len(payload) > MAX_PAYLOAD:
            raise InvalidInputError(
                f"a {kind} of {len(payload)} bytes: the limit is {MAX_PAYLOAD}", where="signature"
            )
        algorithm = self._key.algorithms[0]
        header: dict[str, object] = {"alg": algorithm, "kid": self.name, "typ": kind.value}
        if self._certificate is not None:
            header["x5c"] = [base64.b64encode(self._certificate).decode()]
        registry = _registry(algorithm)
        return jws.serialize_compact(header, payload, self._key.jwk, registry=registry).encode()


class Verifier:
    """Verifies messages.

    Args:
        trusted: Pinned keys.
        authority: The CA whose certificates are identities, too; `None` for no such.
        clock: Tells whether a certificate is in force.
        own: This node's own name and key: it trusts itself without a file that says so.
    """

    def __init__(
        self,
        trusted: TrustedKeys,
        authority: Authority | None,
        clock: Clock,
        *,
        own: "tuple[SignerName, Ed25519PublicKey] | None" = None,
    ) -> None:
        self._trusted = trusted
        self._authority = authority
        self._clock = clock
        self._own = own

    def verify(self, token: bytes, kind: MessageKind) -> Signed:
        """Return who signed a message, and what.

        Args:
            token: The message.
            kind: What it must be for.

        Raises:
            IntegrityError: It is not such a message, or not signed by somebody that we know.
            NotInForceError: The signer's certificate, or its CA's revocation list, has run out.
            InvalidInputError: A file on this machine is refused (a pinned key, the CA).
        """
        from joserfc import jws
        from joserfc.errors import JoseError

        header = _header(token)
        if header.get("typ") != kind.value:
            raise _refused(f"typ is {_show(header.get('typ'))} where {kind.value} is needed")
        name = _signer(header.get("kid"))
        key = self._key(name, header)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in key.algorithms:
            allowed = " or ".join(key.algorithms)
            raise _refused(f"alg is {_show(algorithm)}, {name}'s key is for {allowed}")
        try:
            found = jws.deserialize_compact(token, key.jwk, registry=_registry(algorithm))
        except (JoseError, ValueError) as error:
            raise _refused(f"the signature is not {name}'s") from error
        return Signed(signer=name, payload=bytes(found.payload or b""))

    def _key(self, name: SignerName, header: Mapping[str, Json]) -> _Key:
        pinned = self._pinned(name)
        if pinned is not None:
            if "x5c" in header:
                raise _refused(f"signed with a certificate, but a key of {name} is pinned")
            return _pinned(pinned.public_bytes_raw())
        if "x5c" not in header or self._authority is None:
            raise IntegrityError(
                f"no key of {name} is trusted here",
                where="signature",
                hint=f"'localpuppet keys trust {name} FILE'",
            )
        certified, found = self._identified(self._authority, _certificate(header))
        if certified != name:
            raise _refused(f"kid is {name}, the certificate is {certified}'s")
        return found

    def _identified(self, authority: Authority, der: bytes) -> tuple[SignerName, _Key]:
        name, key = authority.identify(der, now=self._clock.now())
        try:
            return name, _certified(key)
        except InvalidInputError as error:
            raise _refused(f"the certificate of {name} {error.what}") from error

    def holder(self, der: bytes) -> SignerName:
        """Return whose a certificate is, whose key somebody has shown to have.

        Args:
            der: The certificate.

        Raises:
            IntegrityError: It is not one of the CA's, or does not count, or a key of that name is
                pinned.
            NotInForceError: The certificate, or its CA's revocation list, has run out.
            InvalidInputError: A file on this machine is refused.
        """
        if self._authority is None:
            raise IntegrityError("certificates are not believed here", hint="set identity.ca")
        name, _ = self._identified(self._authority, der)
        if self._pinned(name) is not None:
            raise IntegrityError(f"a certificate, but a key of {name} is pinned")
        return name

    def _pinned(self, name: SignerName) -> "Ed25519PublicKey | None":
        return self._own[1] if self._own and self._own[0] == name else self._trusted.get(name)


def claimed_payload(token: bytes) -> bytes:
    """Return what a message says, before anybody has vouched for it.

    For what costs less than a signature: to look whether a trigger has the form of one at all.
    What is acted upon comes from `Verifier.verify`.

    Raises:
        IntegrityError: It is not a message.
    """
    raw = _parts(token)[1]
    try:
        return base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))
    except ValueError as error:
        raise _refused("the payload is not base64url") from error


def _parts(token: bytes) -> tuple[bytes, bytes, bytes]:
    if len(token) > MAX_TOKEN:
        raise _refused(f"a message of {len(token)} bytes: the limit is {MAX_TOKEN}")
    parts = _TOKEN.fullmatch(token)
    if parts is None or len(parts.group(1)) > MAX_HEADER:
        raise _refused("no signed message: three parts of base64url are needed")
    return parts.group(1), parts.group(2), parts.group(3)


def _header(token: bytes) -> dict[str, Json]:
    """Return the header of a message, which nobody has vouched for yet."""
    raw = _parts(token)[0]
    try:
        data = base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4))
        header = parse_object(data, where="header", limit=MAX_HEADER)
    except (ValueError, InvalidInputError) as error:
        what = error.what if isinstance(error, InvalidInputError) else "is not base64url"
        raise _refused(f"the header {what}") from error
    for key in header:
        if key not in _HEADER:
            raise _refused(f"{_show(key)} in the header")
    return header


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
        return _pinned_private(key)
    if isinstance(key, Ed25519PrivateKey) or not certified:
        raise InvalidInputError("a key is Ed25519 without a certificate, RSA or EC with one")
    return _certified(key)


def _pinned_private(key: "Ed25519PrivateKey") -> _Key:
    from joserfc.jwk import OKPKey

    return _Key(jwk=OKPKey.import_key(_private_pem(key)), algorithms=("EdDSA",))


@lru_cache(maxsize=4096)
def _pinned(raw: bytes) -> _Key:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from joserfc.jwk import OKPKey

    pem = public_pem(Ed25519PublicKey.from_public_bytes(raw))
    return _Key(jwk=OKPKey.import_key(pem), algorithms=("EdDSA",))


def _certified(key: "PublicKeyTypes | PrivateKeyTypes") -> _Key:
    """Return the key of a certificate.

    Raises:
        InvalidInputError: It is of another kind, or too short.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from joserfc.jwk import ECKey, RSAKey

    if isinstance(key, rsa.RSAPublicKey | rsa.RSAPrivateKey):
        if key.key_size < MIN_RSA_BITS:
            raise InvalidInputError(f"has an RSA key of less than {MIN_RSA_BITS} bits")
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

    if isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        return public_pem(key)
    return _private_pem(key)


def _private_pem(key: "PrivateKeyTypes") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@lru_cache(maxsize=8)
def _registry(algorithm: str) -> "JWSRegistry":
    """Return a registry that knows one algorithm.

    joserfc warns of EdDSA since RFC 9864 wants the curve in its name; our keys are Ed25519 by
    their kind, so that nothing is left to the header.
    """
    from joserfc.errors import UnsupportedAlgorithmError
    from joserfc.jws import JWSRegistry

    model = JWSRegistry.algorithms[algorithm]

    class OneAlgorithm(JWSRegistry):
        max_header_length = MAX_HEADER
        max_payload_length = MAX_TOKEN
        max_signature_length = MAX_SIGNATURE

        def get_alg(self, name: str) -> "JWSAlgModel":
            if name != model.name:
                raise UnsupportedAlgorithmError(name)
            return model

    return OneAlgorithm(algorithms=[algorithm])
