"""The roster of a bus: its members, their permissions, and the keys that they may use.

`bus.nats.permissions` and `bus.etcd.roles` convert the rights to an engine's configuration.

- A member has no right that the roster does not name.
- An unknown name is rejected, so that a typo cannot silently remove a right.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.names import NodeName, SignerName, did_you_mean
from localpuppet.base.value import Value
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import check_key
from localpuppet.fleet.bus.layout import KEYPREFIX


class Grant(Value):
    """A right to one key or prefix.

    Attributes:
        key: A key; or a prefix of keys, which ends with `/`.
        write: Whether it grants write and remove; otherwise read, list and watch.
    """

    key: str
    write: bool

    @property
    def prefix(self) -> bool:
        """Return whether the right is to all keys below a prefix."""
        return self.key.endswith("/")


class Member(Value):
    """A node or a person with their rights.

    Attributes:
        name: The name in the certificate.
        grants: The rights, without duplicates.
    """

    name: str
    grants: tuple[Grant, ...]


ALL = "*"
# Each keyword of `reads`, with the prefixes that it means.
READS = {
    "inventory": (layout.INVENTORY, layout.EXPORTS, layout.TOMBSTONES),
    "catalogs": (layout.CATALOGS,),
    "history": (layout.HISTORY,),
}


class RosterEntry(Value):
    """One entry of the roster.

    Attributes:
        name: A node or a person.
        node: Whether it has an agent.
        triggers: The nodes that it may trigger.
        asks: The nodes that it may send requests to.
        leases: The leases that it may take.
        reads: The keywords of `READS` that it may read of all nodes.
        forgets: Whether it may have nodes forgotten, if their policies allow that, too.
        takeover: The callers whose rollouts it may command and take over, if policies allow that.
    """

    name: SignerName
    node: bool
    triggers: tuple[NodeName, ...]
    asks: tuple[NodeName, ...]
    leases: tuple[str, ...]
    reads: tuple[str, ...]
    forgets: bool
    takeover: tuple[SignerName, ...]


class Roster(Value):
    """The members of a bus.

    Attributes:
        entries: Nodes, then people, in the file's order.
        admins: The names with all rights.
        keyprefix: The prefix of the triggers.
        stream: The NATS stream.
    """

    entries: tuple[RosterEntry, ...]
    admins: tuple[SignerName, ...]
    keyprefix: str
    stream: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, where: str) -> "Roster":
        """Return the roster.

        Args:
            raw: The document; its shape was checked.
            where: The document, for messages.

        Raises:
            InvalidInputError: A name is malformed, a duplicate, or unknown.
        """
        nodes = [_parsed(NodeName, name, f"{where}: nodes") for name in raw.get("nodes", {})]
        people = raw.get("people") or {}
        admins = [_parsed(SignerName, name, f"{where}: admins") for name in raw.get("admins", [])]
        names = [*nodes, *(_parsed(SignerName, name, f"{where}: people") for name in people)]
        for name in (*names, *admins):
            if [*names, *admins].count(name) > 1:
                raise InvalidInputError(
                    f"{name} appears twice", where=where, hint="a name is one user of the engine"
                )
            if name == "root":
                raise InvalidInputError("root is etcd's own user", where=where)
        keyprefix = raw.get("keyprefix", KEYPREFIX)
        with errors_at(f"{where}: keyprefix"):
            check_key(keyprefix)
        return cls(
            entries=(
                *(_entry(n, raw["nodes"][n] or {}, names, f"{where}: nodes.{n}") for n in nodes),
                *(_entry(n, people[n] or {}, names, f"{where}: people.{n}") for n in people),
            ),
            admins=tuple(admins),
            keyprefix=keyprefix,
            stream=raw.get("stream", "localpuppet"),
        )

    def members(self) -> list[Member]:
        """Return all members except the admins, with their rights."""
        return [
            Member(name=entry.name, grants=tuple(self._grants(entry))) for entry in self.entries
        ]

    def _beside(self, entry: RosterEntry) -> list[RosterEntry]:
        """Return the members that share a rollout's control with an entry, itself included."""
        asking = [item for item in self.entries if item.asks]
        circles = [
            {member.name} | {to.name for to in asking if member.name in to.takeover}
            for member in asking
        ]
        beside = set[str]().union(*(circle for circle in circles if entry.name in circle))
        return [member for member in asking if member.name in beside]

    def _grants(self, entry: RosterEntry) -> list[Grant]:
        reads = [layout.STORE, layout.PRESENCE, layout.LEASES]
        writes = [layout.LEASES + name for name in entry.leases]
        writes += [
            layout.triggers_for(node, self.keyprefix) + entry.name for node in entry.triggers
        ]
        writes += [layout.requests_of(entry.name, node) for node in entry.asks]
        reads += [prefix for word in entry.reads for prefix in READS[word]]
        if entry.forgets:
            writes.append(layout.TOMBSTONES)
        if entry.asks:
            mine = [
                layout.rollouts_of(name) for name in dict.fromkeys((entry.name, *entry.takeover))
            ]
            reads += [layout.replies_to(entry.name), layout.commands_to(entry.name), *mine]
            writes += mine
            for other in self._beside(entry):
                writes.append(layout.commands_of(entry.name, other.name))
                writes.append(layout.replies_of(entry.name, other.name))
        if entry.node:
            me = NodeName(entry.name)
            reads += [layout.triggers_for(me, self.keyprefix), layout.requests_for(me)]
            writes += [layout.PRESENCE + me, layout.INVENTORY + me]
            writes += [layout.exports_of(me), layout.catalogs_of(me), layout.history_of(me)]
            writes += [layout.replies_of(me, item.name) for item in self.entries if me in item.asks]
        return [
            *(Grant(key=key, write=False) for key in dict.fromkeys(reads)),
            *(Grant(key=key, write=True) for key in dict.fromkeys(writes)),
        ]


def _entry(
    name: str, raw: Mapping[str, Any], names: Sequence[NodeName | SignerName], where: str
) -> RosterEntry:
    nodes = [item for item in names if isinstance(item, NodeName)]
    leases = raw.get("leases", [])
    for lease in leases:
        with errors_at(f"{where}.leases"):
            layout.parse_lease_name(lease)
    triggers = _named(raw.get("triggers", []), nodes, f"{where}.triggers", "node")
    asks = _named(raw.get("asks", []), nodes, f"{where}.asks", "node")
    takeover = _named(raw.get("takeover", []), names, f"{where}.takeover", "name")
    return RosterEntry(
        name=SignerName(name),
        node=name in nodes,
        triggers=tuple(map(NodeName, triggers)),
        asks=tuple(map(NodeName, asks)),
        leases=tuple(dict.fromkeys(leases)),
        reads=tuple(dict.fromkeys(raw.get("reads", []))),
        forgets=raw.get("forgets", False),
        takeover=tuple(map(SignerName, takeover)),
    )


def _named(names: Sequence[str], known: Sequence[str], where: str, what: str) -> list[str]:
    if ALL in names:
        return [*known]
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"{name!r} is not a {what} of this file",
                where=where,
                hint=did_you_mean(name, [*known]) if known else "",
            )
    return list(dict.fromkeys(names))


def _parsed(kind: type[Any], name: str, where: str) -> Any:  # noqa: ANN401
    with errors_at(where):
        return kind.parse(name)
