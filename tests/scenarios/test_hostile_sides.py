"""A compromised network side: what it can cost root's side."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, UnavailableError
from localpuppet.base.machine.unix_socket import listen
from localpuppet.fleet.bus.proxy import ProxyKeyValue
from tests.rigs.split_member import NETWORK, STRANGER, Split
from tests.rigs.waiting import PATIENCE

# Connects as often as it can, and sends nothing.
SILENT = """
import resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
peers = []
for _ in range(int(sys.argv[2])):
    peers.append(socket.socket(socket.AF_UNIX))
    peers[-1].connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""
DESCRIPTORS = 1000  # about what a service gets


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def answers(split: Split) -> bool:
    try:
        return bool(split.ask(b'{"verb": "hello"}\n')["node"] == "a.example.com")
    except (ConnectionError, ValueError):  # refused: there are too many
        return False


def test_idle_peers_take_few_descriptors(split: Split) -> None:
    run_side = split.run_side()
    pid = run_side.process.pid
    limit = [f"--pid={pid}", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}"]
    subprocess.run(["prlimit", *limit], check=True)
    with subprocess.Popen(
        [sys.executable, "-c", SILENT, str(split.run_socket), str(2 * DESCRIPTORS)],
        user=NETWORK.pw_uid,
        group=NETWORK.pw_gid,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as silent:
        assert silent.stdout is not None
        assert silent.stdout.readline() == b"connected\n"
        found = descriptors(pid)
    assert found < DESCRIPTORS - 100
    split.node.wait_until(lambda: answers(split))  # once it has closed them
    assert "Too many open files" not in run_side.said()
    assert run_side.process.poll() is None


Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def place(short: Path) -> Path:
    return short / "bus.sock"


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with a short name: that of a socket may have 107 bytes."""
    yield tmp_path_factory.mktemp("s")


@asynccontextmanager
async def answering(place: Path, answer: Answer) -> AsyncGenerator[None, None]:
    """Be a network side that answers whatever it likes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readline()
            await answer(writer)
            await reader.read()
        except ConnectionError:
            return
        finally:
            writer.close()

    async with await asyncio.start_unix_server(serve, place):
        yield


def said(writer: asyncio.StreamWriter, **fields: object) -> None:
    writer.write(json.dumps({"ok": True, **fields}).encode() + b"\n")


@pytest.mark.parametrize("count", [2**60, 1000], ids=["too many", "too large"])
async def test_a_listing_without_an_end_takes_no_memory(place: Path, count: int) -> None:
    async def answer(writer: asyncio.StreamWriter) -> None:
        said(writer)
        said(writer, listing=1, count=count, more=False)
        put = {"key": "/a/b", "value": "A" * 683_000, "revision": 1}
        while True:
            said(writer, entry=put)
            await writer.drain()

    async with answering(place, answer):
        changes = ProxyKeyValue(place, timeout=PATIENCE).watch("/a/")
        with pytest.raises(UnavailableError, match="more entries than the limit"):
            await anext(changes)
        await changes.aclose()


async def test_the_socket_of_a_running_agent_is_left_alone(place: Path) -> None:
    async def answer(line: bytes, _process: int) -> bytes:
        return line

    server = await listen(place, answer)
    with pytest.raises(BusyError, match="another agent listens there"):
        await listen(place, answer)
    server.close()
    await server.wait_closed()
    server = await listen(place, answer)
    server.close()


async def test_a_link_to_the_socket_of_another_user_gets_no_request(short: Path) -> None:
    heard: list[bytes] = []

    async def answer(line: bytes, _process: int) -> bytes:
        heard.append(line)
        return b'{"ok": true}\n'

    server = await listen(short / "agent.sock", answer)
    (short / "bus.sock").symlink_to(short / "agent.sock")
    lent = ProxyKeyValue(short / "bus.sock", timeout=5.0, owner=STRANGER.pw_uid)
    with pytest.raises(UnavailableError, match="a socket of user id"):
        await lent.put("/a/b", b"1")
    assert heard == []
    assert (
        await ProxyKeyValue(short / "bus.sock", timeout=5.0, owner=os.geteuid()).get("/a") is None
    )
    server.close()
