"""Check what the CAs on a path allow below them: the number of CAs, names and purposes.

- Supported are `pathlen`, name constraints, key purposes and critical extensions (RFC 5280, 4.2.1,
  6.1). An unknown critical extension of a CA rejects the path.
- A signer is identified by the CN, so constraints on DNS names also apply to the CN of a signer's
  certificate: a CA for `example.com` cannot certify `alice`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate, GeneralName, Name


def check_constraints(path: "Sequence[Certificate]", name: str) -> None:
    """Reject a path that violates a constraint of one of its CAs.

    Args:
        path: The signer's certificate, then the CA that issued each, in order.
        name: The CN of the signer's certificate.

    Raises:
        IntegrityError: A CA does not allow a certificate below it.
    """
    below = 0
    for index, authority in enumerate(path[1:], 1):
        problem = _authority_problem(authority, below) or _names_problem(
            authority, path[:index], name
        )
        if problem:
            raise IntegrityError(f"the certificate of {name} is rejected: its CA {problem}")
        below += authority.subject != authority.issuer


def _authority_problem(authority: "Certificate", below: int) -> str:
    """Return which constraint a CA with `below` CAs under it violates; empty if none."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

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


def _names_problem(authority: "Certificate", below: "Sequence[Certificate]", cn: str) -> str:
    """Return which name below a CA violates its name constraints; empty if none does."""
    from cryptography.x509 import DNSName, ExtensionNotFound, NameConstraints

    try:
        rule = authority.extensions.get_extension_for_class(NameConstraints).value
    except ExtensionNotFound:
        return ""
    permitted, excluded = rule.permitted_subtrees or (), rule.excluded_subtrees or ()
    names: list[GeneralName] = [DNSName(cn)]
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


def _names(certificate: "Certificate") -> "Iterator[GeneralName]":
    """Yield the subject and the alternative names of a certificate."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    if certificate.subject.rdns:
        yield x509.DirectoryName(certificate.subject)
    for attribute in certificate.subject.get_attributes_for_oid(NameOID.EMAIL_ADDRESS):
        yield x509.RFC822Name(str(attribute.value))
    try:
        yield from certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return


def _is_within(name: "GeneralName", base: "GeneralName", *, unknown: bool = False) -> bool:
    """Return whether a name is in a subtree, or `unknown` for kinds not compared here."""
    from cryptography.x509 import DirectoryName, DNSName

    if type(name) is not type(base):
        return False
    if isinstance(name, DNSName) and isinstance(base, DNSName):
        text, suffix = name.value.lower(), base.value.lower()
        inner = suffix if suffix.startswith(".") else f".{suffix}"
        return not suffix or text == suffix or text.endswith(inner)
    if isinstance(name, DirectoryName) and isinstance(base, DirectoryName):
        parts = _parts(base.value)
        return _parts(name.value)[: len(parts)] == parts
    return unknown


def _parts(name: "Name") -> list[frozenset[tuple[str, str]]]:
    """Return the parts of a name in a form that compares as X.500 requires."""
    return [frozenset(_attributes(rdn)) for rdn in name.rdns]


def _attributes(rdn: "Iterable[object]") -> Iterator[tuple[str, str]]:
    for attribute in rdn:
        oid, value = attribute.oid.dotted_string, attribute.value  # type: ignore[attr-defined]
        yield oid, " ".join(str(value).casefold().split())


def _shown(name: "GeneralName") -> str:
    return repr(str(name.value))[:80]
