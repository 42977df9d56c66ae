"""The kernel knows which user a connection belongs to."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localpuppet.web.access.rules import NOBODY, socket_owner


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
