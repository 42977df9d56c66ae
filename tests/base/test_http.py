"""One HTTP exchange with real servers over TLS: deadline, limit, redirects, proxy, authorities."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.http import (
    DIRECT,
    BodyTooLargeError,
    Deadline,
    HttpClient,
    HttpError,
    HttpRequest,
    HttpRoute,
    is_public,
)
from tests.rigs.connect_proxy import ConnectProxy, serve_proxy
from tests.rigs.pages import DRIPS, Answer, PageHandler, Pages, pages

LONG = 60.0
SHORT = 0.5
LIMIT = 5000


def fetch(
    server: Pages,
    path: str,
    *,
    route: HttpRoute | None = None,
    deadline: Deadline | None = None,
    **request: Any,
) -> tuple[int, bytes]:
    """Return status and body of a page."""
    client = HttpClient(route or HttpRoute(ca=server.ca))
    url = f"{server.url}/{path}"
    with client.open(HttpRequest(url=url, **request), deadline or Deadline(LONG)) as answer:
        return answer.status, answer.body(LIMIT)


def body(data: bytes) -> Answer:
    return lambda handler: handler.send(200, data)


def chunked(size: int) -> Answer:
    """Answer with chunks of 1000 bytes."""

    def answer(handler: PageHandler) -> None:
        handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(size // 1000):
            handler.wfile.write(b"3e8\r\n" + bytes(1000) + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")

    return answer


# Deadline.


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 ",
        b"HTTP/1.1 200 OK\r\nX-Slow: ",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n",
    ],
    ids=["status", "header", "body", "chunk"],
)
def test_an_exchange_with_a_server_that_sends_byte_after_byte_ends_at_the_deadline(
    tmp_path: Path, start: bytes
) -> None:
    with pages(tmp_path, slow=lambda handler: handler.drip(start)) as server:
        for seconds in (SHORT, 4.0, 32.0):  # enough for a busy machine to send the request
            with pytest.raises(HttpError, match=f"timed out after {seconds:g} s"):
                fetch(server, "slow", deadline=Deadline(seconds))
            if server.requests:
                break
        assert server.closed.wait(LONG), "the connection stayed open"


def test_a_tls_handshake_of_byte_after_byte_ends_at_the_deadline() -> None:
    closed = threading.Event()

    def drip(listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # on a busy machine the deadline may end before the client connects
            closed.set()
            return
        with connection, suppress(OSError):
            connection.sendall(b"\x16\x03\x03\x40\x00")  # the head of a record of 16 KiB
            for _ in range(DRIPS):
                closed.wait(0.02)
                connection.sendall(b"x")
            return
        closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip, args=(listening,))
        thread.start()
        url = f"https://127.0.0.1:{listening.getsockname()[1]}/"
        with (
            pytest.raises(HttpError, match=r"timed out after 0\.5 s"),
            HttpClient(HttpRoute()).open(HttpRequest(url=url), Deadline(SHORT)),
        ):
            pass
        listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
        thread.join()
    assert closed.is_set(), "the connection stayed open"


def test_a_name_server_that_does_not_answer_ends_at_the_deadline() -> None:
    over = threading.Event()

    def look_up(*_: object, **__: object) -> list[Any]:
        over.wait(LONG)
        return []

    client = HttpClient(HttpRoute(), look_up=look_up)
    with (
        pytest.raises(HttpError, match=r"timed out after 0\.5 s"),
        client.open(HttpRequest(url="https://web01.example.com/"), Deadline(SHORT)),
    ):
        pass
    assert not over.is_set()
    over.set()


def test_one_deadline_covers_several_exchanges(tmp_path: Path) -> None:
    with pages(tmp_path, a=body(b"a")) as server:
        deadline = Deadline(LONG)
        assert fetch(server, "a", deadline=deadline) == (200, b"a")
        deadline.end()
        with pytest.raises(HttpError, match="timed out after 60 s"):
            fetch(server, "a", deadline=deadline)
        assert len(server.requests) == 1


def test_silence_has_a_shorter_limit_and_a_thread_can_end_an_exchange(tmp_path: Path) -> None:
    ended = Deadline(LONG)

    def silent(handler: PageHandler) -> None:
        handler.pages.over.wait(LONG)

    def end(handler: PageHandler) -> None:
        ended.end()
        handler.pages.over.wait(LONG)

    with pages(tmp_path, silent=silent, end=end) as server:
        with pytest.raises(HttpError, match=r"the server sent nothing for 0\.5 s"):
            fetch(server, "silent", deadline=Deadline(LONG, silence=SHORT))
        with pytest.raises(HttpError):
            fetch(server, "end", deadline=ended)


def test_an_exchange_tries_the_next_address_of_a_host(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()
    with pages(tmp_path, a=body(b"a")) as server:

        def look_up(_host: str, _port: int, **_: object) -> list[Any]:
            known = [(socket.AF_INET, closed), (socket.AF_INET, server.address)]
            known.insert(0, (socket.AF_APPLETALK, closed))  # as IPv6 where the kernel has none
            return [(family, socket.SOCK_STREAM, 0, "", address) for family, address in known]

        client = HttpClient(HttpRoute(ca=server.ca), look_up=look_up)
        with client.open(HttpRequest(url=f"{server.url}/a"), Deadline(LONG)) as answer:
            assert answer.body(LIMIT) == b"a"


# Size.


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1000])
@pytest.mark.parametrize("answer", [lambda size: body(bytes(size)), chunked])
def test_a_body_has_at_most_as_many_bytes_as_the_caller_allows(
    tmp_path: Path, answer: Callable[[int], Answer], size: int
) -> None:
    with pages(tmp_path, page=answer(size)) as server:
        if size <= LIMIT:
            assert fetch(server, "page") == (200, bytes(size))
        else:
            with pytest.raises(BodyTooLargeError, match="the limit is 5000 bytes"):
                fetch(server, "page")


def test_a_stated_length_is_refused_before_the_body_arrives(tmp_path: Path) -> None:
    start = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
    with pages(tmp_path, page=lambda handler: handler.drip(start)) as server:
        with pytest.raises(BodyTooLargeError):
            fetch(server, "page")
        assert server.closed.wait(LONG), "the connection stayed open"


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nhalf", "has no length"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nhalf", "broke after 4 of 8 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\nhalf", "IncompleteRead"),
    ],
)
def test_an_incomplete_body_is_refused(tmp_path: Path, answer: bytes, problem: str) -> None:
    def write(handler: PageHandler) -> None:
        handler.wfile.write(answer)

    with pages(tmp_path, page=write) as server, pytest.raises(HttpError, match=problem):
        fetch(server, "page")


# Redirects.


def test_a_redirect_is_followed_as_often_as_the_request_permits(tmp_path: Path) -> None:
    with pages(tmp_path, b=body(b"b")) as server:
        server.redirect("/a", "/b")
        assert fetch(server, "a") == (302, b"")
        assert fetch(server, "a", redirects=1) == (200, b"b")
        server.requests.clear()
        server.redirect("/a", "/a")
        with pytest.raises(HttpError, match="redirects more than 3 times"):
            fetch(server, "a", redirects=3)
        assert len(server.requests) == 4


def test_a_token_is_sent_only_to_its_origin(tmp_path: Path) -> None:
    with pages(tmp_path / "one", c=body(b"c")) as one, pages(tmp_path / "two") as two:
        both = tmp_path / "both.pem"
        both.write_bytes(b"".join(ca.read_bytes() for ca in (one.ca, two.ca) if ca))
        one.redirect("/a", "b")
        one.redirect("/b", f"{two.url}/a")
        two.redirect("/a", f"{one.url}/c")
        token: dict[str, Any] = {"token": "s3cret", "token_url": one.url}
        assert fetch(one, "a", route=HttpRoute(ca=both), redirects=3, **token) == (200, b"c")
    shown = [(path, headers.get("Authorization")) for path, headers in one.requests]
    assert shown == [(path, "Bearer s3cret") for path in ("/a", "/b", "/c")]
    ((_, headers),) = two.requests
    assert "s3cret" not in str(headers)
    assert "s3cret" not in repr(HttpRequest(url=one.url, token="s3cret"))


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.1:1/",
        "file:///etc/passwd",
        "https://user:s3cret@127.0.0.1/",
        "https://127.0.0.1:99999/",
        "https://[bad",
    ],
)
@pytest.mark.parametrize("plain", [False, True])
def test_a_redirect_must_lead_to_an_https_url(tmp_path: Path, place: str, plain: bool) -> None:
    with pages(tmp_path) as server:
        server.redirect("/a", place)
        with pytest.raises(HttpError, match="redirects to a URL that is not https") as refused:
            fetch(server, "a", route=HttpRoute(ca=server.ca, plain=plain), redirects=5)
    assert "s3cret" not in str(refused.value)


# Proxy.


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("https_proxy", "http_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


def test_https_uses_the_proxy_of_the_environment_and_of_the_route(
    tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    other = ConnectProxy()
    proxy = ConnectProxy(password="Basic dXNlcjpwQHNz")
    with pages(tmp_path, a=body(b"a")) as server, serve_proxy(proxy) as place:
        environment.setenv("https_proxy", place.replace("//", "//user:p%40ss@"))
        token: dict[str, Any] = {"token": "s3cret", "token_url": server.url}
        assert fetch(server, "a", **token) == (200, b"a")
        assert "s3cret" not in str(proxy.heard)
        assert "Proxy-Authorization" not in server.requests[0][1]

        environment.setenv("no_proxy", "127.0.0.1")
        assert fetch(server, "a") == (200, b"a")
        environment.delenv("no_proxy")
        assert fetch(server, "a", route=HttpRoute(ca=server.ca, proxy=DIRECT)) == (200, b"a")
        assert len(proxy.heard) == 1

        with serve_proxy(other) as named:
            assert fetch(server, "a", route=HttpRoute(ca=server.ca, proxy=named)) == (200, b"a")
        assert (len(proxy.heard), len(other.heard)) == (1, 1)


def test_plain_http_uses_no_proxy(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("http_proxy", "http://127.0.0.1:1")
    environment.setenv("https_proxy", "http://127.0.0.1:1")
    with pages(tmp_path, tls=False, a=body(b"a")) as server:
        assert fetch(server, "a", route=HttpRoute(plain=True)) == (200, b"a")


# Authorities, and URLs.


def test_a_server_with_a_certificate_of_another_authority_gets_no_request(tmp_path: Path) -> None:
    with pages(tmp_path, a=body(b"a")) as server:
        with pytest.raises(HttpError, match="certificate verify failed: "):
            fetch(server, "a", route=HttpRoute())
        assert server.requests == []


@pytest.mark.parametrize(
    ("addresses", "public"),
    [
        (("93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822", "2002:5db8:d822::"), True),
        (("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "0.1.0.0", "255.1.1.1"), False),
        (("169.254.169.254", "100.64.0.1", "224.0.0.1", "198.18.0.1", "203.0.113.1"), False),
        (("::1", "::", "fe80::1%lo", "fc00::1", "fec0::1", "ff02::1", "2001:db8::1"), False),
        (("::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1"), False),
        (("2002:7f00:1::", "2002:a00:1::", "2001:0:5db8:d822::1", "4000::1"), False),
    ],
)
def test_addresses_of_the_public_internet(addresses: tuple[str, ...], *, public: bool) -> None:
    assert [address for address in addresses if is_public(address) != public] == []


@pytest.mark.parametrize("first", ["93.184.216.34", "127.0.0.1"])
def test_a_public_route_reaches_no_name_with_a_private_address(tmp_path: Path, first: str) -> None:
    def look_up(_host: str, port: int, **_more: Any) -> list[Any]:
        return [(socket.AF_INET, 0, 0, "", (address, port)) for address in (first, "127.0.0.1")]

    with pages(tmp_path, a=body(b"a")) as server, serve_proxy(ConnectProxy()) as proxy:
        client = HttpClient(HttpRoute(ca=server.ca, proxy=proxy, public=True), look_up=look_up)
        with (
            pytest.raises(HttpError, match="has an address that is not public"),
            client.open(HttpRequest(url=f"{server.url}/a"), Deadline(LONG)),
        ):
            pass
        assert server.requests == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://web01.example.com/", "is not an https URL"),
        ("ftp://web01.example.com/", "is not an https URL"),
        ("https:///input.yaml", "has no host"),
        ("https://user:s3cret@web01.example.com/", "must not hold credentials"),
        ("https://web01.example.com:port/", "is not a URL"),
        ("https://web01.example.com/a b", "written as %XX"),
        ("https://web01.example.com/ä", "written as %XX"),
    ],
)
def test_refused_urls(url: str, message: str) -> None:
    with (
        pytest.raises(InvalidInputError, match=message) as refused,
        HttpClient(HttpRoute()).open(HttpRequest(url=url), Deadline(LONG)),
    ):
        pass
    assert "s3cret" not in str(refused.value)
