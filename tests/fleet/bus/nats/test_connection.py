"""Connecting to NATS: calls that wait for it, cancellations, and what they leave."""

import asyncio

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.nats.connection import NatsConnection
from tests.rigs.bus.lying import INFO, answering, listening
from tests.rigs.reaching import servers_at
from tests.rigs.servers import free_port

TIMEOUT = 60.0


def connection(url: str, timeout: float = TIMEOUT) -> NatsConnection:
    return NatsConnection(servers_at(url), inbox="_INBOX", timeout=timeout)


async def test_calls_that_wait_for_the_same_connection_share_a_timeout() -> None:
    away = connection(f"nats://127.0.0.1:{free_port()}", timeout=1.0)
    calls = [asyncio.create_task(away.request("x")) for _ in range(30)]
    async with asyncio.timeout(10.0):  # one after the other they would take three times that
        for result in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(result, UnavailableError)
            assert "cannot be reached" in str(result)
            assert "buses.nats.servers" in str(result)


async def test_an_attempt_to_connect_that_is_given_up_leaves_no_connection() -> None:
    come, gone = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(INFO)
        await reader.readline()
        come.set()
        await reader.read()
        gone.set()

    async with listening(silent) as url:
        attempt = asyncio.create_task(connection(url, timeout=60.0).link())
        await come.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        async with asyncio.timeout(TIMEOUT):
            await gone.wait()


async def test_a_connection_that_is_closed_while_it_connects_stays_closed() -> None:
    come, go, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        come.set()
        await go.wait()
        await answering(b"{}")(reader, writer)
        gone.set()

    async with listening(slow) as url:
        made = connection(url, timeout=60.0)
        attempt = asyncio.create_task(made.link())
        await come.wait()
        await made.close()
        go.set()
        with pytest.raises(UnavailableError, match="is closed"):
            await attempt
        async with asyncio.timeout(TIMEOUT):
            await gone.wait()
