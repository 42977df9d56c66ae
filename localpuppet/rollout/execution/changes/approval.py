"""The approved changes: what the nodes of a rollout with noop reported.

- The digest covers the rollout's id, its groups, its tags, and each node's release and changes.
  Two rollouts never have the same digest.
- `comparing` compares a node's later changes with an approval.
"""

import hashlib
from collections.abc import Mapping, Sequence

from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.value import Value
from localpuppet.node.puppet.changes import PredictedChanges, parse_salt

# Changes of all nodes of a rollout together; a person has to review them.
MAX_ALL = 20_000


class Approval(Value):
    """The approved changes of a rollout.

    Attributes:
        digest: The digest that the operator approved, 64 hexadecimal digits.
        nodes: Node → the changes that it reported.
    """

    rollout: RolloutId
    digest: str
    salt: str
    nodes: Mapping[NodeName, PredictedChanges]

    def __post_init__(self) -> None:
        parse_salt(self.salt)


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
