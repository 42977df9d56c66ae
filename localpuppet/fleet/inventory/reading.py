"""The ports to read the inventory, and the difference between "none" and "could not ask".

- A query results in `InventoryAnswer`, whose answer may be empty, or in a reason for no answer. A
  view that is stale or unreadable never looks like an empty one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_duration
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.tables import EntryRows, NodeBrief

T = TypeVar("T")
# Seconds by which a view may be ahead of the clock before the clock is considered wrong.
SKEW = 30.0
# Seconds after its beginning in which a bus that lost its data waits for the nodes.
RETURN = 3600.0


class ExportsReader(Protocol):
    """The exports of nodes, as far as this node has them."""

    def attach(self, connection: Connection) -> None:
        """Attach the exports to a connection as `held`, outside of a transaction."""


class InventoryReader(Protocol):
    """The accepted entries of nodes that are not forgotten, and the exports of these nodes."""

    @property
    def revision(self) -> int:
        """Return the bus's revision up to which changes are included; 0 before a listing."""

    def current_until(self) -> float | None:
        """Return when the view was last current, in seconds since 1970 UTC; `None` if never."""

    def entries(self) -> Iterator[InventoryEntry]:
        """Yield entries of one moment, sorted by node name."""

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return the entry of a node; `None` without one."""

    def nodes(self, names: Collection[str] | None = None) -> Iterator[NodeBrief]:
        """Yield the same nodes as `entries` without their facts."""

    def rows(
        self, own: EntryRows | None = None, *, exports: bool = False
    ) -> AbstractContextManager[Connection]:
        """Lend the rows of one moment: a connection as `tables.attach` prepares it.

        Raises:
            UnavailableError: A node's exports were never read from the bus.
        """

    def check(self) -> None:
        """End a question early by an error; called often."""


class InventoryAnswer(Value, Generic[T]):
    """An answer of a view that was current `age` seconds ago; empty if no node matches."""

    answer: T
    revision: int
    age: float


class UnlistedNodes(Value):
    """The nodes that are online and have no entry in a view, sorted.

    A node has none before its first good, whole run; those `lost` had one before the bus lost its
    data.
    """

    names: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def unlisted_nodes(
    online: Mapping[str, Mapping[str, Json]], listed: Collection[str], *, born: float, now: float
) -> UnlistedNodes:
    """Return the online nodes that a view lacks; a bus `born` at 0 has an unknown age.

    A bus that is younger than one of its agents is new, or has lost its data. After some time that
    is no reason any more: a node could keep others from asking for ever.
    """
    states = {node: state for node, state in online.items() if state.get("started_at")}
    names = tuple(sorted(states.keys() - set(listed)))
    starts = [datetime.fromisoformat(str(state["started_at"])) for state in states.values()]
    is_new = bool(starts) and min(starts).timestamp() < born and now < born + RETURN
    lost = tuple(name for name in names if is_new and states[name].get("has_entry") is True)
    return UnlistedNodes(names=names, lost=lost)


def outlived(online: Mapping[str, Mapping[str, Json]], born: float) -> bool:
    """Return whether an agent whose node had an entry started before the bus was `born`.

    `online` has what each node published about itself; see `presence.believe`.
    """
    return any(
        state.get("has_entry") is True
        and datetime.fromisoformat(str(state["started_at"])).timestamp() < born
        for state in online.values()
        if state.get("started_at")
    )


def refuse_lost(unlisted: UnlistedNodes) -> None:
    """Refuse a view that lacks nodes which had an entry."""
    if unlisted.lost:
        raise UnavailableError(
            f"the bus lost its data, and has no entry yet of {shown_names(unlisted.lost)}",
            where="inventory",
            hint="ask again in some seconds; 'localpuppet inventory forget' leaves a node out",
        )


def ask(
    reader: InventoryReader,
    question: Callable[[InventoryReader], T],
    *,
    now: float,
    max_stale: float,
) -> InventoryAnswer[T] | str:
    """Return the answer to a query, or the reason for no answer."""
    try:
        current = reader.current_until()
        if current is None:
            return "the inventory was not read from the bus yet"
        age = now - current
        if age < -SKEW:
            return (
                f"the clock was set back by {show_duration(-age)}: the age of the inventory "
                "is unknown"
            )
        if age > max_stale:
            return (
                f"the inventory was last current {show_duration(age)} ago; "
                f"inventory.max_stale is {show_duration(max_stale)}"
            )
        return InventoryAnswer(revision=reader.revision, age=max(0.0, age), answer=question(reader))
    except (StateError, UnavailableError) as error:
        return str(error)


def must_ask(
    reader: InventoryReader,
    question: Callable[[InventoryReader], T],
    *,
    now: float,
    max_stale: float,
    hint: str = "",
) -> InventoryAnswer[T]:
    """Return the answer to a query or raise an error; see `ask`."""
    answer = ask(reader, question, now=now, max_stale=max_stale)
    if isinstance(answer, str):
        raise UnavailableError(f"cannot answer the query: {answer}", where="inventory", hint=hint)
    return answer
