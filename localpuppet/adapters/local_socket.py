"""The agent's UNIX socket: where Puppet code on this node finds it.

Owns: the socket's file, its permissions, limits on who speaks how long. Refuses to know: what is
said. Invariants: only the agent's own user (root) may connect; a peer that says nothing, or too
much, holds up nobody; a socket file of a dead agent is replaced, a living agent's is not.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from localpuppet.errors import BusyError, StateError
from localpuppet.files import make_private

MAX_LINE = 1024 * 1024
PATIENCE = 10.0  # seconds for a peer to say its line
MAX_PEERS = 64


async def listen(path: Path, answer: Callable[[bytes], Awaitable[bytes]]) -> asyncio.Server:
    """Return a server that answers one line a connection.

    Args:
        path: The socket's file.
        answer: From a line to the line that answers it; raises for bugs only.

    Raises:
        BusyError: Another agent listens there.
        StateError: The file cannot be made.
    """
    peers = asyncio.Semaphore(MAX_PEERS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with peers:
                async with asyncio.timeout(PATIENCE):
                    line = await reader.readline()
                writer.write(await answer(line))
                async with asyncio.timeout(PATIENCE):
                    await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            return  # a peer that went away, was too slow, or said too much: its own loss
        finally:
            writer.close()

    try:
        if not path.parent.is_dir():
            make_private(path.parent)
        _refuse_living(path)
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(serve, path, limit=MAX_LINE)
        finally:
            os.umask(before)
    except OSError as error:
        raise StateError(
            f"cannot listen: {error.strerror or error}", where=str(path), hint="run as root?"
        ) from error


def _refuse_living(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StateError("is there already, and no socket", where=str(path), hint="move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except TimeoutError:
            pass
    raise BusyError("another agent listens there", where=str(path))
