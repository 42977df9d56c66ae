"""Opens the bus on SQLite in another user's directory through a process of that user.

    root ── ProxyKeyValue ── a socket ── ProxyServer ── SqliteKeyValue (the owner)

This module runs that process from its start to its end; what is asked of the bus is up to callers.

Invariants:

- Root touches nothing in that directory, and distrusts the process like a server: replies have
  deadlines.
- Only root finds the socket, in whose queue others could take root's place: root creates it, and
  the process inherits it.
- The process has no privileges, no terminal, and of root's descriptors only the socket. It starts
  no other process, and ends with its parent, whatever its database does to it.
"""

import asyncio
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.machine.confinement import confined
from localpuppet.base.machine.guarded_command import control
from localpuppet.base.machine.unix_socket import AT_A_TIME, listen_to
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.proxy.server import ProxyServer
from localpuppet.fleet.bus.proxy.store import ProxyKeyValue
from localpuppet.fleet.wiring.puppet_environment import module_words

# Seconds for Python to start on a busy machine.
START = 30.0
# Python with a page cache of SQLite uses a quarter of this memory.
LIMITS = {"as": 512 * 1024**2, "core": 0, "nofile": 256, "nproc": 1}
_PR_SET_DUMPABLE = 4


async def open_as_owner(path: Path, owner: int, *, timeout: float, search: str) -> KeyValue:
    """Return the bus in a file that another user owns.

    Args:
        path: The file.
        owner: The user's id.
        timeout: Seconds for each call.
        search: The PATH to find programs in.

    Raises:
        UnavailableError: The process cannot be started.
        InvalidInputError: The user does not exist.
    """
    try:
        user = pwd.getpwuid(owner)
    except KeyError as error:
        raise InvalidInputError(
            f"belongs to user id {owner}, which has no name", where=str(path.parent)
        ) from error
    place = tempfile.TemporaryDirectory(prefix="localpuppet-bus-")  # 0700
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        name = Path(place.name) / "socket"
        program = [*module_words(__name__), str(path), repr(timeout), str(made.fileno())]
        try:
            made.bind(str(name))
            made.listen(AT_A_TIME)
            argv = confined(
                program,
                user=str(user.pw_uid),
                group=str(user.pw_gid),
                limits=LIMITS,
                path=search,
            )
            process, word = _start(argv, made.fileno())
        except (LocalpuppetError, OSError) as error:
            place.cleanup()
            raise UnavailableError(
                f"cannot be opened as its owner: {error}", where=str(path)
            ) from error
    store = _OwnersKeyValue(process, place, name, timeout=timeout, file=path)
    try:
        with word:
            started = await _started(word)
    except BaseException:
        await store.close()
        raise
    if not started:
        await store.close()
        raise UnavailableError(
            f"cannot be opened: a process of user {user.pw_name} did not start",
            where=str(path),
            hint=f"can {user.pw_name} read where localpuppet is installed?",
        )
    return store


class _OwnersKeyValue(ProxyKeyValue):
    """The bus in the owner's process; closing it ends that process."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        place: "tempfile.TemporaryDirectory[str]",
        name: Path,
        *,
        timeout: float,
        file: Path,
    ) -> None:
        super().__init__(name, timeout=timeout, called=str(file))
        self._process = process
        self._place = place

    async def close(self) -> None:
        """Close the connection, and end the process; see `KeyValue.close`."""
        await super().close()
        self._process.kill()
        self._process.wait()
        self._place.cleanup()


def _start(argv: list[str], listening: int) -> "tuple[subprocess.Popen[bytes], IO[bytes]]":
    """Return the process, and the pipe to which it writes when it has started."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    word = os.fdopen(reader, "rb", 0)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=writer,
            # Its stderr comes from another user, and would reach root's terminal.
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "LC_ALL": "C.UTF-8"},
            pass_fds=[listening],
            start_new_session=True,
        )
    except BaseException:
        word.close()
        raise
    finally:
        os.close(writer)
    return process, word


async def _started(word: IO[bytes]) -> bool:
    """Return whether a process reports its start in time."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(word, readable.set)
    try:
        async with asyncio.timeout(START):
            await readable.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(word)
    return bool(word.read(1))


async def _serve(path: Path, timeout: float, listening: socket.socket) -> None:
    """Serve the bus to root until root ends this process."""
    from localpuppet.fleet.bus.sqlite.store import open_sqlite

    opened: list[KeyValue] = []
    opening = asyncio.Lock()

    @asynccontextmanager
    async def lend(_engine: str | None) -> AsyncGenerator[KeyValue, None]:
        async with opening:
            if not opened:
                opened.append(await open_sqlite(path, timeout=timeout))
        yield opened[0]

    async with await listen_to(listening, ProxyServer(lend).answer, users=()) as server:
        os.write(sys.stdout.fileno(), b"\n")
        await server.serve_forever()


def main(arguments: list[str]) -> None:
    """Run the process; the arguments are the file, the timeout, and the listening descriptor."""
    path, timeout, listening = arguments
    control(_PR_SET_DUMPABLE, 0)  # other processes of the same user cannot trace this one
    asyncio.run(_serve(Path(path), float(timeout), socket.socket(fileno=int(listening))))


if __name__ == "__main__":
    main(sys.argv[1:])
