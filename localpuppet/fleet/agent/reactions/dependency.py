"""Dependencies of a run: answers about other nodes with their digests, and the reactor's ports.

- Queries are one kind (`questions`). Anything else that a catalog uses from other nodes and that
  has a digest can be another `DependencySource`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.parts import Parts
from localpuppet.fleet.triggers.cause import RunCause


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
