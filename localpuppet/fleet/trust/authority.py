"""Verify certificates of the site's CA, for example Puppet's, and return the names in them.

- Only CAs in the CA file are trusted, intermediate CAs included; certificates in a message add
  nothing.
- With a CRL file, each CA on the path needs a complete CRL that it signed and that is in force, as
  with Puppet's `certificate_revocation = chain`.
- Constraints of a CA on the certificates below it are enforced.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localpuppet.base.errors import IntegrityError, InvalidInputError, NotInForceError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.anchors import read_anchor
from localpuppet.base.machine.files import ReloadedFiles

_Extension = TypeVar("_Extension", bound=x509.ExtensionType)
_BLOCK = re.compile(b"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
MAX_PATH = 4
_HASHES = ("sha256", "sha384", "sha512")


def check_constraints(path: Sequence[x509.Certificate], name: str) -> None:
    """Reject a path that violates a constraint of one of its CAs."""
    below = 0
    for index, authority in enumerate(path[1:], 1):
        problem = _authority_problem(authority, below) or _names_problem(
            authority, path[:index], name
        )
        if problem:
            raise IntegrityError(f"the certificate of {name} is rejected: its CA {problem}")
        below += authority.subject != authority.issuer


def _authority_problem(authority: x509.Certificate, below: int) -> str:
    """Return which constraint a CA with `below` CAs under it violates; empty if none."""
    clients = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    known = (
        x509.BasicConstraints,
        x509.KeyUsage,
        x509.NameConstraints,
        x509.SubjectAlternativeName,
    )
    for extension in authority.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints):
            if value.path_length is not None and below > value.path_length:
                return f"allows {value.path_length} CAs below it (pathlen), and there are {below}"
        elif isinstance(value, x509.ExtendedKeyUsage):
            if not clients.intersection(value):
                return "is not allowed for client certificates"
        elif extension.critical and not isinstance(value, known):
            return "has an unknown critical extension"
    return ""


def _names_problem(authority: x509.Certificate, below: Sequence[x509.Certificate], cn: str) -> str:
    """Return which name below a CA violates its name constraints; empty if none does."""
    try:
        rule = authority.extensions.get_extension_for_class(x509.NameConstraints).value
    except x509.ExtensionNotFound:
        return ""
    permitted, excluded = rule.permitted_subtrees or (), rule.excluded_subtrees or ()
    names: list[x509.GeneralName] = [x509.DNSName(cn)]
    for index, certificate in enumerate(below):
        if index == 0 or certificate.subject != certificate.issuer:
            names += _names(certificate)
    for name in names:
        allowed = [base for base in permitted if isinstance(base, type(name))]
        if allowed and not any(_is_within(name, base) for base in allowed):
            return f"does not permit the name {_shown(name)}"
        if any(_is_within(name, base, unknown=True) for base in excluded):
            return f"excludes the name {_shown(name)}"
    return ""


def _names(certificate: x509.Certificate) -> Iterator[x509.GeneralName]:
    """Yield the subject and the alternative names of a certificate."""
    if certificate.subject.rdns:
        yield x509.DirectoryName(certificate.subject)
    for attribute in certificate.subject.get_attributes_for_oid(NameOID.EMAIL_ADDRESS):
        yield x509.RFC822Name(str(attribute.value))
    try:
        yield from certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return


def _is_within(name: x509.GeneralName, base: x509.GeneralName, *, unknown: bool = False) -> bool:
    """Return whether a name is in a subtree, or `unknown` for kinds not compared here."""
    if type(name) is not type(base):
        return False
    if isinstance(name, x509.DNSName) and isinstance(base, x509.DNSName):
        text, suffix = name.value.lower(), base.value.lower()
        inner = suffix if suffix.startswith(".") else f".{suffix}"
        return not suffix or text == suffix or text.endswith(inner)
    if isinstance(name, x509.DirectoryName) and isinstance(base, x509.DirectoryName):
        parts = _parts(base.value)
        return _parts(name.value)[: len(parts)] == parts
    return unknown


def _parts(name: x509.Name) -> list[frozenset[tuple[str, str]]]:
    """Return the parts of a name in a form that compares as X.500 requires."""
    return [frozenset(_attributes(rdn)) for rdn in name.rdns]


def _attributes(rdn: Iterable[object]) -> Iterator[tuple[str, str]]:
    for attribute in rdn:
        oid, value = attribute.oid.dotted_string, attribute.value  # type: ignore[attr-defined]
        yield oid, " ".join(str(value).casefold().split())


def _shown(name: x509.GeneralName) -> str:
    return repr(str(name.value))[:80]


class RevocationLists:
    def __init__(self, path: Path, lists: Sequence[x509.CertificateRevocationList]) -> None:
        self._path = path
        self._lists = [(entry, _is_complete(entry)) for entry in lists]
        self._signed: dict[x509.Certificate, list[tuple[x509.CertificateRevocationList, bool]]] = {}

    @classmethod
    def read(cls, path: Path) -> "RevocationLists":
        """Return the lists in a file; raise `InvalidInputError` for other content."""
        try:
            lists = cls(
                path, [x509.load_pem_x509_crl(block) for block in _BLOCK.findall(read_anchor(path))]
            )
        except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
            raise InvalidInputError("is not a revocation list", where=str(path)) from error
        if not lists._lists:
            raise InvalidInputError("holds no revocation list", where=str(path))
        return lists

    def check(
        self, certificate: x509.Certificate, issuer: x509.Certificate, name: str, now: datetime
    ) -> None:
        """Reject a certificate that is revoked or whose status is unknown."""
        own = self._signed_by(issuer)
        for entry, _ in own:
            revoked = entry.get_revoked_certificate_by_serial_number(certificate.serial_number)
            if revoked is not None and not _is_taken_back(revoked):
                raise IntegrityError(f"the certificate of {name} is revoked")
        begun = [entry for entry, complete in own if complete and entry.last_update_utc <= now]
        newest = max(begun, key=lambda entry: entry.last_update_utc, default=None)
        if newest is None or not _signs_lists(issuer):
            what = "no complete revocation list in force" if own else "no revocation list"
            raise NotInForceError(
                f"{what} of the CA of {name}", where=str(self._path), hint="fetch it from the CA"
            )
        if newest.next_update_utc is None or newest.next_update_utc < now:
            raise NotInForceError(
                f"the revocation list of the CA of {name} is out of date",
                where=str(self._path),
                hint="fetch the CA's new one",
            )

    def _signed_by(
        self, issuer: x509.Certificate
    ) -> list[tuple[x509.CertificateRevocationList, bool]]:
        """Return the lists signed by a CA and whether each is complete; verify signatures once."""
        if issuer not in self._signed:
            key = issuer.public_key()
            self._signed[issuer] = [
                (entry, complete)
                for entry, complete in self._lists
                if entry.issuer == issuer.subject and entry.is_signature_valid(key)  # type: ignore[arg-type]
            ]
        return self._signed[issuer]


def _is_complete(entry: x509.CertificateRevocationList) -> bool:
    """Return whether a list covers all certificates of its issuer.

    Extensions that narrow a list are critical (RFC 5280), and so are all others that a reader must
    understand. A complete list needs no critical extension.
    """
    narrow = (x509.DeltaCRLIndicator, x509.IssuingDistributionPoint)
    if any(
        extension.critical or isinstance(extension.value, narrow) for extension in entry.extensions
    ):
        return False
    return not any(extension.critical for revoked in entry for extension in revoked.extensions)


def _is_taken_back(revoked: x509.RevokedCertificate) -> bool:
    """Return whether an entry of a delta list ends a suspension."""
    return any(
        isinstance(extension.value, x509.CRLReason)
        and extension.value.reason is x509.ReasonFlags.remove_from_crl
        for extension in revoked.extensions
    )


def _signs_lists(issuer: x509.Certificate) -> bool:
    usage = _extension(issuer, x509.KeyUsage)
    return usage is not None and usage.crl_sign


class Authority:
    """The site's CA: PEM files of CA certificates (Puppet's `localcacert`), and of their CRLs."""

    def __init__(self, ca: Path, crl: Path | None) -> None:
        self._ca = ca
        self._crl = crl
        self._certificates: list[x509.Certificate] = []
        self._lists: RevocationLists | None = None
        self._renew = ReloadedFiles([path for path in (ca, crl) if path is not None], self._load)

    def identify(self, der: bytes, *, now: datetime) -> tuple[SignerName, PublicKeyTypes]:
        """Verify a certificate; return its name and public key."""
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

    def _check_path(self, leaf: x509.Certificate, name: str, now: datetime) -> None:
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

    def _issuer(self, certificate: x509.Certificate) -> x509.Certificate | None:

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


def read_certificate(path: Path) -> x509.Certificate:
    """Return the first certificate in a PEM file; raise `InvalidInputError` without one."""
    try:
        return x509.load_pem_x509_certificate(read_anchor(path))
    except ValueError as error:
        raise InvalidInputError("has no readable certificate", where=str(path)) from error


def der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)


def _read_authorities(path: Path) -> list[x509.Certificate]:

    try:
        certificates = x509.load_pem_x509_certificates(read_anchor(path))
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


def _extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    """Return an extension; `None` if it is missing or cannot be read."""
    unreadable = (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType)
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, *unreadable):
        return None


def _is_authority(certificate: x509.Certificate) -> bool:

    basic = _extension(certificate, x509.BasicConstraints)
    usage = _extension(certificate, x509.KeyUsage)
    return basic is not None and basic.ca and usage is not None and usage.key_cert_sign


def certificate_name(certificate: x509.Certificate) -> SignerName:
    """Return the CN of a certificate; raise `IntegrityError` unless it is one signer's name."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or not isinstance(names[0].value, str):
        raise IntegrityError("the certificate must have exactly one CN", where="x5c")
    try:
        return SignerName.parse(names[0].value)
    except InvalidInputError as error:
        raise IntegrityError(f"the certificate's CN {error.what}", where="x5c") from error


def server_names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the DNS names, then the IP addresses of a server certificate, without wildcards."""
    names = _extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return ()
    dns = [name.lower() for name in names.get_values_for_type(x509.DNSName) if "*" not in name]
    return *dns, *(str(address) for address in names.get_values_for_type(x509.IPAddress))


def _check_leaf(certificate: x509.Certificate, name: str) -> None:
    """Reject a certificate that is not for client signatures or has unknown critical extensions."""
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


def _check_dates(certificate: x509.Certificate, name: str, now: datetime) -> None:
    if now < certificate.not_valid_before_utc:
        raise NotInForceError(
            f"the certificate of {name}, or of its CA, is not valid yet", hint="check the clock"
        )
    if now > certificate.not_valid_after_utc:
        raise NotInForceError(f"the certificate of {name}, or of its CA, has expired")
