"""A reference to an entry that a run waits for, because another node has just run.

- A view has the entry if the node's entry in it has the same digest, or the same or a later time.
  Entries of a node do not go back in time (`outbox`).
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from localpuppet.base.formats.names import NodeName, parse_sha256
from localpuppet.base.formats.records import Message
from localpuppet.base.formats.text import shown_names
from localpuppet.base.value import Value

# The limit per run: with the longest names they fit into a request.
MAX_AWAITED = 100


class AwaitedEntry(Message):
    """A reference to an entry that a run waits for.

    Attributes:
        node: The node of the entry.
        digest: Its digest, see `InventoryEntry`.
        at: Its time by that node's clock, in seconds since 1970, UTC.
    """

    WHERE: ClassVar = "awaited entry"
    node: NodeName
    digest: Annotated[str, parse_sha256]
    at: float


class ViewedNode(Value):
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
