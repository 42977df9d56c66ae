"""The dashboard over real TLS, and access with a certificate."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import SignerName
from localpuppet.base.machine.anchors import server_tls_context
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.trust.authority import Authority
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import Verifier
from localpuppet.web.access.rules import STRANGERS_BURST, PeopleDoor, Visitor
from localpuppet.web.access.serving import NO_CERTIFICATE, ConnectionTable, Tls
from localpuppet.web.app import DashboardAccess
from tests.doubles.certificates import Ca, Issued, pem, write
from tests.doubles.ports import FakeClock
from tests.rigs.waiting import PATIENCE, wait_until
from tests.web.make import PlayedActor, Served, Site, status

HOUR = timedelta(hours=1)
GONE = (ssl.SSLError, ConnectionError)


class Secured(Site):
    """A dashboard for people with certificates, with its own CA."""

    patience = PATIENCE  # of a handshake

    def prepare(self) -> "Secured":
        """Make the CA, and write the files of the dashboard."""
        self.actor = PlayedActor()  # even so nothing is done
        self.since = datetime.now(UTC) - HOUR
        self.ca = Ca(since=self.since - HOUR, until=self.since + 1000 * HOUR)
        self.people = {SignerName.parse("alice")}
        self.crl = write(self.directory / "crl.pem", self.list())
        self.files = [
            write(self.directory / "ca.pem", self.ca.text),
            *self.written(self.issue("fleet.example.com", dns=["localhost"])),
        ]
        self.crowd = ConnectionTable(most=3)
        return self

    def issue(
        self,
        name: str,
        *,
        ca: Ca | None = None,
        days: int = 1,
        dns: tuple[str, ...] | list[str] = (),
    ) -> Issued:
        until = self.since + days * 24 * HOUR
        return (ca or self.ca).issue(
            name, since=min(self.since, until) - HOUR, until=until, dns=dns
        )

    def list(self, *revoked: Issued) -> bytes:
        certificates = [one.certificate for one in revoked]
        return self.ca.revoke(
            *certificates, last_update=self.since, next_update=self.since + 100 * HOUR
        )

    def written(self, issued: Issued) -> tuple[Path, Path]:
        name = issued.certificate.serial_number
        return (
            write(self.directory / f"{name}.pem", issued.text),
            write(self.directory / f"{name}.key", pem(issued.key), mode=0o600),
        )

    def way(self, address: str = "127.0.0.1") -> DashboardAccess:
        clock = SystemClock()
        authority = Authority(self.files[0], self.crl)
        verifier = Verifier(TrustedKeys(self.directory / "trusted"), authority, clock)
        door = PeopleDoor(
            ["localhost"],
            self.port,
            people=lambda: self.people,
            holder=verifier.holder,
            monotonic=clock.monotonic,
        )
        ca, certificate, key = self.files
        tls = Tls(
            context=lambda: server_tls_context(ca, certificate, key),
            crowd=self.crowd,
            log=self.log,
            patience=self.patience,
        )
        return DashboardAccess(door=door, tls=tls)

    def client(self, issued: Issued | None) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.files[0]))
        if issued is not None:
            context.load_cert_chain(*self.written(issued))
        return HTTPSConnection("localhost", self.port, timeout=PATIENCE, context=context)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    site = Secured(tmp_path).prepare()
    site.tell(status("web01", site.now() - 60))
    with Served(site):
        yield site
        # All connections are closed, however they ended.
        wait_until(lambda: not site.crowd.total, lambda: str(site.crowd.total))


def ask(connection: HTTPSConnection, path: str = "/nodes", method: str = "GET") -> tuple[int, str]:
    connection.request(method, path, headers={"Origin": f"https://localhost:{connection.port}"})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_only_listed_people_have_access(secured: Secured) -> None:
    alice = secured.client(secured.issue("alice"))
    code, text = ask(alice)
    assert code == 200
    assert "web01" in text
    assert ask(alice, "/nodes/do/trigger", "POST")[0] == 405
    assert ask(alice, "/nodes/do/trigger")[0] == 404
    assert ask(alice, "/enter?key=x")[0] == 404
    alice.close()
    node = secured.client(secured.issue("web01.example.com"))
    code, text = ask(node)
    assert code == 403
    assert "web.people does not list web01.example.com" in text
    assert "localpuppet.yaml" in text
    node.close()
    other = Ca(since=secured.ca.since, until=secured.ca.until)
    of_another_ca = secured.issue("alice", ca=other)
    expired = secured.issue("alice", days=0)
    for issued in (of_another_ca, expired):
        secured.log.lines.clear()
        with closing(secured.client(issued)) as stranger, pytest.raises(GONE):
            ask(stranger)
        wait_until(
            lambda: "refused a connection from 127.0.0.1" in secured.log.text,
            lambda: secured.log.text,
        )


def answer_to(secured: Secured, said: bytes) -> bytes:
    """Return what a client without a certificate can read before the connection ends."""
    context = ssl.create_default_context(cafile=str(secured.files[0]))
    answer = b""
    with (
        socket.create_connection(("127.0.0.1", secured.port), PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as odd,
    ):
        with suppress(*GONE):
            odd.sendall(said)
        with suppress(*GONE):
            while more := odd.recv(4096):
                answer += more
    return answer


def test_a_visitor_without_a_certificate_gets_a_fixed_answer(secured: Secured) -> None:
    """Each request gets the same bytes as answer, and the connection ends."""
    for path, method in (("/nodes", "GET"), ("/static/page.css", "GET"), ("/enter", "POST")):
        with closing(secured.client(None)) as stranger:
            code, text = ask(stranger, path, method)
            assert (code, text[:44]) == (403, "This page is for people with a certificate o")
    assert answer_to(secured, b"\x00") == NO_CERTIFICATE
    # The server closes the connection while this is written: part of the answer can be lost.
    assert NO_CERTIFICATE.startswith(answer_to(secured, b"GET /nodes HTTP/1.1\r\n" * 500_000))
    assert "refused a connection from 127.0.0.1: no certificate" in secured.log.text


def test_a_person_with_a_revoked_certificate_has_no_access(secured: Secured) -> None:
    issued = secured.issue("alice")
    alice = secured.client(issued)
    revoked = secured.list(issued)
    assert ask(alice)[0] == 200
    write(secured.crl, revoked)
    code, text = ask(alice)
    assert code == 403
    assert "the certificate of alice is revoked" in text
    alice.close()


def test_a_connection_without_a_handshake_is_closed(tmp_path: Path) -> None:
    site = Secured(tmp_path).prepare()
    site.patience = 0.1
    with Served(site):
        for head in (b"", b"\x16\x03\x01\x02\x00\x01"):
            with (
                suppress(*GONE),  # the server may close the connection before the head arrives
                socket.create_connection(("127.0.0.1", site.port), PATIENCE) as slow,
            ):
                slow.sendall(head)
                assert slow.recv(1) == b""
        context = ssl.create_default_context(cafile=str(site.files[0]))
        with (
            suppress(*GONE),
            socket.create_connection(("127.0.0.1", site.port), PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as silent,
        ):
            assert silent.recv(1) == b""  # it has shaken hands, without a certificate
        wait_until(lambda: not site.crowd.total, lambda: str(site.crowd.total))


def test_connections_without_tls_or_above_the_limit_are_closed(secured: Secured) -> None:
    plain = HTTPConnection("127.0.0.1", secured.port, timeout=PATIENCE)
    plain.request("GET", "/static/page.css")
    with closing(plain), pytest.raises(GONE):
        plain.getresponse()
    wait_until(lambda: not secured.crowd.total, lambda: str(secured.crowd.total))
    address = ("127.0.0.1", secured.port)
    waiting = [socket.create_connection(address, PATIENCE) for _ in range(3)]
    wait_until(lambda: secured.crowd.total == 3, lambda: str(secured.crowd.total))
    with suppress(*GONE), socket.create_connection(address, PATIENCE) as more:
        assert more.recv(1) == b""
    for one in waiting:
        one.close()


def test_a_certificate_that_is_renewed_is_shown_from_then_on(secured: Secured) -> None:
    alice = secured.issue("alice")
    before = secured.client(alice)
    assert ask(before)[0] == 200
    issued = secured.issue("fleet.example.com", dns=["localhost"])
    write(secured.files[1], issued.text)
    write(secured.files[2], pem(issued.key), mode=0o600)
    after = secured.client(alice)
    assert ask(after)[0] == 200
    shown = after.sock.getpeercert(binary_form=True)
    assert shown == issued.der
    assert after.sock.version() == "TLSv1.3"
    before.close()
    after.close()


HOST = {"host": "fleet.example.com:8443"}
OURS = "https://fleet.example.com:8443"
ACT = "/nodes/do/trigger"


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


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({}, 200),
        ({"origin": OURS, "sec_fetch_site": "same-origin"}, 200),
        ({"host": "[2001:db8::1]:8443"}, 200),
        *(({"method": one, "path": ACT, "origin": OURS}, 405) for one in ("POST", "PUT", "DELETE")),
        # A name that leads here is not enough.
        ({"host": ""}, 403),
        ({"host": "evil.example:8443"}, 403),
        ({"host": "fleet.example.com"}, 403),
        ({"host": "127.0.0.1:8443"}, 403),
        ({"origin": "http://fleet.example.com:8443"}, 403),
        ({"origin": "https://evil.example"}, 403),
        # A refusal has its style.
        ({"path": "/static/page.css", "who": "web01.example.com"}, 200),
    ],
)
def test_which_requests_of_a_listed_person_are_good(request_: dict[str, str], code: int) -> None:
    assert Made().why(**request_)[0] == code


def test_a_person_who_is_removed_from_the_list_loses_access_at_once() -> None:
    made = Made()
    visitor = Visitor(headers=HOST, certificate=b"alice")
    assert made.door.knows(visitor)
    made.people.clear()
    assert not made.door.knows(visitor)
    assert made.why()[0] == 403


def test_refused_files_give_no_access_and_are_not_named() -> None:
    made = Made()
    made.wrong = InvalidInputError("may be written by others", where="/etc/puppet/ca.pem")
    code, why = made.why()
    assert code == 503
    assert "ca.pem" not in why


def test_at_the_port_of_https_a_host_needs_no_port() -> None:
    made = Made(443)
    assert made.door.url == "https://fleet.example.com/"
    assert made.why(host="fleet.example.com") == (200, "")
    assert made.why(host="fleet.example.com:443") == (200, "")


def test_requests_of_nodes_do_not_use_the_limit_of_people() -> None:
    made = Made()
    codes = [made.why(who="web01")[0] for _ in range(int(STRANGERS_BURST) + 1)]
    assert (codes[0], codes[-1]) == (403, 429)
    assert made.why() == (200, "")
