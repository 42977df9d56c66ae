"""From settings to an identity: the name and key that sign, and the keys that are trusted."""

import os
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.trust.keys import (
    OwnKey,
    TrustedKeys,
    parse_private,
    public_pem,
    read_private,
)
from localpuppet.fleet.wiring.settings import node_name, peers
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

    from localpuppet.fleet.requests.admission import RequestAdmission
    from localpuppet.fleet.trust.signing import MessageSigner, Verifier


class Identity:
    """The identity of this node, or of the person who owns the root.

    Args:
        node: The parts of the node.
        known_name: The node's name, if it is known already: the network side cannot ask Puppet.
    """

    def __init__(self, node: NodeWiring, *, known_name: NodeName | None = None) -> None:
        self._node = node
        self._known_name = known_name
        self._settings = peers(node).identity
        self.own_key = OwnKey(self._settings.key)
        self.trusted = TrustedKeys(peers(node).trusted)

    def name(self) -> SignerName:
        """Return the signer's name: from the settings, the certificate, or the node.

        Raises:
            InvalidInputError: The name is invalid.
            PuppetMissingError: The name must come from Puppet, which is not installed.
        """
        certificate = self.certificate()
        if certificate is None:
            if self._settings.name is not None:
                return self._settings.name
            return SignerName.parse(self._known_name or node_name(self._node))
        from localpuppet.fleet.trust.authority import certificate_name

        name = certificate_name(certificate)
        if self._settings.name not in (None, name):
            raise InvalidInputError(
                f"identity.name is {self._settings.name}, the certificate is {name}'s",
                where=str(self._settings.certificate),
                hint="remove identity.name",
            )
        return name

    def certificate(self) -> "Certificate | None":
        """Return the certificate of the signing key; `None` if other nodes have pinned the key."""
        path = self._settings.certificate
        if path is None:
            return None
        from localpuppet.fleet.trust.authority import read_certificate

        return read_certificate(path)

    def signer(self, *, make: bool = True) -> "MessageSigner":
        """Return the message signer.

        Args:
            make: Create a missing key: with the default settings and the bus on this machine, no
                other node has to know it.

        Raises:
            InvalidInputError: The key is refused, or does not match the certificate.
        """
        from localpuppet.fleet.trust.signing import MessageSigner

        certificate = self.certificate()
        if certificate is None:
            name = self.name()  # first: a refused name is the error to report
            return MessageSigner(name, self.own_key.ensure() if make else self.own_key.load())
        from localpuppet.fleet.trust.authority import der

        return MessageSigner(
            self.name(), self._certified_key(certificate), certificate=der(certificate)
        )

    def _certified_key(self, certificate: "Certificate") -> "PrivateKeyTypes":

        path = self._settings.key
        key = parse_private(read_private(path, of_puppet=True), where=str(path))
        public = certificate.public_key()
        if public_pem(key.public_key()) != public_pem(public):
            raise InvalidInputError(
                "is not the key of the certificate",
                where=str(path),
                hint=f"identity.certificate is {self._settings.certificate}",
            )
        return key

    def verifier(self, *, own: "tuple[SignerName, Ed25519PublicKey] | None" = None) -> "Verifier":
        """Return the signature verifier: pinned keys, the CA, and this node's own key.

        Args:
            own: This node's name and public key, if the process cannot read the private key (the
                network side of an agent).
        """
        from localpuppet.fleet.trust.authority import Authority
        from localpuppet.fleet.trust.signing import Verifier

        settings = self._settings
        if own is None and settings.certificate is None and os.access(self.own_key.path, os.R_OK):
            own = (self.name(), self.own_key.load().public_key())
        authority = None if settings.ca is None else Authority(settings.ca, settings.crl)
        return Verifier(self.trusted, authority, self._node.clock, own=own)

    def reception(self) -> "RequestAdmission":
        """Return the admission that checks requests to this node."""
        from localpuppet.fleet.requests.admission import RequestAdmission
        from localpuppet.fleet.trust.seen import SeenIds

        node = self._node
        return RequestAdmission(
            me=node_name(node),
            verifier=self.verifier(),
            policy=peers(node).policy,
            seen=SeenIds(node.settings.state / "seen.sqlite", node.clock),
            clock=node.clock,
        )

    def public_key(self) -> str | None:
        """Return this node's public key as PEM; `None` if a certificate replaces it."""
        if self._settings.certificate is not None:
            return None
        return public_pem(self.own_key.load().public_key()).decode("ascii")
