"""The part of an entry that queries see without unpacking the rest.

- Most of an entry is facts, and most queries need few of them: roles and names.
- `query.node_facts` selects the facts.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry


class InventoryNode(Protocol):
    """A node of the inventory; its entry is unpacked on demand."""

    @property
    def node(self) -> NodeName:
        """Return the node's name."""

    @property
    def at(self) -> float:
        """Return when the node published its entry, in seconds since 1970, UTC."""

    @property
    def environment(self) -> EnvironmentName | None:
        """Return Puppet's environment; `None` if the input has none."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Return the node's roles."""

    @property
    def frequent_facts(self) -> Mapping[str, Json]:
        """Return facts by dotted path, as queries see them; null for a missing fact."""

    def entry(self) -> InventoryEntry:
        """Return the whole entry.

        Raises:
            StateError: The entry is unreadable, or the node is used after its snapshot was closed.
        """

    def written(self, write: Callable[[], str]) -> str:
        """Return the result of `write` for this entry, from a cache if possible."""


class UnpackedNode:
    """A `InventoryNode` with an unpacked entry.

    Args:
        entry: The entry.
    """

    frequent_facts: Mapping[str, Json] = {}

    def __init__(self, entry: InventoryEntry) -> None:
        self._entry = entry
        self.node, self.at = entry.node, entry.at
        self.environment, self.roles = entry.environment, entry.roles

    def entry(self) -> InventoryEntry:
        """Return the entry."""
        return self._entry

    def written(self, write: Callable[[], str]) -> str:
        """Return the result of `write` for the entry."""
        return write()


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryBrief:
    """What the view stores of a node beside its packed entry.

    Attributes:
        environment: Puppet's environment; `None` if the input has none.
        roles: A JSON list.
        facts: A JSON object, see `InventoryNode.frequent_facts`.
    """

    environment: str | None
    roles: str
    facts: str

    @classmethod
    def of(cls, entry: InventoryEntry, facts: Mapping[str, Json]) -> "EntryBrief":
        """Return the brief of an entry."""
        return cls(environment=entry.environment, roles=compact(entry.roles), facts=compact(facts))


@functools.lru_cache(maxsize=1024)
def read_roles(text: str) -> tuple[str, ...]:
    """Return the roles in a `EntryBrief`; nodes share equal ones.

    Raises:
        ValueError: The text is damaged.
    """
    return tuple(loads_again(text.encode()))
