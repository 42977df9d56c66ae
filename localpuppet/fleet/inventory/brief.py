"""What is told of a node before its whole entry is unpacked.

Owns: the port `KnownNode`, and the form in which the view keeps a brief. Refuses to know: which
facts are told (`query.node_facts`), SQL.

Most of an entry is facts, and most questions look at few of them: who has a role, which names.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.names import Environment, NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry


class KnownNode(Protocol):
    """A node of the inventory; its entry is unpacked when somebody asks for the entry."""

    @property
    def node(self) -> NodeName:
        """Return its name."""
        ...

    @property
    def at(self) -> float:
        """Return when it said its entry: seconds since 1970, UTC."""
        ...

    @property
    def environment(self) -> Environment | None:
        """Return Puppet's environment; `None` where the input named none."""
        ...

    @property
    def roles(self) -> tuple[str, ...]:
        """Return what it is for."""
        ...

    @property
    def told(self) -> Mapping[str, Json]:
        """Return facts by their dotted paths, as queries see them; null where there is none."""
        ...

    def entry(self) -> InventoryEntry:
        """Return its whole entry.

        Raises:
            StateError: It cannot be read, or whoever lent the node is done with it.
        """
        ...

    def written(self, write: Callable[[], str]) -> str:
        """Return what `write` makes of this very entry; perhaps what it made the last time."""
        ...


class WholeNode:
    """A node whose entry is unpacked already: a `KnownNode`.

    Args:
        entry: The entry.
    """

    told: Mapping[str, Json] = {}

    def __init__(self, entry: InventoryEntry) -> None:
        self._entry = entry
        self.node, self.at = entry.node, entry.at
        self.environment, self.roles = entry.environment, entry.roles

    def entry(self) -> InventoryEntry:
        """Return the entry."""
        return self._entry

    def written(self, write: Callable[[], str]) -> str:
        """Return what `write` makes of the entry."""
        return write()


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What the view keeps of a node beside its packed entry.

    Attributes:
        environment: Puppet's environment; `None` where the input named none.
        roles: A JSON list.
        told: A JSON object, see `KnownNode.told`.
    """

    environment: str | None
    roles: str
    told: str

    @classmethod
    def of(cls, entry: InventoryEntry, told: Mapping[str, Json]) -> "Brief":
        """Return what is kept of an entry."""
        return cls(environment=entry.environment, roles=compact(entry.roles), told=compact(told))


@functools.lru_cache(maxsize=1024)
def read_roles(text: str) -> tuple[str, ...]:
    """Return the roles in a `Brief`; nodes share them.

    Raises:
        ValueError: The text is damaged.
    """
    return tuple(loads_again(text.encode()))
