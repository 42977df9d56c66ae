"""Clients that connect and send no request."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from localpuppet.web.access.serving import ConnectionLimits
from localpuppet.web.dashboard import action_views
from tests.rigs.waiting import PATIENCE
from tests.web.dashboard.site import NAME, PlayedActor, Served, Site, status


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTTP/1.1\r\nHos", b"GET /static/page.js HTTP/1.1\r\n"]
)
def test_a_connection_without_a_request_is_closed(head: bytes, tmp_path: Path) -> None:
    site = Site(tmp_path)
    with (
        Served(site, patience=ConnectionLimits(head=0.1)),
        socket.create_connection(("127.0.0.1", site.port), PATIENCE) as caller,
        suppress(ConnectionError),  # the server may close it before the head arrives
    ):
        caller.sendall(head)
        assert caller.recv(1) == b""


def is_served(caller: socket.socket, head: bytes) -> bool:
    """Return whether the server has answered a request: not one that comes too late."""
    answer = b""
    with suppress(ConnectionError):
        caller.sendall(head)
        while not answer.endswith(b"\r\n\r\n") and (more := caller.recv(4096)):
            answer += more
    return answer.endswith(b"\r\n\r\n")


def test_a_connection_with_an_unfinished_second_request_is_closed(tmp_path: Path) -> None:
    site = Site(tmp_path)
    for seconds in (0.1, 4.0, 60.0):  # enough for a busy client to send its first request
        with (
            # The limit for idle connections does not end this connection.
            Served(site, patience=ConnectionLimits(head=seconds, idle=600)),
            socket.create_connection(("127.0.0.1", site.port), PATIENCE) as caller,
        ):
            head = f"HEAD /bus HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n"
            if is_served(caller, head.encode()):
                with suppress(ConnectionError):
                    caller.sendall(b"GET")
                    assert caller.recv(1) == b""
                return
    raise AssertionError("no request was answered")


def test_a_connection_above_the_limit_is_closed_and_the_others_are_served(tmp_path: Path) -> None:
    site = Site(tmp_path)
    with Served(site, patience=ConnectionLimits(most=2)), ExitStack() as opened:
        address = "127.0.0.1", site.port
        *there, more = (
            opened.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(3)
        )
        with suppress(ConnectionResetError):
            assert more.recv(1) == b""
        there[0].sendall(f"GET /bus HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        assert there[0].recv(4096).startswith(b"HTTP/1.1 403 ")


def test_a_form_that_does_not_arrive_in_time_is_refused(tmp_path: Path) -> None:
    site = Site(tmp_path, actor=PlayedActor(), form_patience=0.1)
    site.tell(status("web01", site.now() - 60))
    with Served(site) as served:
        entrance = served.way.entrance
        assert entrance is not None
        sessions = entrance.sessions
        cookie = f"{entrance.cookie}={sessions.enter(sessions.link())}"
        head = (
            f"POST /nodes/do/trigger HTTP/1.1\r\nHost: {NAME}.localhost:{site.port}\r\n"
            f"Origin: {served.url}\r\nCookie: {cookie}\r\nContent-Length: 99\r\n"
            f"Content-Type: {action_views.FORM}\r\n\r\ntoken="
        )
        with socket.create_connection(("127.0.0.1", site.port), PATIENCE) as caller:
            caller.sendall(head.encode())
            assert caller.recv(4096).startswith(b"HTTP/1.1 400 ")
