"""Verify certificates of the site's CA, for example Puppet's, and return the names in them.

- Only CAs in the CA file are trusted, intermediate CAs included; certificates in a message add
  nothing.
- With a CRL file, each CA on the path needs a complete CRL that it signed and that is in force, as
  with Puppet's `certificate_revocation = chain` (`trust.revocation`).
- Constraints of a CA on the certificates below it are enforced (`trust.constraints`).
"""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError, NotInForceError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.anchors import read_anchor
from localpuppet.base.machine.reloaded_files import ReloadedFiles
from localpuppet.fleet.trust.constraints import check_constraints
from localpuppet.fleet.trust.revocation import RevocationLists

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
    from cryptography.x509 import Certificate

MAX_PATH = 4
_HASHES = ("sha256", "sha384", "sha512")


class Authority:
    """The site's CA.

    Args:
        ca: PEM file with one or more CA certificates; Puppet's `localcacert`.
        crl: PEM file with the CRL of each CA; `None` to skip revocation checks.
    """

    def __init__(self, ca: Path, crl: Path | None) -> None:
        self._ca = ca
        self._crl = crl
        self._certificates: list[Certificate] = []
        self._lists: RevocationLists | None = None
        self._renew = ReloadedFiles([path for path in (ca, crl) if path is not None], self._load)

    def identify(self, der: bytes, *, now: datetime) -> "tuple[SignerName, PublicKeyTypes]":
        """Verify a certificate; return its name and public key.

        Args:
            der: The certificate.
            now: The time at which it must be in force, aware.

        Raises:
            IntegrityError: The CA did not issue it, or it is revoked or not in force.
            InvalidInputError: The CA file or the CRL file is invalid.
        """
        from cryptography import x509
        from cryptography.exceptions import UnsupportedAlgorithm

        self._renew()
        try:
            certificate = x509.load_der_x509_certificate(der)
            name = certificate_name(certificate)
            _check_leaf(certificate, name)
            self._check_path(certificate, name, now)
            return name, certificate.public_key()
        except (
            ValueError,
            TypeError,
            UnsupportedAlgorithm,
            x509.DuplicateExtension,
            x509.InvalidVersion,
            x509.UnsupportedGeneralNameType,
        ) as error:
            raise IntegrityError("is an unreadable certificate", where="x5c") from error

    def _check_path(self, leaf: "Certificate", name: str, now: datetime) -> None:
        """Check the dates, revocation and constraints from the leaf to a trusted CA."""
        path = [leaf]
        while len(path) <= MAX_PATH:
            certificate = path[-1]
            _check_dates(certificate, name, now)
            issuer = self._issuer(certificate)
            if issuer is None and certificate is leaf:
                raise IntegrityError(
                    f"the certificate of {name} was not issued by the CA in {self._ca}"
                )
            if issuer is None or issuer == certificate:
                # The end of the path: a root, or an intermediate CA that the CA file contains
                # without its issuer.
                check_constraints(path, name)
                return
            if self._lists is not None:
                self._lists.check(certificate, issuer, name, now)
            path.append(issuer)
        raise IntegrityError(f"the certificate of {name} has a chain of more than {MAX_PATH} CAs")

    def _issuer(self, certificate: "Certificate") -> "Certificate | None":
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

        algorithm = certificate.signature_hash_algorithm
        if algorithm is None or algorithm.name not in _HASHES:
            return None
        for candidate in self._certificates:
            if candidate.subject != certificate.issuer:
                continue
            try:
                certificate.verify_directly_issued_by(candidate)
            except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
                continue  # a CA of the same name with another key
            return candidate
        return None

    def _load(self) -> None:
        """Read the CA file and the CRL file."""
        self._certificates = _read_authorities(self._ca)
        self._lists = RevocationLists.read(self._crl) if self._crl is not None else None


def read_certificate(path: Path) -> "Certificate":
    """Return the first certificate in a PEM file; raise `InvalidInputError` without one."""
    from cryptography.x509 import load_pem_x509_certificate

    try:
        return load_pem_x509_certificate(read_anchor(path))
    except ValueError as error:
        raise InvalidInputError("has no readable certificate", where=str(path)) from error


def der(certificate: "Certificate") -> bytes:
    """Return the DER form of a certificate."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.DER)


def _read_authorities(path: Path) -> "list[Certificate]":
    from cryptography.x509 import load_pem_x509_certificates

    try:
        certificates = load_pem_x509_certificates(read_anchor(path))
    except ValueError as error:
        raise InvalidInputError("has no readable certificates", where=str(path)) from error
    for certificate in certificates:
        if not _is_authority(certificate):
            raise InvalidInputError(
                "has a certificate that is not a CA certificate",
                where=str(path),
                hint="'puppet config print localcacert' prints the path of Puppet's CA",
            )
    return certificates


def _is_authority(certificate: "Certificate") -> bool:
    from cryptography import x509

    try:
        extensions = certificate.extensions
        if not extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
        return extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    except (
        x509.ExtensionNotFound,
        ValueError,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ):
        return False


def certificate_name(certificate: "Certificate") -> SignerName:
    """Return the CN of a certificate; raise `IntegrityError` unless it is one signer's name."""
    from cryptography.x509.oid import NameOID

    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not isinstance(names[0].value, str):
        raise IntegrityError("the certificate must have exactly one CN", where="x5c")
    try:
        return SignerName.parse(names[0].value)
    except InvalidInputError as error:
        raise IntegrityError(f"the certificate's CN {error.what}", where="x5c") from error


def server_names(certificate: "Certificate") -> tuple[str, ...]:
    """Return the DNS names, then the IP addresses of a server certificate, without wildcards."""
    from cryptography import x509

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (
        x509.ExtensionNotFound,
        ValueError,
        x509.DuplicateExtension,
        x509.UnsupportedGeneralNameType,
    ):
        return ()
    dns = [name.lower() for name in names.get_values_for_type(x509.DNSName) if "*" not in name]
    return *dns, *(str(address) for address in names.get_values_for_type(x509.IPAddress))


def _check_leaf(certificate: "Certificate", name: str) -> None:
    """Reject a certificate that is not for client signatures or has unknown critical extensions."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    problem = ""
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints):
            problem = problem or ("is a CA's" if value.ca else "")
        elif isinstance(value, x509.KeyUsage):
            problem = problem or (
                "" if value.digital_signature else "is not allowed for signatures"
            )
        elif isinstance(value, x509.ExtendedKeyUsage):
            client = ExtendedKeyUsageOID.CLIENT_AUTH in value
            problem = problem or ("" if client else "is not allowed for clients")
        elif extension.critical and not isinstance(value, x509.SubjectAlternativeName):
            problem = problem or "has an unknown critical extension"
    if problem:
        raise IntegrityError(f"the certificate of {name} {problem}")


def _check_dates(certificate: "Certificate", name: str, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise NotInForceError(
            f"the certificate of {name}, or of its CA, is not valid yet", hint="check the clock"
        )
    if now > certificate.not_valid_after_utc:
        raise NotInForceError(f"the certificate of {name}, or of its CA, has expired")
