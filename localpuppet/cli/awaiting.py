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
    from localpuppet.model.names import NodeName

AGAIN = 0.5

Ends = dict[str, dict[str, Any] | None]


async def ends(
    fleet: "FleetParts",
    kv: "KeyValue",
    sent: "Sent",
    sent_at: int,
    patience: float,
    *,
    told: "Callable[[str, dict[str, Any]], None]",
) -> Ends:
    """Return how a trigger ended on each node; `None` where nothing was heard in time.

    An outage only takes time: the trigger is on its way.

    Args:
        fleet: The wiring.
        kv: The store.
        sent: The trigger.
        sent_at: The last second in which it may have been sent.
        patience: Seconds.
        told: Learns of each end as it is heard.
    """
    found: Ends = dict.fromkeys(sent.sent)

    def take(name: str, token: bytes) -> None:
        settled = believe(fleet.verifier, name, token).get("settled")
        for raw in settled if isinstance(settled, list) else ():
            end = Settled.from_dict(raw)
            if end and end.answers(sender=fleet.signer.name, uuid=sent.uuid, sent=sent_at):
                heard = {"uuid": end.uuid, "run": end.run, "outcome": end.outcome}
                if found[name] is None:
                    told(name, heard)
                found[name] = heard

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


async def absent(kv: "KeyValue", sent: "Sent") -> "list[NodeName]":
    """Return the receivers whose agents are not on the bus now; none where nobody can tell."""
    keys = [f"{bus.PRESENCE}{name}" for name in sent.sent]
    try:
        entries = await asyncio.gather(*map(kv.get, keys))
    except UnavailableError:
        return []
    return [name for name, entry in zip(sent.sent, entries, strict=True) if entry is None]
