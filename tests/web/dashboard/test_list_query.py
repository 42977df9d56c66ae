"""URLs of lists."""

from urllib.parse import parse_qsl

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.access.http_limits import MAX_LIST_WORDS
from localpuppet.web.dashboard.list_query import FAILURES, ListQuery


def words(asked: ListQuery) -> dict[str, str]:
    return dict(parse_qsl(asked.url.partition("?")[2]))


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"failure_cause": "0123456789abcdef", "release": "web/tags/r7"},
        {"q": "role=web and os.family=Debian", "sort": "-finished_at", "page": "3"},
        {"outcome": "compile failed", "is": "on hold", "name": "web"},
    ],
)
def test_a_url_is_read_as_it_is_written(said: dict[str, str]) -> None:
    asked = ListQuery.parse(said)
    assert words(asked) == said
    assert ListQuery.parse(words(asked)) == asked


@pytest.mark.parametrize(
    "said",
    [
        {"colour": "red"},
        {"sort": "password"},
        {"outcome": "sad"},
        {"is": "nice"},
        {"failure_cause": "../../x"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "²"},
        {"page": "1000000"},
        {"q": "x" * (MAX_LIST_WORDS + 1)},
    ],
)
def test_an_invalid_query_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        ListQuery.parse(said)


def test_another_order_starts_at_the_first_page_and_can_be_reversed() -> None:
    asked = ListQuery.parse({"sort": "finished_at", "page": "4"})
    assert asked.by("finished_at").url == "/nodes?sort=-finished_at"
    assert asked.by("node").url == "/nodes"
    assert asked.with_(outcome=Kind.FAILED).url == "/nodes?outcome=failed&sort=finished_at"
    assert asked.file("csv") == "/nodes.csv?sort=finished_at"


def test_each_list_has_its_own_orders_and_filters() -> None:
    asked = ListQuery.parse({"q": "role=web"}, FAILURES)
    assert (asked.sort, asked.down, asked.url) == ("nodes", True, "/failures?q=role%3Dweb")
    assert asked.by("nodes").url == "/failures?q=role%3Dweb&sort=nodes"
    assert asked.nodes(failure_cause="0123456789abcdef").startswith(
        "/nodes?q=role%3Dweb&failure_cause="
    )
    for said in ({"is": "late"}, {"sort": "node"}, {"failure_cause": "0123456789abcdef"}):
        with pytest.raises(InvalidInputError):
            ListQuery.parse(said, FAILURES)
