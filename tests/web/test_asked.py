"""URLs of lists."""

from urllib.parse import parse_qsl

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.web.asked import MAX_WORDS, Asked
from localpuppet.web.kinds import Kind


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"q": "role=web and os.family=Debian", "sort": "-ended", "page": "3"},
        {"outcome": "compile failed", "is": "on hold", "name": "web"},
    ],
)
def test_a_url_is_read_as_it_is_written(said: dict[str, str]) -> None:
    asked = Asked.parse(said)
    assert dict(parse_qsl(asked.query.removeprefix("?"))) == said
    assert Asked.parse(dict(parse_qsl(asked.query.removeprefix("?")))) == asked


@pytest.mark.parametrize(
    "said",
    [
        {"colour": "red"},
        {"sort": "password"},
        {"outcome": "sad"},
        {"is": "nice"},
        {"page": "0"},
        {"page": "-1"},
        {"page": "²"},
        {"page": "1000000"},
        {"q": "x" * (MAX_WORDS + 1)},
    ],
)
def test_what_is_not_understood_is_refused(said: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        Asked.parse(said)


def test_another_order_begins_at_the_first_page_and_turns_round() -> None:
    asked = Asked.parse({"sort": "ended", "page": "4"})
    assert asked.by("ended").query == "?sort=-ended"
    assert asked.by("node").query == ""
    assert asked.with_(outcome=Kind.FAILED).query == "?outcome=failed&sort=ended"
