"""A change: data of one node changed the answer to a query.

It is stored in inboxes and records, so its size is limited.

Example:
    `AnswerChange(query='servers_with_role("web")', how=ChangeKind.CHANGED, facts=("ipaddress",))`.
"""

from enum import StrEnum

from localpuppet.base.formats.text import one_line, shortened
from localpuppet.base.value import Value

MAX_FACTS = 16
MAX_QUERY = 200


class ChangeKind(StrEnum):
    """How the node's part of the answer changed."""

    JOINED = "joined"  # the node is in the answer now
    LEFT = "left"  # the node is no longer in the answer
    CHANGED = "changed"  # the node's data in the answer changed
    ELSEWHERE = "elsewhere"  # the node is not in the answer; its published data changed


class AnswerChange(Value):
    """The change of one answer by one node.

    Attributes:
        query: The query, in one line, truncated if long.
        how: How the node's part of the answer changed.
        facts: The changed facts, columns and resources; at most `MAX_FACTS`.
    """

    query: str
    how: ChangeKind
    facts: tuple[str, ...] = ()

    @classmethod
    def of(cls, query: str, how: ChangeKind, facts: tuple[str, ...] = ()) -> "AnswerChange":
        """Return a change, truncated to its limits."""
        return cls(
            query=shortened(query, MAX_QUERY),
            how=how,
            facts=tuple(one_line(fact)[:MAX_QUERY] for fact in facts[:MAX_FACTS]),
        )
