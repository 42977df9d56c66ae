"""A socket that the service manager made: a server that ends keeps its file."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

from localpuppet.base.machine.unix_socket import ask, listen_to
from tests.rigs.waiting import PATIENCE


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
