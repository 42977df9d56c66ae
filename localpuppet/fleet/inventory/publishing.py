"""Sees to it that the bus holds what a node's outbox does.

Owns: when it is looked, and that the entry is signed. Refuses to know: runs, when an entry is news
(`outbox`).

- To publish is to compare: what stands on the bus already is not written again, so that whoever is
  not sure publishes once more.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import SystemRandom
from typing import Protocol

from localpuppet.base.errors import (
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.bus.outage import ours
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.trust.signing import MessageKind, Signer, Verifier

# Seconds between looks whether a run that is not the agent's has left an entry.
LOOK = 2.0
# Seconds after which it is looked, at the latest, whether the bus still holds the entry.
RECHECK = 3600.0
_CHANCE = SystemRandom().random


class Baggage(Protocol):
    """Brings to the bus what an entry points to."""

    async def bring(self, kv: KeyValue, entry: InventoryEntry, on_bus: str | None) -> None:
        """See to it that the bus holds what an entry points to, before it holds the entry.

        Args:
            kv: The bus.
            entry: The entry.
            on_bus: The digest of the exports that the entry on the bus names: readers may be about
                to take these.

        Raises:
            StateError: What is to be brought cannot be read.
        """
        ...

    def landed(self, entry: InventoryEntry) -> None:
        """Take that the bus holds the entry now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """In whose name a node publishes, and what goes with its entry.

    Attributes:
        node: The node.
        signer: Signs.
        verifier: Tells whether what stands on the bus is ours.
        baggage: Brings what the entry points to.
    """

    node: NodeName
    signer: Signer
    verifier: Verifier
    baggage: Baggage


class Publisher:
    """Sees to it that the bus holds what the outbox does, for as long as an agent lives.

    Args:
        outbox: The outbox.
        voice: In whose name.
        store: Returns the bus, connected; raises `UnavailableError` while it is away.
        log: What is said.
        then: Is called after each look, with whether the bus holds what the outbox does.
    """

    def __init__(
        self,
        outbox: Outbox,
        voice: Voice,
        *,
        store: Callable[[], Awaitable[KeyValue]],
        log: Log,
        then: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._outbox = outbox
        self._voice = voice
        self._store = store
        self._log = log
        self._then = then
        self._said = ""

    async def run(self, changed: asyncio.Event, leave: asyncio.Event) -> None:
        """Publish until `leave` is set.

        Args:
            changed: Is set when a run may have ended.
            leave: Ends it.
        """
        loop = asyncio.get_running_loop()
        leaving = asyncio.create_task(leave.wait())
        published, due = 0, 0.0
        try:
            while not leave.is_set():
                stamp = self._outbox.stamp()
                wanted = stamp and (stamp != published or loop.time() >= due)
                if wanted and await self._publish():
                    # Not a fleet in one moment.
                    published, due = stamp, loop.time() + RECHECK * (1 + _CHANCE()) / 2
                await self._then(stamp == published)
                waking = asyncio.create_task(changed.wait())
                ends = {waking, leaving}
                await asyncio.wait(ends, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
                waking.cancel()
                changed.clear()
        finally:
            leaving.cancel()

    async def _publish(self) -> bool:
        """Publish; return whether the bus holds the entry now."""
        try:
            payload = self._outbox.payload()
            if payload is not None:
                wrote = await publish(await ours(self._store()), payload, self._voice)
                if wrote:
                    self._log.info("told the others of the last run", kind=LineKind.INVENTORY)
        except LocalpuppetError as error:
            if str(error) != self._said:
                self._log.warning(
                    f"the others do not hear of the last run: {error}", kind=LineKind.INVENTORY
                )
            self._said = str(error)
            return False
        self._said = ""
        return True


async def publish(kv: KeyValue, payload: bytes, voice: Voice) -> bool:
    """See to it that the bus holds an entry; return whether it had to be written.

    Args:
        kv: The bus.
        payload: The packed entry.
        voice: In whose name.

    Raises:
        InvalidInputError: The identity is refused.
    """
    key = INVENTORY + voice.node
    try:
        found = await kv.get(key)
    except UnavailableError:
        found = None  # a node may be let write its entry, and read none; if not, writing fails, too
    there = None if found is None else _ours(found.value, voice)
    on_bus = None if there is None else _exports_in(there)
    entry = InventoryEntry.parse(payload)
    await voice.baggage.bring(kv, entry, on_bus)
    if there == payload:
        return False
    await kv.put(key, voice.signer.sign(payload, MessageKind.INVENTORY))
    voice.baggage.landed(entry)
    return True


def _exports_in(payload: bytes) -> str | None:
    try:
        return InventoryEntry.parse(payload).exports.digest
    except InvalidInputError:
        return None  # written by another version


def _ours(token: bytes, voice: Voice) -> bytes | None:
    """Return the payload of an entry that we signed; `None` for whatever else stands there."""
    try:
        signed = voice.verifier.verify(token, MessageKind.INVENTORY)
    except IntegrityError:
        return None
    return signed.payload if signed.signer == voice.signer.name else None
