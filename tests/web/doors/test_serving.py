"""Where the page listens."""

import asyncio
import socket
from pathlib import Path

import pytest

from localpuppet.errors import InvalidInputError, StateError
from localpuppet.web import acting
from localpuppet.web.doors import serving
from localpuppet.web.doors.serving import Place, bound
from tests.web.site import PlayedActor, Served, Site, status


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [("127.0.0.1:8141", "127.0.0.1", 8141), ("localhost:0", "127.0.0.1", 0), ("[::1]:1", "::1", 1)],
)
def test_an_address_and_a_port_are_taken(text: str, address: str, port: int) -> None:
    assert Place.parse(text) == Place(address=address, port=port)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [("127.0.0.2:1", True), ("[::1]:1", True), ("0.0.0.0:1", False), ("[::]:1", False)],
)
def test_only_loopback_is_this_machine_alone(text: str, loopback: bool) -> None:
    assert Place.parse(text).is_loopback is loopback


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8141",
        ":8141",
        "example.com:1",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "127.0.0.1:²",
    ],
)
def test_all_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--listen"):
        Place.parse(text)


def test_a_port_that_is_taken_is_said() -> None:
    taken = r"cannot listen.*--listen 127\.0\.0\.1:0"
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(StateError, match=taken),
    ):
        bound(Place(address="127.0.0.1", port=other.getsockname()[1]))


async def test_the_second_packet_of_an_answer_does_not_wait_for_the_first_ones_receipt() -> None:
    delays: list[int] = []

    def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted = writer.get_extra_info("socket")
        delays.append(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    with bound(Place(address="127.0.0.1", port=0)) as listening:
        server = await asyncio.start_server(answer, sock=listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        assert await reader.read() == b""
        writer.close()
        server.close()
    assert delays == [1]


@pytest.mark.parametrize(
    "head", [b"", b"GET / HTTP/1.1\r\nHos", b"GET /static/page.js HTTP/1.1\r\n"]
)
def test_who_connects_and_asks_for_nothing_is_let_go(
    head: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.1)
    site = Site(tmp_path)
    with Served(site), socket.create_connection(("127.0.0.1", site.port), 20) as caller:
        caller.sendall(head)
        assert caller.recv(1) == b""


def test_who_begins_a_second_request_and_does_not_end_it_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.1)
    # Long enough that it is not what ends the connection.
    monkeypatch.setattr(serving, "IDLE", 600)
    site = Site(tmp_path)
    with Served(site), socket.create_connection(("127.0.0.1", site.port), 20) as caller:
        caller.sendall(f"HEAD /bus HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += caller.recv(4096)
        caller.sendall(b"GET")
        assert caller.recv(1) == b""


def test_a_form_that_does_not_come_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acting, "PATIENCE", 0.1)
    site = Site(tmp_path, actor=PlayedActor())
    site.tell(status("web01", site.now() - 60))
    with Served(site) as served:
        entrance = served.way.entrance
        assert entrance is not None
        sessions = entrance.sessions
        cookie = f"{entrance.cookie}={sessions.enter(sessions.link())}"
        head = (
            f"POST /nodes/web01/do/trigger HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n"
            f"Origin: {served.url}\r\nCookie: {cookie}\r\nContent-Length: 99\r\n"
            f"Content-Type: {acting.FORM}\r\n\r\ntoken="
        )
        with socket.create_connection(("127.0.0.1", site.port), 20) as caller:
            caller.sendall(head.encode())
            assert caller.recv(4096).startswith(b"HTTP/1.1 400 ")
