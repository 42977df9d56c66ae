"""Many clients at once, and hostile requests: for `puppetdb_api.py`."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

from puppetdb_requests import Request, get

_DEEP = 5000
# Requests that are made to be expensive: none may take longer than a query may.
HOSTILE = {
    "nested not": get("/nodes", '["not",' * _DEEP + '["=","certname","x"]' + "]" * _DEEP),
    "nested PQL": get("", "nodes { " + "!(" * _DEEP + "certname = 'x'" + ")" * _DEEP + " }"),
    "nested subqueries": get("", "nodes { facts { " * 40 + "certname = 'x'" + " } }" * 40),
    "large pattern": get("/facts", ["~", "value", "(((a{1,100}){1,100}){1,100})"]),
    "slow pattern": get("/facts", ["~", "value", "^(a+)+$"]),
    "many patterns": get("/facts", ["or", *(["~", "value", f".*{n}.*x"] for n in range(200))]),
    "huge in": Request(
        path="/pdb/query/v4/nodes",
        parameters={"query": ["in", "certname", ["array", [f"n{n}" for n in range(200_000)]]]},
        post=True,
    ),
    "all facts": get("/fact-contents"),
    "all facts in an order": get("/facts", order_by=[{"field": "value"}], limit=1),
    "join of all facts": get("", "facts { certname in facts[certname] { value ~ 'x' } limit 1 }"),
    "large limit": get("/reports", limit=999_999_999_999_999_999),
}


@dataclass(slots=True, eq=False)
class Times:
    """How long answers took, and what was no answer."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def clients(port: int, requests: Sequence[Request], count: int, seconds: float) -> Times:
    """Have clients send one request after another for a while."""
    times, end = Times(), time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            turned = [*requests[number % len(requests) :], *requests[: number % len(requests)]]
            group.create_task(_client(port, turned, end, times))
    return times


async def _client(port: int, requests: Sequence[Request], end: float, times: Times) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    try:
        for request in cycle(requests):
            if (begun := time.monotonic()) > end:
                return
            writer.write(
                f"GET {request.target} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
            )
            status = await _read(reader)
            times.seconds.append(time.monotonic() - begun)
            if status != 200:
                times.errors.append(f"{status} {request}")
    except (OSError, asyncio.IncompleteReadError) as error:
        times.errors.append(repr(error))
    finally:
        writer.close()


async def _read(reader: asyncio.StreamReader) -> int:
    """Read an answer; return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:] if ": " in line)
    if "content-length" in fields:
        await reader.readexactly(int(fields["content-length"]))
    else:
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()
    return int(head.split(" ", 2)[1])
