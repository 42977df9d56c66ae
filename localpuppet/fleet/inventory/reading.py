"""How the inventory is read, and how "none" differs from "could not ask".

Owns: the ports `InventoryReader` and `ExportsReader`, and when an answer still counts. Refuses to
know: where entries are kept, query languages.

Invariant: a question ends in `Found`, whose answer may be empty, or in `CouldNotAsk`; a view that
was not current of late, and one that cannot be read, never look like "there is nobody".
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_duration
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.brief import KnownNode
from localpuppet.fleet.inventory.entry import InventoryEntry

T = TypeVar("T")
# A view may be this much newer than the clock says before the clock is not believed.
SKEW = 30.0
Scalar = str | int | float | bool
# A dotted path of facts (`os.family`), `role` or `node` → values of which one must be there.
Equal = Mapping[str, Collection[Scalar]]


class Exported(Protocol):
    """A resource that a node offers to others."""

    @property
    def type(self) -> str:
        """Return its type, as Puppet writes it: `Concat::Fragment`."""
        ...

    @property
    def title(self) -> str:
        """Return its title."""
        ...

    @property
    def tags(self) -> tuple[str, ...]:
        """Return its tags, sorted; in lower case."""
        ...

    @property
    def file(self) -> str | None:
        """Return where it is declared, on its own node; `None` if unknown."""
        ...

    @property
    def line(self) -> int | None:
        """Return in which line; `None` if unknown."""
        ...

    @property
    def parameters(self) -> Mapping[str, Json]:
        """Return its values by name, without the title."""
        ...


class ExportsReader(Protocol):
    """What nodes export, as this node holds it."""

    def exporting(self, kind: str | None) -> set[str]:
        """Return the nodes that export something.

        Args:
            kind: Of this type; `None` for any.

        Raises:
            UnavailableError: What a node exports was never read from the bus.
        """
        ...

    def exported(self, node: str, kind: str | None) -> Iterator[Exported]:
        """Yield what a node exports, sorted by type and title.

        Args:
            node: The node.
            kind: Only of this type; `None` for all.

        Raises:
            UnavailableError: What the node exports was never read from the bus.
        """
        ...


class InventoryReader(ExportsReader, Protocol):
    """The entries of the nodes that are trusted and not forgotten, and what these export."""

    @property
    def revision(self) -> int:
        """Return the bus's revision up to which changes are in; 0 before the first listing."""
        ...

    def current_until(self) -> float | None:
        """Return when the view was last known to be current: seconds since 1970, UTC.

        `None` where it never was.
        """
        ...

    def entries(self, equal: Equal | None = None) -> Iterator[InventoryEntry]:
        """Yield entries, sorted by the node's name, as they were at one moment.

        Args:
            equal: A hint by which an index may narrow: entries that cannot match may be left out,
                and others that do not match may be there. The caller filters again.
        """
        ...

    def nodes(self, equal: Equal | None = None) -> Iterator[KnownNode]:
        """Yield the same as `entries`, each entry not unpacked yet.

        A node's entry can be asked for until the iterator is done.

        Args:
            equal: As for `entries`.
        """
        ...

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node; `None` where there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found(Generic[T]):
    """An answer.

    Attributes:
        answer: It; an empty one means that there is nobody.
        revision: The revision of the bus that the answer is from.
        age: For how many seconds nobody has said that it is current.
    """

    answer: T
    revision: int
    age: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CouldNotAsk:
    """No answer, not even an empty one.

    Attributes:
        reason: Why, in one line.
        current_until: When the view was last known to be current: seconds since 1970; `None` where
            it never was.
    """

    reason: str
    current_until: float | None


def ask(
    reader: InventoryReader,
    question: Callable[[InventoryReader], T],
    *,
    now: float,
    max_stale: float,
) -> Found[T] | CouldNotAsk:
    """Return what a question finds, or that it could not be asked.

    Args:
        reader: The entries.
        question: Reads what it needs and returns the answer.
        now: Seconds since 1970, UTC.
        max_stale: For how many seconds an answer counts after the view was last current.
    """
    current: float | None = None
    try:
        current = reader.current_until()
        if current is None:
            return CouldNotAsk(
                reason="the inventory was not read from the bus yet", current_until=None
            )
        age = now - current
        if age < -SKEW:
            return CouldNotAsk(
                reason=f"the clock was set back by {show_duration(-age)}: nobody knows how old the "
                "inventory is",
                current_until=current,
            )
        if age > max_stale:
            return CouldNotAsk(
                reason=f"the inventory was last current {show_duration(age)} ago; "
                f"inventory.max_stale is {show_duration(max_stale)}",
                current_until=current,
            )
        return Found(revision=reader.revision, age=max(0.0, age), answer=question(reader))
    except (StateError, UnavailableError) as error:
        return CouldNotAsk(reason=str(error), current_until=current)


def must_ask(
    reader: InventoryReader,
    question: Callable[[InventoryReader], T],
    *,
    now: float,
    max_stale: float,
    hint: str = "",
) -> Found[T]:
    """Return what a question finds, for who can do nothing without it; see `ask`.

    Args:
        reader: The entries.
        question: Reads what it needs and returns the answer.
        now: Seconds since 1970, UTC.
        max_stale: For how many seconds an answer counts after the view was last current.
        hint: What to do when it cannot be asked.
    """
    found = ask(reader, question, now=now, max_stale=max_stale)
    if isinstance(found, CouldNotAsk):
        raise UnavailableError(f"could not be asked: {found.reason}", where="inventory", hint=hint)
    return found
