"""Another program at the address of NATS: each call fails as "unreachable", in time."""

import asyncio

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.etcd_calls import EtcdConnection
from localpuppet.fleet.bus.nats_bus import open_nats
from tests.rigs.bus.lying import answering, listening
from tests.rigs.reaching import servers_at

TIMEOUT = 2.0
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
            await open_nats(servers_at(url), timeout=TIMEOUT)


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b"\xff",
        b'{"config": []}',
        b'{"error": "x"}',
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
            store = await open_nats(servers_at(url), timeout=TIMEOUT)
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
            connection = EtcdConnection(servers, timeout=TIMEOUT)
            calls = [connection.call("/x", b"", idempotent=False) for _ in range(3)]
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert [type(end) for end in ends] == [UnavailableError] * 3
            connection.close()
