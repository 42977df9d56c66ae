"""Which requests the dashboard accepts on loopback."""

import pytest

from localpuppet.web.access.loopback import DEEDS_BURST, ENTER, LoopbackDoor, Sessions
from localpuppet.web.access.rules import STRANGERS_BURST, RateLimit, Visitor
from tests.doubles.ports import FakeClock

HOST = {"host": "127.0.0.1:8141"}


class Made:
    def __init__(self, address: str = "127.0.0.1", *, acts: bool = False) -> None:
        self.clock = FakeClock()
        sessions = Sessions(self.clock.monotonic)
        self.doors = LoopbackDoor(address, 8141, sessions, self.clock.monotonic, acts=acts)
        self.cookie = {"cookie": f"{self.doors.cookie}={sessions.enter(sessions.link())}"}

    def code(self, method: str = "GET", path: str = "/", **headers: str) -> int:
        found = {name.replace("_", "-"): value for name, value in headers.items()}
        refusal = self.doors.refusal(method, path, Visitor(headers=HOST | self.cookie | found))
        return 200 if refusal is None else refusal.code


def test_a_visitor_with_a_session_has_access() -> None:
    made = Made()
    assert made.code() == 200
    assert made.code(host="localhost:8141") == 200
    assert made.code(origin="http://127.0.0.1:8141", sec_fetch_site="same-origin") == 200


def test_links_of_other_sites_work_and_embedded_requests_do_not() -> None:
    made = Made()
    assert made.code(sec_fetch_site="cross-site", sec_fetch_mode="navigate") == 200
    assert made.code(sec_fetch_site="cross-site", sec_fetch_mode="no-cors") == 403
    assert made.code(sec_fetch_site="same-site", sec_fetch_mode="cors") == 403


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1", "127.0.0.1:80", "127.0.0.1:8141.evil.example"]
)
def test_a_name_that_leads_here_is_not_enough(host: str) -> None:
    assert Made().code(host=host) == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:8141", ""])
def test_other_origins_have_no_access(origin: str) -> None:
    assert Made().code(origin=origin) == 403


@pytest.mark.parametrize("cookie", ["", "localpuppet_8141=", "localpuppet_8141=x", "a=b;;=;\x01"])
def test_without_a_session_only_the_entrance_and_the_style_are_served(cookie: str) -> None:
    made = Made()
    for path in ("/", "/nodes", "/events", "/enter/x", "/staticx", "/nodes.csv"):
        assert made.code(path=path, cookie=cookie) == 403
    assert made.code(path=ENTER, cookie=cookie) == 200
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


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_no_action_is_accepted_without_the_option(method: str) -> None:
    assert Made().code(method) == 405


ACT = "/nodes/do/trigger"
OURS = "http://127.0.0.1:8141"


def test_an_action_is_accepted_only_if_allowed_and_from_the_dashboards_own_forms() -> None:
    made = Made(acts=True)
    assert made.code("POST", ACT, origin=OURS) == 200
    for path in ("/", "/nodes/web01", "/nodes/do/trigger/x", "/enter", f"/x{ACT}"):
        assert made.code("POST", path, origin=OURS) == 405
    assert made.code("POST", ACT) == 403
    for origin in ("null", "http://evil.example", "http://127.0.0.1:80"):
        assert made.code("POST", ACT, origin=origin) == 403
    assert made.code("POST", ACT, origin=OURS, sec_fetch_site="cross-site") == 403
    assert made.code("POST", ACT, origin=OURS, cookie="") == 403
    assert made.code("DELETE", ACT, origin=OURS) == 405
    assert Made().code("POST", ACT, origin=OURS) == 405


def test_the_rate_of_actions_is_limited() -> None:
    made = Made(acts=True)
    codes = [made.code("POST", ACT, origin=OURS) for _ in range(int(DEEDS_BURST) + 1)]
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
