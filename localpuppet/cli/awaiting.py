"""What became of a trigger on the nodes that it was sent to, as their agents tell it."""

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from localpuppet import bus
from localpuppet.cli.nodes import believe
from localpuppet.errors import UnavailableError
from localpuppet.model.settled import Settled

if TYPE_CHECKING:
    from collections.abc import Callable

    from localpuppet.bus import Sent
    from localpuppet.cli.fleet import FleetParts
    from localpuppet.key_value import KeyValue

AGAIN = 0.5
# A node that is on the bus has heard of a trigger so many seconds after it was sent.
HEARD = 2.0

Ends = dict[str, dict[str, Any] | None]


async def ends(
    fleet: "FleetParts", kv: "KeyValue", sent: "Sent", sent_in: range, patience: float
) -> Ends:
    """Return how a trigger ended on each node; `None` where nothing was heard in time.

    An outage only takes time: the trigger is on its way.

    Args:
        fleet: The wiring.
        kv: The store.
        sent: The trigger.
        sent_in: The seconds in which it may have been sent.
        patience: Seconds.
    """
    found: Ends = dict.fromkeys(sent.sent)

    clock = asyncio.get_running_loop().time
    heard_at = clock() + HEARD

    def take(name: str, token: bytes) -> None:
        told = believe(fleet.verifier, name, token)
        settled = told.get("settled")
        idle = clock() >= heard_at and told.get("cause") is None and told.get("waiting") == 0
        known = [Settled.from_dict(raw) for raw in settled] if isinstance(settled, list) else []
        for end in sorted(filter(None, known), key=lambda end: end.uuid == sent.uuid):
            if end.answers(sender=fleet.signer.name, uuid=sent.uuid, sent=sent_in, idle=idle):
                found[name] = {"uuid": end.uuid, "run": end.run, "outcome": end.outcome}

    try:
        async with asyncio.timeout(patience):
            while not all(found.values()):
                try:
                    await _look(kv, found, take)
                except UnavailableError:
                    await asyncio.sleep(AGAIN)
    except TimeoutError:
        return found
    return found


async def _look(kv: "KeyValue", found: Ends, take: "Callable[[str, bytes], None]") -> None:
    """Read what the nodes tell, until all of them have answered."""
    async with aclosing(kv.watch(bus.PRESENCE)) as changes:
        async for change in changes:
            for entry in bus.entries(change):
                name = entry.key.removeprefix(bus.PRESENCE)
                if name in found and found[name] is None:
                    take(name, entry.value)
            if all(found.values()):
                return
