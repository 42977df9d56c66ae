"""UNIX sockets of the agent: who may speak there, for how long, and how one is asked.

Owns: a socket's file, its permissions, its peers' users, limits on how much and how long they say.
Refuses to know: what is said. A connection is one line, and one or more that answer it.

Invariants: nobody but the users named may connect, by the file's mode and by the kernel's word on
who is there (SO_PEERCRED); a peer that says nothing, or too much, holds up nobody, and many such
cost a bounded number of descriptors; a socket file of a dead agent is replaced, a living agent's is
not; who asks can say whose socket it must be, since a file's name is not a proof of that.
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
PATIENCE = 10.0  # seconds for a peer to say its line, and to take an answer
MAX_PEERS = 64
MAX_QUEUED = 64  # peers that may wait for one of those to end; more are sent away at once
# Peers that may knock together, and are let in before those that are there are looked at. asyncio
# takes a refusal to queue more for a connection: so more than anybody sends at once (bus.AT_ONCE).
AT_A_TIME = 128

# From Python 3.13 on a server removes its socket's file when it ends. One that the service manager
# made is the manager's: without the file nobody could connect until somebody restarts that unit.
_KEEPS_NAME: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}

Stream = Callable[[bytes], AsyncGenerator[bytes, None]]
StreamTo = Callable[[bytes, int], AsyncGenerator[bytes, None]]


async def listen(path: Path, answer: Callable[[bytes, int], Awaitable[bytes]]) -> asyncio.Server:
    """Return a server for our own user that answers a line with a line; see `listen_to`.

    Args:
        path: The socket's file.
        answer: From a line, and the id of the process that connected, to the line that answers; the
            id is 0 for a process that we cannot see.
    """

    async def stream(line: bytes, pid: int) -> AsyncGenerator[bytes, None]:
        yield await answer(line, pid)

    return await _listen(path, stream, users=(), group=None)


async def listen_to(
    place: Path | socket.socket, answer: Stream, *, users: Collection[int], group: int | None = None
) -> asyncio.Server:
    """Return a server that answers each connection's line.

    Args:
        place: The socket's file, or the socket itself where a service manager made it.
        answer: From a line to the lines that answer it; raises for bugs only.
        users: Whose processes may ask, besides root's and our own user's.
        group: Who may connect to the file besides our own user; nobody for `None`.

    Raises:
        BusyError: Another agent listens there.
        StateError: The file cannot be made.
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
            return  # a peer that went away, was too slow, or said too much: its own loss
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
    """Return a socket whose file is 0600 from the first moment on."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # the whole process's: nothing else may run until it is back
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

    What it asked for is done also when it does not wait for that; but who follows something, and
    is gone, is not told more.
    """
    async with asyncio.timeout(PATIENCE):
        line = await reader.readline()
    begun = asyncio.Event()

    async def say() -> None:
        async with aclosing(answer(line)) as lines:
            async for said in lines:
                writer.write(said)
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
    path: Path, line: bytes, *, patience: float, owner: int | None = None, called: str = ""
) -> AsyncGenerator[bytes, None]:
    """Put a line before a socket and yield the lines that answer, at least one.

    Args:
        path: The socket's file.
        line: What to say, with its newline.
        patience: Seconds within which the first answer must have come.
        owner: Whose process must listen there; anybody's for `None`. The name may lead elsewhere.
        called: What it is called in messages; by its path if empty.

    Raises:
        UnavailableError: Nobody listens, or somebody else, or what listens did not answer in time.
    """
    where = called or str(path)
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
            said = await reader.readline()
        while said.endswith(b"\n"):
            yield said
            said = await reader.readline()
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
    """Return the process and user ids of a client when it connected, a server when it listened."""
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
