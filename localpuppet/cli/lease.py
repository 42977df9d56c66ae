"""`localpuppet lease`: do something while nobody else in the fleet does it."""

import asyncio
import signal
import sys
import uuid
from typing import TYPE_CHECKING

import click

from localpuppet.cli import render
from localpuppet.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.formats.times import parse_duration
from localpuppet.wiring.node import Parts

if TYPE_CHECKING:
    from localpuppet.leases.lease import Held, Leases
    from localpuppet.machine.guarded_command import Guarded
    from localpuppet.machine.ports import Clock
    from localpuppet.wiring.fleet import FleetParts

TTL = 30.0
RETRY = 1.0
# Where a lease cannot be renewed, the command is asked to end when so much of its time is left,
# and is killed a second before the lease is another's.
MARGIN = 0.3
_PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@click.command(
    "lease",
    epilog="""\b
Examples:
  localpuppet lease db-migrate -- /usr/local/bin/migrate
  localpuppet lease backup --wait 10m -- /usr/local/bin/backup --full

\b
Exit codes: the command's; 75 when another has the lease; 69 when the bus is away; 1 when the lease
was lost while the command ran (it is ended then, before another could have the lease).
""",
)
@click.argument("name")
@click.option("--wait", metavar="TIME", help="Wait so long for the lease.  [default: do not]")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def lease_command(parts: Parts, name: str, wait: str | None, command: tuple[str, ...]) -> int:
    """Run COMMAND with the lease NAME, which one in the fleet can have at a time.

    The command, and what it started, is ended when the lease is lost, and when this program is
    killed or hangs: before the lease can be another's.
    """
    from localpuppet.bus.layout import parse_lease_name
    from localpuppet.cli.run_async import run
    from localpuppet.machine.guarded_command import Guarded
    from localpuppet.wiring.fleet import FleetParts

    patience = 0.0 if wait is None else parse_duration(wait, what="wait")
    lease = parse_lease_name(name)
    # A group of its own, so that what it starts is signalled with it; on a terminal that would
    # keep it from reading what is typed.
    guarded = Guarded(command, own_group=not sys.stdin.isatty())
    try:
        return run(_with_lease(FleetParts(parts), lease, patience, guarded, command[0]))
    finally:
        guarded.close()


async def _with_lease(
    fleet: "FleetParts", name: str, patience: float, command: "Guarded", program: str
) -> int:
    from localpuppet.leases.lease import Leases

    kv = await fleet.connect()
    try:
        leases = Leases(kv, fleet.parts.clock, holder=fleet.signer.name, session=str(uuid.uuid4()))
        observer = render.observer(quiet=patience == 0, title=f"waiting for the lease {name}")
        observer.begin()
        try:
            held = await leases.wait(name, ttl=TTL, patience=patience)
        finally:
            observer.close()
        if held is None:
            holder = await leases.holder(name)
            raise BusyError(
                f"the lease {name} is not free",
                hint=f"{holder} has it" if holder else "--wait waits for it",
            )
        return await _run(fleet, leases, held, command, program)
    finally:
        await kv.close()


async def _run(
    fleet: "FleetParts", leases: "Leases", held: "Held", command: "Guarded", program: str
) -> int:
    loop = asyncio.get_running_loop()
    for number in _PASSED_ON:
        loop.add_signal_handler(number, command.signal, number)
    more = {"LOCALPUPPET_LEASE_REVISION": str(held.revision)}
    try:
        await command.start(until=held.until - RETRY, more=more)
    except OSError as error:
        await leases.give_back(held)
        raise InvalidInputError(f"cannot be run: {error.strerror}", where=program) from error
    clock = fleet.parts.clock
    ended = asyncio.create_task(command.wait())
    pause = held.ttl / 3
    while not (await asyncio.wait([ended], timeout=pause))[0]:
        try:
            renewed = await _renew(leases, held, clock)
        except UnavailableError as error:
            problem, pause = str(error), RETRY
            if clock.monotonic() < held.until - held.ttl * MARGIN:
                continue
        else:
            problem, pause = "somebody else has it", held.ttl / 3
            if renewed is not None:
                held = renewed
                command.good_until(held.until - RETRY)
                continue
        render.fail(f"the lease {held.name} was lost: {problem}; ending the command")
        await _end(command, ended, held.until - RETRY - clock.monotonic())
        return 1
    if not await _give_back(leases, held, clock):
        render.fail(f"the lease {held.name} was lost before the command ended")
        return 1
    code = ended.result()
    if code is None:
        render.fail("what watches over the command was killed; the command was killed, too")
        return 1
    return code if code >= 0 else 128 - code


async def _renew(leases: "Leases", held: "Held", clock: "Clock") -> "Held | None":
    """Renew the lease, in the time that is left for it; after a pause of ours, in a moment."""
    left = held.until - held.ttl * MARGIN - clock.monotonic()
    try:
        return await asyncio.wait_for(leases.renew(held), max(left, RETRY))
    except TimeoutError as error:
        raise UnavailableError("the bus does not answer", where="bus") from error


async def _give_back(leases: "Leases", held: "Held", clock: "Clock") -> bool:
    """Let go of the lease; return whether it was ours to the end."""
    try:
        return await leases.give_back(held)
    except UnavailableError as error:
        render.say(f"# the lease {held.name} expires by itself: {error}", err=True)
        return clock.monotonic() < held.until


async def _end(command: "Guarded", ended: "asyncio.Task[int | None]", patience: float) -> None:
    command.signal(signal.SIGTERM)
    done, _ = await asyncio.wait([ended], timeout=max(patience, 0))
    if not done:
        command.kill()
        await ended
