"""A change: how what is known of one node made the answer to a question another one.

Owns: the value, its JSON form and its limits: it stands in inboxes and records. Refuses to know:
questions, and who compares answers.

Example: `Change(question='servers_with_role("web")', how=How.CHANGED, facts=("ipaddress",))`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from localpuppet.base.formats.text import one_line

MAX_FACTS = 16
MAX_QUESTION = 200


class How(StrEnum):
    """What became of the node in the answer."""

    JOINED = "joined"  # the node is in the answer now
    LEFT = "left"  # the node is not in the answer any more
    CHANGED = "changed"  # other things are told of the node
    ELSEWHERE = "elsewhere"  # the node is not in the answer; what it says of itself changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one node changed in one answer.

    Attributes:
        question: The question, in one line; a long one is cut.
        how: What became of the node in the answer.
        facts: What is told otherwise of it: facts, columns, resources; at most `MAX_FACTS`.
    """

    question: str
    how: How
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, question: str, how: How, facts: tuple[str, ...] = ()) -> "Change":
        """Return a change within its limits."""
        line = one_line(question)
        return cls(
            question=line if len(line) <= MAX_QUESTION else f"{line[: MAX_QUESTION - 1]}…",
            how=how,
            facts=tuple(one_line(fact)[:MAX_QUESTION] for fact in facts[:MAX_FACTS]),
        )

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Change":
        """Return the change in our own JSON.

        Raises:
            KeyError: A field is missing.
            TypeError: A field is not what it must be.
            ValueError: The word for `how` is unknown.
        """
        facts = raw["facts"]
        if not isinstance(raw["question"], str) or not isinstance(facts, list):
            raise TypeError("a change has a question and a list of facts")
        return cls(question=raw["question"], how=How(raw["how"]), facts=tuple(map(str, facts)))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"question": self.question, "how": str(self.how), "facts": list(self.facts)}
