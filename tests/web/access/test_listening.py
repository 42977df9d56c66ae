"""The addresses on which the dashboard listens."""

import asyncio
import socket
from contextlib import suppress

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.web.access.serving import LOCALHOST, ListenAddress, bound


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [("127.0.0.1:8141", "127.0.0.1", 8141), ("localhost:0", "127.0.0.1", 0), ("[::1]:1", "::1", 1)],
)
def test_an_address_and_a_port_are_taken(text: str, address: str, port: int) -> None:
    assert ListenAddress.parse(text) == ListenAddress(address=address, port=port)


@pytest.mark.parametrize(
    ("text", "loopback"),
    [("127.0.0.2:1", True), ("[::1]:1", True), ("0.0.0.0:1", False), ("[::]:1", False)],
)
def test_only_loopback_is_this_machine_alone(text: str, loopback: bool) -> None:
    assert ListenAddress.parse(text).is_loopback is loopback


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
