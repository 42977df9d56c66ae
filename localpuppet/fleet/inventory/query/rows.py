"""Present a node's entry as rows of PuppetDB's entities."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry_brief import InventoryNode
from localpuppet.fleet.inventory.query.columns import PARAMETER, TAG
from localpuppet.fleet.inventory.query.node_facts import PackedFacts, dig
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.fleet.inventory.reading import ExportsReader
from localpuppet.node.enc.document import DEFAULT_ENVIRONMENT

CLASS = "Class"
TRUSTED = "trusted"
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "float"}
# The limit of rows per node: one large entry must not slow down the queries of others.
MAX_OF_NODE = 100_000

# Columns of exported resources that classes do not have.
OF_EXPORTED = frozenset({TAG, "tags", "file", "line", "parameters", PARAMETER, "resource"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceScope:
    """The resources of a node that can match.

    Attributes:
        classes: Whether classes can match.
        exported: Whether exported resources can match.
        kind: Their type; `None` for any.
    """

    classes: bool = True
    exported: bool = True
    kind: str | None = None


ANY_RESOURCE = ResourceScope()


class QueryRow:
    """A row.

    Args:
        values: Values by column.
        facts: The value of the column `facts`, if the entity has it.
        made: Functions by column, for values that are computed on demand.
    """

    __slots__ = ("_facts", "_made", "values")

    def __init__(
        self,
        values: Mapping[str, Json],
        facts: PackedFacts | None = None,
        made: Mapping[str, Callable[[], Json]] | None = None,
    ) -> None:
        self.values = values
        self._facts = facts
        self._made = made or {}

    def at(self, column: str, path: tuple[str | int, ...] = ()) -> Json:
        """Return the value at a place in the row; `None` if it is missing."""
        if column == "facts" and self._facts is not None:
            return self._facts.at(path) if path else self._facts.whole()
        value = self._made[column]() if column in self._made else self.values.get(column)
        return dig(value, path) if path else value

    def columns(self, names: Sequence[str]) -> dict[str, Json]:
        """Return the values of whole columns."""
        if self._made or self._facts is not None:
            return {name: self.at(name) for name in names}
        get = self.values.get
        return {name: get(name) for name in names}


class NodeRows:
    """A node's rows.

    Args:
        known: The node.
        exports: The exports of nodes.
    """

    __slots__ = ("_exports", "facts", "known")

    def __init__(self, known: InventoryNode, exports: ExportsReader) -> None:
        self.known = known
        self.facts = PackedFacts(known)
        self._exports = exports

    def rows(
        self,
        entity: Entity,
        names: frozenset[str] | None = None,
        scope: ResourceScope = ANY_RESOURCE,
    ) -> Iterator[QueryRow]:
        """Yield at most `MAX_OF_NODE` rows of an entity.

        Args:
            entity: An entity whose rows have a `certname`.
            names: The names of facts that can match; `None` for all.
            scope: The resources that can match.
        """
        if entity is Entity.NODES:
            return iter((QueryRow(self.node_values()),))
        if entity is Entity.INVENTORY:
            return iter((self._inventory(),))
        if entity is Entity.FACTSETS:
            return iter((self._factset(),))
        rows = self._resources(scope) if entity is Entity.RESOURCES else self._facts(entity, names)
        return islice(rows, MAX_OF_NODE)

    def values(self, entity: Entity) -> Iterator[tuple[str, dict[str, Json]]]:
        """Yield what the node adds to an entity whose rows are different values, by sort key.

        Args:
            entity: `ENVIRONMENTS`, `PRODUCERS`, `FACT_NAMES` or `FACT_PATHS`.
        """
        if entity is Entity.ENVIRONMENTS:
            yield self._environment(), {"name": self._environment()}
        elif entity is Entity.PRODUCERS:
            yield str(self.known.node), {"name": str(self.known.node)}
        elif entity is Entity.FACT_NAMES:
            for name, _ in self._all_facts():
                yield name, {"name": name}
        else:
            for name, value in self._all_facts():
                for path, leaf in leaves(value, (name,)):
                    if leaf is not None:
                        depth = len(path) - 1
                        about: dict[str, Json] = {"path": [*path], "name": name, "depth": depth}
                        about["type"] = _TYPES[type(leaf)]
                        yield compact(about), about

    def _facts(self, entity: Entity, names: frozenset[str] | None) -> Iterator[QueryRow]:
        base = self._base()
        for name, value in self._named(names):
            if entity is Entity.FACTS:
                yield QueryRow({**base, "name": name, "value": value})
                continue
            for path, leaf in leaves(value, (name,)):
                row: dict[str, Json] = {"path": [*path], "name": name, "value": leaf}
                yield QueryRow({**base, **row})

    def _base(self) -> dict[str, Json]:
        return {"certname": str(self.known.node), "environment": self._environment()}

    def _environment(self) -> str:
        # Puppet's default for an input without an environment.
        return str(self.known.environment or DEFAULT_ENVIRONMENT)

    def _inventory(self) -> QueryRow:
        return QueryRow(
            {**self._base(), "role": list(self.known.roles)},
            self.facts,
            {"timestamp": self._timestamp, TRUSTED: self._trusted},
        )

    def _timestamp(self) -> str:
        return show_epoch(self.known.at)

    def _trusted(self) -> dict[str, Json]:
        """Return the signed identity in the form of Puppet's `trusted` hash."""
        name = str(self.known.node)
        hostname, _, domain = name.partition(".")
        return {
            "authenticated": "local",
            "certname": name,
            "domain": domain or None,
            "extensions": {},
            "hostname": hostname,
        }

    def node_values(self) -> dict[str, Json]:
        """Return the row of `nodes`, without the columns of reports."""
        at, environment = self._timestamp(), self._environment()
        return {
            "certname": str(self.known.node),
            "deactivated": None,
            "expired": None,
            "facts_environment": environment,
            "catalog_environment": environment,
            "facts_timestamp": at,
            "catalog_timestamp": at,
        }

    def _factset(self) -> QueryRow:
        at = self._timestamp()
        return QueryRow(
            {
                **self._base(),
                "timestamp": at,
                "producer_timestamp": at,
                "producer": str(self.known.node),
            },
            made={"facts": self._expanded, "hash": self._hash},
        )

    def _expanded(self) -> dict[str, Json]:
        listed: list[Json] = [{"name": name, "value": fact} for name, fact in self._all_facts()]
        return {"href": f"/pdb/query/v4/factsets/{self.known.node}/facts", "data": listed}

    def _hash(self) -> str:
        return hashlib.sha1(self.facts.text().encode(), usedforsecurity=False).hexdigest()

    def _all_facts(self) -> Iterator[tuple[str, Json]]:
        """Yield every fact; the trusted ones are one fact of that name, as in PuppetDB."""
        yield from (fact for fact in self.facts.items() if fact[0] != TRUSTED)
        yield TRUSTED, self._trusted()

    def _named(self, names: frozenset[str] | None) -> Iterator[tuple[str, Json]]:
        if names is None:
            yield from self._all_facts()
            return
        for name in sorted(names):
            value = self._trusted() if name == TRUSTED else self.facts.at((name,))
            if value is not None:
                yield name, value

    def _resources(self, scope: ResourceScope) -> Iterator[QueryRow]:
        about: dict[str, Json]
        entry = self.known.entry()
        if scope.classes:
            for name in sorted(entry.classes):
                about = {"type": CLASS, "title": capitalized(name), "exported": False}
                yield QueryRow({**self._base(), **about})
        if not scope.exported or entry.exports.digest is None:
            return
        for resource in self._exports.exported(str(entry.node), scope.kind):
            about = {"type": resource.type, "title": resource.title, "exported": True}
            about |= {"tags": [*resource.tags], "file": resource.file, "line": resource.line}
            yield QueryRow({**self._base(), **about, "parameters": dict(resource.parameters)})


def leaves(
    value: Json, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Json]]:
    """Yield at most `MAX_OF_NODE` scalars in a value with their paths; not recursive."""
    waiting: list[tuple[tuple[str | int, ...], Json]] = [(path, value)]
    count = 0
    while waiting and count < MAX_OF_NODE:
        place, value_here = waiting.pop()
        if isinstance(value_here, dict):
            waiting.extend(((*place, key), inner) for key, inner in reversed(value_here.items()))
        elif isinstance(value_here, list):
            waiting.extend(((*place, n), value_here[n]) for n in reversed(range(len(value_here))))
        else:
            count += 1
            yield place, value_here


def capitalized(name: str) -> str:
    """Return the name of a type or class as Puppet shows it: `Foo::Bar`."""
    return "::".join(part.capitalize() for part in name.split("::"))
