"""Publish the entry in a node's outbox and keep it on the bus.

Publishing compares first and does not write an entry that the bus has already, so repeating it is
harmless.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from random import SystemRandom

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.bus.store_calls import StoreChange, ours
from localpuppet.fleet.inventory.chunks import ChunkWriter
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier

# Seconds between two checks for an entry from a run that the agent did not start.
LOOK = 2.0
# Seconds until the next check, at most, that the bus still has the entry.
RECHECK = 3600.0
# Seconds over which the nodes of a fleet spread this check after they have connected: the bus may
# have lost its data.
SPREAD = 10.0
_CHANCE = SystemRandom().random


class PublisherIdentity(Value):
    """The identity of a publishing node, and what accompanies its entry."""

    node: NodeName
    signer: MessageSigner
    verifier: Verifier
    baggage: Sequence[ChunkWriter]


@dataclass(slots=True, eq=False)
class Publisher:
    """Keeps the entry in the outbox on the bus while the agent runs.

    `then` is called after each check with whether the bus has the entry.
    """

    outbox: Outbox
    voice: PublisherIdentity
    _: KW_ONLY
    store: Callable[[], Awaitable[KeyValue]]
    log: Log
    then: Callable[[bool], Awaitable[None]]
    _logged: str = field(default="", init=False)
    _change: StoreChange = field(default_factory=partial(StoreChange, INVENTORY), init=False)

    async def run(self, changed: asyncio.Event, leave: asyncio.Event) -> None:
        """Publish until `leave` is set."""
        loop = asyncio.get_running_loop()
        published, due = 0, 0.0
        while not leave.is_set():
            stamp = self.outbox.stamp()
            if await self._may_have_lost():
                due = min(due, loop.time() + SPREAD * _CHANCE())
            wanted = stamp and (stamp != published or loop.time() >= due)
            if wanted and await self._publish():
                # Spread over the fleet.
                published, due = stamp, loop.time() + RECHECK * (1 + _CHANCE()) / 2
            await self.then(stamp == published)
            await wait_first(changed, leave, seconds=LOOK)
            changed.clear()

    async def _may_have_lost(self) -> bool:
        with suppress(UnavailableError):
            return await self._change.noticed(await self.store())
        return False

    async def _publish(self) -> bool:
        """Publish the entry; return whether the bus has it now."""
        try:
            payload = self.outbox.payload()
            if payload is not None:
                wrote = await publish(await ours(self.store()), payload, self.voice)
                if wrote:
                    self.log.info("published the last run", kind=LineKind.INVENTORY)
        except LocalpuppetError as error:
            if str(error) != self._logged:
                self.log.warning(f"cannot publish the last run: {error}", kind=LineKind.INVENTORY)
            self._logged = str(error)
            return False
        self._logged = ""
        return True


async def publish(kv: KeyValue, payload: bytes, voice: PublisherIdentity) -> bool:
    """Publish an entry unless the bus has it; return whether it was written."""
    key = INVENTORY + voice.node
    try:
        stored = await kv.get(key)
    except UnavailableError:
        stored = None  # the node may have write access only; otherwise the write fails too
    there = None if stored is None else _ours(stored.value, voice)
    entry = InventoryEntry.parse(payload)
    on_bus = None if there is None else _parsed(there)
    for writer in voice.baggage:
        await writer.bring(kv, entry, on_bus)
    if there == payload:
        return False
    await kv.put(key, voice.signer.sign(payload, MessageKind.INVENTORY))
    for writer in voice.baggage:
        writer.landed(entry)
    return True


def _parsed(payload: bytes) -> InventoryEntry | None:
    try:
        return InventoryEntry.parse(payload)
    except InvalidInputError:
        return None  # of another version


def _ours(token: bytes, voice: PublisherIdentity) -> bytes | None:
    """Return the payload of an entry that this node signed; `None` for any other."""
    try:
        signed = voice.verifier.verify(token, MessageKind.INVENTORY)
    except IntegrityError:
        return None
    return signed.payload if signed.signer == voice.signer.name else None
