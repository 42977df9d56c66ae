"""An entry that a run waits for: another node has just run, and this one is to know of it.

Owns: the value, its form, and when a view has what is awaited. Refuses to know: who says so, how
long anybody waits, the view's files.

- A view has it when the node's entry there has that digest, or is of that moment or a later one:
  a node's entries do not go back in time (`outbox`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.values import Json

# That one run waits for: with the longest names they fit into a request.
MAX_AWAITED = 100
_DIGITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """An entry that a run waits for.

    Attributes:
        node: Whose.
        digest: Its digest, see `InventoryEntry`.
        at: Its moment, by that node's clock: seconds since 1970, UTC.
    """

    node: NodeName
    digest: str
    at: float

    @classmethod
    def read(cls, fields: Fields) -> "Awaited":
        """Return it.

        Raises:
            InvalidInputError: A field is missing, unknown, or not of its type.
        """
        fields.only(("node", "digest", "at"))
        return cls(
            node=fields.parsed("node", NodeName.parse),
            digest=fields.parsed("digest", _digest),
            at=fields.number("at"),
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Awaited":
        """Return what `to_dict` made of one; see `read`."""
        return cls.read(Fields(raw, where="awaited entry"))

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {"node": str(self.node), "digest": self.digest, "at": self.at}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a view has of a node.

    Attributes:
        digest: The digest of its entry; empty where nobody looked.
        at: The entry's moment.
    """

    digest: str
    at: float


def lacking(
    awaited: tuple[Awaited, ...], seen: Mapping[NodeName, Seen], refused: Mapping[NodeName, str]
) -> str:
    """Return which awaited entries a view does not have, one line; empty where it has all.

    Args:
        awaited: What is awaited.
        seen: What the view has of these nodes; those without an entry are left out.
        refused: Why entries of nodes do not count, by the node.
    """
    missing = [one for one in awaited if not _has(seen.get(one.node), one)]
    named = [
        f"{one.node} ({refused[one.node]})" if one.node in refused else str(one.node)
        for one in missing
    ]
    return shown_names(named) if named else ""


def _has(seen: Seen | None, awaited: Awaited) -> bool:
    return seen is not None and (seen.at >= awaited.at or seen.digest == awaited.digest)


def _digest(text: str) -> str:
    if len(text) != _DIGITS or set(text) - set("0123456789abcdef"):
        raise InvalidInputError("is not a digest")
    return text
