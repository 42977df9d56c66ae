"""What a node would change beyond what was approved.

Owns: when two changes are the same, and what is told of others. Refuses to know: what a rollout
does then.

- The same changes or fewer pass; the same is what has the same mark.
- Another release than was approved does not pass, whatever it changes.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localpuppet.node.puppet.changes import Change, Foreseen

DIGITS = 16  # of the digest of a difference: one node's, and somebody compares it by eye


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What was not approved of a node.

    Attributes:
        release: What it would run.
        approved: What was approved that it runs; empty where that is not another one.
        others: The changes that were not approved, or not with these values.
        known: How many of these are of properties that were approved with other values.
    """

    release: str
    approved: str
    others: tuple[Change, ...]
    known: int = 0

    def __bool__(self) -> bool:
        return bool(self.approved or self.others)

    @property
    def digest(self) -> str:
        """What stands for it when somebody approves it, hexadecimal."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]

    @property
    def why(self) -> str:
        """What it is, in a few words."""
        parts = [f"would run {self.release}, and {self.approved} was approved"]
        changes = "1 change" if len(self.others) == 1 else f"{len(self.others)} changes"
        values = f", {self.known} of them to other values" if self.known else ""
        said = f"would make {changes} that {_were(self.others)} not approved{values}"
        return "; ".join([*(parts if self.approved else ()), *([said] if self.others else ())])

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Difference":
        """Return what a journal holds.

        Raises:
            InvalidInputError: It is not a difference.
            KeyError: A field is missing.
        """
        others = Foreseen.from_dict(
            {"release": raw["release"], "total": len(raw["others"]), "changes": raw["others"]}
        )
        return cls(
            release=others.release,
            approved=str(raw["approved"]),
            others=others.changes,
            known=int(raw["known"]),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "release": self.release,
            "approved": self.approved,
            "others": [[one.type, one.title, one.property, one.mark] for one in self.others],
            "known": self.known,
        }


def compare(approved: Foreseen | None, found: Foreseen) -> Difference:
    """Return what a node would change beyond what was approved; false where there is nothing.

    Args:
        approved: What it told before; `None` where it told nothing.
        found: What it tells now.
    """
    before = () if approved is None else approved.changes
    marks = {one.mark for one in before}
    names = {_property(one) for one in before}
    others = tuple(one for one in found.changes if one.mark not in marks)
    release = "nothing" if approved is None else approved.release
    return Difference(
        release=found.release,
        approved="" if release == found.release else release,
        others=others,
        known=sum(_property(one) in names for one in others),
    )


def extend(approved: Foreseen | None, difference: Difference) -> Foreseen:
    """Return what a node may change once a difference is approved, too."""
    changes = (*(() if approved is None else approved.changes), *difference.others)
    return Foreseen(release=difference.release, total=len(changes), changes=changes)


def _property(change: Change) -> tuple[str, str, str]:
    return change.type, change.title, change.property


def _were(changes: Sequence[Change]) -> str:
    return "was" if len(changes) == 1 else "were"
