"""Which requests the dashboard accepts on loopback: links, cookies and users."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from localpuppet.web.access import rules
from localpuppet.web.access.http_limits import MAX_SESSIONS
from localpuppet.web.access.rules import NOBODY, STRANGERS_BURST, RateLimit, Visitor, socket_owner
from tests.doubles.ports import FakeClock

HOST = {"host": "127.0.0.1:8141"}
ACT = "/nodes/do/trigger"
OURS = "http://127.0.0.1:8141"


class Made:
    def __init__(self, address: str = "127.0.0.1", *, acts: bool = False) -> None:
        self.clock = FakeClock()
        sessions = rules.Sessions(self.clock.monotonic)
        self.doors = rules.LoopbackDoor(address, 8141, sessions, self.clock.monotonic, acts=acts)
        self.cookie = {"cookie": f"{self.doors.cookie}={sessions.enter(sessions.link())}"}

    def code(self, method: str = "GET", path: str = "/", **headers: str) -> int:
        found = {name.replace("_", "-"): value for name, value in headers.items()}
        refusal = self.doors.refusal(method, path, Visitor(headers=HOST | self.cookie | found))
        return 200 if refusal is None else refusal.code


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, 200),
        ({"host": "localhost:8141"}, 200),
        ({"origin": OURS, "sec_fetch_site": "same-origin"}, 200),
        # Links of other sites work, embedded requests do not.
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, 403),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"}, 403),
        # A name that leads here is not enough.
        ({"host": ""}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1"}, 403),
        ({"host": "127.0.0.1:80"}, 403),
        ({"host": "127.0.0.1:8141.evil.example"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:8141"}, 403),
        ({"origin": ""}, 403),
    ],
)
def test_which_visitors_with_a_session_have_access(headers: dict[str, str], code: int) -> None:
    assert Made().code(**headers) == code


FORM = {"method": "POST", "path": ACT, "origin": OURS}


@pytest.mark.parametrize(
    ("acts", "request_", "code"),
    [
        *((False, {"method": one}, 405) for one in ("POST", "PUT", "OPTIONS", "TRACE", "CONNECT")),
        (False, FORM, 405),
        (True, FORM, 200),
        *(
            (True, {**FORM, "path": path}, 405)
            for path in ("/", "/nodes/web01", "/nodes/do/trigger/x", "/enter", f"/x{ACT}")
        ),
        (True, {"method": "POST", "path": ACT}, 403),
        *(
            (True, {**FORM, "origin": origin}, 403)
            for origin in ("null", "http://evil.example", "http://127.0.0.1:80")
        ),
        (True, {**FORM, "sec_fetch_site": "cross-site"}, 403),
        (True, {**FORM, "cookie": ""}, 403),
        (True, {**FORM, "method": "DELETE"}, 405),
        (False, {**FORM, "method": "DELETE"}, 405),
    ],
)
def test_an_action_is_accepted_only_if_allowed_and_from_the_dashboards_own_forms(
    acts: bool, request_: dict[str, str], code: int
) -> None:
    assert Made(acts=acts).code(**request_) == code


@pytest.mark.parametrize("cookie", ["", "localpuppet_8141=", "localpuppet_8141=x", "a=b;;=;\x01"])
def test_without_a_session_only_the_entrance_and_the_style_are_served(cookie: str) -> None:
    made = Made()
    for path in ("/", "/nodes", "/events", "/enter/x", "/staticx", "/nodes.csv"):
        assert made.code(path=path, cookie=cookie) == 403
    assert made.code(path=rules.ENTER, cookie=cookie) == 200
    assert made.code(path="/static/page.css", cookie=cookie) == 200


@pytest.mark.parametrize(
    "others",
    ['x={"a":1}; ', 'x="; ', "a b; ", "=y; ", "path=/; ", "a[1]=2; ", "localpuppet_8141=evil; "],
)
def test_cookies_of_other_ports_do_not_hide_the_session(others: str) -> None:
    made = Made()
    ours = made.cookie["cookie"]
    assert made.code(cookie=f"{others}{ours}") == 200
    assert made.code(cookie=f"{ours}; {others}") == 200
    assert made.doors.session(f"{others}{ours}") == ours.partition("=")[2]
    assert made.code(cookie=others) == 403


def test_the_rate_of_actions_is_limited() -> None:
    made = Made(acts=True)
    codes = [made.code("POST", ACT, origin=OURS) for _ in range(int(rules.DEEDS_BURST) + 1)]
    assert (codes[-2], codes[-1]) == (200, 429)
    assert made.code() == 200


def test_requests_without_a_session_do_not_use_the_limit_of_sessions() -> None:
    made = Made()
    codes = [made.code(cookie="") for _ in range(int(STRANGERS_BURST) + 1)]
    assert (codes[0], codes[-1]) == (403, 429)
    assert made.code() == 200
    made.clock.advance(1)
    assert made.code(cookie="") == 403


def test_a_bucket_fills_up_and_not_over() -> None:
    clock = FakeClock()
    bucket = RateLimit(1.0, 2.0, clock.monotonic)
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.advance(100)
    assert [bucket.take() for _ in range(3)] == [True, True, False]


def test_an_address_of_ipv6_is_written_in_brackets() -> None:
    assert Made("::1").doors.url == "http://[::1]:8141/"


def made() -> tuple[rules.Sessions, FakeClock]:
    clock = FakeClock()
    return rules.Sessions(clock.monotonic), clock


def entered(sessions: rules.Sessions) -> str:
    cookie = sessions.enter(sessions.link())
    assert cookie is not None
    return cookie


def test_a_link_is_good_once_and_not_late_and_a_guess_does_not_use_it_up() -> None:
    sessions, clock = made()
    assert [sessions.enter(""), sessions.enter("\ud800")] == [None, None], "no link exists yet"
    link = sessions.link()
    assert sessions.enter("guess") is None
    cookie = sessions.enter(link)
    assert cookie is not None
    assert [sessions.enter(link), sessions.enter("")] == [None, None]
    assert [sessions.knows(one) for one in (cookie, "", link)] == [True, False, False]
    late = sessions.link()
    clock.advance(rules.LINK_LIFE)
    assert sessions.enter(late) is None


def test_a_session_ends_and_the_oldest_makes_room() -> None:
    sessions, clock = made()
    first = entered(sessions)
    others = [entered(sessions) for _ in range(MAX_SESSIONS)]
    assert not sessions.knows(first)
    assert all(map(sessions.knows, others))
    clock.advance(rules.SESSION_LIFE)
    assert not any(map(sessions.knows, others))


def test_a_host_name_is_kept_in_a_file_that_only_its_user_can_read(tmp_path: Path) -> None:
    file, other = tmp_path / "web" / "host-name", tmp_path / "other" / "host-name"
    name = rules.kept_host_name(file)
    assert (len(name), rules.kept_host_name(file)) == (32, name)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert rules.kept_host_name(other) != name
    file.chmod(0o644)  # others could have read it
    assert rules.kept_host_name(file) != name
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "localhost", "A" * 32, "0" * 33, "\udc80" * 32])
def test_a_file_with_another_text_gets_a_new_host_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "host-name"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    file.chmod(0o600)
    name = rules.kept_host_name(file)
    assert file.read_text() == f"{name}\n"


@contextmanager
def connection(address: str) -> Iterator[tuple[socket.socket, socket.socket]]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listening:
        client = socket.create_connection(listening.getsockname()[:2])
        server, _ = listening.accept()
        with client, server:
            yield client, server


def owner(client: tuple[str, int], server: socket.socket) -> int | None:
    return socket_owner(client, server.getsockname()[:2])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_user_who_connects_owns_the_connection(address: str) -> None:
    with connection(address) as (client, server):
        ends = client.getsockname()[:2]
        assert owner(ends, server) == os.geteuid()
        client.shutdown(socket.SHUT_WR)  # the client still reads
        assert owner(ends, server) == os.geteuid()


def test_a_closed_connection_has_no_owner_though_the_kernel_shows_root() -> None:
    with connection("127.0.0.1") as (client, server):
        ends = client.getsockname()
        client.close()
        assert owner(ends, server) is None


def test_a_listening_socket_is_not_taken_for_a_connection() -> None:
    with connection("127.0.0.1") as (_, server), socket.create_server(("127.0.0.1", 0)) as other:
        assert owner(other.getsockname(), server) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize(("user", "found"), [(12345, 12345), (NOBODY, None)])
def test_another_user_is_found(user: int, found: int | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        child = os.fork()
        if not child:
            os.setuid(user)
            with socket.create_connection(listening.getsockname()) as client:
                client.recv(1)
            os._exit(0)
        server, ends = listening.accept()
        with server:
            assert owner(ends, server) == found
        os.waitpid(child, 0)
