"""Filters, sorts, pages and counts rows."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import islice
from typing import Generic, TypeVar

from localpuppet.fleet.inventory.node_row import (
    LATE,
    ON_HOLD,
    ROLLED_BACK,
    WRONG_RELEASE,
    NodeRow,
    sort_rows,
)
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists.list_query import PAGE, ListQuery
from localpuppet.web.dashboard.lists.node_standings import NodeStandings

T = TypeVar("T")
# Rows of a part of the overview; the rest is a link away.
MOST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPage(Generic[T]):
    """The rows of a page.

    Attributes:
        rows: At most `PAGE`.
        total: The number of rows on all pages.
        first: The number of the first row, from 1; 0 without one.
        pages: The number of pages, at least 1.
    """

    rows: Sequence[T]
    total: int
    first: int
    pages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A summary of a fleet.

    Attributes:
        total: The number of nodes.
        kinds: Nodes by the result of their last run, in the order of `Kind`; zeros are left out.
        concerns: Nodes by state, and late ones.
        held: Nodes on hold that a person holds, by the end of the hold.
        rollout_holds: Rollout → nodes that it holds, sorted.
        late: Late nodes, the latest first.
        unresponsive: Nodes without a running agent, by name.
        strangers: Nodes that are not trusted.
        wrong_releases: Nodes with a wrong release, each with the reason.
        rolled_back: Nodes that run an earlier release by a decision, each with the decision.
    """

    total: int
    kinds: tuple[tuple[Kind, int], ...]
    concerns: dict[str, int]
    held: tuple[NodeRow, ...]
    rollout_holds: Mapping[str, Sequence[str]]
    late: tuple[NodeRow, ...]
    unresponsive: tuple[NodeRow, ...]
    strangers: tuple[NodeRow, ...]
    wrong_releases: tuple[tuple[str, str], ...]
    rolled_back: tuple[tuple[str, str], ...]


def chosen(
    standing: NodeStandings, asked: ListQuery, *, names: Collection[str] | None, now: float
) -> list[NodeRow]:
    """Return the requested rows, in order; equal ones by name.

    Args:
        standing: All nodes.
        asked: The request.
        names: The nodes that the expression finds; `None` for all.
        now: Seconds since 1970, UTC.
    """
    few = [*_necessary(standing, asked, now), *([] if names is None else [names])]
    if not few:
        rows = standing.sorted(asked.sort, down=asked.down, now=now)
        return [row for row in rows if asked.name in row.node] if asked.name else rows
    smallest = min(few, key=len)
    others = [set(item) for item in few if item is not smallest]
    selected = [
        row
        for row in standing.some(smallest)
        if all(row.node in names_of_filter for names_of_filter in others) and asked.name in row.node
    ]
    return sort_rows(selected, asked.sort, down=asked.down, now=now)


def _necessary(standing: NodeStandings, asked: ListQuery, now: float) -> Iterator[Collection[str]]:
    """Yield the matching nodes of each filter but the name."""
    if asked.outcome is not None:
        yield standing.with_kind(asked.outcome)
    if asked.release:
        yield standing.with_key("release", asked.release)
    if asked.older:
        yield standing.older(asked.older)
    if asked.failure_cause:
        yield standing.failure_causes.get(asked.failure_cause, ())
    if asked.is_ == LATE:
        yield standing.late(now)
    elif asked.is_ == WRONG_RELEASE:
        yield standing.wrong_releases().keys()
    elif asked.is_ == ROLLED_BACK:
        yield standing.rolled_back().keys()
    elif asked.is_ == ON_HOLD:
        yield standing.held
    elif asked.is_:
        yield standing.with_key("state", asked.is_)


def paged(rows: Sequence[T], page: int) -> ListPage[T]:
    """Return a page of rows; beyond the last one there are none."""
    begin = (page - 1) * PAGE
    shown = rows[begin : begin + PAGE]
    return ListPage(
        rows=shown,
        total=len(rows),
        first=begin + 1 if shown else 0,
        pages=max(1, -(-len(rows) // PAGE)),
    )


def overview(standing: NodeStandings, *, names: Collection[str] | None, now: float) -> Overview:
    """Return the summary of nodes; see `chosen` for `names`."""
    kinds, states = +standing.kinds, +standing.states
    if names is not None:
        some = standing.some(names)
        kinds, states = Counter(row.outcome for row in some), Counter(row.state for row in some)

    def asked_for(wanted: Iterable[str]) -> list[NodeRow]:
        return [standing.rows[name] for name in wanted if names is None or name in names]

    def reasons_for(all_: Mapping[str, str]) -> dict[str, str]:
        return {node: all_[node] for node in all_ if names is None or node in names}

    odd, back = reasons_for(standing.wrong_releases()), reasons_for(standing.rolled_back())
    late, held = asked_for(standing.late(now)), asked_for(standing.held)
    lost = (name for name in standing.unresponsive if names is None or name in names)
    return Overview(
        total=kinds.total(),
        kinds=tuple((kind, kinds[kind]) for kind in Kind if kinds[kind]),
        concerns={
            **states,
            ON_HOLD: len(held),
            LATE: len(late),
            ROLLED_BACK: len(back),
            WRONG_RELEASE: len(odd),
        },
        held=tuple(nsmallest(MOST, filter(_held_by_person, held), key=_free)),
        rollout_holds=_rollout_holds(held),
        late=tuple(nsmallest(MOST, late, key=lambda row: (row.finished_at or 0.0, row.node))),
        unresponsive=tuple(asked_for(islice(lost, MOST))),
        strangers=tuple(asked_for(standing.strangers)[:MOST]),
        wrong_releases=tuple(nsmallest(MOST, odd.items())),
        rolled_back=tuple(nsmallest(MOST, back.items())),
    )


def _held_by_person(row: NodeRow) -> bool:
    return not row.holds or any(not hold.rollout for hold in row.holds)


def _rollout_holds(held: Iterable[NodeRow]) -> dict[str, list[str]]:
    holds: dict[str, list[str]] = {}
    for row in sorted(held, key=lambda row: row.node):
        for rollout in {hold.rollout for hold in row.holds} - {""}:
            holds.setdefault(rollout, []).append(row.node)
    return holds


def _free(row: NodeRow) -> tuple[float, str]:
    ends = [hold.until for hold in row.holds]
    known = [end for end in ends if end is not None]
    return max(known) if known and len(known) == len(ends) else float("inf"), row.node
