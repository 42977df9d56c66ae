"""New connections to real sockets of this machine; what firewalls do is in tests/scenarios."""

import asyncio
import socket

from localpuppet.base.machine.server_selector import Address, ServerSelector, resolve
from tests.rigs.servers import free_port

NOT_OURS = ("255.255.255.255", 9)  # the kernel refuses to connect there


async def test_who_listens_answers_also_when_it_serves_nobody() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=8) as hangs:
        port = hangs.getsockname()[1]
        assert await ServerSelector([("127.0.0.1", port)], timeout=30).answers()
        assert await ServerSelector([NOT_OURS, ("localhost", port)], timeout=30).answers()


async def test_a_port_where_nobody_listens_is_an_answer_of_its_machine() -> None:
    assert await ServerSelector([("127.0.0.1", free_port())], timeout=30).answers()


async def test_an_error_of_our_own_machine_is_none() -> None:
    assert not await ServerSelector([NOT_OURS], timeout=30).answers()


async def test_silence_is_none_and_ends() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        where = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for one in waiting:  # the queue of those that wait is full: further ones hear nothing
            one.setblocking(False)
            one.connect_ex(where)
        assert not await ServerSelector([where], timeout=0.3).answers()
        for one in waiting:
            one.close()


async def test_a_name_that_is_not_resolved_any_more_is_where_it_was() -> None:
    fails = False

    async def look_up(host: str, port: int) -> list[Address]:
        return [] if fails else await resolve(host, port)

    with socket.create_server(("127.0.0.1", 0), backlog=8) as server:
        where = ("localhost", server.getsockname()[1])
        known = ServerSelector([where], timeout=30, look_up=look_up)
        assert await known.answers()
        fails = True
        assert await known.answers()
        assert not await ServerSelector([where], timeout=30, look_up=look_up).answers()


async def test_a_resolver_that_hangs_takes_no_more_than_the_time_of_a_look() -> None:
    lookups = 0

    async def hangs(host: str, port: int) -> list[Address]:
        nonlocal lookups
        lookups += 1
        await asyncio.Event().wait()
        return []

    ours = ServerSelector([("localhost", 9)], timeout=0.05, look_up=hangs)
    assert not await ours.answers()
    assert not await ours.answers()
    assert lookups == 1  # the one that hangs is waited for
