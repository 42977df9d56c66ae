"""The approved changes: what the nodes of a rollout with noop reported.

- The digest covers the rollout's id, its groups, its tags, and each node's release and changes.
  Two rollouts never have the same digest.
- `comparing` compares a node's later changes with an approval.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.node.puppet.changes import PredictedChanges, parse_salt

# Changes of all nodes of a rollout together; a person has to review them.
MAX_ALL = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The approved changes of a rollout.

    Attributes:
        digest: The digest that the operator approved, 64 hexadecimal digits.
        nodes: Node → the changes that it reported.
    """

    rollout: RolloutId
    digest: str
    salt: str
    nodes: Mapping[NodeName, PredictedChanges]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Approval":
        """Return an approval from its JSON form."""
        return cls(
            rollout=RolloutId.parse(raw["rollout"]),
            digest=str(raw["digest"]),
            salt=parse_salt(str(raw["salt"])),
            nodes={
                NodeName.parse(node): PredictedChanges.from_dict(predicted)
                for node, predicted in raw["nodes"].items()
            },
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rollout": self.rollout,
            "digest": self.digest,
            "salt": self.salt,
            "nodes": {node: predicted.to_dict() for node, predicted in self.nodes.items()},
        }


def digest_of(
    rollout: RolloutId,
    *,
    groups: Sequence[Sequence[NodeName]],
    tags: Sequence[str],
    nodes: Mapping[NodeName, PredictedChanges],
) -> str:
    """Return the digest of the reported changes, 64 hexadecimal digits."""
    content = {
        "rollout": rollout,
        "groups": [list(group) for group in groups],
        "tags": list(tags),
        "nodes": {node: predicted.to_dict() for node, predicted in nodes.items()},
    }
    return hashlib.sha256(canonical(content)).hexdigest()
