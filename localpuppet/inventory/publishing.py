"""What a node tells the others of itself: written down after a good run, then brought to the bus.

Owns: the outbox (`inventory/entry` in the state directory), when an entry is news, and that the bus
holds what the outbox does. Refuses to know: runs, which facts leave the node (`facts`).

- The outbox holds the packed entry and no signature: a run does not pay for signing.
- Entries of a node do not go back in time, or others would refuse them: after the clock was set
  back, the next entry is a moment newer than the one before.
- An entry is news when its digest is another, or the one before is older than `refresh`.
- To publish is to compare: what stands on the bus already is not written again, so that whoever is
  not sure publishes once more.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import Protocol

from localpuppet.bus.key_value import KeyValue
from localpuppet.bus.layout import INVENTORY
from localpuppet.bus.outage import ours
from localpuppet.errors import IntegrityError, InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.formats.names import NodeName
from localpuppet.inventory.entry import AHEAD, InventoryEntry
from localpuppet.machine.files import make_private, state_problem, write_durably
from localpuppet.machine.ports import LineKind, Log
from localpuppet.trust.signing import MessageKind, Signer, Verifier

FILE = Path("inventory", "entry")
STEP = 0.001
# Seconds between looks whether a run that is not the agent's has left an entry.
LOOK = 2.0
# Seconds after which it is looked, at the latest, whether the bus still holds the entry.
RECHECK = 3600.0
_CHANCE = SystemRandom().random


class Outbox:
    """The entry that the bus is to hold, on the disk.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self.path = state / FILE
        self._mark = self.path.with_name("published")

    def stamp(self) -> int:
        """Return what changes when the outbox does; 0 before the first good run."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def is_published(self) -> bool:
        """Return whether somebody has noted that the bus held what is here now.

        Raises:
            StateError: It cannot be read.
        """
        payload = self.payload()
        try:
            return payload is None or self._mark.read_text("ascii") == _digest(payload)
        except (OSError, ValueError):
            return False

    def note_published(self, payload: bytes) -> None:
        """Note that the bus holds an entry.

        Raises:
            StateError: The disk refused.
        """
        write_durably(self._mark, _digest(payload).encode("ascii"))

    def payload(self) -> bytes | None:
        """Return the packed entry; `None` before the first good run.

        Raises:
            StateError: It cannot be read.
        """
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise state_problem(error, self.path) from error

    def offer(self, entry: InventoryEntry, *, refresh: float) -> bool:
        """Write an entry down, if it is news; return whether it was.

        Args:
            entry: The entry, with its digest.
            refresh: Seconds after which the same is news again.

        Raises:
            InvalidInputError: The entry is one that no receiver would take: too large, say.
            StateError: The disk refused; the entry before stays.
        """
        before = self.entry()
        if before is not None and before.at <= entry.at + AHEAD:
            if before.digest == entry.digest and entry.at - before.at < refresh:
                return False
            entry = replace(entry, at=max(entry.at, before.at + STEP))
        # What a clock wrote that was wrong by more, nobody has taken.
        payload = entry.to_payload()
        InventoryEntry.parse(payload)  # who tells must hear of what every receiver would refuse
        make_private(self.path.parent)
        write_durably(self.path, payload)
        return True

    def entry(self) -> InventoryEntry | None:
        """Return the entry; `None` where there is none that this version reads.

        Raises:
            StateError: It cannot be read.
        """
        payload = self.payload()
        try:
            return None if payload is None else InventoryEntry.parse(payload)
        except InvalidInputError:
            return None  # written by another version, or damaged: what follows replaces it


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
            UnavailableError: The bus cannot be asked, or refuses us.
            StateError: What is to be brought cannot be read.
        """
        ...

    def landed(self, entry: InventoryEntry) -> None:
        """Take that the bus holds the entry now.

        Raises:
            StateError: The disk refused.
        """
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
        UnavailableError: The bus cannot be asked.
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


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


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
