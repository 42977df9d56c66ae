"""A reference to an entry that a run waits for, because another node has just run.

- A view has the entry if the node's entry in it has the same digest, or the same or a later time.
  Entries of a node do not go back in time (`outbox`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_form import JsonForm, parsed, read_by
from localpuppet.base.formats.names import NodeName, parse_sha256
from localpuppet.base.formats.text import shown_names

# The limit per run: with the longest names they fit into a request.
MAX_AWAITED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedEntry(JsonForm):
    """A reference to an entry that a run waits for.

    Attributes:
        node: The node of the entry.
        digest: Its digest, see `InventoryEntry`.
        at: Its time by that node's clock, in seconds since 1970, UTC.
    """

    node: NodeName = field(metadata=parsed(NodeName.parse))
    digest: str = field(metadata=parsed(parse_sha256))
    at: float = field(metadata=read_by(Fields.number))

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "AwaitedEntry":
        """Read what `to_dict` wrote; see `read`."""
        return cls.read(Fields(raw, where="awaited entry"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewedNode:
    """The entry of a node in a view.

    Attributes:
        digest: Its digest; empty if it was not looked up.
        at: Its time.
    """

    digest: str
    at: float


def lacking(
    awaited: tuple[AwaitedEntry, ...],
    seen: Mapping[NodeName, ViewedNode],
    refused: Mapping[NodeName, str],
) -> str:
    """Return the awaited entries that a view does not have as one line, empty if it has all.

    Args:
        awaited: The awaited entries.
        seen: The entries of these nodes in the view.
        refused: Why the newest entry of a node was rejected, by node.
    """
    missing = [entry for entry in awaited if not _has(seen.get(entry.node), entry)]
    named = [
        f"{entry.node} ({refused[entry.node]})" if entry.node in refused else str(entry.node)
        for entry in missing
    ]
    return shown_names(named) if named else ""


def _has(seen: ViewedNode | None, awaited: AwaitedEntry) -> bool:
    return seen is not None and (seen.at >= awaited.at or seen.digest == awaited.digest)
