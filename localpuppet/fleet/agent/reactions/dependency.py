"""What a run depends on: an answer about other nodes that it was given, with a digest.

Owns: the values, and the ports through which the reactor hears of them. Refuses to know: what is
asked, and how. Questions are one kind (`questions`); whatever else a catalog takes from others and
can digest is another `Source` beside it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.parts import Parts
from localpuppet.fleet.triggers.cause import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """An answer, as far as it is compared with others.

    Attributes:
        digest: What tells it from other answers.
        revision: Up to which revision of the bus everything is in it.
        parts: What was told of which node; empty for one where that is not known.
    """

    digest: str
    revision: int
    parts: Parts = field(default_factory=dict)

    @property
    def explained(self) -> int:
        """Return of how many nodes it is known what was told."""
        return sum(map(bool, self.parts.values()))

    def within(self, most: int) -> "Told":
        """Return the answer, with the names alone where more nodes than `most` are explained."""
        if self.explained <= most:
            return self
        return replace(self, parts={node: {} for node in self.parts})

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Told":
        """Return the answer in our own JSON.

        Raises:
            KeyError: A field is missing.
            TypeError: A field is not what it must be.
        """
        parts = {str(node): dict(about) for node, about in dict(raw["parts"]).items()}
        return cls(digest=str(raw["digest"]), revision=int(raw["revision"]), parts=parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        parts = {node: dict(about) for node, about in self.parts.items()}
        return {"digest": self.digest, "revision": self.revision, "parts": parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """One answer that a run was given.

    Attributes:
        source: The `Source` that can ask again.
        key: What makes it the same question for that source: text of at most some KiB.
        text: The question, for people.
        told: The answer.
    """

    source: str
    key: str
    text: str
    told: Told

    @property
    def id(self) -> tuple[str, str]:
        """Return what makes it the same dependency."""
        return self.source, self.key


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A run that is over, of all that a release has.

    Attributes:
        run: Its id.
        good: Whether it left the node as its release wants it.
        told: The answers that it was given.
    """

    run: str
    good: bool
    told: tuple[Dependency, ...] = ()


class Source(Protocol):
    """One kind of dependency."""

    @property
    def name(self) -> str:
        """Return the word for it, as it stands in `Dependency.source`."""
        ...

    def told(self, run: str) -> Sequence[Dependency]:
        """Return what a run was told; nothing where its record does not say.

        Raises:
            StateError: The record is damaged, or cannot be read.
        """
        ...

    def ask(self, key: str) -> Told:
        """Return what a run would be told now.

        Raises:
            UnavailableError: That cannot be told: what is known is too old, say.
            InvalidInputError: The question is refused today.
        """
        ...


class Peers(Protocol):
    """What the other nodes say of themselves."""

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return what a node said last; `None` where nothing of it counts."""
        ...

    def since(self, revision: int) -> set[str]:
        """Return the nodes that said something after a revision of the bus."""
        ...


class Runs(Protocol):
    """The runs of this node."""

    def after(self, run: str | None) -> tuple[Sequence[EndedRun], bool]:
        """Return the whole runs that ended after one, the oldest first, and whether one is on.

        Args:
            run: The last that is known; `None` for none: then the last good one and those after it.
        """
        ...


class Host(Protocol):
    """What runs on this node: the agent."""

    @property
    def me(self) -> NodeName:
        """Return the node."""
        ...

    @property
    def is_running(self) -> bool:
        """Return whether a run of the agent's is on."""
        ...

    def owes(self, causes: Iterable[str]) -> bool:
        """Return whether the cause with one of these ids waits for its run to start."""
        ...

    def react(self, causes: Sequence[Cause]) -> None:
        """Take causes that this node has made; one that was taken before counts once."""
        ...
