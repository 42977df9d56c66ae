"""Which revocation lists count: complete ones, of the issuer, in force."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from localpuppet.base.errors import IntegrityError, InvalidInputError, NotInForceError
from localpuppet.fleet.trust.authority import Authority, RevocationLists
from tests.doubles.certificates import DAY, NOW, Ca, Extensions, Issued, named, write

HOUR = timedelta(hours=1)
UNKNOWN = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), b"\x05\x00")
DELTA: Extensions = [(x509.DeltaCRLIndicator(1), True), (x509.CRLNumber(2), False)]
PUPPET: Extensions = [(x509.CRLNumber(7), False), (UNKNOWN, False)]


def scope(**said: object) -> Extensions:
    plain: dict[str, object] = {
        "full_name": None,
        "relative_name": None,
        "only_contains_user_certs": False,
        "only_contains_ca_certs": False,
        "only_some_reasons": None,
        "indirect_crl": False,
        "only_contains_attribute_certs": False,
    }
    return [(x509.IssuingDistributionPoint(**{**plain, **said}), True)]  # type: ignore[arg-type]


NARROW: dict[str, Extensions] = {
    "delta": DELTA,
    "delta, not critical": [(x509.DeltaCRLIndicator(1), False)],
    "CAs only": scope(only_contains_ca_certs=True),
    "users only": scope(only_contains_user_certs=True),
    "attributes only": scope(only_contains_attribute_certs=True),
    "indirect": scope(indirect_crl=True),
    "some reasons": scope(only_some_reasons=frozenset({x509.ReasonFlags.key_compromise})),
    "a part": scope(full_name=[x509.UniformResourceIdentifier("http://ca/part1.crl")]),
    "unknown": [(UNKNOWN, True)],
}


@pytest.fixture
def ca() -> Ca:
    return Ca()


@pytest.fixture
def identify(tmp_path: Path, ca: Ca) -> Callable[..., str]:
    def identify(issued: Issued, *lists: bytes) -> str:
        own = write(tmp_path / "ca.pem", ca.text)
        return Authority(own, write(tmp_path / "crl.pem", *lists)).identify(issued.der, now=NOW)[0]

    return identify


def test_puppets_list_is_complete(ca: Ca, identify: Callable[..., str]) -> None:
    assert identify(ca.issue("alice"), ca.revoke(extensions=PUPPET)) == "alice"


@pytest.mark.parametrize("narrow", NARROW)
def test_a_newer_partial_list_ends_none(ca: Ca, identify: Callable[..., str], narrow: str) -> None:
    alice, bob = ca.issue("alice"), ca.issue("bob")
    complete = ca.revoke(alice.certificate)
    newer = ca.revoke(last_update=NOW - HOUR, extensions=NARROW[narrow])
    with pytest.raises(IntegrityError, match="the certificate of alice is revoked"):
        identify(alice, complete, newer)
    assert identify(bob, complete, newer) == "bob"
    with pytest.raises(IntegrityError, match="no complete revocation list in force of the CA of"):
        identify(bob, newer)


@pytest.mark.parametrize("narrow", NARROW)
def test_any_list_revokes_a_certificate(ca: Ca, identify: Callable[..., str], narrow: str) -> None:
    alice = ca.issue("alice")
    newer = ca.revoke(alice.certificate, last_update=NOW - HOUR, extensions=NARROW[narrow])
    with pytest.raises(IntegrityError, match="the certificate of alice is revoked"):
        identify(alice, ca.revoke(), newer)


def test_a_list_from_the_future_does_not_count_yet(ca: Ca, identify: Callable[..., str]) -> None:
    alice, bob = ca.issue("alice"), ca.issue("bob")
    future = ca.revoke(last_update=NOW + HOUR)
    with pytest.raises(IntegrityError, match="is revoked"):
        identify(alice, ca.revoke(alice.certificate), future)
    with pytest.raises(IntegrityError, match="no complete revocation list in force"):
        identify(bob, future)
    with pytest.raises(IntegrityError, match="is revoked"):
        identify(bob, ca.revoke(), ca.revoke(bob.certificate, last_update=NOW + HOUR))


def test_the_newest_complete_list_counts(ca: Ca, identify: Callable[..., str]) -> None:
    stale = ca.revoke(last_update=NOW - 2 * DAY, next_update=NOW - DAY)
    assert identify(ca.issue("alice"), stale, ca.revoke()) == "alice"
    with pytest.raises(IntegrityError, match="out of date"):
        identify(ca.issue("alice"), stale)


def test_entries_with_a_critical_extension(ca: Ca, identify: Callable[..., str]) -> None:
    for extension in (x509.CertificateIssuer([x509.DirectoryName(named("Other CA"))]), UNKNOWN):
        odd = ca.revoke(ca.issue("bob").certificate, of_entries=[(extension, True)])
        with pytest.raises(IntegrityError, match="no complete revocation list"):
            identify(ca.issue("alice"), odd)
    reason: Extensions = [(x509.CRLReason(x509.ReasonFlags.key_compromise), False)]
    usual = ca.revoke(ca.issue("bob").certificate, of_entries=reason)
    assert identify(ca.issue("alice"), usual) == "alice"


def test_a_delta_that_ends_a_hold_revokes_nothing(ca: Ca, identify: Callable[..., str]) -> None:
    alice = ca.issue("alice")
    back: Extensions = [(x509.CRLReason(x509.ReasonFlags.remove_from_crl), False)]
    delta = ca.revoke(alice.certificate, extensions=DELTA, of_entries=back)
    assert identify(alice, ca.revoke(), delta) == "alice"


def test_a_ca_that_may_not_sign_lists(tmp_path: Path) -> None:
    ca = Ca(lists=False)
    found = Authority(write(tmp_path / "ca.pem", ca.text), write(tmp_path / "crl.pem", ca.revoke()))
    with pytest.raises(IntegrityError, match="no complete revocation list"):
        found.identify(ca.issue("alice").der, now=NOW)


class Counted:
    def __init__(self, text: bytes) -> None:
        self.verified = 0
        self._list = x509.load_pem_x509_crl(text)

    def is_signature_valid(self, key: Any) -> bool:
        self.verified += 1
        return self._list.is_signature_valid(key)

    def __iter__(self) -> Iterator[x509.RevokedCertificate]:
        return iter(self._list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._list, name)


def test_the_signature_of_a_list_is_verified_once_for_each_ca_of_its_name(ca: Ca) -> None:
    good, bad = ca.issue("alice").certificate, ca.issue("eve").certificate
    counted = Counted(ca.revoke(bad))
    lists = RevocationLists(Path("crl.pem"), [counted])  # type: ignore[list-item]
    for _ in range(3):
        lists.check(good, ca.certificate, "alice", NOW)
        with pytest.raises(IntegrityError, match="eve is revoked"):
            lists.check(bad, ca.certificate, "eve", NOW)
    assert counted.verified == 1
    other = Ca(ca.name)
    with pytest.raises(NotInForceError, match="no revocation list"):
        lists.check(good, other.certificate, "alice", NOW)
    assert counted.verified == 2


def test_many_lists_of_many_cas(tmp_path: Path) -> None:
    """Each CA's own list counts, in whatever order the file has them."""
    root = Ca("Root")
    ca = Ca(parent=root)
    alice = ca.issue("alice")
    lists = [ca.revoke(), root.revoke(), ca.revoke(extensions=DELTA), root.revoke(extensions=DELTA)]
    own = write(tmp_path / "ca.pem", ca.text, root.text)
    for order in (lists, lists[::-1]):
        found = Authority(own, write(tmp_path / "crl.pem", *order))
        assert found.identify(alice.der, now=NOW)[0] == "alice"
    narrow = [ca.revoke(), root.revoke(extensions=scope(only_contains_user_certs=True))]
    found = Authority(own, write(tmp_path / "crl.pem", *narrow))
    with pytest.raises(IntegrityError, match="no complete revocation list"):
        found.identify(alice.der, now=NOW)


def test_files_that_others_can_write_are_refused(tmp_path: Path, ca: Ca) -> None:
    for bad in ("ca.pem", "crl.pem"):
        own, crl = write(tmp_path / "ca.pem", ca.text), write(tmp_path / "crl.pem", ca.revoke())
        (tmp_path / bad).chmod(0o666)
        with pytest.raises(InvalidInputError, match=f"{bad}: is writable by others"):
            Authority(own, crl).identify(ca.issue("alice").der, now=NOW)
