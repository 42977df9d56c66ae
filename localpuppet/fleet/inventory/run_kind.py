"""The results of runs in the words that terminal and dashboard show, count and filter by."""

from collections.abc import Mapping
from enum import StrEnum

from localpuppet.base.formats.values import Json
from localpuppet.node.runs.reason import Category
from localpuppet.node.runs.run import Outcome


class Kind(StrEnum):
    """The result of a node's last run."""

    COMPILE_FAILED = "compile failed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    CHANGED = "changed"
    CORRECTED = "corrected"
    UNCHANGED = "unchanged"
    NOOP_PENDING = "noop pending"
    NOOP_CLEAN = "noop clean"
    NONE = "no run"

    @property
    def bad(self) -> bool:
        """Whether the result needs attention."""
        return self in _BAD

    @property
    def place(self) -> int:
        """Return the place of the result in a list that is sorted by results."""
        return _PLACES[self]

    @property
    def style(self) -> str:
        """Return the word as a class of the style sheet."""
        return self.value.replace(" ", "-")


_PLACES = {kind: place for place, kind in enumerate(Kind)}
_BAD = frozenset({Kind.COMPILE_FAILED, Kind.FAILED, Kind.TIMED_OUT, Kind.INTERRUPTED, Kind.REFUSED})
_BY_OUTCOME = {
    Outcome.TIMED_OUT: Kind.TIMED_OUT,
    Outcome.CANCELLED: Kind.CANCELLED,
    Outcome.INTERRUPTED: Kind.INTERRUPTED,
}


def kind_of(last: Mapping[str, Json]) -> Kind:
    """Return the result of a run.

    Args:
        last: The last run in a node's presence; empty without one.
    """
    try:
        outcome = Outcome(str(last.get("outcome")))
    except ValueError:
        return Kind.NONE
    why = last.get("category")
    if outcome is Outcome.FAILED:
        return Kind.COMPILE_FAILED if why == Category.NO_REPORT.value else Kind.FAILED
    if outcome is Outcome.CHANGED:
        return Kind.CORRECTED if last.get("corrective_change") is True else Kind.CHANGED
    if outcome is Outcome.UNCHANGED and last.get("noop") is True:
        return Kind.NOOP_PENDING if why == Category.NOOP_PENDING.value else Kind.NOOP_CLEAN
    return _BY_OUTCOME.get(outcome, Kind.UNCHANGED)
