"""The approved changes of a rollout with noop, compared with those of a node.

- The digest covers the rollout's id, its groups, its tags, and each node's release and changes.
  Two rollouts never have the same digest.
- `comparing` compares a node's later changes with an approval.
- Two changes are the same if their marks are equal.
- The approved changes or a subset of them pass.
- A release that was not approved never passes, whatever it changes.
"""

import hashlib
from collections.abc import Mapping, Sequence

from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.records import JsonRecord
from localpuppet.base.value import Value
from localpuppet.node.puppet.changes import PredictedChanges, PropertyChange, parse_salt

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


DIGITS = 16  # of a difference's digest: an operator compares it by eye


class UnapprovedChange(JsonRecord):
    """What a node would do that was not approved.

    Attributes:
        approved: The approved release; empty if it is the same.
        others: The changes that were not approved, or only with other values.
        other_values: How many of these changes were approved with other values.
    """

    release: str
    approved: str
    others: tuple[PropertyChange, ...]
    other_values: int = 0

    def __bool__(self) -> bool:
        return bool(self.approved or self.others)

    @property
    def digest(self) -> str:
        """The digest that an operator names to approve the difference, hexadecimal."""
        return hashlib.sha256(canonical(self.to_dict())).hexdigest()[:DIGITS]

    @property
    def reason(self) -> str:
        """The difference in a few words, for messages."""
        parts = [f"would run {self.release}, and {self.approved} was approved"]
        changes = "1 change" if len(self.others) == 1 else f"{len(self.others)} changes"
        values = f", {self.other_values} of them to other values" if self.other_values else ""
        text = f"would make {changes} that {_were(self.others)} not approved{values}"
        return "; ".join([*(parts if self.approved else ()), *([text] if self.others else ())])


def compare(approved: PredictedChanges | None, predicted: PredictedChanges) -> UnapprovedChange:
    """Return what a node would do beyond the approval; false if there is nothing."""
    before = () if approved is None else approved.changes
    marks = {change.mark for change in before}
    names = {_property(change) for change in before}
    others = tuple(change for change in predicted.changes if change.mark not in marks)
    release = "nothing" if approved is None else approved.release
    return UnapprovedChange(
        release=predicted.release,
        approved="" if release == predicted.release else release,
        others=others,
        other_values=sum(_property(change) in names for change in others),
    )


def extend(approved: PredictedChanges | None, difference: UnapprovedChange) -> PredictedChanges:
    """Return the approved changes of a node, extended by a difference."""
    changes = (*(() if approved is None else approved.changes), *difference.others)
    return PredictedChanges(
        release=difference.release, total=len(changes), changes=tuple(sorted(changes))
    )


def _property(change: PropertyChange) -> tuple[str, str, str]:
    return change.type, change.title, change.property


def _were(changes: Sequence[PropertyChange]) -> str:
    return "was" if len(changes) == 1 else "were"
