"""Opens what a node keeps about itself: records, good runs, holds, the installed Puppet.

Each function imports what it opens, because `status` needs only a few.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import PuppetMissingError
from localpuppet.base.share.files import shared_file
from localpuppet.node.wiring.node import NodeWiring, program_environment

if TYPE_CHECKING:
    from localpuppet.base.machine.fork_server import ForkServerClient
    from localpuppet.node.puppet.installation import Installation
    from localpuppet.node.releases.ledger import Rollback
    from localpuppet.node.runs.attempts import Attempts
    from localpuppet.node.runs.hold import Holds
    from localpuppet.node.runs.records import GoodRuns, Records


def open_records(node: NodeWiring) -> "Records":
    """Return the records of a node."""
    from localpuppet.base.machine.process_table import SystemProcessTable
    from localpuppet.node.runs.records import Records

    return Records(node.settings.state / "runs", SystemProcessTable())


def open_good_runs(node: NodeWiring) -> "GoodRuns":
    """Return the good runs to which a node can return."""
    from localpuppet.node.runs.records import GoodRuns

    settings = node.settings
    return GoodRuns(
        settings.state / "good_runs", records=open_records(node), releases=settings.keep_releases
    )


def open_attempts(node: NodeWiring) -> "Attempts":
    """Return the refused applies of a node."""
    from localpuppet.base.machine.system_log import write_system_log
    from localpuppet.node.runs.attempts import Attempts

    settings = node.settings
    return Attempts(
        settings.state / "attempts",
        records=open_records(node),
        metrics=settings.metrics,
        clock=node.clock,
        system_log=write_system_log,
        after_refusal=lambda refused: node.neighbours.after_refusal(write_system_log, refused),
    )


def rollback_in_force(node: NodeWiring) -> "Rollback | None":
    """Return the rollback in force, or `None`."""
    # Most nodes have none, and `status` does not pay for the ledger then.
    settings = node.settings
    if not (settings.state / "rollback.json").exists():
        return None
    from localpuppet.node.enc.assignment import AssignedRelease
    from localpuppet.node.releases.ledger import Ledger

    assignment = AssignedRelease(settings.state).read()
    serial = 0 if assignment is None else assignment.serial
    return Ledger(settings.state).in_force(settings.input, serial=serial)


def open_holds(node: NodeWiring, *, ask: bool) -> "Holds":
    """Return the holds on a node; see `find_puppet` for `ask`."""
    from localpuppet.node.runs.hold import Holds

    installation = find_puppet(node, ask=ask)
    return Holds(
        node.settings.state / "holds",
        installation.disable_file if installation else None,
        node.clock,
    )


def open_fork_server(node: NodeWiring) -> "ForkServerClient":
    """Return the agent's fork server, whether it is running or not."""
    from localpuppet.base.machine.fork_server import ForkServerClient

    return ForkServerClient(_fork_server_socket(node), node.processes)


def fork_server_memory(node: NodeWiring) -> int | None:
    """Return the memory of the agent's fork server in bytes; `None` if it is not running."""
    # Most nodes have none, and `status` does not pay for sockets then.
    return open_fork_server(node).memory() if _fork_server_socket(node).exists() else None


def _fork_server_socket(node: NodeWiring) -> Path:
    return node.settings.state / "agent" / "fork_server.sock"


def find_puppet(node: NodeWiring, *, ask: bool) -> "Installation | None":
    """Return the installed Puppet.

    Args:
        node: The parts of the node.
        ask: Ask Puppet if it is unknown; otherwise `None` means "unknown".

    Raises:
        PuppetMissingError: No Puppet was found, or it does not answer.
    """
    from localpuppet.node.puppet.probe import PuppetProbe

    probe = PuppetProbe(
        node.settings.state / "cache" / "puppet.json",
        command=node.settings.puppet,
        directories=node.settings.puppet_directories,
        lean_start=shared_file("lean_start.rb"),
        env=program_environment(),
    )
    return probe.installation() if ask else probe.known()


def require_puppet(node: NodeWiring) -> "Installation":
    """Return the installed Puppet, with the certname of runs: the setting `node`, if any.

    Raises:
        PuppetMissingError: No Puppet was found, or it does not answer.
    """
    installation = find_puppet(node, ask=True)
    if installation is None:
        raise PuppetMissingError("cannot find Puppet")
    if not (name := node.neighbours.certname):
        return installation
    return replace(installation, settings={**installation.settings, "certname": name})


def compiled_directory(node: NodeWiring) -> Path | None:
    """Return the directory of compiled Ruby; `None` if the site disables it."""
    settings = node.settings
    return settings.state / "cache" / "ruby" if settings.compiled_ruby else None


def puppet_environment(
    node: NodeWiring, installation: "Installation", base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the environment for what reads code with Puppet's library outside of a run.

    Ruby starts as in a run, from the compiled Ruby of earlier runs, and writes nothing.

    Args:
        node: The parts of the node.
        installation: The installed Puppet.
        base: Other variables than those of this process; `None` for these.
    """
    from localpuppet.node.puppet.environment import LeanStart, environment

    lean = LeanStart(
        flags=installation.lean,
        file=shared_file("lean_start.rb"),
        compiled=compiled_directory(node),
        records=False,
    )
    return environment(base or program_environment(), lean=lean, more={})
