"""Starts and keeps the fork server of a node."""

from functools import partial

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.machine.files import make_private
from localpuppet.base.machine.fork_server import MAX_PATH
from localpuppet.base.machine.kept_process import KeptProcess, start_kept
from localpuppet.base.machine.ports import Log
from localpuppet.base.share.files import shared_file
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.agent.fork_server_keeper import ForkServerKeeper
from localpuppet.node.puppet.launching import LIMITS, ServerLimits, server_command
from localpuppet.node.wiring.node import NodeWiring, program_environment
from localpuppet.node.wiring.run import lean_start
from localpuppet.node.wiring.state import find_puppet, open_fork_server


def start_server(node: NodeWiring, limits: ServerLimits = LIMITS) -> KeptProcess:
    """Start a node's fork server.

    Args:
        node: The parts of the node.
        limits: The limits that end the server.

    Raises:
        LocalpuppetError: The server cannot be started.
    """
    server = open_fork_server(node)
    installation = find_puppet(node, ask=False)
    if installation is None:
        raise UnavailableError("Puppet was changed; the next run reads its settings again")
    if len(bytes(server.path)) > MAX_PATH:
        raise UnavailableError("is too long for a socket's name", where=str(server.path))
    make_private(server.path.parent)
    command, env = server_command(
        installation,
        base=program_environment(),
        lean=lean_start(node, installation),
        script=shared_file("fork_server.rb"),
        socket=server.path,
        names=server.path.with_suffix(".names"),
        limits=limits,
    )
    process = start_kept(command, env=env)
    try:
        server.note(process.identity)
    except StateError:
        process.end()
        process.code()
        raise
    return process


def warming(node: NodeWiring, agent: Agent, log: Log) -> ForkServerKeeper:
    """Return the service that keeps a node's fork server."""
    return ForkServerKeeper(agent, start=partial(start_server, node), log=log)
