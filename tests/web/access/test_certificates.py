"""Access with a certificate."""

import pytest

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, NotInForceError
from localpuppet.base.formats.names import SignerName
from localpuppet.web.access.rules import STRANGERS_BURST, PeopleDoor, Visitor
from tests.doubles.ports import FakeClock

HOST = {"host": "fleet.example.com:8443"}
OURS = "https://fleet.example.com:8443"


class Made:
    def __init__(self, port: int = 8443) -> None:
        self.clock = FakeClock()
        self.people = {SignerName.parse("alice")}
        self.wrong: LocalpuppetError | None = None
        self.door = PeopleDoor(
            ("fleet.example.com", "2001:db8::1"),
            port,
            people=lambda: self.people,
            holder=self.holder,
            monotonic=self.clock.monotonic,
        )

    def holder(self, certificate: bytes) -> SignerName:
        if self.wrong is not None:
            raise self.wrong
        return SignerName.parse(certificate.decode())

    def why(
        self, method: str = "GET", path: str = "/", *, who: str = "alice", **headers: str
    ) -> tuple[int, str]:
        found = {name.replace("_", "-"): value for name, value in headers.items()}
        visitor = Visitor(headers=HOST | found, certificate=who.encode())
        refusal = self.door.refusal(method, path, visitor)
        return (200, "") if refusal is None else (refusal.code, f"{refusal.what} {refusal.hint}")


def test_a_listed_person_has_access() -> None:
    made = Made()
    assert made.why() == (200, "")
    assert made.why(origin=OURS, sec_fetch_site="same-origin") == (200, "")
    assert made.why(host="[2001:db8::1]:8443") == (200, "")


def test_a_certificate_of_the_ca_is_not_enough() -> None:
    code, why = Made().why(who="web01.example.com")
    assert code == 403
    assert "web.people does not list web01.example.com" in why
    assert "localpuppet.yaml" in why


def test_a_person_who_is_removed_from_the_list_loses_access_at_once() -> None:
    made = Made()
    visitor = Visitor(headers=HOST, certificate=b"alice")
    assert made.door.knows(visitor)
    made.people.clear()
    assert not made.door.knows(visitor)
    assert made.why()[0] == 403


def test_a_bad_certificate_loses_access_at_once_with_the_reason() -> None:
    made = Made()
    made.wrong = NotInForceError("the certificate of alice, or of its CA, has expired")
    assert made.why() == (
        403,
        "No access: the certificate of alice, or of its CA, has expired. ",
    )


def test_refused_files_give_no_access_and_are_not_named() -> None:
    made = Made()
    made.wrong = InvalidInputError("may be written by others", where="/etc/puppet/ca.pem")
    code, why = made.why()
    assert code == 503
    assert "ca.pem" not in why


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_no_action_is_accepted_from_any_visitor(method: str) -> None:
    assert Made().why(method, "/nodes/do/trigger", origin=OURS)[0] == 405


@pytest.mark.parametrize("host", ["", "evil.example:8443", "fleet.example.com", "127.0.0.1:8443"])
def test_a_name_that_leads_here_is_not_enough(host: str) -> None:
    assert Made().why(host=host)[0] == 403


def test_at_the_port_of_https_a_host_needs_no_port() -> None:
    made = Made(443)
    assert made.door.url == "https://fleet.example.com/"
    assert made.why(host="fleet.example.com") == (200, "")
    assert made.why(host="fleet.example.com:443") == (200, "")


@pytest.mark.parametrize("origin", ["http://fleet.example.com:8443", "https://evil.example"])
def test_other_origins_have_no_access(origin: str) -> None:
    assert Made().why(origin=origin)[0] == 403


def test_a_refusal_has_its_style() -> None:
    assert Made().why(path="/static/page.css", who="web01.example.com") == (200, "")


def test_requests_of_nodes_do_not_use_the_limit_of_people() -> None:
    made = Made()
    codes = [made.why(who="web01")[0] for _ in range(int(STRANGERS_BURST) + 1)]
    assert (codes[0], codes[-1]) == (403, 429)
    assert made.why() == (200, "")
