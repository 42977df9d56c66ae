"""New connections to real sockets of this machine; tests/scenarios covers firewalls."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

from localpuppet.base.machine.unix_socket import ask, listen_to
from localpuppet.fleet.bus.servers import Address, ServerSelector, resolve
from tests.rigs.servers import free_port
from tests.rigs.waiting import PATIENCE

NOT_OURS = ("255.255.255.255", 9)  # the kernel refuses to connect there


async def test_a_listening_server_answers_even_if_it_accepts_no_connection() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as hangs:
        port = hangs.getsockname()[1]
        assert await ServerSelector([("127.0.0.1", port)], timeout=PATIENCE).answers()
        assert await ServerSelector([NOT_OURS, ("localhost", port)], timeout=PATIENCE).answers()


async def test_a_refused_connection_is_an_answer_of_the_machine() -> None:
    assert await ServerSelector([("127.0.0.1", free_port())], timeout=PATIENCE).answers()


async def test_an_error_of_this_machine_is_not_an_answer() -> None:
    assert not await ServerSelector([NOT_OURS], timeout=PATIENCE).answers()


async def test_an_unresponsive_server_is_not_an_answer_and_the_wait_ends() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        where = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for client in waiting:  # the queue is full, so further clients get no answer
            client.setblocking(False)
            client.connect_ex(where)
        assert not await ServerSelector([where], timeout=0.3).answers()
        for client in waiting:
            client.close()


async def test_a_name_keeps_its_last_address_while_it_cannot_be_resolved() -> None:
    fails = False

    async def look_up(host: str, port: int) -> list[Address]:
        return [] if fails else await resolve(host, port)

    with socket.create_server(("127.0.0.1", 0), backlog=8) as server:
        where = ("localhost", server.getsockname()[1])
        known = ServerSelector([where], timeout=PATIENCE, look_up=look_up)
        assert await known.answers()
        fails = True
        assert await known.answers()
        assert not await ServerSelector([where], timeout=PATIENCE, look_up=look_up).answers()


async def test_a_resolver_that_hangs_is_left_at_the_timeout_and_not_called_twice() -> None:
    lookups = 0

    async def hangs(host: str, port: int) -> list[Address]:
        nonlocal lookups
        lookups += 1
        await asyncio.Event().wait()
        return []

    ours = ServerSelector([("localhost", 9)], timeout=0.05, look_up=hangs)
    assert not await ours.answers()
    assert not await ours.answers()
    assert lookups == 1  # the second call waits for the one that hangs


async def test_the_file_of_a_given_socket_outlives_its_server(tmp_path: Path) -> None:
    path = tmp_path / "run.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as given:
        given.bind(str(path))
        given.listen()
        for request in (b"1\n", b"2\n"):
            server = await listen_to(given.dup(), _echo, users=())
            assert [line async for line in _first(path, request)] == [request]
            server.close()
            await asyncio.wait_for(server.wait_closed(), PATIENCE)
            assert path.exists(), "the next server of the unit listens there"


async def _echo(line: bytes) -> AsyncGenerator[bytes, None]:
    yield line


async def _first(path: Path, line: bytes) -> AsyncGenerator[bytes, None]:
    answers = ask(path, line, patience=PATIENCE)
    yield await anext(answers)
    await answers.aclose()
