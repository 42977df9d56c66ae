"""Where the page listens."""

import socket

import pytest

from localpuppet.errors import InvalidInputError, StateError
from localpuppet.web.serving import Place, bound


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [("127.0.0.1:8141", "127.0.0.1", 8141), ("localhost:0", "127.0.0.1", 0), ("[::1]:1", "::1", 1)],
)
def test_loopback_is_taken(text: str, address: str, port: int) -> None:
    assert Place.parse(text) == Place(address=address, port=port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8141",
        ":8141",
        "0.0.0.0:8141",
        "[::]:8141",
        "10.0.0.1:1",
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
