"""Starts a run's Puppet: from the fork server or cold, with compiled Ruby.

If the fork server is unavailable, the start is cold. docs/adr/0035-fork-server.md lists what may be
warm.

A run records which files lacked compiled code. A separate process compiles them after the run, so
that no run waits for it.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.machine.ports import Child, Processes
from localpuppet.base.value import Value
from localpuppet.node.puppet.environment import FacterConf, LeanStart, environment
from localpuppet.node.puppet.installation import Installation, find_ruby

CWD = Path("/")


class ServerLimits(Value):
    """Limits of a fork server, which bound leaks.

    Attributes:
        runs: The server ends after this number of runs.
        seconds: The server ends after this time.
        memory: The server ends after a run if its resident memory exceeds this, in bytes.
    """

    runs: int = 100
    seconds: int = 12 * 3600
    memory: int = 160 * 1024 * 1024


LIMITS = ServerLimits()


class PuppetForkServer(Protocol):
    """Forks children from a Puppet that has loaded its library."""

    def start(self, request: Mapping[str, Any], *, cwd: Path, keep: int, group: str) -> Child:
        """Fork a child; see `base.machine.fork_server.ForkServerClient`.

        Raises:
            UnavailableError: No child was forked; the message has the reason.
            StateError: A child that did not begin cannot be killed.
        """

    def memory(self) -> int | None:
        """Return the resident memory of the server in bytes; `None` if it is not running."""


class PuppetLaunch(Value):
    """The arguments for starting a run's Puppet.

    Attributes:
        installation: The Puppet to start.
        argv: Its arguments.
        base: The caller's environment.
        more: More variables for Puppet and its children.
        lock: The descriptor of the node's lock.
        group: The name for its cgroup.
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


class LaunchedPuppet(Value):
    """A started Puppet.

    Attributes:
        child: The process.
        warm: Whether the fork server made it.
        cold_reason: Why a warm start failed, in one line, or empty.
    """

    child: Child
    warm: bool = False
    cold_reason: str = ""


def launch(
    run: PuppetLaunch,
    *,
    processes: Processes,
    lean: LeanStart,
    fork_server: PuppetForkServer | None,
) -> LaunchedPuppet:
    """Start a run's Puppet: warm if a fork server accepts it, else cold.

    Args:
        run: The arguments.
        processes: Starts Puppet cold.
        lean: How Ruby starts cold, and Facter's configuration in both cases.
        fork_server: Starts Puppet warm, or `None`.

    Raises:
        StateError: Puppet could not be started.
    """
    reason = ""
    if fork_server is not None:
        try:
            return LaunchedPuppet(child=_warm(run, fork_server, lean.facter), warm=True)
        except UnavailableError as error:
            reason = str(error)
    env = environment(run.base, lean=lean, more=run.more, lock=run.lock)
    child = processes.start(run.argv, env=env, cwd=CWD, keep=run.lock, group=run.group)
    return LaunchedPuppet(child=child, cold_reason=reason)


def _warm(run: PuppetLaunch, fork_server: PuppetForkServer, facter: FacterConf | None) -> Child:
    request = {
        "argv": list(run.argv),
        # As a run has it once lean_start.rb has taken the tuning out of it again.
        "env": {**run.base, **run.more},
        "version": run.installation.version,
        "environment": run.environment,
        "libdir": run.installation.settings["libdir"],
        "facter": None if facter is None else [str(facter.file), str(facter.cache)],
    }
    return fork_server.start(request, cwd=CWD, keep=run.lock, group=run.group)


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
        installation: The Puppet to use.
        base: The environment of runs.
        lean: How Ruby starts.
        script: The server's program: `base/share/fork_server.rb`.
        socket: The socket on which it listens.
        names: The file in which runs leave the names of what they read.
        limits: The server's limits.

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


@dataclass(frozen=True, slots=True)
class CompiledRuby:
    """The compiled Ruby on this node.

    Attributes:
        directory: Its directory; the first run that lacks compiled code creates it.
        script: The Ruby file that compiles.
        command: Returns Puppet's command, whose interpreter compiles.
        start: Starts a detached command in the environment of runs.
        path: The directories to search for an interpreter, like `PATH`.
        min_free: Bytes that must stay free on the disk.

    Attributes:
        directory: See above.
    """

    directory: Path
    _: KW_ONLY
    script: Path
    command: Callable[[], Path]
    start: Callable[[Sequence[str]], None]
    path: str
    min_free: int

    def after_run(self, note: Callable[[str], None]) -> None:
        """Start compiling the files that lacked compiled code, if any.

        Args:
            note: Takes the reason if compiling is impossible.
        """
        if not (self.directory / "wanted").exists():
            return
        if shutil.disk_usage(self.directory).free < self.min_free + MOST:
            return
        try:
            ruby = find_ruby(self.command(), self.path)
            if ruby is not None:
                self.start([str(ruby), str(self.script), str(self.directory)])
        except LocalpuppetError as error:
            note(f"could not compile Ruby for the next run: {error}")
