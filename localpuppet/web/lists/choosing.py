"""Which rows a page shows: filtered, sorted, paged, counted.

Owns: what each filter and order means. Refuses to know: URLs, HTML.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from localpuppet.web.kinds import Kind
from localpuppet.web.lists.agreeing import disagreeing
from localpuppet.web.lists.asked import PAGE, Asked
from localpuppet.web.row import DISAGREES, LATE, NOT_TRUSTED, ON_HOLD, Row

T = TypeVar("T")
# Rows of a part of the overview; the rest is a link away.
MOST = 10
_KINDS = {kind: place for place, kind in enumerate(Kind)}
_KEYS: dict[str, Callable[[Row], Any]] = {
    "node": lambda row: row.node,
    "state": lambda row: row.state,
    "outcome": lambda row: _KINDS[row.kind],
    "ended": lambda row: row.ended or 0.0,
    "release": lambda row: row.app,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """The rows of a page.

    Attributes:
        rows: At most `PAGE`.
        total: How many rows there are on all pages.
        first: The number of the first row, from 1; 0 where there is none.
        pages: How many pages; at least 1.
    """

    rows: Sequence[T]
    total: int
    first: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """How a fleet is.

    Attributes:
        total: How many nodes.
        kinds: How many nodes ended their last run how, in the order of `Kind`; those of none left
            out.
        concerns: How many nodes are in which state, or late.
        held: Nodes on hold, those first that are free first.
        late: Late nodes, the latest first.
        strangers: Nodes that are not trusted.
        odd: Nodes that disagree with their releases, and why.
    """

    total: int
    kinds: tuple[tuple[Kind, int], ...]
    concerns: dict[str, int]
    held: tuple[Row, ...]
    late: tuple[Row, ...]
    strangers: tuple[Row, ...]
    odd: tuple[tuple[str, str], ...]


def chosen(
    rows: Collection[Row], asked: Asked, *, names: Collection[str] | None, now: float
) -> list[Row]:
    """Return all rows that are asked for, in order; of equal ones by name.

    Args:
        rows: Of all nodes.
        asked: What is asked for.
        names: The nodes that the expression finds; `None` for all.
        now: Seconds since 1970, UTC.
    """
    if asked.is_ == DISAGREES:
        odd = disagreeing(rows)
        names = odd.keys() if names is None else odd.keys() & names
    found = [row for row in rows if wanted(row, asked, names, now)]
    found.sort(key=lambda row: row.node)
    found.sort(key=_KEYS[asked.sort], reverse=asked.down)
    return found


def paged(rows: Sequence[T], page: int) -> Page[T]:
    """Return a page of rows; beyond the last one there are none."""
    begin = (page - 1) * PAGE
    shown = rows[begin : begin + PAGE]
    return Page(
        rows=shown,
        total=len(rows),
        first=begin + 1 if shown else 0,
        pages=max(1, -(-len(rows) // PAGE)),
    )


def overview(rows: Collection[Row], *, names: Collection[str] | None, now: float) -> Overview:
    """Return how the nodes are; see `chosen` for `names`."""
    found = [row for row in rows if names is None or row.node in names]
    kinds = Counter(row.kind for row in found)
    odd = sorted(
        (node, why) for node, why in disagreeing(rows).items() if names is None or node in names
    )
    late = sorted((row for row in found if row.late(now)), key=lambda row: row.ended or 0.0)
    held = sorted((row for row in found if row.holds), key=_free)
    strangers = sorted((row for row in found if row.state == NOT_TRUSTED), key=lambda row: row.node)
    return Overview(
        total=len(found),
        kinds=tuple((kind, kinds[kind]) for kind in Kind if kinds[kind]),
        concerns={
            **Counter(row.state for row in found),
            ON_HOLD: len(held),
            LATE: len(late),
            DISAGREES: len(odd),
        },
        held=tuple(held[:MOST]),
        late=tuple(late[:MOST]),
        strangers=tuple(strangers[:MOST]),
        odd=tuple(odd[:MOST]),
    )


def wanted(row: Row, asked: Asked, names: Collection[str] | None, now: float) -> bool:
    """Return whether a node is asked for; see `chosen`."""
    return (
        (names is None or row.node in names)
        and asked.name in row.node
        and asked.outcome in (None, row.kind)
        and asked.release in ("", row.app)
        and (not asked.fault or row.fault == asked.fault)
        and (not asked.is_ or _is(row, asked.is_, now))
    )


def _is(row: Row, concern: str, now: float) -> bool:
    if concern == LATE:
        return row.late(now)
    if concern == DISAGREES:
        return True  # `chosen` knows who does, by all rows
    # A run that was allowed under a hold goes on: the node is on hold all the same.
    return row.state == concern or (concern == ON_HOLD and bool(row.holds))


def _free(row: Row) -> tuple[float, str]:
    ends = [hold.until for hold in row.holds]
    last = float("inf") if None in ends else max(end for end in ends if end is not None)
    return last, row.node
