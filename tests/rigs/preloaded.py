"""Commands of localpuppet without the start of Python: a process that has imported all forks them.

Each process of pytest has one such parent (`Parent`). A command is a process with its own id,
signals, files and exit code, like one that `subprocess` starts, and has run nothing before.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "localpuppet"]
# What Python reads when it starts: a command with other values starts its own.
LOCALE = {"LC_ALL": "C.UTF-8", "PYTHONPATH": str(REPOSITORY)}
# What commands import when they need it.
LIBRARIES = (
    *("cryptography.x509", "dns.resolver", "joserfc.jwk", "joserfc.jws", "jsonschema"),
    *("jsonschema.validators", "lark", "re2", "referencing.jsonschema", "yaml"),
)
# In front of a command, for who measures its memory: it starts its own Python.
OWN_PYTHON = ["env"]
# Arguments of `subprocess.Popen` that a forked command knows.
FORKED = {"stdin", "stdout", "stderr", "text"}
NUMBER = struct.Struct("i")


def start(
    words: Sequence[str], *, env: Mapping[str, str], **streams: Any
) -> "subprocess.Popen[Any]":
    """Start a command in `/`; fork it if it is localpuppet's and needs no own Python."""
    read = {key: env[key] for key in env if key.startswith(("PYTHON", "LC_", "LANG", "LD_"))}
    own = list(words[: len(COMMAND)]) == COMMAND and read == LOCALE and streams.keys() <= FORKED
    return (Forked if own else subprocess.Popen)(words, env=env, cwd="/", **streams)


class Forked(subprocess.Popen[Any]):
    """A command that another process forks, and whose exit code that process reports."""

    def _execute_child(self, args: Sequence[str], *given: Any) -> None:
        directory, environment, pipes = given[4], given[5], given[9:15]
        sys.audit("subprocess.Popen", args[0], args, directory, environment)
        mask = os.umask(0)
        os.umask(mask)
        end, reports = os.pipe()
        with tempfile.TemporaryFile() as request:
            request.write(json.dumps([args[len(COMMAND) :], environment, mask]).encode())
            request.seek(0)
            # The other ends are this process's; a stream without a pipe is this process's, too.
            used = enumerate((pipes[0], pipes[3], pipes[5]))
            files = [number if file == -1 else file for number, file in used]
            parent().ask([request.fileno(), reports, *files])
        os.close(reports)
        self._end = os.fdopen(end, "rb", buffering=0)
        self.pid = NUMBER.unpack(self._end.read(NUMBER.size))[0]
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _internal_poll(self, _deadstate: int | None = None) -> int | None:
        return self._look(0.0)

    def _wait(self, timeout: float | None) -> int:
        code = self._look(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def _look(self, timeout: float | None) -> int | None:
        """Return the exit code, if the parent reports it within some seconds."""
        if self.returncode is None and wait([self._end.fileno()], timeout):
            self.returncode = NUMBER.unpack(self._end.read(NUMBER.size))[0]
            self._end.close()
        return self.returncode


class Parent:
    """The process that forks, as this process uses it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={**LOCALE, "PATH": os.environ["PATH"]},
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._socket.close()

    def ask(self, files: Sequence[int]) -> None:
        """Have a command started: its request, a pipe for its id and exit code, its streams."""
        socket.send_fds(self._socket, [b"."], files)


@functools.cache
def parent() -> Parent:
    return Parent()


def _serve(connection: socket.socket) -> None:
    """Fork commands until the connection ends; return in each of them."""
    running: dict[int, int] = {}
    ended, wakeup = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([connection.fileno(), ended], [], [])[0]
        if ended in ready:
            os.read(ended, 4096)
            _report_ends(running)
        if connection.fileno() in ready:
            _, files, _, _ = socket.recv_fds(connection, 1, 5)
            if not files:
                sys.exit()
            child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(files[0], files[2:])
                return
            os.write(files[1], NUMBER.pack(child))
            running[child] = files[1]
            for file in (files[0], *files[2:]):
                os.close(file)


def _report_ends(running: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (end := os.waitpid(-1, os.WNOHANG))[0]:
            reports = running.pop(end[0])
            with suppress(BrokenPipeError):
                os.write(reports, NUMBER.pack(os.waitstatus_to_exitcode(end[1])))
            os.close(reports)


def _become(request: int, streams: Sequence[int]) -> None:
    """Make this process what Python would have made of a new one."""
    with os.fdopen(request, "rb") as file:
        arguments, environment, mask = json.load(file)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    os.umask(mask)
    sys.argv[1:] = arguments
    sys.stdin = os.fdopen(0, encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _end(codes: Sequence[int]) -> None:
    """End without the last collection, which would copy what the parent has loaded."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(codes[0] if codes else 1)


def _main() -> NoReturn:
    codes: list[int] = []
    atexit.register(_end, codes)  # registered first, called last
    import localpuppet
    from localpuppet.main import main

    modules = [
        module.name for module in pkgutil.walk_packages(localpuppet.__path__, "localpuppet.")
    ]
    for name in (*modules, *LIBRARIES):
        importlib.import_module(name)
    gc.disable()
    gc.freeze()
    _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        codes.append(main())
    except SystemExit as end:
        codes.append(int(str(end.code)))
        raise
    sys.exit()


if __name__ == "__main__":
    _main()
