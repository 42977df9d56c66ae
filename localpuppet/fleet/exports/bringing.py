"""Transfer exports over the bus: in chunks that a node's signed inventory entry names.

- A reader stores fetched bytes only if they have the digest of the accepted entry. Otherwise it
  keeps the stored exports of this node and logs the reason; other nodes are not affected.
- If the bus denies a read or does not answer, the follower tries again at the next update. A
  collector is warned if it gets older exports of a node; if none are stored, it gets an error and
  not an empty answer (`held`).
- If nothing is stored yet, no collector gets an answer before all exports of the view were fetched.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from random import SystemRandom

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.database import DamagedError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import exports_of
from localpuppet.fleet.exports.document import MAX_PACKED, unpack
from localpuppet.fleet.exports.held import NO_ROOM, HeldExports, NodeExports
from localpuppet.fleet.inventory.chunks import ChunkOutbox, ChunkWriter, fetch_chunks
from localpuppet.fleet.inventory.entry import ExportsSummary
from localpuppet.fleet.inventory.view import View

# Nodes whose exports are fetched at the same time, and nodes stored in one transaction.
AT_ONCE = 16
MAX_TOGETHER = 256
# Bytes of JSON that wait for one transaction; they limit the memory next to the node being
# unpacked.
MAX_WAITING = 4 * 1024 * 1024
# A server of a cluster may lag: look this often for the chunks of an entry, once with each update.
# After that, look once in `SELDOM` seconds, as a bus that lost them gets them again.
MAX_TRIES = 5
SELDOM = 3600.0
_CHANCE = SystemRandom()


def exports_writer(node: NodeName, outbox: ChunkOutbox) -> ChunkWriter:
    """Return the writer of a node's exports."""
    return ChunkWriter(
        prefix=exports_of(node), outbox=outbox, named=lambda entry: entry.exports.digest
    )


class _Fetched(Value):
    """The exports that an entry names, as fetched from the bus."""

    node: str
    summary: ExportsSummary
    data: bytes

    def unpacked(self) -> NodeExports:
        """Unpack the exports; raise `InvalidInputError` if the bytes do not match the entry."""
        resources = unpack(self.data)
        if len(resources) != self.summary.count:
            raise InvalidInputError(
                f"{len(resources)} resources; the node's entry names {self.summary.count}"
            )
        return NodeExports.of(self.node, str(self.summary.digest), resources)


@dataclass(slots=True, eq=False)
class ExportsFollower:
    """Stores the exports that the entries of the view name; the inventory's `Companion`.

    Attributes:
        view: The accepted entries.
        held: The stored exports.
        log: The agent's log.
        at_once: The number of nodes to fetch from at the same time.
        together: The number of nodes to store in one transaction, so that a first listing does not
            wait for the disk once per node.
        seconds: A monotonic time in seconds.
    """

    view: View
    held: HeldExports
    _: KW_ONLY
    log: Log
    at_once: int = AT_ONCE
    together: int = MAX_TOGETHER
    seconds: Callable[[], float] = time.monotonic
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _logged_reasons: dict[str, str] = field(default_factory=dict, init=False)
    _looked: dict[str, float] = field(default_factory=dict, init=False)
    # Nodes dropped since the round began: their pending exports are not stored.
    _gone: set[str] = field(default_factory=set, init=False)

    def drop(self, node: str) -> None:
        """Remove the exports of a node that left the view; see `Companion`."""
        self._logged_reasons.pop(node, None)
        self._looked.pop(node, None)
        self._gone.add(node)
        self.held.drop(node)

    async def update(self, kv: KeyValue) -> bool:
        """Fetch missing exports and remove those that no entry names; see `Companion`."""
        async with self._turn:
            try:
                return await self._update(kv)
            except DamagedError as error:
                self.log.warning(f"fetching all exports again: {error}", kind=LineKind.INVENTORY)
                self.held.rebuild()
                return await self._update(kv)

    async def _update(self, kv: KeyValue) -> bool:
        missing, changed = await asyncio.to_thread(self._missing)
        _CHANCE.shuffle(missing)  # so that each node is sometimes first
        waiting: list[NodeExports] = []
        for begin in range(0, len(missing), self.at_once):
            fetched = await asyncio.gather(
                *(self._fetch(kv, node, digest) for node, digest in missing[begin:][: self.at_once])
            )
            outages = [result for result in fetched if isinstance(result, UnavailableError)]
            unreachable = len(outages) == len(fetched)
            if unreachable:
                rest = missing[begin + self.at_once :]
                await asyncio.to_thread(self.held.note_unread, rest, one_line(str(outages[0])))
            last = unreachable or begin + self.at_once >= len(missing)
            came = [exports for exports in fetched if isinstance(exports, _Fetched)]
            changed = await asyncio.to_thread(self._hold, waiting, came, last=last) or changed
            if last:
                break
        return changed

    def _missing(self) -> tuple[list[tuple[str, str]], bool]:
        """Remove the exports that no entry names.

        Returns:
            The node and digest of each missing export, and whether something was removed.
        """
        self._gone.clear()
        wanted, held, refused = self.view.exporters(), self.held.digests(), self.held.refused()
        for node in {*held, *refused} - set(wanted):
            self.held.drop(node)
        missing = []
        for node, digest in wanted.items():
            before = refused.get(node)
            tried = before.tries if before is not None and before.digest == digest else 0
            looked = self._looked.get(node)
            due = tried < MAX_TRIES or looked is None or self.seconds() - looked >= SELDOM
            if held.get(node) != digest and due:
                self._looked[node] = self.seconds()
                missing.append((node, digest))
        if not held and self.view.current_until() is not None:
            self.held.note_unread(missing, "not read from the bus yet")
        return missing, not held.keys() <= wanted.keys()

    def _hold(self, waiting: list[NodeExports], fetched: Iterable[_Fetched], *, last: bool) -> bool:
        """Store fetched exports, several nodes in a transaction; return whether any was stored.

        Args:
            waiting: The exports not stored yet; the rest waits for the next call.
            fetched: The new exports; unpacked one by one, as unpacking takes many times the memory.
            last: Whether this is the last call of the round.
        """
        held = False
        for exports in fetched:
            try:
                waiting.append(exports.unpacked())
            except InvalidInputError as error:
                self._refuse(exports.node, str(exports.summary.digest), error)
            size = sum(each.size for each in waiting)
            if len(waiting) >= self.together or size > MAX_WAITING:
                held = self._write(waiting) or held
        return (last and self._write(waiting)) or held

    def _write(self, waiting: list[NodeExports]) -> bool:
        waiting[:] = [pending for pending in waiting if pending.node not in self._gone]
        if not waiting:
            return False
        left = self.held.hold_all(waiting)
        for exports in left:
            self._refuse(exports.node, exports.digest, InvalidInputError(NO_ROOM))
        for node in {pending.node for pending in waiting} - {item.node for item in left}:
            self._logged_reasons.pop(node, None)
        progressed = len(left) < len(waiting)
        waiting.clear()
        return progressed

    def _refuse(self, node: str, digest: str, error: InvalidInputError | UnavailableError) -> None:
        reason = one_line(str(error))
        tried = isinstance(error, InvalidInputError)
        self.held.refuse(node, digest, reason, tried=tried)
        if self._logged_reasons.get(node) != reason:
            self._logged_reasons[node] = reason
            self.log.warning(
                f"ignoring exports of {node} since its last run: {reason}",
                kind=LineKind.INVENTORY,
            )

    async def _fetch(
        self, kv: KeyValue, node: str, digest: str
    ) -> _Fetched | UnavailableError | None:
        """Return the exports that an entry names, the outage, or `None` if they are rejected."""
        entry = await asyncio.to_thread(self.view.entry, NodeName(node))
        if entry is None or entry.exports.digest != digest:
            return None  # the entry changed: the next round fetches the new exports
        try:
            data = await fetch_chunks(
                kv,
                exports_of(NodeName(node)),
                digest=digest,
                size=entry.exports.size,
                most=MAX_PACKED,
            )
        except (InvalidInputError, UnavailableError) as error:
            await asyncio.to_thread(self._refuse, node, digest, error)
            return error if isinstance(error, UnavailableError) else None
        return _Fetched(node=node, summary=entry.exports, data=data)
