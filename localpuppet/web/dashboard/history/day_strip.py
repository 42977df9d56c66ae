"""The last days of a node, a cell each: how its runs ended, the worst result first."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.inventory.run_end import BAD, CHANGED, GOOD, PARTS, Kind
from localpuppet.web.dashboard.lists.list_query import runs

DAYS = 14
# Class and letter of a cell by its worst result.
_LOOKS = {BAD: ("failed", "F"), CHANGED: ("changed", "C"), GOOD: ("unchanged", "✓")}


@dataclass(frozen=True, slots=True, kw_only=True)
class DayCell:
    """A day.

    Attributes:
        name: The day, such as `Mon 23`.
        counts: Runs by `GOOD`, `CHANGED` and `BAD`.
        style: The class of its worst result; empty without a run.
        letter: The same as a letter.
        url: The list of its runs.
    """

    name: str
    counts: Mapping[str, int]
    style: str
    letter: str
    url: str

    @property
    def words(self) -> str:
        """Return the counts in words."""
        parts = [f"{self.counts[part]} {part}" for part in PARTS if self.counts[part]]
        return ", ".join(parts) or "no run"


def days_before(now: float) -> Sequence[int]:
    """Return the numbers of the days of a strip, the oldest first."""
    return range(day_of(now) - DAYS + 1, day_of(now) + 1)


def day_strip(
    node: str, counts: Mapping[tuple[int, Kind], int], *, now: float
) -> Sequence[DayCell]:
    """Return the cells of a node, the oldest first.

    Args:
        node: The node.
        counts: Its runs by the number of the day since 1970, UTC, and by result.
        now: Seconds since 1970, UTC.
    """
    sums = {day: Counter[str]() for day in days_before(now)}
    for (day, kind), number in counts.items():
        if day in sums:
            sums[day][kind.part] += number
    return [_cell(node, day, day_counts) for day, day_counts in sums.items()]


def _cell(node: str, day: int, counts: Counter[str]) -> DayCell:
    worst = next((part for part in PARTS if counts[part]), "")
    style, letter = _LOOKS.get(worst, ("", "–"))
    return DayCell(
        name=f"{datetime.fromtimestamp(day * DAY, UTC):%a %-d}",
        counts=counts,
        style=style,
        letter=letter,
        url=runs(node=node, since=day * DAY, until=(day + 1) * DAY).url,
    )
