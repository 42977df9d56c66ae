"""Constraints of a CA on certificates below it: pathlen, names, purposes, unknown extensions."""

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localpuppet.base.errors import IntegrityError
from localpuppet.fleet.trust.authority import Authority
from tests.doubles.certificates import NOW, Ca, Extensions, Issued, named, write

WEB01 = "web01.example.com"
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
EXAMPLE = x509.DNSName("example.com")


def identify(directory: Path, issued: Issued, *path: Ca) -> str:
    ca = write(directory / "ca.pem", *(ca.text for ca in path))
    return Authority(ca, None).identify(issued.der, now=NOW)[0]


def refused(directory: Path, issued: Issued, *path: Ca, message: str) -> None:
    with pytest.raises(IntegrityError, match=message) as caught:
        identify(directory, issued, *path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def names(
    permitted: list[x509.GeneralName] | None = None, excluded: list[x509.GeneralName] | None = None
) -> Extensions:
    return [(x509.NameConstraints(permitted, excluded), True)]


def person(name: str, **more: str) -> x509.Name:
    oids = {"organization": NameOID.ORGANIZATION_NAME, "email": NameOID.EMAIL_ADDRESS}
    parts = [x509.NameAttribute(oids[key], text) for key, text in more.items()]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])


def test_pathlen_counts_the_cas_below(tmp_path: Path) -> None:
    top = Ca("Top", path_length=1)
    middle = Ca("Middle", parent=top)
    low = Ca("Low", parent=middle)
    assert identify(tmp_path, middle.issue("alice"), middle, top) == "alice"
    assert identify(tmp_path, top.issue("alice"), middle, top) == "alice"
    message = r"its CA allows 1 CAs below it \(pathlen\), and there are 2"
    refused(tmp_path, low.issue("alice"), low, middle, top, message=message)
    none = Ca("None", path_length=0)
    assert identify(tmp_path, none.issue("alice"), none) == "alice"
    below = Ca("Below", parent=none)
    refused(tmp_path, below.issue("alice"), below, none, message="allows 0 CAs below it")


def test_a_ca_with_a_new_key_is_no_ca_more(tmp_path: Path) -> None:
    old = Ca("Puppet CA", path_length=0)
    new = Ca("Puppet CA", parent=old)  # issued to itself, as a CA does when it takes another key
    assert identify(tmp_path, new.issue("alice"), new, old) == "alice"


def test_critical_extensions_of_a_ca_are_understood_or_refused(tmp_path: Path) -> None:
    for critical in (True, False):
        ca = Ca("Intermediate", parent=Ca("Root"), extensions=[(UNKNOWN, critical)])
        if critical:
            refused(tmp_path, ca.issue("alice"), ca, message="unknown critical extension")
        else:
            assert identify(tmp_path, ca.issue("alice"), ca) == "alice"


def test_the_purpose_of_a_ca(tmp_path: Path) -> None:
    for purpose, good in (
        (ExtendedKeyUsageOID.CLIENT_AUTH, True),
        (ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE, True),
        (ExtendedKeyUsageOID.SERVER_AUTH, False),
    ):
        ca = Ca(extensions=[(x509.ExtendedKeyUsage([purpose]), False)])
        if good:
            assert identify(tmp_path, ca.issue("alice"), ca) == "alice"
        else:
            refused(tmp_path, ca.issue("alice"), ca, message="not allowed for client certificates")


@pytest.mark.parametrize(
    ("constraint", "name", "problem"),
    [
        (names([EXAMPLE]), WEB01, ""),
        (names([EXAMPLE]), "example.com", ""),
        (names([EXAMPLE, x509.DNSName("example.net")]), "web.example.net", ""),
        (names([x509.DNSName(".example.com")]), WEB01, ""),
        (names([x509.DNSName(".example.com")]), "example.com", "does not permit"),
        (names([EXAMPLE]), "web01.example.net", "does not permit the name 'web01.example.net'"),
        (names([EXAMPLE]), "badexample.com", "does not permit"),
        (names([EXAMPLE]), "alice", "does not permit the name 'alice'"),
        (names([EXAMPLE], [x509.DNSName("dmz.example.com")]), WEB01, ""),
        (names([EXAMPLE], [x509.DNSName("dmz.example.com")]), "a.dmz.example.com", "excludes"),
        (names(None, [EXAMPLE]), WEB01, "excludes the name 'web01.example.com'"),
        (names(None, [x509.DNSName("EXAMPLE.com")]), WEB01, "excludes"),
        (names(None, [EXAMPLE]), "alice", ""),
        (names(None, [x509.IPAddress(ipaddress.ip_network("10.0.0.0/8"))]), WEB01, ""),
    ],
)
def test_dns_constraints_count_for_the_cn(
    tmp_path: Path, constraint: Extensions, name: str, problem: str
) -> None:
    root = Ca("Root", extensions=constraint)
    for path in ([root], [Ca("Intermediate", parent=root), root]):
        if problem:
            refused(tmp_path, path[0].issue(name), *path, message=problem)
        else:
            assert identify(tmp_path, path[0].issue(name), *path) == name


def test_other_names_of_a_certificate_are_held_against_constraints(tmp_path: Path) -> None:
    ca = Ca(extensions=names([EXAMPLE]))
    assert identify(tmp_path, ca.issue(WEB01, dns=[WEB01]), ca) == WEB01
    refused(tmp_path, ca.issue(WEB01, dns=[WEB01, "a.b"]), ca, message="not permit the name 'a.b'")


def test_constrained_names_of_an_unsupported_kind_are_refused(tmp_path: Path) -> None:
    network = x509.IPAddress(ipaddress.ip_network("10.0.0.0/8"))
    address = x509.IPAddress(ipaddress.ip_address("10.1.2.3"))
    for constraint in (names([network]), names(None, [network])):
        ca = Ca(extensions=constraint)
        assert identify(tmp_path, ca.issue(WEB01), ca) == WEB01
        refused(tmp_path, ca.issue(WEB01, also=[address]), ca, message="the name '10.1.2.3'")
    mail = Ca(extensions=names([x509.RFC822Name("example.com")]))
    subject = person("alice", email="alice@example.com")
    refused(tmp_path, mail.issue("alice", subject=subject), mail, message="not permit the name")


def test_directory_names(tmp_path: Path) -> None:
    permitted = x509.DirectoryName(x509.Name(list(person("x", organization="Big  Shop"))[:1]))
    subject = person("alice", organization="big shop")
    other = person("alice", organization="Their Shop")
    permits, excludes = Ca(extensions=names([permitted])), Ca(extensions=names(None, [permitted]))
    assert identify(tmp_path, permits.issue("alice", subject=subject), permits) == "alice"
    refused(tmp_path, permits.issue("alice", subject=other), permits, message="does not permit")
    refused(tmp_path, permits.issue("alice"), permits, message="does not permit")
    refused(tmp_path, excludes.issue("alice", subject=subject), excludes, message="excludes")
    assert identify(tmp_path, excludes.issue("alice", subject=other), excludes) == "alice"


def test_constraints_count_for_the_cas_below(tmp_path: Path) -> None:
    root = Ca("Root", extensions=names(None, [x509.DirectoryName(named("Low"))]))
    low = Ca("Low", parent=root)
    refused(tmp_path, low.issue("alice"), low, root, message="excludes the name")
    assert identify(tmp_path, root.issue("alice"), low, root) == "alice"
