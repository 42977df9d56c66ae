"""`localpuppet lease`: runs a command that no other node may run at the same time."""

import asyncio
import signal
import sys
import uuid
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import BusyError
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.app import FleetApp, run
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, option

if TYPE_CHECKING:
    from localpuppet.fleet.leases.lease import GuardedCommand, HeldLease, Leases

TTL = 30.0
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@command(
    "lease",
    exits={
        0: "COMMAND succeeded; otherwise its own exit code",
        1: "the lease was lost, and COMMAND was ended",
        69: "the bus is unreachable",
        75: "another holder has the lease, or the bus lost its data less than a minute ago",
    },
)
@click.argument("name")
@option("--wait-timeout TIME", "Wait at most TIME for the lease.  [default: no wait]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def lease_command(
    node: NodeApp, name: str, wait_timeout: str | None, command: tuple[str, ...]
) -> int:
    """Run a command on one node of the fleet at a time.

    A lease is a lock on the bus with one holder at a time. localpuppet takes the lease NAME and
    runs COMMAND. If localpuppet loses the lease, hangs or is killed, COMMAND and its children are
    ended before another holder can get the lease.

    Examples:
      localpuppet lease db-migrate -- /usr/local/bin/migrate
      localpuppet lease backup --wait-timeout 10m -- /usr/local/bin/backup --full
    """
    from localpuppet.base.machine.guarded_command import GuardedProcess
    from localpuppet.fleet.bus.layout import parse_lease_name

    patience = 0.0 if wait_timeout is None else parse_duration(wait_timeout, where="--wait-timeout")
    lease = parse_lease_name(name)
    # A separate process group lets a signal reach the command's children; on a terminal, it would
    # keep the command from reading input.
    fleet = FleetApp(node)
    command_guard = GuardedProcess(command, own_group=not sys.stdin.isatty())
    try:
        return run(_with_lease(fleet, lease, patience, command_guard, program=command[0]))
    finally:
        command_guard.close()


async def _with_lease(
    fleet: FleetApp, name: str, patience: float, command: "GuardedCommand", *, program: str
) -> int:
    from localpuppet.fleet.leases.lease import LeasedCommand

    clock = fleet.node.clock
    async with fleet.connected() as kv:
        leases = fleet.leases(kv, holder=fleet.signer.name, session=str(uuid.uuid4()))
        held = await _wait(leases, name, patience)
        loop = asyncio.get_running_loop()
        for number in _PASSED_ON:
            loop.add_signal_handler(number, command.signal, number)
        leased = LeasedCommand(
            leases,
            command,
            program=program,
            clock=clock,
            fail=render.fail,
            note=render.note,
        )
        return await leased.run(held)


async def _wait(leases: "Leases", name: str, patience: float) -> "HeldLease":
    observer = render.observer(quiet=patience == 0, title=f"waiting for the lease {name}")
    observer.begin()
    try:
        held = await leases.wait(name, ttl=TTL, patience=patience)
    finally:
        observer.close()
    if held is None:
        obstacle = await leases.obstacle(name, ttl=TTL)
        hint = "use --wait-timeout TIME to wait"
        raise BusyError(
            f"the lease {name} is not free", hint=f"{obstacle}; {hint}" if obstacle else hint
        )
    return held
