"""Links grouped by role, and the cycles among them that a new entry closes.

Example: `relations(links).cycles[0].shown == "haproxy -> web -> haproxy"`.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.edges.links import (
    Cycle,
    DerivedReader,
    LinkReason,
    Links,
    NodeLink,
    cycles_of,
    links_of,
)
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.inventory.reading import InventoryReader

# Seconds for the search for cycles after a run whose kicks or queries changed.
LOOK = 5.0

# Prefix of a kick that matches no node, used in place of a role's name.
NOBODY = "no node: "
MAX_TEXTS = 5  # kicks and questions of an edge


class Role(Value):
    """Nodes with the same roles, `web,cache`, or one without; none if a kick matches no node."""

    name: str
    nodes: tuple[NodeName, ...]


class RoleEdge(Value):
    """A role that makes another one run, with the first `MAX_TEXTS` kicks or questions."""

    start: str
    end: str
    by: LinkReason
    texts: tuple[str, ...]


class Relations(Value):
    """The roles that make other roles run.

    Attributes:
        cycles: Each once, the shortest first.
        unanswered: The number of questions not answered; edges and cycles may be missing.
    """

    roles: tuple[Role, ...]
    edges: tuple[RoleEdge, ...]
    cycles: tuple[Cycle, ...]
    notes: tuple[str, ...]
    unanswered: int = 0

    def to_dict(self) -> dict[str, Json]:
        return {
            "schema": 1,
            "roles": [{"role": role.name, "nodes": [*map(str, role.nodes)]} for role in self.roles],
            "edges": [
                {"from": edge.start, "to": edge.end, "by": str(edge.by), "texts": list(edge.texts)}
                for edge in self.edges
            ],
            "cycles": [cycle.to_dict() for cycle in self.cycles],
            "notes": list(self.notes),
            "unanswered": self.unanswered,
        }


def relations(links: Links, *, by: Collection[LinkReason] = tuple(LinkReason)) -> Relations:
    """Return the roles that make other roles run."""
    names = {node: role_of(node, roles) for node, roles in links.nodes.items()}
    wanted = [link for link in links.links if link.by in by]
    members: dict[str, list[NodeName]] = {}
    for node, name in names.items():
        members.setdefault(name, []).append(node)
    texts: dict[tuple[str, str, LinkReason], list[str]] = {}
    for link in wanted:
        for start, end in _pairs(link, names):
            texts.setdefault((start, end, link.by), []).append(link.text)
    lost = links.lost if LinkReason.KICK in by else ()
    for text, kicking in lost:
        missing = f"{NOBODY}{text}"
        members.setdefault(missing, [])
        for start in {names[node] for node in kicking}:
            texts.setdefault((start, missing, LinkReason.KICK), []).append(text)
    involved = {name for start, end, _ in texts for name in (start, end)}
    return Relations(
        roles=tuple(Role(name=name, nodes=tuple(members[name])) for name in sorted(involved)),
        edges=tuple(
            RoleEdge(start=start, end=end, by=why, texts=_few(labels))
            for (start, end, why), labels in sorted(texts.items())
        ),
        cycles=cycles_of(wanted, names),
        notes=links.notes,
        unanswered=links.unanswered,
    )


def role_of(node: NodeName, roles: Sequence[str]) -> str:
    """Return the name under which a node is grouped: its roles, or its own name without any."""
    return ",".join(roles) or str(node)


def _pairs(link: NodeLink, names: dict[NodeName, str]) -> Iterable[tuple[str, str]]:
    """Return the roles that a link leads from and to, except a node with itself."""
    ends: dict[str, set[NodeName]] = {}
    for end in link.ends:
        ends.setdefault(names[end], set()).add(end)
    starts: dict[str, set[NodeName]] = {}
    for start in link.starts:
        starts.setdefault(names[start], set()).add(start)
    for start_name, from_nodes in starts.items():
        for end_name, to_nodes in ends.items():
            if start_name != end_name or len(from_nodes | to_nodes) > 1:
                yield start_name, end_name


def _few(texts: list[str]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text})[:MAX_TEXTS])


def asks_the_same(before: InventoryEntry, now: InventoryEntry) -> bool:
    """Return whether two entries of a node have the same roles, kicks and queries."""
    return _asked(before) == _asked(now)


def closed_cycles(
    reader: InventoryReader,
    before: InventoryEntry | None,
    now: InventoryEntry,
    enough: Callable[[], bool] = lambda: False,
) -> list[Cycle]:
    """Return the cycles that a node's new entry closes; some may be missing if `enough` is true."""
    mine = role_of(now.node, now.roles)

    def cycles_with(entry: InventoryEntry) -> tuple[Cycle, ...]:
        return relations(links_of(DerivedReader(reader, entry=entry), enough)).cycles

    cycles = [cycle for cycle in cycles_with(now) if mine in cycle.path]
    if not cycles:
        return []
    silent = replace(now, kicks=(), queries=(), paths=())
    known = {cycle.path for cycle in cycles_with(before or silent)}
    if enough():  # the previous cycles may be incomplete, and old cycles would count as new
        return []
    return [cycle for cycle in cycles if cycle.path not in known]


def warn_of_cycles(
    note: Callable[[str], None],
    before: InventoryEntry | None,
    now: InventoryEntry,
    reader: InventoryReader,
) -> None:
    """Warn of the cycles that a catalog closes, if its kicks or queries changed since `before`."""
    if not (now.kicks or now.queries) or (before is not None and asks_the_same(before, now)):
        return
    end = time.monotonic() + LOOK
    for cycle in closed_cycles(reader, before, now, lambda: time.monotonic() > end):
        note(f"nodes make each other run: {cycle.shown} ('localpuppet kicks' shows why)")


class CycleWatch:
    """Checks after each good run whether it closed a cycle, as long as an agent lives."""

    def __init__(self, outbox: Outbox, reader: InventoryReader, log: Log) -> None:
        self._outbox = outbox
        self._reader = reader
        self._log = log
        self._stamp = outbox.stamp()
        self._before: InventoryEntry | None = None
        self._begun = False

    async def step(self) -> None:
        """Check the node's entry for cycles, if it changed."""
        stamp = self._outbox.stamp()
        if self._begun and stamp == self._stamp:
            return
        try:
            now = self._outbox.entry()
            if now is not None and self._begun:
                await asyncio.to_thread(warn_of_cycles, self._warn, self._before, now, self._reader)
        except LocalpuppetError as error:
            self._warn(f"could not check whether a run closed a cycle: {error}")
        else:
            self._before = now
        self._stamp, self._begun = stamp, True

    def _warn(self, text: str) -> None:
        self._log.warning(text, kind=LineKind.KICK)


def _asked(entry: InventoryEntry) -> object:
    return entry.roles, set(entry.kicks), {query.text for query in entry.queries}
