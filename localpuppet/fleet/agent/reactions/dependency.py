"""Dependencies of a run: answers about other nodes with their digests, and who changed one.

- Queries are one kind (`questions`). Anything else that a catalog uses from other nodes and that
  has a digest can be another `DependencySource`.
- A node changed an answer if its part of the answer differs, and it has published an entry since,
  or its entry no longer counts.
- If no node meets both conditions (the bus has restarted its revisions), the nodes whose part
  differs changed the answer.
- If no node's part differs (a count, a query that joins nodes), the nodes that have published an
  entry since changed the answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from typing import Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.parts import Parts
from localpuppet.fleet.triggers.cause import AnswerChange, ChangeKind, RunCause


class AnswerDigest(Value):
    """An answer, as far as the reactor compares it.

    Attributes:
        digest: The digest of the answer.
        revision: The revision of the bus up to which the answer is complete.
        parts: The part of the answer about each node; empty for a node whose part is unknown.
    """

    digest: str
    revision: int
    parts: Parts = field(default_factory=dict)

    @property
    def explained(self) -> int:
        """Return the number of nodes whose part is known."""
        return sum(map(bool, self.parts.values()))

    def within(self, most: int) -> "AnswerDigest":
        """Return the answer, with node names only if it has the parts of more than `most` nodes."""
        if self.explained <= most:
            return self
        return replace(self, parts={node: {} for node in self.parts})


class Dependency(Value):
    """One answer that a run received.

    Attributes:
        source: The name of the `DependencySource` that can ask again.
        key: Identifies the query for that source: text of some KiB at most.
        text: The query, for people.
        answer: The answer.
    """

    source: str
    key: str
    text: str
    answer: AnswerDigest

    @property
    def id(self) -> tuple[str, str]:
        """Return what identifies the dependency."""
        return self.source, self.key


class FinishedRun(Value):
    """A finished run of a complete release.

    Attributes:
        run: Its id.
        good: Whether it succeeded.
        dependencies: The answers that it received.
    """

    run: str
    good: bool
    dependencies: tuple[Dependency, ...] = ()


class DependencySource(Protocol):
    """One kind of dependency."""

    @property
    def name(self) -> str:
        """Return the name of the kind, as in `Dependency.source`."""

    def dependencies_of(self, run: str) -> Sequence[Dependency]:
        """Return the answers that a run received; empty if its record has none.

        Raises:
            StateError: The record is damaged or unreadable.
        """

    def ask(self, key: str) -> AnswerDigest:
        """Return the answer that a run would receive now.

        Raises:
            UnavailableError: The answer is unknown, for example because the view is too old.
            InvalidInputError: The query has become invalid.
        """


class PeerEntries(Protocol):
    """The entries of other nodes."""

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return a node's newest entry; `None` if it has none that counts."""

    def since(self, revision: int) -> set[str]:
        """Return the nodes that have published an entry after a revision of the bus."""


class NodeRuns(Protocol):
    """The runs of this node."""

    def after(self, run: str | None) -> tuple[Sequence[FinishedRun], bool]:
        """Return the complete runs that ended after one, oldest first, and whether one is running.

        Args:
            run: The last known run; `None` means: return the last good run and all after it.
        """


class Host(Protocol):
    """The agent of this node."""

    @property
    def me(self) -> NodeName:
        """Return the node's name."""

    @property
    def is_running(self) -> bool:
        """Return whether a run of the agent is in progress."""

    def owes(self, causes: Iterable[str]) -> bool:
        """Return whether one of these causes waits for its run to start."""

    def react(self, causes: Sequence[RunCause]) -> None:
        """Accept causes that this node has made; a repeated cause counts once."""


# The limit of nodes that are listed for one change of one answer.
MAX_NODES = 256


def changes(
    text: str,
    before: AnswerDigest,
    now: AnswerDigest,
    *,
    since: Set[str],
    counts: Callable[[str], bool],
) -> dict[str, AnswerChange]:
    """Return the nodes that changed an answer, and how: the first `MAX_NODES` by name.

    Args:
        text: The query.
        before: The answer before.
        now: The answer now.
        since: The nodes that have published an entry since.
        counts: Returns whether a node has an entry.
    """
    differ = {
        node: AnswerChange.of(text, how, facts)
        for node in sorted({*before.parts, *now.parts})
        for how, facts in [_difference(before.parts.get(node), now.parts.get(node))]
        if how is not None
    }
    by_them = {node: change for node, change in differ.items() if node in since or not counts(node)}
    by_node = by_them or differ
    if not by_node:
        by_node = {node: AnswerChange.of(text, ChangeKind.ELSEWHERE) for node in sorted(since)}
    return dict(list(by_node.items())[:MAX_NODES])


def _difference(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> tuple[ChangeKind | None, tuple[str, ...]]:
    if before is None or now is None:
        return (ChangeKind.JOINED if before is None else ChangeKind.LEFT), ()
    if not before and now:
        return None, ()  # the earlier record has no parts
    labels = sorted(label for label in {*before, *now} if before.get(label) != now.get(label))
    return (ChangeKind.CHANGED if labels else None), tuple(filter(None, labels))
