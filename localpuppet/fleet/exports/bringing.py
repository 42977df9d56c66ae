"""How exports cross the bus: chunks below the node's key, and the signed entry that names them.

Owns: keys and form of a chunk, the order in which chunks are written, what is fetched and what is
refused. Refuses to know: which entries count (the inventory), what is taken (`choosing`).

- Chunks stand in one of two slots, `/localpuppet/exports/NODE/SLOT/N`, each behind the digest of
  all: whoever publishes writes into the slot that the entry on the bus does not name, and brings
  the entry when all are there. So a reader finds all of the old or all of the new, whenever a
  writer dies, and a node has never more than two slots of keys.
- What is fetched counts when its bytes have the digest that the node's believed entry names. Else
  what was held stays, and a line says why; one node that publishes rubbish stops nobody.
- A copy that begins anew beside a view that does not is no answer before it is whole.
- What the bus does not let us read is asked for again with the next look, and with it what was not
  asked for because nobody had an answer. Who collects is warned
  while something older of the node is held; where nothing is, nobody is told "none" (`held`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import SystemRandom

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.database import DamagedError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import exports_of
from localpuppet.fleet.exports.document import (
    CHUNK,
    MAX_PACKED,
    PackedResources,
    chunks_of,
    digest_of,
    unpack,
)
from localpuppet.fleet.exports.held import NO_ROOM, HeldExports, NodeExports
from localpuppet.fleet.exports.outbox import ExportsOutbox
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.view import View

SLOTS = ("a", "b")
# Nodes whose exports are fetched at the same time, and held in one transaction.
AT_ONCE = 16
MAX_TOGETHER = 256
# Of the latter, as JSON: beside the one that is unpacked there is not more in memory.
MAX_WAITING = 4 * 1024 * 1024
# So often what a node's entry names is looked for with each look at the bus, as a server of several
# may be behind; from then on once in so many seconds, as a bus that has lost it gets it again.
MAX_TRIES = 5
SELDOM = 3600.0
_CHANCE = SystemRandom()


class ExportsBaggage:
    """Brings this node's chunks to the bus before its entry; the inventory's `Baggage`.

    Args:
        node: This node.
        outbox: What the bus is to hold.
    """

    def __init__(self, node: NodeName, outbox: ExportsOutbox) -> None:
        self._node = node
        self._outbox = outbox
        self._slot = SLOTS[0]

    async def bring(self, kv: KeyValue, entry: InventoryEntry, on_bus: str | None) -> None:
        """Write the chunks that the bus does not hold; see `Baggage`."""
        digest = entry.exports.digest
        if digest is None:
            return
        data = self._outbox.read(digest)
        self._slot = await self._slot_for(kv, digest, on_bus)
        for number, chunk in enumerate(
            PackedResources(data=data, digest=digest, count=entry.exports.count).chunks
        ):
            key, value = _key(self._node, self._slot, number), _value(digest, chunk)
            found = await _get(kv, key)
            if found != value:
                await kv.put(key, value)

    def landed(self, entry: InventoryEntry) -> None:
        """Note which slot the entry on the bus names; see `Baggage`."""
        if entry.exports.digest is not None:
            self._outbox.note_landed(self._slot, entry.exports.digest)

    async def _slot_for(self, kv: KeyValue, digest: str, on_bus: str | None) -> str:
        """Return the slot that has these exports, or else one that no reader is sent to."""
        found = {slot: await self._digest_in(kv, slot) for slot in SLOTS}
        # What the bus does not let us read we have noted.
        slot, landed = self._outbox.landed() or ("", "")
        if slot in SLOTS and not found[slot]:
            found[slot] = landed
        named = on_bus or landed
        for slot in SLOTS:
            if found[slot] == digest:
                return slot
        return next(slot for slot in SLOTS if not named or found[slot] != named)

    async def _digest_in(self, kv: KeyValue, slot: str) -> str:
        found = await _get(kv, _key(self._node, slot, 0))
        return "" if found is None else found.partition(b"\n")[0].decode("ascii", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fetched:
    """What an entry names, as it came from the bus."""

    node: str
    summary: ExportsSummary
    data: bytes

    def unpacked(self) -> NodeExports:
        """Return what is to be held of it.

        Raises:
            InvalidInputError: It is not what the entry says.
        """
        resources = unpack(self.data)
        if len(resources) != self.summary.count:
            raise InvalidInputError(
                f"{len(resources)} resources; the node's entry names {self.summary.count}"
            )
        return NodeExports.of(self.node, str(self.summary.digest), resources)


class ExportsFollower:
    """Keeps what the view's entries export; the inventory's `Companion`.

    Args:
        view: The entries that count.
        held: What is held of their exports.
        log: What is said.
        at_once: Of how many nodes exports are fetched at the same time.
        together: Of how many nodes they are held in one transaction: a view that begins with
            nothing does not wait for the disk once a node.
        seconds: The time, from whatever moment on.
    """

    def __init__(
        self,
        view: View,
        held: HeldExports,
        *,
        log: Log,
        at_once: int = AT_ONCE,
        together: int = MAX_TOGETHER,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view = view
        self._held = held
        self._log = log
        self._at_once = at_once
        self._together = together
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._said: dict[str, str] = {}
        self._looked: dict[str, float] = {}
        # Dropped since the round began: what was on its way then is not held.
        self._gone: set[str] = set()

    def drop(self, node: str) -> None:
        """Hold nothing of a node any more; see `Companion`."""
        self._said.pop(node, None)
        self._looked.pop(node, None)
        self._gone.add(node)
        self._held.drop(node)

    async def update(self, kv: KeyValue) -> bool:
        """Fetch what is missing, and drop what nobody names; see `Companion`."""
        async with self._turn:
            try:
                return await self._update(kv)
            except DamagedError as error:
                self._log.warning(f"exports are fetched anew: {error}", kind=LineKind.INVENTORY)
                self._held.rebuild()
                return await self._update(kv)

    async def _update(self, kv: KeyValue) -> bool:
        missing, changed = await asyncio.to_thread(self._missing)
        _CHANCE.shuffle(missing)  # whoever is last today has its turn, too
        waiting: list[NodeExports] = []
        for begin in range(0, len(missing), self._at_once):
            fetched = await asyncio.gather(
                *(
                    self._fetch(kv, node, digest)
                    for node, digest in missing[begin:][: self._at_once]
                )
            )
            away = [one for one in fetched if isinstance(one, UnavailableError)]
            nobody = len(away) == len(fetched)
            if nobody:
                rest = missing[begin + self._at_once :]
                await asyncio.to_thread(self._held.note_unread, rest, one_line(str(away[0])))
            last = nobody or begin + self._at_once >= len(missing)
            came = [one for one in fetched if isinstance(one, _Fetched)]
            changed = await asyncio.to_thread(self._hold, waiting, came, last=last) or changed
            if last:
                break
        return changed

    def _missing(self) -> tuple[list[tuple[str, str]], bool]:
        """Drop what no entry names any more.

        Returns:
            What entries name and is not held, and whether something was held that is dropped.
        """
        self._gone.clear()
        wanted, held, refused = self._view.exporters(), self._held.digests(), self._held.refused()
        for node in {*held, *refused} - set(wanted):
            self._held.drop(node)
        found = []
        for node, digest in wanted.items():
            before = refused.get(node)
            tried = before.tries if before is not None and before.digest == digest else 0
            looked = self._looked.get(node)
            due = tried < MAX_TRIES or looked is None or self._seconds() - looked >= SELDOM
            if held.get(node) != digest and due:
                self._looked[node] = self._seconds()
                found.append((node, digest))
        if not held and self._view.current_until() is not None:
            self._held.note_unread(found, "not from the bus yet")
        return found, not held.keys() <= wanted.keys()

    def _hold(self, waiting: list[NodeExports], fetched: Iterable[_Fetched], *, last: bool) -> bool:
        """Hold what was fetched, many nodes at once; return whether something is held.

        Args:
            waiting: What is not held yet; what is left of it waits for the next call.
            fetched: What came, unpacked one after the other: that takes many times the memory.
            last: Whether nothing else will come.
        """
        held = False
        for one in fetched:
            try:
                waiting.append(one.unpacked())
            except InvalidInputError as error:
                self._refuse(one.node, str(one.summary.digest), error)
            size = sum(each.size for each in waiting)
            if len(waiting) >= self._together or size > MAX_WAITING:
                held = self._write(waiting) or held
        return (last and self._write(waiting)) or held

    def _write(self, waiting: list[NodeExports]) -> bool:
        waiting[:] = [one for one in waiting if one.node not in self._gone]
        if not waiting:
            return False
        left = self._held.hold_all(waiting)
        for one in left:
            self._refuse(one.node, one.digest, InvalidInputError(NO_ROOM))
        for node in {one.node for one in waiting} - {one.node for one in left}:
            self._said.pop(node, None)
        found = len(left) < len(waiting)
        waiting.clear()
        return found

    def _refuse(self, node: str, digest: str, error: InvalidInputError | UnavailableError) -> None:
        reason = one_line(str(error))
        tried = isinstance(error, InvalidInputError)
        self._held.refuse(node, digest, reason, tried=tried)
        if self._said.get(node) != reason:
            self._said[node] = reason
            self._log.warning(
                f"what {node} exports since its last run does not count: {reason}",
                kind=LineKind.INVENTORY,
            )

    async def _fetch(
        self, kv: KeyValue, node: str, digest: str
    ) -> _Fetched | UnavailableError | None:
        """Fetch what an entry names; return it, nothing where it does not count, or an outage."""
        entry = await asyncio.to_thread(self._view.entry, NodeName(node))
        if entry is None or entry.exports.digest != digest:
            return None  # another one came meanwhile: the next round is about that
        try:
            data = await _chunks(kv, NodeName(node), entry.exports)
        except (InvalidInputError, UnavailableError) as error:
            await asyncio.to_thread(self._refuse, node, digest, error)
            return error if isinstance(error, UnavailableError) else None
        return _Fetched(node=node, summary=entry.exports, data=data)


async def _chunks(kv: KeyValue, node: NodeName, summary: ExportsSummary) -> bytes:
    """Return the bytes that an entry names.

    Raises:
        InvalidInputError: They are not on the bus, or others are.
    """
    if summary.digest is None or not 0 < summary.size <= MAX_PACKED:
        raise InvalidInputError(f"{summary.size} bytes; 1 to {MAX_PACKED} are allowed")
    numbers = range(chunks_of(summary.size))
    for slot in SLOTS:
        parts = []
        for number in numbers:
            found = await kv.get(_key(node, slot, number))
            head, _, chunk = (b"" if found is None else found.value).partition(b"\n")
            if head != summary.digest.encode("ascii", "replace") or len(chunk) > CHUNK:
                break
            parts.append(chunk)
        data = b"".join(parts)
        if digest_of(data) == summary.digest:
            return data
    raise InvalidInputError("the bus does not hold the bytes that the node's entry names")


async def _get(kv: KeyValue, key: str) -> bytes | None:
    try:
        found = await kv.get(key)
    except UnavailableError:
        return None  # a node may be let write, and not read; if not, writing fails, too
    return None if found is None else found.value


def _key(node: NodeName, slot: str, number: int) -> str:
    return f"{exports_of(node)}{slot}/{number}"


def _value(digest: str, chunk: bytes) -> bytes:
    return digest.encode("ascii") + b"\n" + chunk
