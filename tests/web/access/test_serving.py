"""The addresses on which the dashboard listens, and the limits of connections."""

import asyncio
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.web.access.serving import (
    LOCALHOST,
    ConnectionLimits,
    ConnectionTable,
    ListenAddress,
    bound,
)
from localpuppet.web.dashboard import action_views
from tests.rigs.waiting import PATIENCE
from tests.web.make import NAME, PlayedActor, Served, Site, status


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


@pytest.mark.parametrize(
    ("most", "of_one", "callers", "inside"),
    [
        pytest.param(
            5,
            2,
            ["192.0.2.1"] * 3 + ["192.0.2.2"],
            ["192.0.2.1", "192.0.2.1", None, "192.0.2.2"],
            id="a crowded address keeps no other out",
        ),
        pytest.param(
            2,
            2,
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
            ["192.0.2.1", "192.0.2.2", None],
            id="all together",
        ),
        pytest.param(
            9,
            1,
            ["::ffff:192.0.2.1", "::ffff:192.0.2.2"],
            ["192.0.2.1", "192.0.2.2"],
            id="IPv4 within IPv6",
        ),
    ],
)
def test_connections_are_limited(
    most: int, of_one: int, callers: list[str], inside: list[str | None]
) -> None:
    crowd = ConnectionTable(most=most, of_one=of_one)
    assert [crowd.enter(one) for one in callers] == inside


def test_a_connection_that_leaves_makes_room_and_an_ipv6_network_is_a_single_address() -> None:
    crowd = ConnectionTable(most=1, of_one=1)
    crowd.leave(str(crowd.enter("192.0.2.1")))
    assert crowd.enter("192.0.2.3")
    crowd = ConnectionTable(most=9, of_one=1)
    assert crowd.enter("2001:db8::1")
    assert crowd.enter("2001:db8::2:2") is None
    assert crowd.enter("2001:db8:0:1::1")
    assert crowd.enter("fe80::1%eth0")


@pytest.mark.parametrize(
    ("text", "address", "port", "is_loopback"),
    [
        ("127.0.0.1:8141", "127.0.0.1", 8141, True),
        ("localhost:0", "127.0.0.1", 0, True),
        ("127.0.0.2:1", "127.0.0.2", 1, True),
        ("[::1]:1", "::1", 1, True),
        ("0.0.0.0:1", "0.0.0.0", 1, False),  # noqa: S104 - nothing listens
        ("[::]:1", "::", 1, False),
    ],
)
def test_an_address_and_a_port_are_taken(
    text: str, address: str, port: int, is_loopback: bool
) -> None:
    found = ListenAddress.parse(text)
    assert found == ListenAddress(address=address, port=port)
    assert found.is_loopback is is_loopback


@pytest.mark.parametrize(
    "text", ["", "8141", ":8141", "example.com:1", "127.0.0.1:x", "127.0.0.1:65536", "127.0.0.1:²"]
)
def test_all_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--listen") as caught:
        ListenAddress.parse(text)
    is_name = text.startswith("example.com")
    assert ("is not an address and a port" in str(caught.value)) == (not is_name)
    assert ("'example.com' is not an IP address" in str(caught.value)) == is_name


def test_a_port_in_use_is_an_error() -> None:
    taken = r"cannot listen.*--listen 127\.0\.0\.1:0"
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(StateError, match=taken),
        bound(ListenAddress(address="127.0.0.1", port=other.getsockname()[1])),
    ):
        pass


def there() -> list[str]:
    """Return the addresses of `localhost` that this machine has."""
    found = []
    for address in LOCALHOST:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.create_server((address, 0), family=family):
            found.append(address)
    return found


def test_the_dashboard_takes_its_port_on_all_addresses_of_localhost() -> None:
    for address in there():
        others = [one for one in there() if one != address]
        with bound(ListenAddress(address=address, port=0)) as listening:
            assert [one.getsockname()[0] for one in listening] == [address, *others]
            (port,) = {one.getsockname()[1] for one in listening}
        for other in others:
            family = socket.AF_INET6 if ":" in other else socket.AF_INET
            with (
                socket.create_server((other, port), family=family),
                pytest.raises(StateError, match="cannot listen"),
                bound(ListenAddress(address=address, port=port)),
            ):
                pass
        # The first address was released.
        with bound(ListenAddress(address=address, port=port)):
            pass


def test_an_address_that_is_not_localhost_is_the_only_address() -> None:
    with bound(ListenAddress(address="127.0.0.2", port=0)) as listening:
        assert [one.getsockname()[0] for one in listening] == ["127.0.0.2"]


async def test_the_second_packet_of_an_answer_does_not_wait_for_the_first_ones_receipt() -> None:
    delays: list[int] = []

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delays.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bound(ListenAddress(address="127.0.0.1", port=0)) as listening:
        server = await asyncio.start_server(answer, sock=listening[0])
        reader, writer = await asyncio.open_connection(*listening[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        server.close()
    assert delays == [1]
