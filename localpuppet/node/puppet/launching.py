"""Starts a run's Puppet: under Puppet's own run lock, warm or cold, in an environment for it.

- A fork server starts Puppet warm (docs/adr/0035-fork-server.md lists what may be warm). If it is
  unavailable, the start is cold.
- A run records which Ruby files lacked compiled code. A separate process compiles them after the
  run, so that no run waits for it.
- Puppet needs a directory for its environment. It has links to what Puppet loads only from there;
  Puppet gets the other parts of the release by options (ADR 6):

    STATE/environments/production/functions -> STATE/releases/ID/functions

- Puppet's run lock is a file with a pid. It is stale by Puppet's rule (lib/puppet/util/pidlock.rb,
  the same in 7 and 8) if that process is gone or is not Puppet, and also if the process is younger
  than the lock: then it got the pid of a process that has ended.
- That rule takes localpuppet for Puppet, because the names end alike. So a localpuppet that is
  about to start Puppet has the file locked by `flock`; without that, it has the pid by chance.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from localpuppet.base.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.base.machine import files
from localpuppet.base.machine.own_program import shared_file
from localpuppet.base.machine.ports import Child, Processes, ProcessTable
from localpuppet.base.value import Value
from localpuppet.node.puppet.command_line import (
    SEALED,
    Compilation,
    FacterConf,
    LeanStart,
    environment,
)
from localpuppet.node.puppet.installation import Installation, find_ruby

if TYPE_CHECKING:
    from localpuppet.base.machine.fork_server import ForkServerClient

CWD = Path("/")


class ServerLimits(Value):
    """Limits of a fork server, which bound leaks: after any of them, it ends.

    `memory` is its resident memory in bytes after a run.
    """

    runs: int = 100
    seconds: int = 12 * 3600
    memory: int = 160 * 1024 * 1024


LIMITS = ServerLimits()


class PuppetLaunch(Value):
    """The arguments for starting a run's Puppet.

    Attributes:
        lock: The descriptor of the node's lock.
        sealed: The descriptor on which Puppet asks for sealed values; `None` for none.
        environment: The key of the environment whose code the fork server may have read in advance;
            empty if it may not.
    """

    installation: Installation
    argv: Sequence[str]
    base: Mapping[str, str]
    more: Mapping[str, str]
    lock: int
    group: str
    environment: str = ""
    sealed: int | None = None


class LaunchedPuppet(Value):
    """A started Puppet; `cold_reason` if a warm start failed."""

    child: Child
    warm: bool = False
    cold_reason: str = ""


def launch(
    run: PuppetLaunch,
    *,
    processes: Processes,
    lean: LeanStart,
    fork_server: "ForkServerClient | None",
) -> LaunchedPuppet:
    """Start a run's Puppet: warm if a fork server accepts it, else cold.

    Args:
        lean: How Ruby starts cold, and Facter's configuration in both cases.
    """
    reason = ""
    if fork_server is not None:
        try:
            return LaunchedPuppet(child=_warm(run, fork_server, lean.facter), warm=True)
        except UnavailableError as error:
            reason = str(error)
    keep, more = _kept(run), run.more
    if (
        run.sealed is not None and not lean.is_possible
    ):  # all that Puppet starts would inherit the socket
        keep = [run.lock]
        more = {**more, SEALED: "puppet.command does not pass RUBYOPT on to Ruby"}
    sealed = run.sealed if run.sealed in keep else None
    env = environment(run.base, lean=lean, more=more, lock=run.lock, sealed=sealed)
    child = processes.start(run.argv, env=env, cwd=CWD, keep=keep, group=run.group)
    return LaunchedPuppet(child=child, cold_reason=reason)


def _kept(run: PuppetLaunch) -> list[int]:
    return [run.lock] if run.sealed is None else [run.lock, run.sealed]


def _warm(run: PuppetLaunch, fork_server: "ForkServerClient", facter: FacterConf | None) -> Child:
    request = {
        "argv": list(run.argv),
        # As a run has it once lean_start.rb has taken the tuning out of it again.
        "env": {**run.base, **run.more},
        "version": run.installation.version,
        "environment": run.environment,
        "libdir": run.installation.settings["libdir"],
        "facter": None if facter is None else [str(facter.file), str(facter.cache)],
    }
    return fork_server.start(request, cwd=CWD, keep=_kept(run), group=run.group)


def server_command(
    installation: Installation,
    *,
    base: Mapping[str, str],
    lean: LeanStart,
    script: Path,
    socket: Path,
    names: Path,
    limits: ServerLimits,
) -> tuple[list[str], dict[str, str]]:
    """Return the command of the fork server, and its environment.

    The command is Puppet's own, so that the interpreter and its environment are those of a run. If
    Ruby does not load localpuppet's file, Puppet prints its version and ends.

    Args:
        script: The server's program: `base/share/fork_server.rb`.
        names: The file in which runs leave the names of what they read.

    Raises:
        UnavailableError: This Puppet cannot run a fork server.
    """
    if not lean.flags:
        raise UnavailableError(f"{installation.command} does not pass RUBYOPT to Ruby")
    if any(character.isspace() for path in (lean.file, script) for character in str(path)):
        raise UnavailableError("RUBYOPT cannot hold a path with spaces", where=str(script))
    pack = None if lean.compiled is None else str(lean.compiled / "pack")
    words = [str(socket), installation.command, pack, asdict(limits), str(names)]
    variables = {"LOCALPUPPET_FORK_SERVER": json.dumps(words)}
    env = environment(base, lean=replace(lean, then=script), more=variables)
    return [installation.command, "--version"], env


# What it may take on the disk, with what takes its place; bytes. `compile_ruby.rb` keeps to half.
MOST = 128 * 1024 * 1024


def compile_missing_ruby(
    directory: Path, command: Path, *, env: Mapping[str, str], min_free: int
) -> None:
    """Start compiling the Ruby files that lacked compiled code in earlier runs, if any.

    Args:
        directory: The compiled Ruby; the first run that lacks compiled code creates it.
        command: Puppet's command, whose interpreter compiles.
    """
    from localpuppet.base.machine.processes import start_apart

    if not (directory / "wanted").exists():
        return
    if shutil.disk_usage(directory).free < min_free + MOST:
        return
    ruby = find_ruby(command, env["PATH"])
    if ruby is not None:
        script = shared_file("compile_ruby.rb")
        start_apart([str(ruby), str(script), str(directory)], env=env)


def sealed_pack(directory: Path, places: Iterable[Path]) -> "IO[bytes] | None":
    """Return an unchangeable copy of compiled Ruby; `None` without a valid one.

    It is for a process that may execute code of strangers. The kernel seals it, also against the
    user who runs that process, so no later process loads what such code wrote.

    Args:
        places: It has the files below these directories only, which that process sees, too.
    """
    import hashlib
    import os.path
    from functools import cache

    real = cache(os.path.realpath)
    tops = tuple(f"{place.resolve()}/" for place in places)
    try:
        pack = files.read_secret_file(directory / "pack", what="compiled Ruby", limit=MOST)
        head, sizes, rest = pack.split(b"\n", 2)
        length, digest = sizes.split()
        index, code = rest[: int(length)], rest[int(length) :]
    except (InvalidInputError, ValueError):
        return None
    if hashlib.sha256(index).hexdigest().encode() != digest:
        return None
    entries, parts, offset = [], [], 0
    for entry in index.splitlines():
        at, length, stamp = entry.split(b" ", 2)
        folder, name = os.path.split(os.fsdecode(stamp.split(b" ", 5)[-1]))
        path = os.path.join(real(folder), name)  # noqa: PTH118 # for a thousand files
        if path.startswith(tops) and not os.path.islink(path):  # noqa: PTH114
            entries.append(b"%d %s %s\n" % (offset, length, stamp))
            parts.append(code[int(at) : int(at) + int(length)])
            offset += int(length)
    index = b"".join(entries)
    digest = hashlib.sha256(index).hexdigest().encode()
    copy = os.fdopen(os.memfd_create("ruby", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "w+b")
    copy.write(b"".join((head, b"\n%d %s\n" % (len(index), digest), index, *parts)))
    copy.seek(0)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(copy, fcntl.F_ADD_SEALS, seals)
    return copy


def make_environment(compilation: Compilation) -> None:
    """Create the environment directory of a compilation, with links to its code.

    The caller holds the node's lock if others compile in the same directory.
    """
    directory = compilation.environments / compilation.environment
    files.make_private(directory)
    links = {directory / path.name: path for path in compilation.environment_code}
    for path in directory.iterdir():
        if path not in links or not path.is_symlink():
            files.remove_tree(path)
    for link, target in links.items():
        if not link.is_symlink() or link.readlink() != target:
            files.replace_link(link, target)


# Seconds by which the times of a file and of a process may differ.
_TOLERANCE = 1.0


class PuppetRunLock:
    """The lock that a `puppet agent` run takes; take it only with the node's own lock."""

    def __init__(self, path: Path, processes: ProcessTable) -> None:
        self._path = path
        self._processes = processes
        self._mine: int | None = None
        self._fd = -1

    def take(self) -> None:
        """Take the lock, even if a dead process left it.

        Raises:
            BusyError: A Puppet agent's run holds it, or a run of another localpuppet root.
        """
        files.make_public(self._path.parent)
        for _ in range(3):
            if self._create():
                return
            self.refuse_held()
            self._remove()
        raise self._busy(self._pid())

    def refuse_held(self) -> None:
        """Raise `BusyError` if a run holds the lock; it names the process."""
        pid = self._pid()
        if pid is not None and self._is_held(pid):
            raise self._busy(pid)

    def hand_to(self, pid: int) -> None:
        """Name `pid` as the holder: Puppet trusts a lock only if its holder is a Puppet."""
        if self._mine is None:
            return
        files.replace_file(self._path, str(pid).encode(), mode=0o644)
        self._mine = pid
        self._unlock()

    def release(self) -> None:
        """Release the lock if this run still holds it."""
        if self._mine is not None and self._pid() == self._mine:
            self._remove()
        self.leave()

    def leave(self) -> None:
        self._mine = None
        self._unlock()

    def _create(self) -> bool:
        """Create the file, locked and with this process's pid from its first moment."""
        temporary = self._path.with_name(f".{self._path.name}.{os.urandom(6).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with files.disk_errors(self._path), suppress(FileExistsError):
            self._fd = os.open(temporary, flags, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                os.write(self._fd, str(os.getpid()).encode())
                self._path.hardlink_to(temporary)
                self._mine = os.getpid()
            finally:
                temporary.unlink()
                if self._mine is None:
                    self._unlock()
        return self._mine is not None

    def _unlock(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _busy(self, pid: int | None) -> BusyError:
        """Return the error that names the holder.

        The lock has only a pid; a Puppet that localpuppet started has a localpuppet file among its
        arguments.
        """
        process = self._processes.look_up(pid or 0)
        words = process.words if process else ()
        other = any("localpuppet" in word for word in words)
        holder = "a run of another localpuppet root" if other else "a puppet agent run"
        reports = [word for word in words if word.endswith("/report.json")]
        record = f", recorded in {Path(reports[0]).parent}" if other and reports else ""
        return BusyError(
            f"{holder} (pid {pid}{record}) is using this node",
            where=str(self._path),
            hint="try again when it has ended",
        )

    def _remove(self) -> None:
        with files.disk_errors(self._path):
            self._path.unlink(missing_ok=True)

    def _pid(self) -> int | None:
        try:
            text = self._path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() and len(text) < 10 else None

    def _is_held(self, pid: int) -> bool:
        process = self._processes.look_up(pid)
        if process is None:
            return False
        with files.disk_errors(self._path), suppress(FileNotFoundError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if process.started_at > os.fstat(fd).st_mtime + _TOLERANCE:
                    return False
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
        # The agent's fork server is a `puppet --version` that does not end.
        if process.name == "localpuppet" or "--version" in process.words:
            return False
        is_ruby = "ruby" in process.name and any("puppet" in word for word in process.words)
        return is_ruby or re.search(r"puppet(-.*)?$", process.name) is not None
