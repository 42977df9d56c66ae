"""Servers that send more than a bus holds: a client leaves them, and stays small."""

import asyncio
import sys

import pytest

from tests.rigs.bus.lying import LIES
from tests.rigs.node import REPOSITORY

BAR = 96 * 1024 * 1024
# What an agent does again and again; the peak of its memory is the last line.
CLIENT = """
import asyncio, sys
from localpuppet.fleet.bus.key_value import KeyListing
from localpuppet.fleet.bus.servers import Endpoint, Servers
from localpuppet.base.errors import UnavailableError

async def follow(url):
    engine = "etcd" if url.startswith("http") else "nats"
    servers = Servers(endpoints=(Endpoint.parse(url, engine=engine),))
    if engine == "etcd":
        from localpuppet.fleet.bus.etcd_bus import open_etcd as opened
    else:
        from localpuppet.fleet.bus.nats_bus import open_nats as opened
    for _ in range(2):
        try:
            store = await opened(servers, timeout=1.0)
        except UnavailableError:
            continue
        for parts in (False, True):
            try:
                async with asyncio.timeout(3.0):
                    async for change in store.watch("/a/", parts=parts, largest=100_000):
                        if not isinstance(change, KeyListing):
                            await asyncio.Event().wait()  # busy with what it received
            except (UnavailableError, TimeoutError) as error:
                print(error)
        await store.close()

asyncio.run(follow(sys.argv[1]))
lines = open("/proc/self/status").read().splitlines()
print([line.split()[1] for line in lines if line.startswith("VmHWM")][0])
"""


async def peak(url: str) -> int:
    """Return how many bytes a client took at most."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, url), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    return int(said.split()[-1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
async def test_a_client_stays_small_if_a_server_sends_too_much(lie: str) -> None:
    async with LIES[lie]() as url:
        assert await peak(url) < BAR
