"""How a run's Puppet comes to be: a process of its own, or a child of the fork server.

Owns: what each of the two is given, and that a run is started cold where the other is not to be
had. Refuses to know: sockets, processes. docs/adr/0035-fork-server.md says what may be warm.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.ports import Child, Processes
from localpuppet.node.puppet.environment import FacterConf, LeanStart, environment
from localpuppet.node.puppet.installation import Installation

CWD = Path("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """When a fork server ends, so that whatever might gather in it does not for long.

    Attributes:
        runs: After so many runs.
        seconds: After so long.
        memory: Beyond so many bytes of resident memory, after a run.
    """

    runs: int = 100
    seconds: int = 12 * 3600
    memory: int = 160 * 1024 * 1024


LIMITS = ServerLimits()


class ForkServer(Protocol):
    """Has children made by a Puppet that has read its library."""

    def start(self, request: Mapping[str, Any], *, cwd: Path, keep: int, group: str) -> Child:
        """Have a child made; see `base.machine.fork_server.ForkServer`.

        Raises:
            UnavailableError: There is no such child, and why.
            StateError: A child that did not begin cannot be ended.
        """
        ...

    def memory(self) -> int | None:
        """Return the resident memory of the server in bytes; `None` while there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a run's Puppet is given.

    Attributes:
        installation: Which Puppet.
        argv: Its arguments.
        base: The caller's environment.
        more: What Puppet and its children see besides.
        lock: The descriptor of the node's lock.
        group: The name for its cgroup.
    """

    installation: Installation
    argv: Sequence[str]
    base: Mapping[str, str]
    more: Mapping[str, str]
    lock: int
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A Puppet that runs.

    Attributes:
        child: The process.
        warm: Whether the fork server made it.
        cold_reason: Why not, where it was to; one line.
    """

    child: Child
    warm: bool = False
    cold_reason: str = ""


def launch(
    run: Launch, *, processes: Processes, lean: LeanStart, fork_server: ForkServer | None
) -> Launched:
    """Start a run's Puppet: warm where there is a fork server that takes it, and cold otherwise.

    Args:
        run: What it is given.
        processes: Starts it cold.
        lean: How Ruby starts, then; how Facter is configured in either case.
        fork_server: Starts it warm; `None` where the node has none.

    Raises:
        StateError: It could not be started.
    """
    reason = ""
    if fork_server is not None:
        try:
            return Launched(child=_warm(run, fork_server, lean.facter), warm=True)
        except UnavailableError as error:
            reason = str(error)
    env = environment(run.base, lean=lean, more=run.more, lock=run.lock)
    child = processes.start(run.argv, env=env, cwd=CWD, keep=run.lock, group=run.group)
    return Launched(child=child, cold_reason=reason)


def _warm(run: Launch, fork_server: ForkServer, facter: FacterConf | None) -> Child:
    request = {
        "argv": list(run.argv),
        # As a run has it once lean_start.rb has taken the tuning out of it again.
        "env": {**run.base, **run.more},
        "version": run.installation.version,
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
    limits: ServerLimits,
) -> tuple[list[str], dict[str, str]]:
    """Return the command of the fork server, and its environment.

    The command is Puppet's own, so that the interpreter and what it finds are those of a run; where
    Ruby does not load our file in spite of all, Puppet says its version and ends.

    Args:
        installation: Which Puppet.
        base: The environment that runs get.
        lean: How Ruby starts.
        script: What the server is: `base/share/fork_server.rb`.
        socket: Where it listens.
        limits: When it ends.

    Raises:
        UnavailableError: There can be none with this Puppet.
    """
    if not lean.flags:
        raise UnavailableError(f"{installation.command} does not hand RUBYOPT on to Ruby")
    if any(character.isspace() for path in (lean.file, script) for character in str(path)):
        raise UnavailableError("RUBYOPT takes no path with spaces", where=str(script))
    pack = None if lean.compiled is None else str(lean.compiled / "pack")
    words = [str(socket), installation.command, pack, asdict(limits)]
    told = {"LOCALPUPPET_FORK_SERVER": json.dumps(words)}
    env = environment(base, lean=replace(lean, then=script), more=told)
    return [installation.command, "--version"], env
