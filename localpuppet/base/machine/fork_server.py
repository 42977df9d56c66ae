"""Children that a fork server makes for localpuppet, and the server itself as a process.

The other end of the protocol is `base/share/fork_server.rb`.

- A request is sent only to a forked child, so that the server never sees it.
- A child that does not begin is killed before the error is raised, so that nothing runs twice.
- The server, as the parent, reports how a child ended. If the server was killed, the child's own
  last message counts; without one, the result is unknown.
- A forked child is not a child of localpuppet: the kernel reports its end by a descriptor
  (`pidfd_open`), not by a signal.
"""

import contextlib
import json
import os
import resource
import select
import signal
import socket
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.machine.child import Cgroup, SystemChild, make_output, signal_group
from localpuppet.base.machine.files import write_durably
from localpuppet.base.machine.ports import NOBODY, Child, ProcessEnd, ProcessId
from localpuppet.base.machine.processes import SystemProcesses

# Seconds until a child must connect and begin, on a loaded machine too: with a load of 30 on two
# cores, three were too few to connect.
HELLO = 10.0
BEGIN = 10.0
# Seconds for a child to leave by itself: killing one costs its server.
LEAVE = 1.0
# Seconds for a killed child to disappear, and for the server to report its end.
GONE = 10.0
# A child sends short lines: more bytes mean another kind of process.
MAX_WORDS = 64 * 1024
# Maximum length of a socket's name in bytes (unix(7)).
MAX_PATH = 107
_LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]


class ForkServerClient:
    """Requests children from a fork server."""

    def __init__(self, path: Path, processes: SystemProcesses) -> None:
        self.path = path
        self._note = path.with_suffix(".process")
        self._processes = processes

    def start(
        self, request: Mapping[str, Any], *, cwd: Path, keep: Sequence[int], group: str
    ) -> Child:
        """Start a forked child that does what `request` says, in its own process group.

        The child gets this process's limits, priority, processors and umask.

        Args:
            request: The request, besides `cwd` and `umask`; JSON. The server receives only the
                value of `environment`, the key of an environment, or an empty string.
            keep: Descriptors that it keeps after localpuppet dies: the node's lock, and the socket
                of sealed values if its release has some.

        Raises:
            UnavailableError: The server made no child; the message says why.
            StateError: A child that did not begin cannot be killed.
        """
        forked = self._connect(str(request.get("environment", "")))
        try:
            forked.greet()
            child = SystemChild(self._processes, forked, make_output(group), Cgroup.make(group))
            try:
                _make_like_us(forked.pid)
                message = {**request, "cwd": str(cwd), "umask": _umask()}
                forked.ask(json.dumps(message).encode(), [child.output, *keep])
            except BaseException:
                try:
                    forked.abandon()
                finally:
                    child.release()
                raise
        except ConnectionError as error:
            forked.close()
            raise UnavailableError("went away", where="the fork server") from error
        except (OSError, ValueError) as error:
            forked.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise UnavailableError(reason, where="the fork server") from error
        except BaseException:
            forked.close()
            raise
        return child

    def memory(self) -> int | None:
        """Return the server's memory in bytes, with its children's own; `None` without a server."""
        server = self.process()
        try:
            text = Path(f"/proc/{server.pid}/statm").read_text("ascii")
        except OSError:
            return None
        if not server.pid:
            return None
        own = int(text.split()[1]) * resource.getpagesize()
        return own + sum(map(_private_memory, _children(server.pid)))

    def process(self) -> ProcessId:
        """Return the server's process; `NOBODY` if no server runs."""
        try:
            pid, boot_id, started = self._note.read_text("ascii").split()
            server = ProcessId(pid=int(pid), boot_id=boot_id, started=int(started))
        except (OSError, ValueError):
            return NOBODY
        return server if self._processes.alive(server) else NOBODY

    def note(self, server: ProcessId) -> None:
        text = f"{server.pid} {server.boot_id} {server.started}\n"
        write_durably(self._note, text.encode(), mode=0o600)

    def _connect(self, environment: str) -> "_Forked":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(HELLO)
            connection.connect(str(self.path))
            pid, user = _peer(connection)
            if user != os.geteuid():
                raise UnavailableError(f"is a process of user id {user}", where="the fork server")
            connection.sendall(f"{environment}\n".encode())
            return _Forked(connection, os.pidfd_open(pid), self._processes)
        except OSError as error:
            connection.close()
            raise UnavailableError("is not running", where="the fork server") from error
        except UnavailableError:
            connection.close()
            raise


class _Forked:
    """A child of the server that leads its process group; see `machine.child.ProcessGroup`."""

    def __init__(self, connection: socket.socket, server: int, processes: SystemProcesses) -> None:
        self._connection = connection
        self._processes = processes
        self._server = server
        self._leader = -1
        self._received = b""
        self._over = False  # no process is left that could write more
        self._dead_since: float | None = None
        self.pid = 0
        self._identity = processes.identify(0)
        self.ended: ProcessEnd | None = None

    def greet(self) -> None:
        """Wait until the child connects."""
        word, rest = self._word(HELLO)
        if word != "hello":
            raise UnavailableError(rest or "made no process", where="the fork server")
        self.pid = int(rest)
        self._leader = os.pidfd_open(self.pid)
        self._identity = self._processes.identify(self.pid)

    def ask(self, request: bytes, files: Sequence[int]) -> None:
        """Send the request to the child, and wait until the child begins."""
        self._connection.settimeout(BEGIN)
        socket.send_fds(self._connection, [b"%d\n" % len(request)], files)
        self._connection.sendall(request)
        word, rest = self._word(BEGIN)
        if word != "begun":
            reason = rest if word == "cold" else f"its process {word} {rest}".rstrip()
            raise UnavailableError(reason, where="the fork server")
        self._connection.setblocking(False)

    def abandon(self) -> None:
        """Kill a child that did not begin."""
        if select.select([self._leader], [], [], LEAVE)[0]:
            return  # it declined and exited
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._leader, signal.SIGKILL)
        if not select.select([self._leader], [], [], GONE)[0]:
            raise StateError(
                "does not end after SIGKILL", where=f"process {self.pid} of the fork server"
            )

    @property
    def watched(self) -> Collection[int]:
        """Return the descriptors that become readable when the child ends."""
        descriptors = () if self._over else (self._connection.fileno(),)
        return descriptors if self._dead_since is not None else (*descriptors, self._leader)

    def poll(self) -> ProcessEnd | None:
        """Return how the child ended, once its parent has reported it or no longer can."""
        if self.ended is None:
            self._listen()
            words = self._words()
            end = next((known_end for known_end in map(_parse_end, words) if known_end), None)
            if end is None and self._is_dead() and self._reports_nothing():
                end = next(
                    (known_end for known_end in map(_own, words) if known_end),
                    ProcessEnd(code=None, signal=None),
                )
            self.ended = end
        return self.ended

    def signal(self, number: int) -> None:
        """Signal every member of the group; an empty group is fine.

        The server may have reaped the leader. While a group has members, its number is not reused:
        if another process has the number, the group has ended.
        """
        if self._processes.identify(self.pid).started in (0, self._identity.started):
            with contextlib.suppress(PermissionError):
                signal_group(self.pid, number)

    def reap(self) -> None:
        """Close the connection to the child; the server reaps it."""
        self.close()

    def close(self) -> None:
        """Close every descriptor; repeated calls are fine."""
        self._connection.close()
        for fd in (self._server, self._leader):
            if fd >= 0:
                os.close(fd)
        self._server = self._leader = -1

    def _word(self, seconds: float) -> tuple[str, str]:
        """Return the first word and the rest of the next line."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self._received:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._connection.recv(4096)
            if not data or len(self._received) > MAX_WORDS:
                return "ended", ""
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        word, _, rest = line.decode("utf-8", "replace").partition(" ")
        return word, rest

    def _listen(self) -> None:
        """Read what has arrived, without waiting."""
        while not self._over:
            try:
                data = self._connection.recv(4096)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._received += data
            self._over = not data or len(self._received) > MAX_WORDS

    def _words(self) -> list[str]:
        return self._received.decode("utf-8", "replace").split("\n")[:-1]

    def _is_dead(self) -> bool:
        if self._dead_since is None and select.select([self._leader], [], [], 0)[0]:
            self._dead_since = time.monotonic()
            self._listen()  # its last message was sent before
        return self._dead_since is not None

    def _reports_nothing(self) -> bool:
        """Return whether the server will no longer report how a dead child ended."""
        late = time.monotonic() - (self._dead_since or 0.0) > GONE
        if late or self._over or select.select([self._server], [], [], 0)[0]:
            self._listen()  # read what it sent before it ended
            return not any(map(_parse_end, self._words()))
        return False


def _parse_end(word: str) -> ProcessEnd | None:
    """Return how a child ended, from its parent's report."""
    how, _, number = word.partition(" ")
    if how not in ("exited", "killed") or not number.isdigit():
        return None
    if how == "exited":
        return ProcessEnd(code=int(number), signal=None)
    return ProcessEnd(code=None, signal=int(number))


def _own(word: str) -> ProcessEnd | None:
    """Return the exit code that a child announced."""
    how, _, number = word.partition(" ")
    return (
        ProcessEnd(code=int(number), signal=None) if how == "exiting" and number.isdigit() else None
    )


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Return the process and user ids of the listening process."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, user, _ = struct.unpack("3i", packed)
    return int(pid), int(user)


def _children(pid: int) -> list[int]:
    """Return the children of a process; none if the kernel does not list them."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def _private_memory(pid: int) -> int:
    """Return the bytes of memory that a process shares with no other; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def _umask() -> int:
    """Return this process's umask without changing it."""
    for line in Path("/proc/self/status").read_text("utf-8", "replace").splitlines():
        name, _, value = line.partition(":")
        if name == "Umask":
            return int(value, 8)
    raise ValueError("the kernel does not report this process's umask")


def _make_like_us(pid: int) -> None:
    """Give a process the limits, priority and processors that a child would inherit."""
    for limit in _LIMITS:
        if resource.prlimit(pid, limit) != (ours := resource.prlimit(0, limit)):
            resource.prlimit(pid, limit, ours)
    if os.getpriority(os.PRIO_PROCESS, pid) != (nice := os.getpriority(os.PRIO_PROCESS, 0)):
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    if os.sched_getaffinity(pid) != (processors := os.sched_getaffinity(0)):
        os.sched_setaffinity(pid, processors)
    if os.sched_getscheduler(pid) != (policy := os.sched_getscheduler(0)):
        os.sched_setscheduler(pid, policy, os.sched_getparam(0))
    ours_score = Path("/proc/self/oom_score_adj").read_text("ascii")
    score = Path(f"/proc/{pid}/oom_score_adj")
    if score.read_text("ascii") != ours_score:
        score.write_text(ours_score)
