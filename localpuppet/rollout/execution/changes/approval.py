"""What somebody approved: the changes that the nodes of a rollout with noop told.

Owns: the value, its JSON form, and the digest that stands for it. Refuses to know: where the
rollout is found, what differs from it (`comparing`).

The digest is over the rollout's id, its groups, its tags, and each node's release and changes, so
that of two rollouts no two have the same.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.node.puppet.changes import Foreseen, parse_salt

# Of all nodes of a rollout together: what a journal holds, and a person can look through.
MAX_ALL = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What was approved.

    Attributes:
        rollout: The rollout with noop.
        digest: What stands for all of it.
        salt: What the nodes made their marks with.
        nodes: What each node told.
    """

    rollout: RolloutId
    digest: str
    salt: str
    nodes: Mapping[NodeName, Foreseen]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Approval":
        """Return what a journal holds.

        Raises:
            InvalidInputError: It is not an approval.
            KeyError: A field is missing.
        """
        return cls(
            rollout=RolloutId.parse(raw["rollout"]),
            digest=str(raw["digest"]),
            salt=parse_salt(str(raw["salt"])),
            nodes={
                NodeName.parse(node): Foreseen.from_dict(told)
                for node, told in raw["nodes"].items()
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rollout": self.rollout,
            "digest": self.digest,
            "salt": self.salt,
            "nodes": {node: told.to_dict() for node, told in self.nodes.items()},
        }


def digest_of(
    rollout: RolloutId,
    *,
    groups: Sequence[Sequence[NodeName]],
    tags: Sequence[str],
    nodes: Mapping[NodeName, Foreseen],
) -> str:
    """Return the digest that stands for what nodes told, 64 hexadecimal digits."""
    said = {
        "rollout": rollout,
        "groups": [list(group) for group in groups],
        "tags": list(tags),
        "nodes": {node: told.to_dict() for node, told in nodes.items()},
    }
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
