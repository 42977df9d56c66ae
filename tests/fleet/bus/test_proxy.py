"""Faults of the relay: a network side that hangs, or sends invalid answers."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.machine.unix_socket import listen_to
from localpuppet.fleet.bus.key_value import FullError, KeyWrite, RefusedError
from localpuppet.fleet.bus.proxy import ProxyKeyValue, relayed
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore


@asynccontextmanager
async def told(
    directory: Path, *lines: bytes, timeout: float = 60.0
) -> AsyncGenerator[ProxyKeyValue, None]:
    """Lend a store whose network side gives each request the same answer, and then nothing more."""

    async def say(_question: bytes) -> AsyncGenerator[bytes, None]:
        for line in lines:
            yield line + b"\n"
        await asyncio.Event().wait()

    server = await listen_to(directory / "bus.sock", say, users=())
    try:
        yield ProxyKeyValue(directory / "bus.sock", timeout=timeout)
    finally:
        server.close()


async def test_a_listing_that_stops_half_way_has_an_end(tmp_path: Path) -> None:
    half = b'{"ok": true, "listing": 5, "count": 2, "more": false}'
    async with told(tmp_path, half, timeout=0.1) as kv:
        with pytest.raises(UnavailableError, match="did not list all within"):
            await kv.list("/a/")


@pytest.mark.parametrize(
    ("line", "kind", "text"),
    [
        (b'{"ok": false, "failure": "unreachable", "error": "x"}', UnavailableError, "^x$"),
        (b'{"ok": false, "failure": "refused", "error": "no"}', RefusedError, "^no$"),
        (b'{"ok": false, "failure": "full", "error": "no"}', FullError, "^no$"),
        (b'{"ok": false, "error": "x"}', UnavailableError, "sent an invalid answer"),
        (b'{"ok": false, "failure": "invalid", "error": "no key"}', InvalidInputError, "^no key$"),
        (b'{"ok": false, "failure": "full"}', UnavailableError, "sent an invalid answer"),
        (b'{"ok": false, "failure": 1, "error": "x"}', UnavailableError, "failure: must be"),
        (b"{}", UnavailableError, "'ok' is missing"),
        (b"[]", UnavailableError, "not a JSON object"),
        (b'{"ok": true}', UnavailableError, "sent an invalid answer"),
        (b'{"ok": true, "done": "yes"}', UnavailableError, "done: must be true or false"),
    ],
)
async def test_an_invalid_answer_of_the_proxy_is_an_error(
    tmp_path: Path, line: bytes, kind: type[LocalpuppetError], text: str
) -> None:
    async with told(tmp_path, line) as kv:
        with pytest.raises(kind, match=text):
            await kv.remove_if_revision("/a/b", 1)


@pytest.mark.parametrize(
    "entry", [b"5", b"{}", b'{"key": "/a", "value": "?", "revision": 1}', b'{"key": 1}']
)
async def test_an_invalid_entry_of_the_proxy_is_an_error(tmp_path: Path, entry: bytes) -> None:
    async with told(tmp_path, b'{"ok": true, "entry": %s}' % entry) as kv:
        with pytest.raises(UnavailableError, match="sent an invalid answer"):
            await kv.get("/a")


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ('"verb": "put", "key": "/a"', "'value' is missing"),
        ('"verb": "add_if_new", "value": ""', "'key' is missing"),
        ('"verb": "set_if_revision", "key": "/a", "value": ""', "'revision' is missing"),
        ('"verb": "remove_if_revision", "key": "/a"', "'revision' is missing"),
        ('"verb": "get"', "'key' is missing"),
        ('"verb": "drop", "key": ""', "the verb 'drop' is unknown"),
    ],
)
async def test_a_call_without_an_argument_is_refused(call: str, problem: str) -> None:
    @asynccontextmanager
    async def lend(_engine: str | None) -> AsyncGenerator[MemoryKeyValue, None]:
        yield MemoryKeyValue(MemoryStore())

    async with aclosing(relayed(lend, f"{{{call}}}".encode())) as answers:
        line = json.loads(await anext(answers))
    assert (line["ok"], line["failure"]) == (False, "invalid")
    assert problem in line["error"]


async def test_a_resumed_watch_may_wait_long_for_a_change(tmp_path: Path) -> None:
    """A follower of the inventory resumes at a revision, and there may be no change since."""
    kv = MemoryKeyValue(MemoryStore())
    revision = await kv.put("/a/b", b"1")

    @asynccontextmanager
    async def lend(_engine: str | None) -> AsyncGenerator[MemoryKeyValue, None]:
        yield kv

    server = await listen_to(tmp_path / "bus.sock", partial(relayed, lend), users=())
    for seconds in (1.0, 16.0):  # on a busy machine, the relay itself may be late
        lent = ProxyKeyValue(tmp_path / "bus.sock", timeout=seconds, margin=seconds / 2)
        async with aclosing(lent.watch("/a/", after=revision)) as changes:
            following = asyncio.ensure_future(anext(changes))
            done, _ = await asyncio.wait([following], timeout=2 * seconds)
            if not done:
                await kv.put("/a/b", b"2")
                change = await following
                break
    else:
        raise AssertionError(following.exception())
    server.close()
    assert isinstance(change, KeyWrite)
    assert change.entry.value == b"2"
