"""Pages of reports that are too large for memory."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.query.columns import COLUMNS
from localpuppet.fleet.inventory.query.records import RecordHint
from localpuppet.fleet.inventory.query.tree import Entity, Field, SortOrder
from localpuppet.web.puppetdb.reports.report_plan import MAX_DEPTH, MAX_PAGE
from tests.web.puppetdb.reports.played_runs import MINUTE, NOW, PlayedRuns, node, run

ALL = frozenset(COLUMNS[Entity.REPORTS])
END = "end_time"
BY_END = (SortOrder(field=Field(column=END)),)


@pytest.mark.parametrize(
    ("order", "limit", "offset"),
    [(BY_END, MAX_PAGE + 1, 0), ((), MAX_PAGE + 1, 0), ((), 1, MAX_DEPTH), ((), 10**9, 10**9)],
)
def test_a_large_page_is_not_held_in_memory(
    order: tuple[SortOrder, ...], limit: int, offset: int
) -> None:
    """Its rows are read one by one, so the query can end at its deadline."""
    played = PlayedRuns([run("a", NOW - MINUTE)], [node("a")])
    hint = RecordHint(exact=True, order=order, limit=limit, offset=offset, columns=ALL)
    page = played.records.rows(Entity.REPORTS, hint)
    assert not page.cut
    assert len([*page.rows]) == 1


def test_a_page_behind_very_many_sorted_reports_is_an_error() -> None:
    played = PlayedRuns([run("a", NOW - MINUTE)], [node("a")])
    hint = RecordHint(exact=True, order=BY_END, limit=10, offset=MAX_DEPTH, columns=ALL)
    with pytest.raises(InvalidInputError, match="behind the first 100000"):
        played.records.rows(Entity.REPORTS, hint)
