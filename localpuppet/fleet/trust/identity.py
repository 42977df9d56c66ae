"""The identity of this node, or of the person who owns the root: name, key, trusted keys."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.trust import key_files
from localpuppet.fleet.trust.signing import MessageSigner, Verifier

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.x509 import Certificate


class SignerIdentity(Value):
    """What signs for this node, and what it trusts.

    The name is that of the settings or the certificate, else the node's. Without a certificate,
    other nodes have pinned the key; without a CA, no certificates are identities.
    """

    node: Callable[[], NodeName]
    named: SignerName | None
    key: Path
    certificate_file: Path | None
    ca: Path | None
    crl: Path | None
    pinned: Path
    clock: Clock

    @property
    def own_key(self) -> key_files.OwnKey:
        """The private key."""
        return key_files.OwnKey(self.key)

    @property
    def trusted(self) -> key_files.TrustedKeys:
        """The pinned keys of other signers."""
        return key_files.TrustedKeys(self.pinned)

    def name(self) -> SignerName:
        """Return the signer's name: from the settings, the certificate, or the node."""
        certificate = self.certificate()
        if certificate is None:
            return self.named if self.named is not None else SignerName.parse(self.node())
        from localpuppet.fleet.trust.authority import certificate_name

        name = certificate_name(certificate)
        if self.named not in (None, name):
            raise InvalidInputError(
                f"identity.name is {self.named}, the certificate is {name}'s",
                where=str(self.certificate_file),
                hint="remove identity.name",
            )
        return name

    def certificate(self) -> "Certificate | None":
        """Return the certificate of the signing key; `None` if other nodes have pinned the key."""
        if self.certificate_file is None:
            return None
        from localpuppet.fleet.trust.authority import read_certificate

        return read_certificate(self.certificate_file)

    def signer(self, *, make: bool = True) -> MessageSigner:
        """Return the message signer.

        `make` creates a missing key: with the default settings and the bus on this machine, no
        other node has to know it.
        """
        certificate = self.certificate()
        if certificate is None:
            name = self.name()  # first: a refused name is the error to report
            return MessageSigner(name, self.own_key.ensure() if make else self.own_key.load())
        from localpuppet.fleet.trust.authority import der

        key = key_files.parse_private(
            key_files.read_private(self.key, of_puppet=True), where=str(self.key)
        )
        if key_files.public_pem(key.public_key()) != key_files.public_pem(certificate.public_key()):
            raise InvalidInputError(
                "is not the key of the certificate",
                where=str(self.key),
                hint=f"identity.certificate is {self.certificate_file}",
            )
        return MessageSigner(self.name(), key, certificate=der(certificate))

    def verifier(self, *, own: "tuple[SignerName, Ed25519PublicKey] | None" = None) -> Verifier:
        """Return the signature verifier: pinned keys, the CA, and this node's own key.

        A process that cannot read the private key passes its node's name and public key as `own`.
        """
        if own is None and self.certificate_file is None and os.access(self.key, os.R_OK):
            own = (self.name(), self.own_key.load().public_key())
        authority = None
        if self.ca is not None:
            from localpuppet.fleet.trust.authority import Authority

            authority = Authority(self.ca, self.crl)
        return Verifier(self.trusted, authority, self.clock, own=own)

    def public_key(self) -> str | None:
        """Return this node's public key as PEM; `None` if a certificate replaces it."""
        if self.certificate_file is not None:
            return None
        return key_files.public_pem(self.own_key.load().public_key()).decode("ascii")
