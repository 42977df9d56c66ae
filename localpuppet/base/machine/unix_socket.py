"""UNIX sockets of the agent: servers with access control and limits, and their clients.

A connection carries one line, and one or more lines that answer it.

- Only the permitted users can connect, checked by the file's mode and by SO_PEERCRED.
- A silent or verbose peer delays no other peer, and many of them use a bounded number of
  descriptors.
- A server replaces the socket file of a dead agent, and not that of a running one.
- A client can require the owner of the socket, since a file's name proves nothing.
"""

import asyncio
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

from localpuppet.base.errors import BusyError, StateError, UnavailableError
from localpuppet.base.machine.files import make_private

MAX_LINE = 1024 * 1024
PATIENCE = 10.0  # seconds for a peer to send its line, and to take an answer
MAX_PEERS = 64
MAX_QUEUED = 64  # further peers that may wait for a slot; others are rejected at once
# Peers that may connect at once, before existing peers are checked. asyncio takes EAGAIN for a
# connection, so this exceeds the number of requests sent at once (bus.AT_ONCE).
AT_A_TIME = 128

# From Python 3.13 on, a server removes its socket file when it ends. A socket of the service
# manager must keep its file: without it, clients cannot connect until the unit is restarted.
_KEEPS_NAME: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}

Stream = Callable[[bytes], AsyncGenerator[bytes, None]]
StreamTo = Callable[[bytes, int], AsyncGenerator[bytes, None]]


async def listen(path: Path, answer: Callable[[bytes, int], Awaitable[bytes]]) -> asyncio.Server:
    """Return a server for the current user that answers a line with a line; see `listen_to`.

    Args:
        answer: Maps a line, and the process id of the peer, to the answer; the id is 0 if the
            process is not visible.
    """

    async def stream(line: bytes, pid: int) -> AsyncGenerator[bytes, None]:
        yield await answer(line, pid)

    return await _listen(path, stream, users=(), group=None)


async def listen_to(
    place: Path | socket.socket, answer: Stream, *, users: Collection[int], group: int | None = None
) -> asyncio.Server:
    """Return a server that answers the line of each connection.

    Args:
        place: The socket's file, or the socket itself if a service manager made it.
        answer: Maps a line to the lines of the answer; raises for bugs only.
        users: Users whose processes may connect, besides root and the current user.
        group: The group that may connect to the file; `None` for no group.

    Raises:
        BusyError: Another agent listens on this socket.
        StateError: The socket cannot be created.
    """

    def stream(line: bytes, _pid: int) -> AsyncGenerator[bytes, None]:
        return answer(line)

    return await _listen(place, stream, users=users, group=group)


async def _listen(
    place: Path | socket.socket, answer: StreamTo, *, users: Collection[int], group: int | None
) -> asyncio.Server:
    allowed = {0, os.geteuid(), *users}
    peers = asyncio.Semaphore(MAX_PEERS)
    there: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there.add(writer)
        try:
            pid, user = _peer(writer)
            if user in allowed and len(there) <= MAX_PEERS + MAX_QUEUED:
                async with peers:
                    await _serve(reader, writer, lambda line: answer(line, pid))
        except (TimeoutError, ConnectionError, ValueError):
            return  # the peer disconnected, was too slow or sent too much
        finally:
            there.discard(writer)
            writer.close()

    start = partial(asyncio.start_unix_server, serve, limit=MAX_LINE, backlog=AT_A_TIME)
    if isinstance(place, socket.socket):
        return await start(sock=place, **_KEEPS_NAME)
    try:
        if not place.parent.is_dir():
            make_private(place.parent)
        _refuse_living(place)
        place.unlink(missing_ok=True)
        made = _bind(place)
        if group is not None:
            os.chown(place, -1, group)
            place.chmod(0o660)
        return await start(sock=made)
    except OSError as error:
        raise StateError(
            f"cannot listen: {error.strerror or error}", where=str(place), hint="run as root?"
        ) from error


def _bind(path: Path) -> socket.socket:
    """Return a socket whose file has mode 0600 from the start."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # process-wide: nothing else may run until it is restored
    try:
        made.bind(str(path))
    except BaseException:
        made.close()
        raise
    finally:
        os.umask(before)
    return made


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: Stream
) -> None:
    """Answer one peer's line.

    A request is carried out even if the peer does not wait for the answer. A peer that follows a
    stream and disconnects receives nothing further.
    """
    async with asyncio.timeout(PATIENCE):
        line = await reader.readline()
    begun = asyncio.Event()

    async def say() -> None:
        async with aclosing(answer(line)) as lines:
            async for received in lines:
                writer.write(received)
                async with asyncio.timeout(PATIENCE):
                    await writer.drain()
                begun.set()

    async def end() -> None:
        await reader.read(1)
        await begun.wait()
        saying.cancel()

    saying = asyncio.create_task(say())
    ending = asyncio.create_task(end())
    try:
        await asyncio.wait({saying})
    finally:
        ending.cancel()
        saying.cancel()
    if not saying.cancelled():
        saying.result()


async def ask(
    path: Path, line: bytes, *, patience: float, owner: int | None = None
) -> AsyncGenerator[bytes, None]:
    """Send a line to a socket and yield the lines of the answer, at least one.

    Args:
        patience: Seconds until the first answer must arrive.
        owner: The user whose process must listen; `None` for any. The path may lead elsewhere.

    Raises:
        UnavailableError: No process or another user's process listens, or the answer is late.
    """
    where = str(path)
    try:
        async with asyncio.timeout(patience):
            reader, writer = await asyncio.open_unix_connection(path, limit=MAX_LINE)
    except TimeoutError as error:
        raise UnavailableError(f"does not answer within {patience:g} s", where=where) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"cannot be reached: {reason}", where=where) from error
    try:
        _, user = _peer(writer)
        if owner is not None and user != owner:
            raise UnavailableError(f"is a socket of user id {user}", where=where)
        async with asyncio.timeout(patience):
            writer.write(line)
            await writer.drain()
            received = await reader.readline()
        while received.endswith(b"\n"):
            yield received
            received = await reader.readline()
        raise UnavailableError("closed the connection", where=where)
    except TimeoutError as error:
        raise UnavailableError(f"did not answer within {patience:g} s", where=where) from error
    except ValueError as error:
        raise UnavailableError(f"a line of more than {MAX_LINE} bytes", where=where) from error
    except OSError as error:
        raise UnavailableError(
            f"the connection broke: {error.strerror or error}", where=where
        ) from error
    finally:
        writer.close()


def _peer(writer: asyncio.StreamWriter) -> tuple[int, int]:
    """Return the process and user ids of the peer, recorded when it connected or listened."""
    peer: socket.socket = writer.get_extra_info("socket")
    packed = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", packed)
    return int(pid), int(user)


def _refuse_living(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StateError(
            "already exists, and is not a socket", where=str(path), hint="move it away"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except TimeoutError:
            pass
    raise BusyError("another agent listens there", where=str(path))
