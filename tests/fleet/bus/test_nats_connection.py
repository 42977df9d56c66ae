"""Connecting to NATS: calls that wait for it, cancellations, and other programs at its address."""

import asyncio
from itertools import count

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.etcd_calls import EtcdConnection
from localpuppet.fleet.bus.jetstream_messages import JetStream
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.nats_link import NatsConnection
from tests.rigs.bus.lying import INFO, answering, listening
from tests.rigs.reaching import servers_at
from tests.rigs.servers import free_port
from tests.rigs.waiting import PATIENCE


def connection(url: str, timeout: float = PATIENCE) -> NatsConnection:
    return NatsConnection(servers_at(url), inbox="_INBOX", timeout=timeout)


async def test_calls_that_wait_for_the_same_connection_share_a_timeout() -> None:
    away = connection(f"nats://127.0.0.1:{free_port()}", timeout=1.0)
    calls = [asyncio.create_task(away.request("x")) for _ in range(1000)]
    # One after the other, they would take longer than a test may.
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, UnavailableError)
        assert "cannot be reached: Connection refused (" in str(result)
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
        attempt = asyncio.create_task(connection(url, timeout=PATIENCE).link())
        await come.wait()
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt
        await gone.wait()


async def test_a_connection_that_is_closed_while_it_connects_stays_closed() -> None:
    come, go, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        come.set()
        await go.wait()
        await answering(b"{}")(reader, writer)
        gone.set()

    async with listening(slow) as url:
        made = connection(url, timeout=PATIENCE)
        attempt = asyncio.create_task(made.link())
        await come.wait()
        await made.close()
        go.set()
        with pytest.raises(UnavailableError, match="is closed"):
            await attempt
        await gone.wait()


async def refusal_then_silence(seconds: float) -> str:
    """Return the error of a client whose later attempts get no answer."""
    clients = count()

    async def refuses_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if next(clients) == 0:
            writer.write(INFO)
        await reader.read()

    async with listening(refuses_once) as url:
        away = connection(url.replace("nats:", "tls:"), timeout=seconds)
        with pytest.raises(UnavailableError) as caught:
            await away.link()
    assert next(clients) > 1, "a later attempt had no answer"
    return str(caught.value)


async def test_the_reason_of_a_refusal_outlives_an_attempt_that_the_deadline_ends() -> None:
    problem = await refusal_then_silence(1.0)
    if "no answer in time" in problem:  # a busy machine: also the first attempt
        problem = await refusal_then_silence(20.0)
    assert "does not support TLS" in problem


SHORT = 2.0
STREAM = b'"config": {"allow_direct": true, "republish": true}'


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"INFO []\r\n",
        b'INFO {"max_payload": "x"}\r\n',
        b"A" * 200_000,
        b"INFO {" + b"A" * 9999,
        b'INFO {"a": ' + b"[" * 20_000 + b"]" * 20_000 + b"}\r\n",
    ],
    ids=["nothing", "a list", "a size that is a word", "no line", "half a line", "nested"],
)
async def test_an_invalid_first_line_is_an_error(first: bytes) -> None:
    async with listening(answering(b"{}", first=first)) as url:
        with pytest.raises(UnavailableError):
            await open_nats(servers_at(url), timeout=SHORT)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"[]", b"{}", b"\xff", b'{"config": []}', b'{"error": "x"}'),
        b'{%s, "state": []}' % STREAM,
        b'{%s, "state": {"last_seq": "x", "subjects": 1}}' % STREAM,
        b'{%s, "state": {"last_seq": 1, "subjects": 1}, "num_pending": "x"}' % STREAM,
        b'{%s, "state": {"last_seq": 1e99}}' % STREAM,
        b'{%s, "state": {"last_seq": 1, "subjects": 1}, "created": [], "num_pending": 1}' % STREAM,
    ],
    ids=lambda answer: answer.decode("latin-1")[-40:],
)
async def test_invalid_answers_are_errors(answer: bytes) -> None:
    async with listening(answering(answer)) as url:
        with pytest.raises(UnavailableError):
            store = await open_nats(servers_at(url), timeout=SHORT)
            try:
                await store.put("/a", b"1")
                await store.list("/a/")
            finally:
                await store.close()


async def test_all_calls_fail_if_the_server_hangs_up() -> None:
    """A proxy in front of a dead etcd does that: each call fails, whatever step it has reached."""

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with listening(hang_up) as url:
        servers = servers_at(url.replace("nats:", "http:"))
        for _ in range(20):
            connection = EtcdConnection(servers, timeout=SHORT)
            calls = [connection.call("/x", b"") for _ in range(3)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(end) for end in ends] == [UnavailableError] * 3
            connection.close()


async def test_an_answer_of_a_server_without_jetstream_says_how_to_start_it() -> None:
    away = connection(f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(UnavailableError, match=r"JetStream does \(start nats-server with -js"):
        JetStream(away).result(Msg(_client=Client(), data=b""), ())
