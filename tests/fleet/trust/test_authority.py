"""Certificates as identities: the site's CA, dates, names, revocation."""

import base64
import ipaddress
import json
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from localpuppet.base.errors import IntegrityError, InvalidInputError, NotInForceError
from localpuppet.fleet.trust.authority import Authority, server_names
from localpuppet.fleet.trust.signing import MessageKind, Verifier
from tests.doubles.certificates import DAY, NOW, Ca, Issued, named, rsa_key, write
from tests.doubles.identities import ALICE, certified, decode, encode, forge, person, verifier

BLOCK = b"-----BEGIN X-----\nAAAA\n-----END X-----\n"


def trust(directory: Path, *authorities: Ca, crl: bytes = b"", people: Any = ()) -> Verifier:
    ca = write(directory / "ca.pem", *(ca.text for ca in authorities))
    lists = write(directory / "crl.pem", crl) if crl else None
    return verifier(directory, *people, authority=Authority(ca, lists))


def token(issued: Issued, name: str = "alice") -> bytes:
    return certified(issued, name).sign(b"{}", MessageKind.REQUEST)


def refused(found: Verifier, issued: Issued, message: str, name: str = "alice") -> None:
    with pytest.raises(IntegrityError, match=message) as caught:
        found.verify(token(issued, name), MessageKind.REQUEST)
    assert str(caught.value).isprintable()


@pytest.fixture
def ca() -> Ca:
    return Ca()


@pytest.mark.parametrize("key", ["rsa", "ec"])
def test_a_certificate_of_the_ca_is_an_identity(tmp_path: Path, key: str) -> None:
    ca = Ca(key=rsa_key(1)) if key == "rsa" else Ca()
    issued = ca.issue("alice", key=rsa_key(2) if key == "rsa" else None)
    found = trust(tmp_path, ca).verify(token(issued), MessageKind.REQUEST)
    assert found.signer == ALICE
    assert found.payload == b"{}"


def test_puppets_intermediate_ca_is_in_the_ca_file(tmp_path: Path) -> None:
    root = Ca("Puppet Root CA: 1f2e3d")
    ca = Ca(parent=root)
    issued = ca.issue("web01.example.com")
    for crl in (b"", root.revoke() + ca.revoke()):
        for authorities in ((ca, root), (root, ca)):
            found = trust(tmp_path, *authorities, crl=crl)
            assert found.verify(token(issued, "web01.example.com"), MessageKind.REQUEST)
    alone = trust(tmp_path, ca).verify(token(issued, "web01.example.com"), MessageKind.REQUEST)
    assert alone, "trusted by itself"
    refused(trust(tmp_path, root), issued, "was not issued by the CA", "web01.example.com")


def test_a_certificate_of_another_ca_of_the_same_name(tmp_path: Path) -> None:
    ours, theirs = Ca(), Ca()
    refused(trust(tmp_path, ours), theirs.issue("alice"), "alice was not issued by the CA in")
    refused(trust(tmp_path, ours, theirs), Ca("Other").issue("alice"), "was not issued")
    assert trust(tmp_path, ours, theirs).verify(token(theirs.issue("alice")), MessageKind.REQUEST)
    key = ec.generate_private_key(ec.SECP256R1())
    self_issued = Ca(ours.name, key=key).issue("alice", key=key)
    refused(trust(tmp_path, ours), self_issued, "was not issued")


def test_a_ca_does_not_sign_messages_and_a_leaf_no_certificates(ca: Ca, tmp_path: Path) -> None:
    refused(trust(tmp_path, ca), ca.issue("alice", authority=True), "alice is a CA's")
    leaf = ca.issue("mallory")
    forged = Ca("mallory", key=leaf.key).issue("alice")
    refused(trust(tmp_path, ca), forged, "was not issued")
    write(tmp_path / "ca.pem", ca.text, leaf.text)
    found = verifier(tmp_path, authority=Authority(tmp_path / "ca.pem", None))
    with pytest.raises(
        InvalidInputError, match=r"ca\.pem: has a certificate that is not a CA cert"
    ):
        found.verify(token(forged), MessageKind.REQUEST)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"until": NOW - timedelta(seconds=1)}, "alice, or of its CA, has expired"),
        ({"since": NOW + timedelta(seconds=1)}, "not valid yet.*check the clock"),
        ({"signs": False}, "is not allowed for signatures"),
        ({"purpose": ExtendedKeyUsageOID.SERVER_AUTH}, "is not allowed for clients"),
        ({"critical": True}, "unknown critical extension"),
        ({"key": rsa_key(5, 1024)}, "RSA key of less than 2048 bits"),
        ({"key": ec.generate_private_key(ec.SECP384R1())}, "another curve than P-256"),
    ],
)
def test_certificates_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    ca = Ca()
    good = ca.issue("alice")
    issued = ca.issue("alice", **changes)
    found = trust(tmp_path, ca)
    # The key and the certificate need not fit: the certificate is refused before the signature.
    with pytest.raises(IntegrityError, match=message) as caught:
        found.verify(token(Issued(issued.certificate, good.key)), MessageKind.REQUEST)
    assert str(caught.value).isprintable()
    assert isinstance(caught.value, NotInForceError) is bool({"until", "since"} & {*changes})


def test_certificates_of_an_expired_ca_are_rejected(tmp_path: Path) -> None:
    root = Ca("Root", until=NOW - DAY)
    refused(trust(tmp_path, root), root.issue("alice"), "or of its CA, has expired")
    ca = Ca(parent=root)
    refused(trust(tmp_path, ca, root), ca.issue("alice"), "or of its CA, has expired")


def test_the_cn_is_the_kid(ca: Ca, tmp_path: Path) -> None:
    found = trust(tmp_path, ca)
    refused(found, ca.issue("bob"), "kid is alice, the certificate is bob's")
    refused(found, ca.issue("Alice"), "CN 'Alice' is not a signer's name")
    refused(found, ca.issue("*"), "not a signer's name")
    two = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in ("alice", "bob")])
    refused(found, ca.issue("alice", subject=two), "exactly one CN")
    none = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "alice")])
    refused(found, ca.issue("alice", subject=none), "exactly one CN")


def test_both_paddings_of_rsa_are_taken(tmp_path: Path) -> None:
    ca, key = Ca(), rsa_key(2)
    chain = [base64.b64encode(ca.issue("alice", key=key).der).decode()]
    header = {"alg": "RS256", "kid": "alice", "typ": "lp-request", "x5c": chain}
    body = encode(json.dumps(header).encode()) + b"." + encode(b"{}")
    message = body + b"." + encode(key.sign(body, padding.PKCS1v15(), hashes.SHA256()))
    assert trust(tmp_path, ca).verify(message, MessageKind.REQUEST).signer == ALICE


def test_an_algorithm_belongs_to_the_certificates_key(tmp_path: Path) -> None:
    ca, alice = Ca(), person("alice")
    issued = ca.issue("alice", key=rsa_key(2))
    found = trust(tmp_path, ca)
    chain = [base64.b64encode(issued.der).decode()]
    for alg in ("none", "HS256", "EdDSA", "ES256", "RS512", "PS512", "RS1"):
        header = {"alg": alg, "kid": "alice", "typ": "lp-request", "x5c": chain}
        with pytest.raises(IntegrityError, match="key is for PS256 or RS256"):
            found.verify(forge(alice.key, header), MessageKind.REQUEST)
    header = {"alg": "PS256", "kid": "alice", "typ": "lp-request", "x5c": chain}
    with pytest.raises(IntegrityError, match="the signature does not match alice's key"):
        found.verify(forge(alice.key, header), MessageKind.REQUEST)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([], "x5c must hold"),
        (["AA==", "AA=="], "x5c must hold"),
        ([7], "x5c must hold"),
        ("AA==", "x5c must hold"),
        (["%%%"], "not base64"),
        (["é"], "not base64"),
        (["AA=="], "unreadable"),
        (["MIIB"], "unreadable"),
    ],
)
def test_invalid_certificates_are_rejected(tmp_path: Path, chain: object, message: str) -> None:
    header = {"alg": "PS256", "kid": "alice", "typ": "lp-request", "x5c": chain}
    with pytest.raises(IntegrityError, match=message):
        trust(tmp_path, Ca()).verify(forge(person("alice").key, header), MessageKind.REQUEST)


def test_revocation(tmp_path: Path) -> None:
    root = Ca("Root")
    ca = Ca(parent=root)
    issued, other = ca.issue("alice"), ca.issue("bob")
    both = root.revoke() + ca.revoke(other.certificate)
    assert trust(tmp_path, ca, root, crl=both).verify(token(issued), MessageKind.REQUEST)
    gone = root.revoke() + ca.revoke(issued.certificate)
    refused(trust(tmp_path, ca, root, crl=gone), issued, "the certificate of alice is revoked")
    gone = root.revoke(ca.certificate) + ca.revoke()
    refused(trust(tmp_path, ca, root, crl=gone), issued, "revoked")
    refused(trust(tmp_path, ca, root, crl=root.revoke()), issued, "no revocation list of the CA")
    refused(trust(tmp_path, ca, root, crl=ca.revoke()), issued, "no revocation list of the CA")
    stale = root.revoke() + ca.revoke(next_update=NOW - timedelta(hours=1))
    refused(trust(tmp_path, ca, root, crl=stale), issued, "list of the CA of alice is out of date")
    forged = root.revoke() + Ca(ca.name).revoke()
    refused(trust(tmp_path, ca, root, crl=forged), issued, "no revocation list of the CA")


def test_files_are_read_again_when_they_change(ca: Ca, tmp_path: Path) -> None:
    issued = ca.issue("alice")
    found = trust(tmp_path, ca, crl=ca.revoke())
    assert found.verify(token(issued), MessageKind.REQUEST)
    write(tmp_path / "fresh", ca.revoke(issued.certificate)).rename(tmp_path / "crl.pem")
    refused(found, issued, "revoked")
    (tmp_path / "ca.pem").unlink()
    with pytest.raises(InvalidInputError, match=r"ca\.pem: cannot be read"):
        found.verify(token(issued), MessageKind.REQUEST)


@pytest.mark.parametrize(
    ("ca", "crl", "message"),
    [
        (b"", None, "no readable certificates"),
        (BLOCK.replace(b"X", b"CERTIFICATE"), None, "no readable certificates"),
        (None, b"", "holds no revocation list"),
        (None, BLOCK.replace(b"X", b"X509 CRL"), "is not a revocation list"),
    ],
)
def test_invalid_files_are_refused(
    tmp_path: Path, ca: bytes | None, crl: bytes | None, message: str
) -> None:
    good = Ca()
    found = Authority(
        write(tmp_path / "ca.pem", good.text if ca is None else ca),
        None if crl is None else write(tmp_path / "crl.pem", crl),
    )
    with pytest.raises(InvalidInputError, match=message):
        found.identify(good.issue("alice").der, now=NOW)


def test_other_keys_and_digests_in_certificates(ca: Ca, tmp_path: Path) -> None:
    edwards = ed25519.Ed25519PrivateKey.generate()
    builder = (
        x509.CertificateBuilder()
        .subject_name(named("alice"))
        .issuer_name(named(ca.name))
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
    )
    odd = builder.public_key(edwards.public_key()).sign(ca.key, hashes.SHA256())
    good = ca.issue("alice")
    refused(trust(tmp_path, ca), Issued(odd, good.key), "a key that is neither RSA nor EC")
    weak = builder.public_key(good.key.public_key()).sign(ca.key, hashes.SHA3_256())
    refused(trust(tmp_path, ca), Issued(weak, good.key), "was not issued")


def test_the_header_stays_within_its_limit_with_puppets_largest_keys(tmp_path: Path) -> None:
    ca = Ca(key=rsa_key(3, 4096))
    issued = ca.issue("a" * 50 + ".example.com", key=rsa_key(4, 4096))
    name = issued.certificate.subject.rfc4514_string().removeprefix("CN=")
    message = token(issued, name)
    assert len(message.split(b".")[0]) < 12 * 1024
    assert b"x5c" in decode(message.split(b".")[0])
    assert trust(tmp_path, ca).verify(message, MessageKind.REQUEST).signer == name


def test_any_certificate_is_refused_in_one_line(ca: Ca, tmp_path: Path) -> None:
    """Each byte of a foreign certificate is changed: libraries raise many kinds of errors."""
    issued = ca.issue("alice")
    found = Authority(write(tmp_path / "ca.pem", ca.text), None)
    der = issued.der
    signed = issued.certificate.tbs_certificate_bytes
    tries = [der[:length] for length in range(0, len(der), 7)]
    for place, byte in enumerate(der):
        values = {0, 0xFF, byte ^ 1, byte ^ 0x20} - {byte}
        tries += [der[:place] + bytes([value]) + der[place + 1 :] for value in values]
    for changed in tries:
        with warnings.catch_warnings():  # of odd serial numbers and lengths
            warnings.simplefilter("ignore")
            try:
                name, _ = found.identify(changed, now=NOW)
            except IntegrityError as error:
                assert str(error).isprintable()
                continue
        # What the CA signed is as it was: only the signature is written in another way.
        assert (name, signed in changed) == ("alice", True)


@pytest.mark.parametrize("rsa", [True, False])
def test_any_signature_is_refused_in_one_line(ca: Ca, tmp_path: Path, rsa: bool) -> None:
    found = trust(tmp_path, ca)
    body, _, signature = token(ca.issue("alice", key=rsa_key(2) if rsa else None)).rpartition(b".")
    raw = decode(signature)
    zero = bytes(len(raw))
    tries = [b"", b"A", b"AA", b"A=", encode(zero), encode(raw[:-1]), encode(raw + b"\0")]
    tries += [encode(b"\xff" * len(raw)), encode(raw * 4), encode(raw[::-1]), signature[:-1] + b"~"]
    for changed in tries:
        with pytest.raises(IntegrityError):
            found.verify(body + b"." + changed, MessageKind.REQUEST)


def test_the_holder_of_a_certificate_has_the_name_of_its_signatures(ca: Ca, tmp_path: Path) -> None:
    alice, mallory = ca.issue("alice"), ca.issue("mallory")
    found = trust(tmp_path, ca, crl=ca.revoke(mallory.certificate))
    assert found.holder(alice.der) == ALICE
    with pytest.raises(IntegrityError, match="the certificate of mallory is revoked"):
        found.holder(mallory.der)
    weak = ca.issue("alice", key=rsa_key(3, 1024))
    with pytest.raises(IntegrityError, match="of alice has an RSA key of less than 2048"):
        found.holder(weak.der)


def test_a_certificate_does_not_replace_a_pinned_key(tmp_path: Path) -> None:
    ca, alice = Ca(), person("alice")
    issued, found = ca.issue("alice"), trust(tmp_path, ca, people=[alice])
    assert found.verify(alice.signer.sign(b"{}", MessageKind.REQUEST), MessageKind.REQUEST)
    refused(found, issued, "signed with a certificate, but a key of alice is pinned")
    with pytest.raises(IntegrityError, match="a key of alice is pinned"):
        found.holder(issued.der)
    without = verifier(tmp_path / "without")
    refused(without, issued, "no key of alice is trusted here")
    with pytest.raises(IntegrityError, match="this node trusts no certificates"):
        without.holder(issued.der)


def test_server_names_are_the_names_and_addresses_of_the_certificate(ca: Ca) -> None:
    address = x509.IPAddress(ipaddress.ip_address("2001:db8::1"))
    dns = ["Fleet.example.com", "*.example.com", "fleet"]
    issued = ca.issue("fleet.example.com", dns=dns, also=[address])
    assert server_names(issued.certificate) == ("fleet.example.com", "fleet", "2001:db8::1")
    assert server_names(ca.issue("fleet.example.com").certificate) == ()
